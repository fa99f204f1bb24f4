"""Runtime adapters: build, load and run artifacts, and report the capabilities of this machine."""

from .base import Runner
from .build import build_engine
from .doctor import doctor
from .registry import engine, load, names

__all__ = ["Runner", "build_engine", "doctor", "engine", "load", "names"]
