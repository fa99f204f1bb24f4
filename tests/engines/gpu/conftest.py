"""A failure is told at once: a run on a lent GPU may be ended before pytest's summary."""

from __future__ import annotations

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        print(f"\n{report.nodeid}\n{report.longreprtext}", flush=True)
