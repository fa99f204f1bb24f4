"""Evaluate artifacts against a baseline over a part of the data, and go on with what others evaluated.

What runs is what `benchmark` runs: the same workers, batches and metrics. All parts together are what it
finds by itself. Floats of another processor, or of another number of threads, may differ in their last bits.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.batches import Data
from ..engines.gpu import parse_devices
from ..errors import QCompileError, WorkerError
from ..files import temporary_folder, writing
from ..model.pt2_archive import trusting
from ..model.session import usable_cores
from ..processor import processor
from ..progress import Progress, silent
from ..tensors import ModelIO
from .metrics.accuracy import read_metric
from .metrics.evaluated import Evaluated, load_scores, merge, read_subject, save_scores
from .metrics.metric import Metric
from .metrics.quality import check_evaluation, described_inputs, evaluate_batches
from .outputs import RunnableArtifact, save_feeds, shared_io, timing_feeds
from .recorder import Recorder
from .runnables import choose_runnables, row_of
from .workers.interpreters import parse_interpreters
from .workers.pool import WorkerPool
from .workers.process import DEFAULT_TIMEOUT_S


def evaluate(
    artifacts: Sequence[str] | Mapping[str, str],
    output: str | Path,
    *,
    baseline: str,
    evaluation: str,
    metric: str,
    part: tuple[int, int] = (1, 1),
    batch_size: int | None = None,
    threads: int = 0,
    torch_modes: Sequence[str] = (),
    models: Mapping[str, str] | None = None,
    devices: Sequence[str] = (),
    cuda_graph: bool | None = None,
    pythons: Sequence[str] = (),
    timeout_s: float = DEFAULT_TIMEOUT_S,
    trust: bool = False,
    progress: Progress = silent,
) -> None:
    """Write what `benchmark` needs of a part of the data to tell accuracy and differences.

    An artifact that fails is left out.

    Args:
        artifacts, baseline, evaluation, metric, batch_size, threads: As of `benchmark`.
        torch_modes, models, devices, cuda_graph, pythons, timeout_s, trust: As of `benchmark`.
        output: The file.
        part: "2 of 8" as numbers; other batches are not decoded, where the kind of data allows.
        progress: Told of every batch.

    Raises:
        QCompileError: If the baseline fails, or the data does not fit.
    """
    scored = read_metric(metric)
    runnables, base = choose_runnables(
        artifacts, baseline, trust=trust, pythons=parse_interpreters(pythons), torch_modes=torch_modes,
        models=models, devices=parse_devices(devices), cuda_graph=cuda_graph,
    )  # fmt: skip
    threads = threads or usable_cores()
    with trusting(trust):
        io = shared_io(runnables)
    recorder = Recorder([row_of(runnable) for runnable in runnables], base)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("evaluate"))
        feeds = timing_feeds(io, evaluation, runnables=runnables, batch_size=batch_size)
        save_feeds(feeds, folder / "feeds.npz")
        pool = stack.enter_context(
            WorkerPool(runnables, recorder, folder / "feeds.npz", threads=threads, timeout_s=timeout_s,
                       progress=progress)
        )  # fmt: skip
        pool.start()
        scored = scored.for_inputs(described_inputs(io, runnables))
        scored = check_evaluation(pool.workers[base], io, evaluation, scored)
        names = [name for name in pool.workers if name != base]
        data = Data(evaluation, io.inputs)
        found = evaluate_batches(pool.workers, recorder, data, scored, names, part, progress)
    if found is None:
        raise WorkerError(recorder[base].reason, artifact=base, output=recorder[base].output_tail)
    with writing(Path(output)) as path:
        save_scores(found, {**subject(runnables, io, scored), "machine": processor()}, path)


def subject(runnables: Sequence[RunnableArtifact], io: ModelIO, metric: Metric) -> dict[str, Any]:
    """Return what an evaluation is of, as JSON: with equal ones, its parts belong together."""
    placed = {one.name: [one.engine, one.mode, one.device] for one in runnables}
    inputs = [one.as_json() for one in described_inputs(io, runnables)]
    function = Path(metric.name).name  # its folder is another on each machine
    said = {"metric": function, "io": io.as_json(), "inputs": inputs, "artifacts": placed}
    plain: dict[str, Any] = json.loads(json.dumps(said))
    return plain


def known_evaluations(
    files: Sequence[Path],
    runnables: Sequence[RunnableArtifact],
    recorder: Recorder,
    io: ModelIO,
    metric: Metric | None,
    progress: Progress = silent,
) -> list[Evaluated]:
    """Return what files of parts say of these artifacts; what does not fit is told, and left out.

    Args:
        files: Of `evaluate`, of one group of artifacts or of several.
        runnables: What is to be evaluated.
        recorder: Their rows; one of another precision than it was evaluated with does not fit.
        io: The inputs that the data is read for.
        metric: What accuracy is; None evaluates nothing.
        progress: Told of what does not fit, and why.
    """
    if metric is None:
        return []
    asked = subject(runnables, io, metric)
    groups: dict[str, list[Path]] = {}
    machines: dict[str, list[Any]] = {}
    found = []
    try:
        for file in files:
            of = read_subject(file)
            if all(_fits(name, of.get(name), asked) for name in asked):
                group = json.dumps(of["artifacts"], sort_keys=True)
                groups.setdefault(group, []).append(file)
                machines.setdefault(group, []).append(of.get("machine"))
        for group, parts in groups.items():
            one = merge([load_scores(file, metric) for file in parts], metric)
            one.answers = {
                name: answers
                for name, answers in one.answers.items()
                if recorder.is_measured(name) and recorder[name].precision == answers.precision
            }
            if one.base == recorder.base and one.base in one.answers:
                found.append(one)
                _warn_of_others(one, machines[group], recorder)
    except QCompileError as error:
        progress(f"parts of the evaluation are not used: {error.message}")
        return []
    return found


def _fits(name: str, value: Any, asked: Mapping[str, Any]) -> bool:
    """Whether an evaluation was of the same; of artifacts it may be of some."""
    if name == "artifacts":
        return isinstance(value, dict) and all(asked[name].get(one) == how for one, how in value.items())
    return bool(value == asked[name])


def _warn_of_others(found: Evaluated, machines: Sequence[Any], recorder: Recorder) -> None:
    """Say of every artifact that another processor has evaluated it: its floats may differ."""
    here = processor()
    others = sorted({str(one.get("processor")) for one in machines if isinstance(one, dict) and one != here})
    for name in found.answers if others else ():
        recorder.warn(name, f"its accuracy was evaluated on another processor: {', '.join(others)}")
