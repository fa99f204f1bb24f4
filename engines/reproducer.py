"""Reduce a failure of a runtime to the smallest graph that shows it, and write a folder for a bug report.

A graph fails if the runtime refuses it, crashes, hangs, or computes values that are wrong by the rule of
`values`. Each attempt runs the runtime's script on a graph in a worker process. The attempt shows the same
failure if it hangs again, or if the signal or message matches, apart from names and numbers. For wrong
values, the error in multiples of the allowed error must exceed a quarter of the first, 1.5 to 100.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.artifact import tool_versions
from ..core.files import temporary_folder, write_json, write_text
from ..core.processes.arrays import load_arrays, storable
from ..core.processes.worker import Worker
from ..core.processor import processor
from ..core.progress import Progress
from ..errors import EngineUnavailable, InvalidOption, ModelError, QCompileError, WorkerError, first_line
from ..model import onnx
from ..model.graph.graph import infer_types, model_io
from ..model.graph.graph_names import name_nodes
from ..model.graph.onnx_file import copy_model, save_onnx
from ..model.graph.reference_forms import rounds_activations
from ..model.sessions.random_input import RandomInput
from ..model.sessions.session import make_session, run_session, session_options, usable_cores
from ..spec.tensors import Feeds, ModelIO
from .base import BuildRequest, Engine, Runner
from .reduction import Case, Enough, Values, reduce_case, with_plain_names
from .values import Execution, ValueComparison

Kind = Literal["dies", "refuses", "hangs", "wrong"]
_REPORT = "report.json"
_TIMEOUT_S = 120.0
_RANDOM_INPUTS = 4
"""Number of random inputs to try in addition to the samples."""
_MIN_EXCESS = 1.5
"""Least error of a smaller graph, in multiples of the allowed error; an error just above 1 may be chance."""
_NAMES = re.compile(r"""(["']).*?\1|[\[{(<].*[\]})>]|\S*[\d/_]\S*""")
"""Parts that differ between the messages of one failure: names, source positions, numbers."""
WRONG = """
expected = dict(np.load("expected.npz"))
for name, array in expected.items():
    print(name, "expected", array.ravel()[:6], "found", outputs[name].ravel()[:6])
for name, array in expected.items():
    assert outputs[name].shape == array.shape, (name, outputs[name].shape, array.shape)
    np.testing.assert_allclose(outputs[name], array, rtol=0, atol={atol:.3g})
"""


@dataclass(frozen=True)
class Failure:
    """How a runtime fails on a graph: the kind, a message, and the error in multiples of the allowed one."""

    kind: Kind
    words: str
    excess: float = 0.0

    def is_like(self, other: Failure) -> bool:
        """Return whether this failure is the failure `other`, on another graph."""
        if self.kind != other.kind:
            return False
        if self.kind == "wrong":
            return self.excess > min(max(other.excess / 4, _MIN_EXCESS), 100.0)
        return self.kind == "hangs" or _pattern(self.words) == _pattern(other.words)


def _pattern(words: str) -> str:
    return " ".join(_NAMES.sub("", words).split())


class _NoOutputs(Exception):
    """Raised by `_Script`, through the comparison, if a script fails, or only builds (`failure` is None)."""

    def __init__(self, failure: Failure | None) -> None:
        super().__init__()
        self.failure = failure


@dataclass(frozen=True)
class Reproducer:
    """A reproducer on disk.

    Attributes:
        folder: Contains model.onnx, inputs.npz, run.py and report.json, and expected.npz for wrong values.
        failure: The failure that `run.py` shows.
        way: How the runtime loads the model.
        nodes_before, nodes: Numbers of nodes in the graph as lowered for the runtime, and as reduced.
        trials: Number of graphs tried.
    """

    folder: Path
    failure: Failure
    way: str
    nodes_before: int
    nodes: int
    trials: int


def make_reproducer(engine: Engine, request: BuildRequest, folder: Path, max_time_s: float) -> Reproducer:
    """Find a failure of a graph that was rewritten (lowered) for a target, and write a reduced reproducer.

    Raises:
        ModelError: If no input makes the graph fail.
        EngineUnavailable: If the engine has no script.
        InvalidOption: If the folder holds anything but a reproducer.
    """
    if folder.exists() and not (folder / _REPORT).is_file() and (folder.is_file() or any(folder.iterdir())):
        raise InvalidOption(f"{folder}: exists and is no reproducer", hint="name a new folder")
    scripts = engine.scripts(request.spec)
    if not scripts:
        problem = f"target {engine.name} has no script that loads a model by itself"
        raise EngineUnavailable(problem, hint="reproduce it for onnxruntime, openvino or tensorrt-rtx")
    model = copy_model(request.onnx.load())
    name_nodes(model.graph)
    with (
        temporary_folder("reproduce") as scratch,
        closing(_Trials(engine, request, scratch, max_time_s)) as trials,
    ):
        tries = ((feeds, way) for feeds in _candidate_inputs(request, model) for way in scripts)
        for number, (feeds, way) in enumerate(tries, 1):
            request.progress(f"run {way}, {number}")
            case, script = with_plain_names(Case(model, feeds)), scripts[way]
            if (first_failure := trials.failure(case, script)) or trials.only_builds:
                break
        if first_failure is None:
            ways = " and ".join(scripts)
            problem = f"{request.source or request.model}: no failure on {engine.name}, {ways}"
            hint = "give the options and the `data` of the failure"
            raise ModelError(problem, hint=hint)
        reduced = trials.reduce(case, script, first_failure)
        failure = trials.failure(reduced, script) or first_failure
        return trials.write(reduced, script, failure, folder, way, len(model.graph.node))


def _candidate_inputs(request: BuildRequest, model: onnx.ModelProto) -> Iterator[Feeds]:
    """Yield the samples, and random inputs if the graph accepts them."""
    yield from request.samples
    random_input = RandomInput(model, samples=request.samples)
    names = [value.name for value in model_io(model).outputs]
    session = make_session(request.onnx, session_options(request.spec.threads, optimize=False))
    try:
        feeds, _ = random_input.run(lambda feeds: run_session(session, names, feeds, "the graph"), batch=2)
    except ModelError:
        if request.samples:
            return
        raise
    yield feeds
    for seed in range(1, _RANDOM_INPUTS):
        yield random_input.feeds(batch=2, seed=seed)


class _Trials:
    """Tries graphs one after the other, with the runtime's script in a worker process."""

    def __init__(self, engine: Engine, request: BuildRequest, folder: Path, max_time_s: float) -> None:
        self.engine, self.request, self.folder, self.count = engine, request, folder, 0
        self.only_builds = False  # whether the script only builds, so that inputs do not matter
        self._deadline_s = time.monotonic() + max_time_s
        self._worker: Worker | None = None
        self._progress: Progress = request.progress

    def failure(self, case: Case, script: str) -> Failure | None:
        """Return the failure on a case; None if the runtime is right, or the graph is invalid."""
        self.count += 1
        path = self.folder / "model.onnx"
        save_onnx(case.model, path)
        quiet = replace(self.request, progress=lambda *_: None)
        opened: Callable[[Path], Runner] = lambda _: _Script(self, case, script)  # noqa: E731
        execution = Execution("", lambda *_: None, {"": opened})
        comparison = ValueComparison(quiet, execution, [case.feeds], rounds=rounds_activations(case.model))
        try:
            [sums] = comparison.deviations(case.model, path).values()
        except _NoOutputs as end:
            return end.failure
        except QCompileError:  # the reference cannot run the graph
            return None
        excess, name = max(
            ((comparison.excess(each), name) for name, each in sums.items()), default=(0.0, "")
        )
        return Failure("wrong", sums[name].words(name), excess) if excess > 1 else None

    def reduce(self, case: Case, script: str, failure: Failure) -> Case:
        last = case.nodes

        def shows(trial: Case) -> bool:
            nonlocal last
            if time.monotonic() > self._deadline_s:
                raise Enough
            trial_failure = self.failure(trial, script)
            is_same = trial_failure is not None and trial_failure.is_like(failure)
            last = min(last, trial.nodes) if is_same else last
            self._progress(f"{failure.kind}: {last} of {case.nodes} nodes, trial {self.count}")
            return is_same

        return reduce_case(case, self._values, shows)

    def _values(self, case: Case) -> Values:
        """Return the values of all tensors of a case, except types that numpy lacks."""
        model = copy_model(case.model)
        types = infer_types(model)
        present = {value.name for value in model.graph.output}
        for node in model.graph.node:
            for name in node.output:
                if name and name not in present and _has_array(types.get(name)):
                    model.graph.output.add().name = name
        path = self.folder / "values.onnx"
        save_onnx(model, path)
        names = [value.name for value in model.graph.output]
        session = make_session(path, session_options(self.request.spec.threads, optimize=False))
        arrays = run_session(session, names, dict(case.feeds), "the graph")
        return {n: array for n, array in zip(names, arrays, strict=True) if isinstance(array, np.ndarray)}

    def run(self, case: Case, script: str) -> dict[str, NDArray[Any]]:
        """Run the script on a case and return its outputs; raise `_NoOutputs` if it fails."""
        (self.folder / "run.py").write_text(script, encoding="utf-8")
        np.savez(self.folder / "inputs.npz", **storable(case.feeds))
        if self._worker is None:
            threads = self.request.spec.threads or usable_cores()
            self._worker = Worker("the runtime", module="qcompile.bench.worker", threads=threads)
        try:
            folder = str(self.folder.resolve())
            answer = self._worker.ask("script", folder=folder, timeout_s=_TIMEOUT_S)
        except WorkerError as error:
            self.close()
            if died := error.data.get("died"):
                raise _NoOutputs(Failure("dies", str(died))) from error
            raise _NoOutputs(Failure("hangs", f"no answer in {_TIMEOUT_S:.0f} s")) from error
        if answer["failed"]:
            raise _NoOutputs(Failure("refuses", first_line(answer["failed"])))
        return load_arrays(self.folder / "outputs.npz")

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def write(
        self, case: Case, script: str, failure: Failure, folder: Path, way: str, nodes_before: int
    ) -> Reproducer:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("run.py", "expected.npz"):  # of an earlier reproducer
            (folder / name).unlink(missing_ok=True)
        save_onnx(case.model, folder / "model.onnx")
        np.savez(folder / "inputs.npz", **storable(case.feeds))
        tail = ""
        if failure.kind == "wrong":
            expected = self._values(case)
            outputs = {v.name: expected[v.name] for v in case.model.graph.output if v.name in expected}
            np.savez(folder / "expected.npz", **storable(outputs))
            tail = WRONG.format(atol=_largest_error(self.run(case, script), outputs) / 2)
        write_text(folder / "run.py", script + tail)
        result = Reproducer(folder, failure, way, nodes_before, case.nodes, self.count)
        write_json(folder / _REPORT, self._report(case, result))
        return result

    def _report(self, case: Case, result: Reproducer) -> dict[str, object]:
        return {
            "target": self.engine.name,
            "fails": result.failure.kind,
            "words": result.failure.words,
            "loaded": result.way,
            "nodes": [f"{node.op_type} {node.name}" for node in case.model.graph.node],
            "nodes_before": result.nodes_before,
            "trials": result.trials,
            "versions": tool_versions(*self.engine.packages),
            "processor": processor(),
        }


def _largest_error(actual: Values, expected: Values) -> float:
    """Return the largest difference of elements, without outputs of another shape, which never match."""
    pairs = [(actual[name], array) for name, array in expected.items() if actual[name].shape == array.shape]
    return max((float(np.abs(a - b.astype(float)).max(initial=0.0)) for a, b in pairs), default=0.0)


def _has_array(dtype: str | None) -> bool:
    return dtype is not None and dtype != "string" and not dtype.startswith(("bfloat", "float8", "float4"))


class _Script(Runner):
    """Runs a case with the runtime's script."""

    contains = ""

    def __init__(self, trials: _Trials, case: Case, script: str) -> None:
        self._trials, self._case, self._script = trials, case, script
        self.io: ModelIO = model_io(case.model)

    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        outputs = self._trials.run(self._case, self._script)
        self._trials.only_builds = not outputs
        if not {tensor.name for tensor in self.io.outputs} <= outputs.keys():
            raise _NoOutputs(None)
        return outputs

    def prepare(self, feeds: Feeds) -> Any:
        return lambda: self.infer(feeds)

    def close(self) -> None:
        """Do nothing, because the worker process also runs the next case."""
