"""The page of the documents that shows the results, and the file that keeps them."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from . import NETWORKS, boxes
from .paired import Row, difference, faster

Results = dict[str, dict[str, Row]]

RESULTS = Path(__file__).with_name("results.jsonl")
PAGE = Path(__file__).parents[3] / "docs/reference/scoreboard.md"
REASONS = Path(__file__).with_name("reasons.tsv")
"""Network, runtime and the reason why the best peer is clearly better there."""
NOT_RECORDED = "not recorded"
RUNTIMES = {
    "ort": "ONNX Runtime",
    "openvino": "OpenVINO",
    "tensorrt": "Graphs for TensorRT",
}
INTRODUCTION = """\
<!-- Written by `python tests/performance/scoreboard.py --results`. -->
# Scoreboard

Trained networks that packages on PyPI carry, pinned by version and hash, quantized to INT8 by qcompile and
by its peers: ONNX Runtime's quantizers (static with three settings, dynamic), NNCF (for OpenVINO, with and
without smoothing; for ONNX Runtime's graphs, with) and NVIDIA's Model-Optimizer. qcompile has no option that
differs from network to network: `calibrate`, then `quantize --data` (for OpenVINO `build --data`). All
calibrate on the same 32 to 64 samples, and are judged on others.

- **Difference**: points of the metric, qcompile's less the peer's, on the same samples, with its 95%
  interval. A win or a loss is an interval without 0, all else a tie. For right and wrong answers it is
  Tango's score interval (Statistics in Medicine 17, 1998), for other metrics a paired bootstrap over samples.
  Rows of before December 2026 kept no answers by sample: theirs is a paired jackknife over 16 groups.
- **Best peer**: the best by the metric, then by dB. It is chosen by the samples that compare it, which
  favours it. A file whose outputs are FP32's bit for bit is float, and no peer. "\\*": qcompile refused it;
  `--allow-loss` wrote it.
- **dB**: signal-to-noise ratio, against FP32, of the outputs that the task reads; qcompile's, the peer's.
- **Speed**: qcompile's against the peer's, one sample at a time, two threads, by the launches and rounds that
  both shared, with its 99% interval; wins and losses are those of `bench`, beyond 1%. In brackets how many
  times as fast as FP32 on the same runtime each is.
- **Seconds**: of quantizing, of the wall (of the processors); qcompile's, the peer's. Each is a process with
  its start, imports and calibration. Of a refused file they are those of both runs.
- **MB**: of the file that qcompile makes, and of FP32's. A dash: not made. "not recorded": the row is of
  before December 2026, which did not keep it.
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
        "",
        "## Networks",
        "",
        "| network | what is counted | FP32 |",
        "|---|---|---|",
        *(
            f"| {name} | {NETWORKS[name].what} | {rows['ort/FP32']['metric']:.1f}% |"
            for name, rows in results.items()
        ),
    ]
    for runtime, title in RUNTIMES.items():
        parts += ["", f"## {title}", "", *_table(results, runtime), *_reasons(results, runtime)]
    return "\n".join(parts) + "\n"


def _table(results: Results, runtime: str) -> Iterator[str]:
    timed = runtime != "tensorrt"
    if not timed:
        yield "ONNX Runtime runs them as floats that Q/DQ round: TensorRT's numerics, and no speed."
        yield ""
    head = [
        "network",
        "qcompile",
        "best peer",
        "difference",
        "dB",
        *(["speed", "MB"] if timed else []),
        "seconds",
    ]
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for network, rows in results.items():
        base, mine = rows["ort/FP32"], rows.get(f"{runtime}/qcompile", {})
        name, peer = best_peer(rows, runtime) or ("none", {})
        float_row = rows.get(f"{runtime}/FP32", {})
        cells = [
            f"{_metric(mine)}{_refused(mine)}",
            f"{_metric(peer)}, {name}" if peer else name,
            _difference(mine, peer),
            f"{decibels(mine)}, {decibels(peer)}",
        ]
        if timed:
            cells += [_speed(mine, peer, float_row), _size(mine, base)]
        yield f"| {' | '.join([network, *cells, f'{seconds(mine)}; {seconds(peer)}'])} |"


def _metric(row: Row) -> str:
    return f"{row['metric']:.1f}%" if "metric" in row else "–"


def _refused(row: Row) -> str:
    return "\\*" if "refused" in row else ""


