"""Describe the artifacts of a benchmark, choose their common input, and run them in worker processes.

A worker process may use another Python interpreter: TensorRT often has a separate environment from PyTorch.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.artifact import checked_input, read_manifest, size_bytes, trust_content
from ...core.files import temporary_folder
from ...core.processes.arrays import load_arrays, save_arrays
from ...core.processes.worker import Worker
from ...data.batches import Data
from ...engines.base import Engine, Place
from ...engines.registry import engine, engine_of
from ...errors import DataError, EngineUnavailable, InvalidOption, MissingFile, WorkerError
from ...model.graph.graph import WeightStats, graph_precision, weights_of_graph
from ...model.graph.onnx_file import Graph, read_graph
from ...model.outputs.output_forms import OutputForm, output_forms
from ...model.sessions.random_input import RandomInput, random_feeds
from ...model.sessions.session import make_session, run_session, session_options
from ...model.sources.archives import require_trust, trust_files
from ...model.sources.source import NAMED, TRUSTED_KINDS, parse_source
from ...spec.tensors import (
    Feeds,
    ModelIO,
    first_axes_differ,
    format_shape,
    parse_input,
    samples_in,
)

WORKER = "qcompile.bench.worker"
"""Module of the worker process that serves one artifact."""


class Interpreters:
    """Map an engine to its interpreter, a Python or a script that starts one, and test whether it runs."""

    def __init__(self, by_engine: Mapping[str, str]) -> None:
        self.by_engine, self._answers = by_engine, dict[str, str]()

    def python(self, engine_name: str) -> str:
        return self.by_engine.get(engine_name, "")

    def why_not_run(self, engine_name: str) -> str:
        """Return why an engine cannot run in its interpreter, or "" if it can. The result is cached."""
        if engine_name not in self._answers:
            python = self.python(engine_name)
            try:
                with Worker(f"{engine_name} in {python}", module=WORKER, threads=0, python=python) as worker:
                    answer = worker.ask("why_not", engine=engine_name)
            except WorkerError as error:
                raise InvalidOption(
                    f"`python` {engine_name}={python}: cannot serve a worker: {error.message}",
                    hint="it needs Python 3.10 or newer with numpy, onnx, msgspec and the runtime; "
                    'a script must pass its arguments on: exec python "$@"',
                    option="python",
                ) from error
            reason, fix = str(answer["why_not"]), str(answer["fix"])
            self._answers[engine_name] = f"{reason}; {fix}" if reason and fix else reason
        return self._answers[engine_name]


def parse_interpreters(texts: Iterable[str]) -> Interpreters:
    """Parse `ENGINE=INTERPRETER` options, for example `tensorrt=/opt/trt/bin/python`."""
    by_engine: dict[str, str] = {}
    for text in texts:
        name, equals, python = text.partition("=")
        if not (name and equals and python):
            raise InvalidOption(
                f"`python` {text!r}: ENGINE=INTERPRETER is required, as tensorrt=/opt/trt/bin/python",
                option="python",
            )
        engine(name)  # raises for an unknown name and lists the valid ones
        if name in by_engine:
            raise InvalidOption(f"`python` {name}: is given twice", option="python")
        path = shutil.which(python)
        if path is None:
            raise MissingFile(f"`python` {text}: there is no executable {python}", file=python)
        by_engine[name] = path
    return Interpreters(by_engine)


@dataclass(frozen=True)
class RunnableArtifact:
    """An artifact (a path) or MODEL to run. Empty fields and None mean unknown or not needed.

    Attributes:
        runs_on: "CPU", "GPU", or the GPUs it was built for.
        why_not: Reason it cannot run here; empty if it can.
        python: Interpreter that runs it; empty for the current one.
        mode: How PyTorch runs a MODEL, see `engines.pytorch.MODES`; or `words.CUDA_GRAPH`.
        device: Device to run on: "cpu", or a GPU such as "cuda:0".
        places: Supported devices; a graph that ONNX Runtime optimized for a processor supports only "cpu".
        layers_by_precision: Precision to operator to number of layers, as verified in the manifest.
        graph, random_input, weights: Graph, generator of input, and weights; None unless it is an ONNX file.
        rules: The manifest's rules for the forms of outputs.
        allows_no_graph: Whether to run without a CUDA graph if the capture fails, as trtexec does
            (samples/common/sampleInference.cpp of 11.1, createEnqueueFunction).
    """

    name: str
    artifact: str
    engine: str
    precision: str
    io: ModelIO | None
    runs_on: str
    size_bytes: int | None
    why_not: str
    python: str = ""
    mode: str = "eager"
    device: str = "cpu"
    places: tuple[Place, ...] = ("cpu",)
    layers_by_precision: dict[str, Any] | None = None
    graph: Graph | None = None
    random_input: RandomInput | None = None
    weights: WeightStats | None = None
    rules: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    allows_no_graph: bool = False


def describe(
    artifact: str, name: str = "", *, trust: bool = False, pythons: Interpreters | None = None
) -> RunnableArtifact:
    """Describe an artifact or MODEL without running it; unless `trust`, a file must match its manifest."""
    runtime = engine(engine_of(artifact, trust=trust))
    path = Path(artifact)
    if trust:
        trust_content(path)
    elif path.is_file():
        checked_input(path)  # checks the digest before any code runs
    source = parse_source(artifact) if runtime.name in ("pytorch", "torchscript") else None
    if source and source.kind in TRUSTED_KINDS:
        with trust_files(trust):
            require_trust(source.file)  # the worker loads it without a further check
    manifest = read_manifest(path) if path.is_file() else None
    io, precision, runs_on, layers, rules = None, "fp32", "CPU", None, None
    warnings: tuple[str, ...] = ()
    graph = read_graph(path) if path.suffix == ".onnx" else None
    if graph is not None:
        io, precision = graph.io, graph_precision(graph.model)
    if manifest:
        rules = manifest.options.get("rules")
        io = manifest.io or io
        precision = manifest.precision or precision
        layers = manifest.proof.get("as_executed") or manifest.proof.get("layers_by_precision")
        if manifest.kind == "engine":
            gpus = manifest.device.get("gpus")
            runs_on = "GPU " + ", ".join(map(str, gpus if isinstance(gpus, list) else []))
        target = manifest.target or ""
        if manifest.stage == "quantize" and target.startswith("tensorrt") and target != runtime.name:
            warnings = (
                f"quantized for {target} but run by {runtime.name}: its accuracy is meaningful, its speed "
                f"is not; quantize with `target` {runtime.name} for this processor",
            )
    places = runtime.places
    if runtime.name == "onnxruntime" and manifest and manifest.stage == "build":
        places = ("cpu",)
    return RunnableArtifact(
        name=name or short_name(artifact),
        artifact=artifact,
        engine=runtime.name,
        precision=precision,
        io=io,
        runs_on=runs_on,
        size_bytes=size_bytes(path) if path.is_file() and path.suffix != ".py" else None,
        why_not=_reason_not_runnable(runtime, pythons),
        device="cpu" if "cpu" in places else "cuda:0",
        places=places,
        python=pythons.python(runtime.name) if pythons else "",
        layers_by_precision=dict(layers) if isinstance(layers, Mapping) else None,
        graph=graph,
        random_input=RandomInput(graph.model) if graph else None,
        weights=weights_of_graph(graph.model) if graph else None,
        rules=tuple(map(str, rules)) if isinstance(rules, list | tuple) else (),
        warnings=warnings,
    )


def _reason_not_runnable(runtime: Engine, pythons: Interpreters | None) -> str:
    if pythons and pythons.python(runtime.name):
        return pythons.why_not_run(runtime.name)
    if not runtime.name.startswith("tensorrt"):
        return ""  # the worker of another runtime reports a more exact reason when loading fails
    reason = runtime.why_not_run()
    return f"{reason}; {runtime.fix()}" if reason else ""


def shared_io(runnables: Sequence[RunnableArtifact], inputs: Sequence[str] = ()) -> ModelIO:
    """Return the inputs and outputs of all artifacts: `inputs`, or those that the first artifact declares."""
    if inputs:
        return ModelIO(tuple(parse_input(text) for text in inputs), ())
    for runnable in runnables:
        if runnable.io is not None and runnable.io.inputs:
            return runnable.io
    from ...model.sources.example import make_example
    from ...model.sources.load import load_torch

    for runnable in runnables:  # last, because it loads the model: the example of the MODEL's function
        if runnable.engine == "pytorch":
            loaded = load_torch(parse_source(runnable.artifact))
            if loaded.example is not None:
                return ModelIO(make_example(loaded, [], []).inputs, ())
    raise DataError("the inputs are not known: no artifact declares them", hint="give `inputs` NAME:SHAPE")


def forms_of(runnables: Sequence[RunnableArtifact]) -> dict[str, OutputForm]:
    """Return the form of each output, from the first artifact's graph and the `rules` of all manifests."""
    graph = next((runnable.graph for runnable in runnables if runnable.graph), None)
    if graph is None:
        return {}
    rules = dict.fromkeys(text for runnable in runnables for text in runnable.rules)
    names = {value.name for value in graph.model.graph.output}
    return output_forms(graph.model, [text for text in rules if text.rpartition(":")[0] in ("", *names)])


