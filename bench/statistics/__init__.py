"""Levels, ratios and their intervals: how sure a figure is."""
