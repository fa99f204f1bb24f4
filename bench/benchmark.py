"""`qcompile bench`: artifacts against a baseline, each in its own process, in interleaved rounds."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..calibration import Data
from ..errors import DataError, InvalidOption, QCompileError
from ..model.session import usable_cores
from ..progress import Progress, silent
from ..shapes import Feeds, format_shape, samples_in
from .accuracy import parse_metric, top_k
from .compare import FEWEST_ROUNDS, median, percentile, speedup
from .diff import judge
from .environment import environment
from .measure import Timed, measure
from .outputs import Subject, describe, infer_all, save_feeds, shared_io, short_name, start, timing_feeds
from .process import Worker
from .results import Entry, Results, save_results

DEFAULT_PRECISION_TARGET = 0.02
DEFAULT_MAX_TIME_S = 60.0


def benchmark(
    artifacts: Sequence[str] | Mapping[str, str],
    *,
    baseline: str,
    output: str | Path | None = None,
    data: str | None = None,
    inputs: Sequence[str] = (),
    batch_size: int | None = None,
    threads: int = 0,
    evaluation: str | None = None,
    metric: str = "top1",
    precision_target: float = DEFAULT_PRECISION_TARGET,
    max_time_s: float = DEFAULT_MAX_TIME_S,
    progress: Progress = silent,
) -> Results:
    """Measure artifacts against a baseline.

    Args:
        artifacts: Paths or MODEL spellings, or name to them.
        baseline: One of them by name or spelling, or another MODEL.
        output: results.json to write.
        data: Samples whose first batch is timed; made input otherwise.
        inputs: `NAME:SHAPE[:DTYPE]` where no artifact declares its inputs.
        batch_size: Samples per call, where the model leaves it open.
        threads: The same for every artifact; 0 takes every core this process may use.
        evaluation: Labelled samples for accuracy and output differences.
        metric: "top1" or "top5".
        precision_target: Stop when the interval of every speed-up is narrower than this share.
        max_time_s: Begin no round after this time.
        progress: Told of every step.

    Returns:
        The results; an artifact that cannot run or fails has its reason, the others their numbers.

    Raises:
        QCompileError: If the baseline cannot be measured, or the data does not fit.
    """
    k = parse_metric(metric)
    if not 0 < precision_target < 1 or max_time_s <= 0:
        raise InvalidOption("precision target: between 0 and 1; max time: above 0")
    subjects, base = _subjects(artifacts, baseline)
    threads = threads or usable_cores()
    io = shared_io(subjects, inputs)
    feeds = timing_feeds(io, data, batch_size=batch_size)
    entries = {subject.name: _entry(subject) for subject in subjects}
    surroundings = environment(threads)
    with contextlib.ExitStack() as stack:
        workers = _start_all(stack, subjects, entries, feeds, threads, base, progress)
        timed = measure(
            workers,
            base,
            max_time_s=max_time_s,
            precision_target=precision_target,
            progress=lambda number, width: progress(
                f"round {number}, widest interval {width:.1%}" if width < 1 else f"round {number}"
            ),
        )
        for name, one in timed.items():
            _record_timing(entries[name], one, timed[base], samples_in(feeds))
        _require_baseline(entries[base])
        _note_doubt(entries.values(), precision_target)
        if evaluation is not None or data is not None:
            progress("compare outputs")
            _record_quality(workers, entries, base, io, evaluation or data, evaluation is not None, k, metric)
        for name, worker in workers.items():
            if entries[name].status == "measured":
                _guarded(entries[name], lambda w=worker, e=entries[name]: _record_memory(w, e))
    results = Results(
        base,
        list(entries.values()),
        surroundings,
        {
            "threads": threads,
            "inputs": {name: format_shape(array.shape) for name, array in feeds.items()},
            "data": data or "made input",
            "evaluation": evaluation,
            "precision_target": precision_target,
            "max_time_s": max_time_s,
            "confidence": 0.95,
        },
    )
    if output is not None:
        save_results(results, Path(output))
    return results


def _subjects(artifacts: Sequence[str] | Mapping[str, str], baseline: str) -> tuple[list[Subject], str]:
    named = dict(artifacts) if isinstance(artifacts, Mapping) else {}
    if not isinstance(artifacts, Mapping):
        for artifact in artifacts:
            name, number = short_name(artifact), 1
            while name in named:
                number += 1
                name = f"{short_name(artifact)} ({number})"
            named[name] = artifact
    base = next((name for name, item in named.items() if baseline in (name, item)), "")
    if not base:
        base = short_name(baseline)
        if base in named:
            base = f"{base} (baseline)"
        named = {base: baseline, **named}
    subjects = [describe(artifact, name=name) for name, artifact in named.items()]
    chosen = next(subject for subject in subjects if subject.name == base)
    if chosen.why_not:
        raise InvalidOption(f"baseline {baseline}: cannot run here: {chosen.why_not}")
    return sorted(subjects, key=lambda subject: subject is not chosen), base


def _entry(subject: Subject) -> Entry:
    return Entry(
        name=subject.name,
        artifact=subject.artifact,
        engine=subject.engine,
        precision=subject.precision,
        runs_on=subject.runs_on,
        status="not run" if subject.why_not else "measured",
        reason=subject.why_not,
        size_bytes=subject.size_bytes,
    )


def _start_all(
    stack: contextlib.ExitStack,
    subjects: Sequence[Subject],
    entries: Mapping[str, Entry],
    feeds: Feeds,
    threads: int,
    base: str,
    progress: Progress,
) -> dict[str, Worker]:
    """Start and load one worker after the other, so that load times do not disturb each other."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="qcompile-bench-"))
    path = Path(folder) / "feeds.npz"
    save_feeds(feeds, path)
    workers: dict[str, Worker] = {}
    for subject in subjects:
        entry = entries[subject.name]
        if entry.status != "measured":
            continue
        progress(f"load {subject.name}")
        worker = stack.enter_context(Worker(subject.name, threads=threads))
        try:
            answer = start(worker, subject, subjects, threads)
            worker.ask("feed", path=str(path))
        except QCompileError as error:
            if subject.name == base:
                raise
            entry.status, entry.reason = "failed", error.message
            continue
        entry.load_ms = answer["load_ns"] / 1e6
        entry.contains = answer["contains"]
        workers[subject.name] = worker
    return workers


