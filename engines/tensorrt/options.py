"""TensorRT's options, which `spec/` declares, under the name that builders import them by."""

from ...spec.tensorrt import AUTO, OFF, TensorRTOptions, parse_bytes

__all__ = ["AUTO", "OFF", "TensorRTOptions", "parse_bytes"]
