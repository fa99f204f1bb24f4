"""Balance channels of float models by factors that cancel, which makes the models easier to quantize."""
