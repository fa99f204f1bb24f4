"""The report of a sweep."""

from pathlib import Path


def write_sweep_report(results, output):
    return None
