"""Data in, ranges out: which tensors are observed, what they hold, where they are clipped."""

from .batches import Batch, Data
from .calibrate import calibrate, observe
from .ranges import Ranges, load_ranges, save_ranges

__all__ = ["Batch", "Data", "Ranges", "calibrate", "load_ranges", "observe", "save_ranges"]
