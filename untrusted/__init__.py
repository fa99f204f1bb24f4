"""Verbs on files of strangers: in a process of their own, with limits on memory and time."""

from .limits import Limits
from .run import Finished, run_untrusted

__all__ = ["Finished", "Limits", "run_untrusted"]
