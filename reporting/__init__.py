"""The report: one HTML file that holds everything, made of a results file and what lies beside it.

results.json ─▶ source ─▶ summary, sections (charts, tables) ─▶ page ─▶ report.html
"""

from .page import write_report

report = write_report  # the verb, as `qcompile.report`

__all__ = ["report", "write_report"]
