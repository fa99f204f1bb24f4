"""Measuring: workers, launches, rounds, and the figures beside the latency."""
