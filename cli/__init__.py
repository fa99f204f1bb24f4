"""The command line: one short file per verb. Only this room prints, exits, or catches to present."""

from .main import main

__all__ = ["main"]
