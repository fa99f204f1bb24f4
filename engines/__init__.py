"""Runtimes: what each can build and run here, and the runners that execute artifacts."""

from .base import Runner
from .build import build_engine
from .doctor import doctor
from .registry import engine, load, names

__all__ = ["Runner", "build_engine", "doctor", "engine", "load", "names"]
