"""The command line, one file per group of verbs. Only this package prints, exits, or shows exceptions."""

from .main import main

__all__ = ["main"]
