"""The page of the documents that shows the results, and the file that keeps them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import NETWORKS, boxes

Row = dict[str, Any]
Results = dict[str, dict[str, Row]]

RESULTS = Path(__file__).with_name("results.jsonl")
PAGE = Path(__file__).parents[2] / "docs/reference/scoreboard.md"
REASONS = Path(__file__).with_name("reasons.tsv")
"""Network, runtime and the reason why a peer is better there."""
GROUPS = 16
"""Groups of samples that are left out in turn: sample i is of group i modulo 16."""
STUDENT = 2.131
"""Student's t of 15 degrees of freedom, 97.5%."""
LEAST = 0.05
"""Points of the metric that are shown, and so count as better."""
RUNTIMES = {
    "ort": "ONNX Runtime",
    "openvino": "OpenVINO",
    "tensorrt": "Graphs for TensorRT",
}
INTRODUCTION = """\
<!-- Written by `python benchmarks/scoreboard.py --results`. -->
# Scoreboard

Trained networks that packages on PyPI carry, pinned by version and hash, quantized to INT8 by qcompile and
by its peers: ONNX Runtime's quantizers (static with three settings, dynamic), NNCF (for OpenVINO, with and
without smoothing; for ONNX Runtime's graphs, with) and NVIDIA's Model-Optimizer. qcompile has no option that
differs from network to network: `calibrate`, then `quantize --data` (for OpenVINO `build --data`). All
calibrate on the same 32 to 64 samples, and are judged on others.

- **Metric**: in percent, what the task counts; "as FP32" counts how often the answer is FP32's. ± is half of
  a 95% interval of the difference from FP32: a jackknife that leaves out 16 groups of samples in turn.
- **dB**: signal-to-noise ratio, against FP32, of the outputs that the task reads.
- **Speed**: FP32's latency on the same runtime divided by the artifact's, one sample at a time, two threads.
  Median over launches of medians of interleaved rounds, with the least and the most of the launches. A dash:
  not measured yet. **MB**: of the file that qcompile makes, and of FP32's.
- **Best peer**: the best by the metric, then by dB. A file whose outputs are FP32's bit for bit is float, and
  no peer. "\\*": qcompile refused it; `--allow-loss` wrote it.
- **"!"**: a peer's metric is better, beyond the interval of the difference; "(!)": better, within it. A peer
  above FP32 is so by chance, and counts as FP32.
"""


def write(results: Results, conditions: dict[str, str]) -> None:
    """Keep the results, and write their page."""
    lines = [json.dumps(conditions)]
    for network, rows in results.items():
        for who, row in rows.items():
            kept = {key: value for key, value in row.items() if key != "path"}
            if who.endswith(("/qcompile", "ort/FP32")) and "path" in row:
                kept["bytes"] = Path(row["path"]).stat().st_size
            lines.append(json.dumps({"network": network, "who": who, **kept}))
    RESULTS.write_text("\n".join(lines) + "\n")
    PAGE.write_text(text())


def text() -> str:
    """Return the page of the results that are kept."""
    conditions, *lines = (json.loads(line) for line in RESULTS.read_text().splitlines())
    results: Results = {}
    for line in lines:
        results.setdefault(line.pop("network"), {})[line.pop("who")] = line
    said = ", ".join(f"{name} {version}" for name, version in list(conditions.items())[2:])
    parts = [
        INTRODUCTION,
        f"Measured on {conditions['date']} on 2 cores of {conditions['processor']}: {said}.\n",
        *_counted(results),
    ]
    for runtime, title in RUNTIMES.items():
        parts += ["", f"## {title}", "", *_table(results, runtime), *_reasons(results, runtime)]
    return "\n".join(parts) + "\n"


def _table(results: Results, runtime: str) -> Iterator[str]:
    timed = runtime != "tensorrt"
    if not timed:
        yield "ONNX Runtime runs them as floats that Q/DQ round: TensorRT's numerics."
        yield ""
    head = ["network", "FP32", "qcompile", "dB", *(["speed", "MB"] if timed else []), "best peer", "dB"]
    yield f"| {' | '.join(head + (['speed'] if timed else []))} |"
    yield "|---" * (len(head) + timed) + "|"
    for network, rows in results.items():
        base, mine, peer = rows["ort/FP32"], rows.get(f"{runtime}/qcompile"), best_peer(rows, runtime)
        cells = [f"{network}: {NETWORKS[network].what}", f"{base['metric']:.1f}%"]
        cells += [
            f"{_metric(mine, base)}{mark_of(rows, runtime) or ''}",
            *figures(mine or {}, timed=timed),
            *([_size(mine, base)] if timed else []),
        ]
        cells += (
            [f"{_metric(peer[1], base)}, {peer[0]}", *figures(peer[1], timed=timed)] if peer else ["none"]
        )
        yield f"| {' | '.join(cells)} |"


