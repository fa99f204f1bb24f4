"""Rows of results: written line by line, read again, grouped by cause, and printed as Markdown."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

STAGES: dict[str, tuple[str, ...]] = {
    "export": (),
    "simplify": ("export",),
    "calibrate": ("simplify",),
    "onnxruntime int8": ("calibrate",),
    "openvino int8": ("calibrate",),
    "rtx fp16": ("simplify",),
    "rtx int8": ("calibrate",),
    "onnxruntime diff": ("onnxruntime int8",),
    "openvino diff": ("openvino int8",),
}
"""Stage to the stages that it depends on."""

_CAUSE_LENGTH = 150
_NAMES_SHOWN = 6


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, none where there is no file; a last line that was cut off is left out."""
    if not path.is_file():
        return []
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def latest(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return name to row; of several rows the last counts."""
    return {row["name"]: row for row in rows}


def write_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row as a line of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        if file.tell() and not path.read_text().endswith("\n"):
            file.write("\n")  # after a line that was cut off
        file.write(json.dumps(row) + "\n")


def finished_row(
    architecture: Any, records: Sequence[dict[str, Any]], end: str, log: Sequence[str], elapsed_s: float
) -> dict[str, Any]:
    """Join what a process reported with how it ended.

    Args:
        architecture: Which one.
        records: Of each stage its start and its end, and the memory.
        end: Empty where the process ended as it should, else "timeout" or "crash: …".
        log: Last lines that the process wrote.
        elapsed_s: Its time in all.
    """
    stages = {record["stage"]: record for record in records if "stage" in record}
    for record in stages.values():
        if record["result"] == "started":  # and never ended
            record |= _ended(end or "ended without a word", log)
    if end and all(record["result"] in ("passed", "not reached") for record in stages.values()):
        stages["process"] = {"stage": "process", **_ended(end, log)}
    for record in stages.values():
        if record["result"] == "failed":
            record["cause"] = cause(first_line(record), architecture.key)
    return {
        "name": architecture.key,
        "library": architecture.library,
        "kind": architecture.kind,
        "task": architecture.task,
        "passed": bool(stages) and all(record["result"] == "passed" for record in stages.values()),
        "stages": stages,
        "seconds": round(elapsed_s, 1),
        "memory_mb": next((record["memory_mb"] for record in records if "memory_mb" in record), None),
    }


def _ended(end: str, log: Sequence[str]) -> dict[str, Any]:
    return {
        "result": "failed",
        "error": end.split(":")[0],
        "message": end,
        "defect": end != "timeout",
        "traceback": list(log),
    }


def cause(message: str, name: str = "") -> str:
    """Return the first line of a message without what differs from model to model: names, numbers, paths."""
    text = re.sub(r"(/[\w.+-]+)+/", "", message.strip().splitlines()[0])  # folders
    if name:
        text = re.sub(rf"(\w+\.py:)?{name}\b", "MODEL", text)
    text = re.sub(r"'[^']*'(, '[^']*')*", "'…'", text)
    text = re.sub(r"\b(node|val|input|output|add|mul)_[A-Za-z0-9_.]*\d\w*\b", "…", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", text)
    text = re.sub(r"N(?:[ ,x]+N)+", "N", text)
    return text if len(text) <= _CAUSE_LENGTH else text[: _CAUSE_LENGTH - 1] + "…"


def progress_line(row: Mapping[str, Any]) -> str:
    """Return one line of what one architecture came to."""
    failed = [record for record in row["stages"].values() if record["result"] == "failed"]
    verdict = "passed" if row["passed"] else "; ".join(
        f"{'DEFECT in ' if record['defect'] else ''}{record['stage']}: {first_line(record)[:110]}"
        for record in failed
    )  # fmt: skip
    return f"{row['name']} ({row['seconds']:.0f} s, {row['memory_mb']} MB): {verdict}"


def first_line(record: Mapping[str, Any]) -> str:
    """Return the first line of a failure's message, or the name of the error where it has none."""
    lines = record["message"].strip().splitlines()
    return str(lines[0] if lines else record["error"])


def as_markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables: by stage, by library and kind, by cause, and what is a defect."""
    if not rows:
        return "No results."
    found = list(rows.values())
    parts = [_by_stage(found), _by_library(found), _by_cause(found), _defects(found)]
    return "\n\n".join(part for part in parts if part)


def _by_stage(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| stage | passed | failed | not reached |", "|---|---|---|---|"]
    for stage in STAGES:
        results = Counter(row["stages"].get(stage, {}).get("result", "not reached") for row in rows)
        lines.append(f"| {stage} | {results['passed']} | {results['failed']} | {results['not reached']} |")
    return "\n".join([*lines, f"| **whole road** | {_share(rows)} | | |"])


def _by_library(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| library | classifiers | others | all |", "|---|---|---|---|"]
    for library in [*dict.fromkeys(row["library"] for row in rows), ""]:
        own = [row for row in rows if library in ("", row["library"])]
        kinds = [[row for row in own if row["kind"] == kind] for kind in ("classifier", "other")]
        lines.append(f"| {library or '**all**'} | {' | '.join(map(_share, [*kinds, own]))} |")
    return "\n".join(lines)


def _share(rows: Sequence[Mapping[str, Any]]) -> str:
    passed = sum(row["passed"] for row in rows)
    return f"{passed} of {len(rows)} ({passed / len(rows):.0%})" if rows else "–"


def _by_cause(rows: Sequence[Mapping[str, Any]]) -> str:
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        for stage, record in row["stages"].items():
            if record["result"] == "failed":
                groups[stage, record["cause"]].append(row["name"])
    if not groups:
        return ""
    lines = ["| stage | cause | models | which |", "|---|---|---|---|"]
    for (stage, why), names in sorted(groups.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
        lines.append(f"| {stage} | {why.replace('|', '/')} | {len(names)} | {shown} |")
    return "\n".join(lines)


def _defects(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [
        f"- DEFECT: {row['name']}, {stage}: {record['error']}: {first_line(record)[:200]}"
        for row in rows
        for stage, record in row["stages"].items()
        if record["result"] == "failed" and record["defect"]
    ]
    return "\n".join(["No failure may be anything but a refusal. These were:", *found]) if found else ""
