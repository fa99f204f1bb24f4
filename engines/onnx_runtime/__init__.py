"""ONNX Runtime on the CPU: offline-optimized models for this processor, and a runner."""

from .engine import OnnxRuntime

__all__ = ["OnnxRuntime"]