def _size(row: Row | None, base: Row) -> str:
    """The size of a file, and of its float model."""
    if row is None or "bytes" not in row:
        return "–"
    return f"{row['bytes'] / 1e6:.1f} of {base['bytes'] / 1e6:.1f}"


def _metric(row: Row | None, base: Row) -> str:
    if row is None or "metric" not in row:
        return "–"
    allowed = "\\*" if "refused" in row else ""
    return f"{row['metric']:.1f}% ± {half_width(row, base):.1f}{allowed}"


def figures(row: Row, *, timed: bool = True) -> list[str]:
    """The dB of a row, and its speed."""
    db = row.get("db")
    cells = ["–" if db is None else f"{db:.1f}"]
    if timed:
        speeds = row.get("speeds")
        spread = (
            f"{statistics.median(speeds):.2f} ({min(speeds):.2f} to {max(speeds):.2f})" if speeds else "–"
        )
        cells.append(spread)
    return cells


def best_peer(rows: dict[str, Row], runtime: str) -> tuple[str, Row] | None:
    """Return which peer is best by the metric, then by dB, with its row."""
    made = [
        (who.partition("/")[2], row)
        for who, row in rows.items()
        if who.startswith(runtime) and "metric" in row and "qcompile" not in who and "FP32" not in who
    ]
    made = [(who, row) for who, row in made if not _is_float(row, rows["ort/FP32"])]
    return max(made, key=lambda one: (round(one[1]["metric"], 1), one[1]["db"] or math.inf), default=None)


def _is_float(row: Row, base: Row) -> bool:
    """Whether a file computes what FP32 does, so that nothing of it can be quantized."""
    return row["db"] is None and row["left_out"] == base["left_out"]


def half_width(row: Row, other: Row) -> float:
    """Half of the 95% interval of the difference of two metrics, in points, by the jackknife over groups."""
    differences = [a - b for a, b in zip(row["left_out"], other["left_out"], strict=True)]
    mean = statistics.fmean(differences)
    variance = (GROUPS - 1) / GROUPS * sum((one - mean) ** 2 for one in differences)
    return STUDENT * math.sqrt(variance)


def mark(mine: Row | None, peer: Row | None, base: Row) -> str:
    """Return " **!**" where the peer's metric is better beyond the interval, " (!)" where within it.

    A peer above FP32, `base`, is so by chance, and counts as FP32.
    """
    if peer is None or mine is None or "metric" not in mine:
        return " **!**" if peer else ""
    ahead = min(peer, base, key=lambda row: row["metric"])
    behind = ahead["metric"] - mine["metric"]
    if behind < LEAST:
        return ""
    return " **!**" if behind > half_width(ahead, mine) else " (!)"


def mark_of(rows: dict[str, Row], runtime: str) -> str | None:
    """Return the mark of a cell; None where there is no peer."""
    peer = best_peer(rows, runtime)
    return mark(rows.get(f"{runtime}/qcompile"), peer[1], rows["ort/FP32"]) if peer else None


def _counted(results: Results) -> Iterator[str]:
    every = [mark_of(rows, runtime) for rows in results.values() for runtime in RUNTIMES]
    marks = [one for one in every if one is not None]
    even, within = marks.count(""), marks.count(" (!)")
    worse = len(marks) - even - within
    yield (
        f"Of {len(marks)} cells with a peer, qcompile is at least the best peer in {even} "
        f"({100 * even / len(marks):.0f}%), behind within the interval in {within}, and beyond it in {worse}."
    )
    for kind, names in KINDS.items():
        drops = [
            (rows["ort/FP32"]["metric"] - row["metric"], f"{name} on {RUNTIMES[runtime]}")
            for name, rows in results.items()
            for runtime in RUNTIMES
            if name in names and "metric" in (row := rows.get(f"{runtime}/qcompile", {}))
        ]
        if not drops:
            continue
        lost, where = max(drops)
        few = sum(drop <= ALLOWED[kind] for drop, _ in drops)
        yield (
            f"\n{kind.capitalize()}: {few} of {len(drops)} cells lose at most {ALLOWED[kind]} points of the "
            f"metric; the most is {lost:.1f} ({where})."
        )


KINDS = {
    "detectors": [name for name, network in NETWORKS.items() if network.what.startswith(boxes.AP)],
    "encoders": [name for name, network in NETWORKS.items() if network.transformer],
}
ALLOWED = {"detectors": 1.0, "encoders": 0.1}


def _reasons(results: Results, runtime: str) -> Iterator[str]:
    said = {tuple(line.split("\t")[:2]): line.split("\t")[2] for line in REASONS.read_text().splitlines()}
    behind = [
        (name, said.get((name, runtime), "no reason was found"))
        for name, rows in results.items()
        if mark_of(rows, runtime)
    ]
    if behind:
        yield "\nWhere a peer is better:\n"
        yield from (f"- {name}: {reason}." for name, reason in behind)
