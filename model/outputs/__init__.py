"""Outputs: what they are, and how those of two models compare."""
