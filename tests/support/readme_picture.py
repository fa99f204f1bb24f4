"""Draw the README's picture from a results file: the trade-off chart of the report, and a table.

    python tests/support/readme_picture.py examples/digits/out/results.json

It writes `docs/assets/digits-light.svg` and `digits-dark.svg`, and prints the caption and the answer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from qcompile.bench.report import charts, svg
from qcompile.bench.report.recommendation import recommend
from qcompile.bench.report.source import ReportedArtifact, ReportSource, read_source
from qcompile.bench.report.summary import summarize
from qcompile.core.figures import bytes_text

ROOT = Path(__file__).parents[2]
STYLE = (ROOT / "bench/report/style.css").read_text(encoding="utf-8")
WIDTH, PLOT_HEIGHT, ROW_HEIGHT, LEFT, RIGHT = 640, 250, 27, 16, 624
COLUMNS = (
    ("artifact", 0),
    ("latency, ms", 280),
    ("speed-up", 448),
    ("size", 522),
    ("accuracy", RIGHT - LEFT),
)
"""Title and place in pixels; the first column begins there, the others end there."""


def pictures(source: ReportSource) -> dict[str, str]:
    """Return "light" and "dark" to the text of an SVG file."""
    subjects = source.measured
    plane = re.search(r'<svg width="100%" height="\d+">(.*)</svg></div>', charts.pareto_chart(subjects), re.S)
    assert plane, "at least two artifacts have a size and a latency"
    top = PLOT_HEIGHT + 88
    rows = [_row(list(zip([title for title, _ in COLUMNS], COLUMNS, strict=True)), "muted")]
    rows += [_row(list(zip(_cells(s), COLUMNS, strict=True)), "ink", s) for s in subjects]
    panels = [((64, 36, WIDTH - 96, PLOT_HEIGHT), plane[1])]
    for index, row in enumerate(rows):
        panels.append(((LEFT, top + index * ROW_HEIGHT, RIGHT - LEFT, ROW_HEIGHT), row))
    size = (WIDTH, top + len(rows) * ROW_HEIGHT + 8)
    return {
        name: svg.picture(panels, size, colours=colours)
        for name, colours in (("light", _colours(0)), ("dark", _colours(1)))
    }


def caption(source: ReportSource) -> str:
    """Return machine, input, date and samples of the results."""
    settings, environment = source.results.settings, source.results.environment
    inputs = ", ".join(f"{name}:{shape}" for name, shape in (settings.get("inputs") or {}).items())
    samples = max((s.row.accuracy.samples or 0 for s in source.measured if s.row.accuracy), default=0)
    return (
        f"{environment.get('processor')}, {environment.get('cores_usable')} cores, "
        f"{settings['threads']} threads, {inputs}, {samples} samples, {str(source.results.created)[:10]}"
    )


def _cells(subject: ReportedArtifact) -> list[str]:
    text = subject.text
    speedup = f"{text.speedup} {text.interval}".strip()
    name = f"{subject.name} (baseline)" if subject.is_baseline else subject.name
    size = bytes_text(subject.row.held_bytes)
    return [name, text.latency, speedup, size, text.accuracy]


def _row(
    cells: Sequence[tuple[str, tuple[str, int]]], colour: str, subject: ReportedArtifact | None = None
) -> str:
    width, parts = RIGHT - LEFT, []
    if subject is not None:
        parts.append(svg.text(0, 68, str(subject.number), shift=(8, 0), colour="muted", size=11))
        parts.append(svg.mark(subject.family, 100 * 24 / width, 50))
        parts.append(svg.line((0, 0), (100, 0)))
    for index, (words, (_, place)) in enumerate(cells):
        shift = (36, 0) if index == 0 and subject is not None else (0, 0)
        anchor = "end" if index else "start"
        parts.append(
            svg.text(100 * place / width, 68, words, shift=shift, anchor=anchor, colour=colour, size=14)
        )
    return "".join(parts)


def _colours(mode: int) -> dict[str, str]:
    """Return the colours of the report's style: 0 light, 1 dark."""
    return {name: re.findall(rf"--{name}: (#\w+)", STYLE)[mode] for name in svg.COLOURS}


if __name__ == "__main__":
    results = read_source(Path(sys.argv[1]))
    for name, text in pictures(results).items():
        path = ROOT / f"docs/assets/digits-{name}.svg"
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(text.encode()):,} bytes")
    print(caption(results), recommend(Path(sys.argv[1])).sentence, *summarize(results).caveats, sep="\n")