def feeds_for(
    io: ModelIO,
    data: str | None,
    *,
    runnables: Sequence[RunnableArtifact] = (),
    samples: int | None = None,
    batch_size: int | None = None,
) -> Iterator[Feeds]:
    """Yield the batches that every artifact runs on: from the data, or a single batch of random input."""
    if data is not None:
        for batch in Data(data, io.inputs, batch_size=batch_size, limit=samples):
            yield batch.feeds
        return
    size = batch_size or min(samples or 8, 8)
    for runnable in runnables:
        if runnable.random_input and runnable.random_input.inputs == io.inputs:
            try_extents(runnable.random_input, Path(runnable.artifact))
            yield runnable.random_input.feeds(size)
            return
    yield random_feeds(io.inputs, extent=size)


def try_extents(random: RandomInput, path: Path) -> None:
    """Let ONNX Runtime try extents for the model's input if the graph alone does not determine them."""
    if not random.is_guess:
        return
    session = make_session(path, session_options(optimize=False))
    names = [value.name for value in session.get_outputs()]
    random.run(lambda feeds: run_session(session, names, feeds, str(path)))


def timing_feeds(
    io: ModelIO,
    data: str | None,
    *,
    runnables: Sequence[RunnableArtifact] = (),
    batch_size: int | None = None,
) -> Feeds:
    """Return the batch to time: exactly `batch_size` samples, joined from the batches of the data."""
    fixed = {t.shape[0] for t in io.inputs if t.shape and isinstance(t.shape[0], int)}
    is_one_call = first_axes_differ(io.inputs)  # the first axis of some inputs does not count samples
    if batch_size is not None and not (is_one_call and batch_size == 1) and fixed - {batch_size}:
        raise InvalidOption(
            f"`batch_size` {batch_size}: the first axis of the model is fixed at {min(fixed)}",
            hint="leave `batch_size` out, or export with a dynamic batch: `inputs` 'x:[batch,...]'",
            option="batch_size",
        )
    batches = feeds_for(io, data, runnables=runnables, batch_size=batch_size)
    if batch_size is None or data is None or is_one_call:
        return next(batches)
    parts: list[Feeds] = []
    samples = 0
    while samples < batch_size and (feeds := next(batches, None)):
        parts.append(feeds)
        samples += samples_in(feeds)
    if samples < batch_size:
        raise DataError(
            f"{data}: holds {samples} samples; a batch of {batch_size} is required",
            hint="give a smaller batch size, or more data",
        )
    for name in parts[0]:
        shapes = dict.fromkeys(feeds[name].shape[1:] for feeds in parts)
        if len(shapes) > 1:
            two_shapes = " and ".join(format_shape(("batch", *shape)) for shape in list(shapes)[:2])
            raise DataError(
                f"{data}: input {name!r} has batches of {two_shapes}; the {batch_size} timed samples must "
                "have one shape",
                hint=f"measure batches of {samples_in(parts[0])}, or let the first batch hold {batch_size}",
            )
    return {name: np.concatenate([feeds[name] for feeds in parts])[:batch_size] for name in parts[0]}


