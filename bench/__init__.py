"""Benchmark artifacts in separate processes and interleaved rounds, with intervals and accuracy."""
