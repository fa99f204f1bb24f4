"""ONNX Runtime: build models optimized ahead of time for a processor, and run models on CPU or GPU."""

from .engine import OnnxRuntime

__all__ = ["OnnxRuntime"]
