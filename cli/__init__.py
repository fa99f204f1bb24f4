"""The command line: a file for verbs of a kind. Only this room prints, exits, or catches to present."""

from .main import main

__all__ = ["main"]
