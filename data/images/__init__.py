"""Images: folders of files with classes, maps or boxes, decoded as the model was trained to see them."""
