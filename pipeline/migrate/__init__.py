"""Command lines of trtexec and Polygraphy become recipes."""

from .migration import Migration, migrate

__all__ = ["Migration", "migrate"]
