"""Transform a model into the ONNX file of a target: export, simplify, quantize, lower its operators."""
