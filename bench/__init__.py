"""Measuring: each artifact in a process of its own, interleaved rounds, intervals, accuracy."""
