"""Float models made easier to quantize, by factors that cancel."""
