"""Benchmark: each artifact in its own process, interleaved rounds, intervals, accuracy."""
