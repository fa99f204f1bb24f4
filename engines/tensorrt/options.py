"""TensorRT's options, declared in `spec/`, under the name that builders import."""

from ...spec.tensorrt import AUTO, OFF, TensorRTOptions, parse_bytes

__all__ = ["AUTO", "OFF", "TensorRTOptions", "parse_bytes"]