def _size(row: Row, base: Row) -> str:
    """The size of a file, and of its float model."""
    return f"{row['bytes'] / 1e6:.1f} of {base['bytes'] / 1e6:.1f}" if "bytes" in row else "–"


def _difference(mine: Row, peer: Row) -> str:
    found = difference(mine, peer)
    if found is None:
        return NOT_RECORDED if "metric" in mine and peer else "–"
    # What is no difference has no sign.
    low, high, points = (round(value, 1) + 0.0 for value in (found.low, found.high, found.points))
    return f"{points:+.1f} [{low:+.1f}, {high:+.1f}] {found.outcome}"


def decibels(row: Row) -> str:
    """The dB of a row."""
    db = row.get("db")
    return "–" if db is None else f"{db:.1f}"


def seconds(row: Row) -> str:
    """The seconds that quantizing took: the wall's, and the processors'."""
    if "metric" not in row:
        return "–"
    taken = row.get("quantizing")
    return f"{taken['wall_s']:.1f} ({taken['processor_s']:.1f})" if taken else NOT_RECORDED


def times(row: Row, base: Row) -> str:
    """How many times as fast as FP32."""
    found = faster(row, base)
    if found is None and "speeds" in row:  # ratios of rows of before December 2026, which kept no rounds
        return f"{statistics.median(row['speeds']):.2f}x"
    return f"{found.value:.2f}x" if found else NOT_RECORDED


def _speed(mine: Row, peer: Row, base: Row) -> str:
    if "metric" not in mine or not peer:
        return "–"
    found = faster(mine, peer)
    compared = (
        f"{found.value:.2f}x [{found.low:.2f}, {found.high:.2f}] {SPEEDS[found.verdict]}"
        if found
        else NOT_RECORDED
    )
    return f"{compared} ({times(mine, base)}; {times(peer, base)})"


def best_peer(rows: dict[str, Row], runtime: str) -> tuple[str, Row] | None:
    """Return which peer is best by the metric, then by dB, with its row."""
    found = {who: row for who, row in peers(rows, runtime).items() if "metric" in row}
    return max(
        found.items(), key=lambda one: (round(one[1]["metric"], 1), one[1]["db"] or math.inf), default=None
    )


def peers(rows: dict[str, Row], runtime: str) -> dict[str, Row]:
    """Return the rows of other quantizers by name, without files that compute what FP32 does."""
    return {
        name: row
        for who, row in rows.items()
        if who.startswith(f"{runtime}/")
        and (name := who.partition("/")[2]) != "FP32"
        and "qcompile" not in name
        if not ("metric" in row and row["db"] is None and row["metric"] == rows["ort/FP32"]["metric"])
    }


SPEEDS = {"faster": "win", "no difference": "tie", "slower": "loss"}


def _counted(results: Results) -> Iterator[str]:
    yield "| runtime | peer | metric: wins, ties, losses | speed: wins, ties, losses | made by one alone |"
    yield "|---|---|---|---|---|"
    for runtime, title in RUNTIMES.items():
        pairs: dict[str, list[tuple[Row, Row]]] = {"**the best in each cell**": []}
        for rows in results.values():
            mine, best = rows.get(f"{runtime}/qcompile", {}), best_peer(rows, runtime)
            if best:
                pairs["**the best in each cell**"].append((mine, best[1]))
            for name, row in peers(rows, runtime).items():
                pairs.setdefault(name, []).append((mine, row))
        for name, compared in pairs.items():
            both = [(mine, peer) for mine, peer in compared if "metric" in mine and "metric" in peer]
            metric = Counter(found.outcome for pair in both if (found := difference(*pair)))
            speed = Counter(SPEEDS[found.verdict] for pair in both if (found := faster(*pair)))
            alone = Counter(
                "metric" in mine for mine, peer in compared if ("metric" in mine) != ("metric" in peer)
            )
            cells = [_outcomes(metric), "–" if runtime == "tensorrt" else _outcomes(speed)]
            yield f"| {title} | {name} | {' | '.join(cells)} | qcompile {alone[True]}, peer {alone[False]} |"
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


def _outcomes(counted: Counter[str]) -> str:
    return ", ".join(str(counted[one]) for one in ("win", "tie", "loss")) if counted else NOT_RECORDED


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
        if (best := best_peer(rows, runtime))
        and (found := difference(rows.get(f"{runtime}/qcompile", {}), best[1]))
        and found.outcome == "loss"
    ]
    if behind:
        yield "\nWhere the best peer is clearly better:\n"
        yield from (f"- {name}: {reason}." for name, reason in behind)
