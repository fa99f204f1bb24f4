"""Weights of 4 or 8 bits, activations in float."""
