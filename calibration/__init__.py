"""Data in, ranges out: which tensors are observed, what they hold, where they are clipped."""

from .batches import Data
from .calibrate import calibrate, observe
from .ranges import Ranges
from .ranges_file import load_ranges, save_ranges
from .readers import Batch
from .thresholds import Method, parse_method

__all__ = [
    "Batch", "Data", "Method", "Ranges", "calibrate", "load_ranges", "observe", "parse_method", "save_ranges",
]  # fmt: skip
