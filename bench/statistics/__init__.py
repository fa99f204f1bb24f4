"""Levels, ratios, and their confidence intervals."""
