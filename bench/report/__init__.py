"""Write a report: one self-contained HTML file from a results file.

results.json ─▶ source ─▶ summary, sections (charts, tables) ─▶ page ─▶ report.html
"""

from .page import write_report
from .page import write_report as report

__all__ = ["report", "write_report"]