def collect_outputs(
    runnable: RunnableArtifact,
    feeds: Sequence[Feeds],
    runnables: Sequence[RunnableArtifact],
    *,
    threads: int,
    notes: list[str] | None = None,
) -> list[dict[str, np.ndarray[Any, Any]]]:
    require_runnable(runnable)
    with Worker(runnable.name, module=WORKER, threads=threads, python=runnable.python) as worker:
        load_in_worker(worker, runnable, runnables, threads)
        return list(infer_all(worker, feeds, notes))


def require_runnable(runnable: RunnableArtifact) -> None:
    if runnable.why_not:
        raise EngineUnavailable(
            f"{runnable.artifact}: cannot run here: {runnable.why_not}",
            hint=engine(runnable.engine).fix(),
            engine=runnable.engine,
        )


def load_in_worker(
    worker: Worker, runnable: RunnableArtifact, runnables: Sequence[RunnableArtifact], threads: int
) -> dict[str, Any]:
    """Load an artifact in its worker; a MODEL without declared outputs uses those of another artifact."""
    io = runnable.io or next((candidate.io for candidate in runnables if candidate.io), None)
    return worker.ask(
        "load", artifact=runnable.artifact, threads=threads, io=io.as_json() if io else None,
        mode=runnable.mode, device=runnable.device,
    )  # fmt: skip


