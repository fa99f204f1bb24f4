"""Rows, the results file, its other forms, and the gate between two files."""
