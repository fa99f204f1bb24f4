"""What DATA may be: arrays, folders of images, functions; read batch by batch."""
