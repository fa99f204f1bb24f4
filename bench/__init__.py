"""Measuring: each artifact in a process of its own, interleaved rounds, intervals, accuracy, differences."""

from .benchmark import benchmark
from .diff import diff
from .results import Results, load_results

__all__ = ["Results", "benchmark", "diff", "load_results"]
