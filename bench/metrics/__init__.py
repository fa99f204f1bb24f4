"""Accuracy over a data set, and the difference from the outputs of the baseline."""