def _record_timing(entry: Entry, timed: Timed, base: Timed, samples: int) -> None:
    if timed.failure is not None:
        entry.status, entry.reason = "failed", timed.failure.message
        return
    latencies = timed.latencies_ms
    entry.latency_ms = {
        "median": median(latencies),
        "p90": percentile(latencies, 0.90),
        "p99": percentile(latencies, 0.99),
        "calls": len(latencies),
    }
    entry.throughput_per_s = samples * len(latencies) / (sum(latencies) / 1e3)
    entry.round_medians_ms = timed.round_medians_ms
    if len(latencies) < 100:
        entry.warnings.append(f"p99 from {len(latencies)} calls is the slowest of them; measure longer")
    if timed is base:
        return
    if len(timed.round_medians_ms) < FEWEST_ROUNDS:
        entry.warnings.append(f"{len(timed.round_medians_ms)} rounds are too few for a speed-up")
        return
    ratio = speedup(base.round_medians_ms, timed.round_medians_ms)
    entry.speedup = {
        "value": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "rounds": ratio.rounds,
        "verdict": ratio.verdict,
    }
    if entry.precision == "int8" and ratio.verdict == "slower":
        entry.warnings.append("INT8 is slower than the baseline; hand out the float artifact")


def _note_doubt(entries: Iterable[Entry], precision_target: float) -> None:
    for entry in entries:
        ratio = entry.speedup
        width = (ratio["high"] - ratio["low"]) / ratio["value"] if ratio else 0.0
        if width > precision_target:
            entry.warnings.append(
                f"the interval of its speed-up is wider than {precision_target:.0%}: "
                "measure longer (max time), or on a quieter machine"
            )


def _record_quality(
    workers: Mapping[str, Worker],
    entries: Mapping[str, Entry],
    base: str,
    io: Any,
    data: str | None,
    labelled: bool,
    k: int,
    metric: str,
) -> None:
    """Accuracy and difference from the baseline's outputs, over the evaluation data."""
    batches = list(Data(str(data), io.inputs))
    feeds = [batch.feeds for batch in batches]
    labels = [batch.labels for batch in batches if batch.labels is not None]
    if labelled and len(labels) != len(batches):
        raise DataError(
            f"{data}: has no labels, and accuracy needs them",
            hint="yield (inputs, labels), or put `labels` beside the arrays",
        )
    reference: list[Any] = []
    names = [base, *(name for name in workers if name != base)]
    for name in names:
        entry = entries[name]
        if entry.status != "measured":
            continue
        outputs = _guarded(entry, lambda n=name: list(infer_all(workers[n], feeds)))
        if outputs is None:
            continue
        if name == base:
            reference = outputs
        else:
            entry.difference = _difference(reference, outputs, entry.precision)
        if labelled:
            value = top_k([next(iter(out.values())) for out in outputs], labels, k)
            first = entries[base].accuracy
            drop = (first["value"] - value) * 100.0 if first else 0.0
            samples = sum(len(item) for item in labels)
            entry.accuracy = {
                "metric": metric, "value": value, "drop_points": drop, "samples": samples,
            }  # fmt: skip


def _difference(reference: list[Any], outputs: list[Any], precision: str) -> dict[str, Any]:
    judged = judge(reference, outputs, precision)
    worst = min(judged, key=lambda item: item.snr_db)
    return {
        "output": worst.output,
        "snr_db": worst.snr_db if worst.snr_db != float("inf") else None,
        "max_abs_error": worst.max_abs_error,
        "agreement": worst.agreement,
        "passed": all(item.passed for item in judged),
        "criterion": worst.criterion,
    }


def _record_memory(worker: Worker, entry: Entry) -> None:
    entry.peak_memory_bytes = worker.ask("memory")["peak_bytes"]


def _guarded(entry: Entry, work: Any) -> Any:
    """Run a step of one artifact; its failure is its own, the others keep theirs."""
    try:
        return work()
    except QCompileError as error:
        entry.status, entry.reason = "failed", error.message
        return None


def _require_baseline(entry: Entry) -> None:
    if entry.status != "measured":
        raise QCompileError(f"the baseline {entry.name} failed: {entry.reason}")
