"""How much of other people's architectures goes the whole road: the table of docs/coverage.md.

    pip install -e '.[cpu,openvino,tensorrt-rtx,coverage]'
    python tests/performance/architectures/walk.py --results coverage.jsonl [--only 'timm_*'] [--jobs 1]
    python tests/performance/architectures/walk.py --results coverage.jsonl --again failed
    python tests/performance/architectures/walk.py --results coverage.jsonl --table
    python tests/performance/architectures/walk.py --check-models [--list-of newcomers]

Each architecture of a list (models.jsonl or another), small and with random weights, is exported,
simplified, calibrated, built for ONNX Runtime and OpenVINO in INT8 and for TensorRT-RTX in FP16 and INT8, and
both INT8 models that run on a processor are compared with the float model on data that no stage saw. An
architecture goes the whole road when every stage passes. Nothing is downloaded. Each runs in a process of its
own, forked from one that has the libraries loaded. Results are appended line by line; what is finished is
skipped the next time, so the benchmark can be ended and run again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # no pool of threads may exist when a process is forked
os.environ.update(ORT_DISABLE_TELEMETRY="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

from results_table import as_markdown, latest, progress_line, read_rows, write_row  # noqa: E402


def main() -> int:
    """Run what was chosen, or print the table."""
    options = _options()
    if options.table:
        print(as_markdown(latest(read_rows(options.results))))
        return 0
    from architectures import ARCHITECTURES

    chosen = [
        one
        for one in ARCHITECTURES.values()
        if any(fnmatch(one.key, glob) for glob in options.only)
        and options.library in ("", one.library)
        and one.file == options.list_of
    ]
    if options.list:
        for one in chosen:
            print(f"{one.key}: {one.task}; {', '.join(one.dynamic()) or 'no dynamic axis'}")
        print(f"{len(chosen)} architectures")
        return 0
    if options.check_models:
        return _check(chosen)
    rows = latest(read_rows(options.results))
    todo = [one for one in chosen if one.key not in rows or _again(rows[one.key], options.again)]
    # What was tried before goes last, and so do free extents of an image: the exporter takes them slowly.
    todo.sort(key=lambda one: (one.key in rows, "height" in one.dynamic_axes))
    print(f"{len(chosen)} chosen, {len(chosen) - len(todo)} finished before, {len(todo)} to do", flush=True)
    return _run(todo, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("coverage.jsonl"), help="file of results")
    parser.add_argument("--only", action="append", metavar="GLOB", help="architectures by key; repeat")
    parser.add_argument("--library", default="", help="only of this library")
    lists = ("models", "newcomers")
    parser.add_argument("--list-of", choices=lists, default="models", help="which file")
    parser.add_argument("--again", default="", metavar="GLOB", help="run these again, or 'failed'")
    parser.add_argument("--jobs", type=int, default=1, help="architectures at a time")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one architecture")
    parser.add_argument("--list", action="store_true", help="list the architectures")
    parser.add_argument("--table", action="store_true", help="print the results as Markdown")
    parser.add_argument("--check-models", action="store_true", help="only make and run every module")
    options = parser.parse_args()
    options.only = options.only or ["*"]
    return options


def _again(row: dict[str, Any], again: str) -> bool:
    return not row["passed"] if again == "failed" else bool(again) and fnmatch(row["name"], again)


def _check(chosen: list[Any]) -> int:
    from processes import run_all
    from road import check_module, preload

    preload(runtimes=False)
    failed = 0
    for row in run_all(chosen, check_module, jobs=1, limit_s=120.0):
        failed += not row["passed"]
        print(progress_line(row), flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} modules run")
    return 1 if failed else 0


def _run(todo: list[Any], options: argparse.Namespace) -> int:
    from processes import run_all
    from road import preload, walk

    from qcompile.version import tool_versions

    if not todo:
        return 0
    preload()
    libraries = sorted({one.library for one in todo})
    where = tool_versions("torch", "onnx", "onnxruntime", "openvino", "tensorrt_rtx", *libraries)
    for done, row in enumerate(run_all(todo, walk, jobs=options.jobs, limit_s=options.limit), 1):
        write_row(options.results, {**row, "environment": where})
        print(f"[{done}/{len(todo)}] {progress_line(row)}", flush=True)
    return 0


if __name__ == "__main__":
    for _signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_signal, signal.default_int_handler)  # in the background, too
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; run it again to go on", file=sys.stderr)
        sys.exit(130)
