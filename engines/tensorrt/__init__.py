"""TensorRT 8.5 to 11 and TensorRT-RTX: one builder, one runner, one file with most version differences."""

from .engine import TensorRT, TensorRTRTX

__all__ = ["TensorRT", "TensorRTRTX"]
