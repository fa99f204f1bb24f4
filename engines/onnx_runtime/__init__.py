"""ONNX Runtime: offline-optimized models for this processor, and a runner, there or on a GPU."""

from .engine import OnnxRuntime

__all__ = ["OnnxRuntime"]
