"""Calibration: choose the tensors to observe, count their values, choose their ranges."""

from .calibrate import observe
from .ranges import Ranges
from .ranges_file import load_ranges, save_ranges
from .taps import float_activations
from .thresholds import Method, parse_method

__all__ = ["Method", "Ranges", "float_activations", "load_ranges", "observe", "parse_method", "save_ranges"]
