"""Warm-up, interleaved rounds, curves, energy, and what disturbed them."""