def infer_all(
    worker: Worker, feeds: Sequence[Feeds], notes: list[str] | None = None
) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Yield the outputs of each batch, passed as files; append each note of the runner to `notes` once."""
    with temporary_folder("outputs") as folder:
        for batch in feeds:
            path, output = folder / "feeds.npz", folder / "outputs.npz"
            save_arrays(path, batch)
            answer = worker.ask("infer", path=str(path), output=str(output))
            texts = [f"{worker.name}: {note}" for note in answer["notes"]]
            if notes is not None:
                notes += [text for text in texts if text not in notes]
            yield load_arrays(output)


def pair_outputs(
    reference: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]], *, complete: bool = True
) -> dict[str, NDArray[Any]]:
    """Return the outputs in the baseline's order and under its names, paired by name or else by position.

    With `complete=False`, either side may have additional outputs; those of `outputs` come last.

    Raises:
        InvalidOption: If the numbers of outputs differ (with `complete=False`: and no name matches).
    """
    if len(reference) == len(outputs) and set(reference) != set(outputs):
        return dict(zip(reference, outputs.values(), strict=True))
    common = [name for name in reference if name in outputs]
    if len(reference) != len(outputs) and (complete or not common):
        raise InvalidOption(
            f"outputs {', '.join(outputs)}; as many as the baseline's are required: {', '.join(reference)}"
        )
    return {name: outputs[name] for name in (*common, *(name for name in outputs if name not in reference))}


def short_name(artifact: str) -> str:
    """Return the default name of an artifact: its file name, for a MODEL with the function.

    A model from a package keeps its prefix, as in `timm:resnet18`; `hf:` precedes the name of the folder.
    """
    plain, _, query = artifact.partition("?")
    kind, _, name = plain.partition(":")
    if kind in NAMED:
        random = " (random)" if "weights=random" in query else ""
        return f"{kind}:{Path(name).name if kind == 'hf' else name}{random}"
    head, _, function = plain.rpartition(":")
    if head.endswith(".py"):
        return f"{Path(head).name}:{function}"
    return Path(artifact).name
