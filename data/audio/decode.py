"""Decode a recording to mono float32 at the rate that the model takes."""

from __future__ import annotations

SUFFIXES = frozenset((".wav", ".flac", ".ogg"))
