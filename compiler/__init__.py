"""From a model to an ONNX file that a target can use: export, simplify, quantize, lower its operators."""
