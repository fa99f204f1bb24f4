"""Warm-up, interleaved rounds, curves, energy, and sources of noise."""
