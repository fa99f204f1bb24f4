"""Choose the layers to quantize: rank them by damage, and mix precisions within an accuracy budget."""
