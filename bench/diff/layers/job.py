"""Run one side of a layer comparison in a worker: the answer to the request `layers`.

A job names the artifact, the feeds and the taps. The reference's taps are written to files, one a batch;
the artifact's are compared with them as they come, piece by piece, and only sums remain. The process ends
with the run: what it took is given back, its peak is that of this run, and a crash is nobody else's.

Taps are additional outputs. ONNX Runtime reads the graph with more outputs from memory, its weights from the
file; others from a file in a folder beside links to the weights. An engine of TensorRT shows its outputs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ....core.processes.arrays import load_arrays
from ....engines.registry import engine, load
from ....errors import QCompileError
from ....model.graph.graph import infer_types
from ....model.graph.graph_names import Names
from ....model.graph.onnx_file import read_weightless
from ....model.outputs.judgement import ErrorSums
from ....model.sessions.refusals import failed_sample
from ....spec.tensors import Feeds, ModelIO
from .sides import Form

if TYPE_CHECKING:
    import onnx

PIECE = 1 << 17  # elements that are compared at once: 1 MB as float64


@dataclass(frozen=True)
class Job:
    """One run of one side; paths as text, as it travels as JSON.

    Attributes:
        path, runtime, threads, io: The artifact and how it is loaded.
        feeds, batches, where: Folder of `N.npz`, their number, and what each is called in errors.
        taps: `{"tensor", "file", "form"}` each: a tensor of the artifact, the folder of its reference's
            values and how it is read; none for a run of the artifact as it is.
        own: Output of the artifact to the folder it is written to, or checked against.
        outputs: Output of the artifact to the folder of its reference's values.
        write: Folder that taps and outputs are written into.
        reference: Folder that the taps are compared with.
        reference_outputs: Folder that the outputs are compared with.
        own_outputs: Folder of the artifact's own outputs without taps, to see whether they changed.
        cast: Input to the type that it is rounded to.
        inputs: Those that are fed; empty for all.
        debug: Whether an engine shows debug tensors beside its outputs.
    """

    path: str
    runtime: str
    threads: int
    io: Mapping[str, Any] | None
    feeds: str
    batches: int
    where: Sequence[str]
    taps: Sequence[Mapping[str, Any]] = ()
    own: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    write: str = ""
    reference: str = ""
    reference_outputs: str = ""
    own_outputs: str = ""
    cast: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    debug: bool = False


def run_job(job: Mapping[str, Any], on_batch: Callable[[int], None]) -> dict[str, Any]:
    """Run a job; its keys are those of `Job`. `on_batch` is called with the number of batches done."""
    from ...worker import peak_memory_bytes

    taps = {tap["tensor"]: tap for tap in job["taps"]}
    work = _Work(job, taps)
    with open_tapped(job, list(taps)) as infer:
        for number in range(job["batches"]):
            for name, array in _tensors(infer, _feeds(job, number), job["where"][number]):
                work.take(name, number, array)
                del array
            on_batch(number + 1)
    return {**work.answer(), "peak_bytes": peak_memory_bytes()}


class _Work:
    """What is done with each tensor of each batch."""

    def __init__(self, job: Mapping[str, Any], taps: Mapping[str, Any]) -> None:
        self.job, self.taps = job, taps
        self.errors: dict[str, ErrorSums] = {}
        self.changed: dict[str, ErrorSums] = {}
        self.refused: dict[str, str] = {}

    def take(self, name: str, number: int, array: NDArray[Any]) -> None:
        job, tap = self.job, self.taps.get(name)
        if tap is not None and job["reference"]:
            form = msgspec.convert(tap["form"], Form)
            self._compare(name, form, Path(job["reference"]) / tap["file"], number, array)
        elif tap is None and name in job["outputs"] and job["reference_outputs"]:
            folder = Path(job["reference_outputs"]) / job["outputs"][name]
            self._compare(name, Form(), folder, number, array)
        if tap is None and job["own_outputs"] and name in job["own"]:
            sums = self.changed.setdefault(name, ErrorSums())
            _compare_file(sums, Path(job["own_outputs"]) / job["own"][name], number, array, Form())
        place = tap["file"] if tap is not None else job["own"].get(name)
        if job["write"] and place is not None:
            folder = Path(job["write"]) / place
            folder.mkdir(exist_ok=True)
            np.save(folder / f"{number}.npy", np.asarray(array, order="C"), allow_pickle=False)

    def answer(self) -> dict[str, Any]:
        return {
            "errors": {name: vars(sums) for name, sums in self.errors.items()},
            "changed": {name: vars(sums) for name, sums in self.changed.items()},
            "refused": self.refused,
        }

    def _compare(self, name: str, form: Form, folder: Path, number: int, array: NDArray[Any]) -> None:
        if name in self.refused:
            return
        reason = _compare_file(self.errors.setdefault(name, ErrorSums()), folder, number, array, form)
        if reason:
            self.refused[name] = reason
            del self.errors[name]


def _compare_file(sums: ErrorSums, folder: Path, number: int, array: NDArray[Any], form: Form) -> str:
    """Add a tensor and the reference's in a file to the sums; the reason why that cannot be, if any."""
    array = form.ordered(array)
    with (folder / f"{number}.npy").open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if shape != array.shape:
            return f"its shape is {array.shape}, the reference's {shape}"
        for piece in form.pieces(array, PIECE):
            # Read, not mapped: mapped pages would count as memory of this process.
            sums.add(np.fromfile(file, dtype, piece.size), piece)
    return ""


def _feeds(job: Mapping[str, Any], number: int) -> dict[str, Any]:
    arrays = load_arrays(Path(job["feeds"]) / f"{number}.npz")
    return {n: arrays[n].astype(job["cast"].get(n, arrays[n].dtype)) for n in job["inputs"] or arrays}


@contextlib.contextmanager
def open_tapped(job: Mapping[str, Any], names: Sequence[str]) -> Iterator[Callable[[Feeds], dict[str, Any]]]:
    """Yield the artifact with tensors of its graph to be read; without names as it is, for its own outputs.

    Files of the run may lie in the job's folder; an engine shows debug tensors beside its outputs.
    """
    path, threads = Path(job["path"]), job["threads"]
    if not names:
        io = ModelIO.from_json(job["io"]) if job["io"] else None
        with load(str(path), threads=threads, io=io, trust=True) as runner:
            shown: Any = runner  # TensorRT's alone has debug tensors
            debug = functools.partial(shown.debug_tensors, names=[*job["outputs"]]) if job["debug"] else None
            yield debug or runner.infer
        return
    weightless = read_weightless(path)
    model, outputs = with_taps(weightless.model, names)
    runtime, folder = engine(job["runtime"]), Path(job["folder"])
    with runtime.open_tapped(weightless, model, outputs, threads=threads, folder=folder) as infer:
        del model, weightless
        yield infer


def with_taps(model: onnx.ModelProto, names: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a copy of a model whose outputs hold tensors too, and tensor to the output that holds it.

    numpy has no bfloat16: such a tensor comes out widened, exactly.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    types, new = infer_types(model), Names(model.graph)
    present = {value.name for value in model.graph.output}
    outputs: dict[str, str] = {}
    for name in names:
        kind, output = types.get(name), name
        if kind == "bfloat16":
            kind, output = "float32", new.fresh(f"{name}/tapped")
            to = onnx.TensorProto.FLOAT
            copy.graph.node.append(onnx.helper.make_node("Cast", [name], [output], name=output, to=to))
        outputs[name] = output
        if output in present:
            continue
        value = onnx.ValueInfoProto(name=output)  # ONNX Runtime infers the type of its own operators
        if kind is not None:
            import ml_dtypes

            elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, kind, kind)))
            value = onnx.helper.make_tensor_value_info(output, elem_type, None)
        copy.graph.output.append(value)
    return copy, outputs


def _tensors(
    infer: Callable[[Feeds], dict[str, Any]], feeds: Feeds, where: str
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield each tensor, which is freed when the next is asked for."""
    try:
        values = infer(feeds)
    except QCompileError:
        raise
    except Exception as error:  # the exceptions of runtimes share no narrower base
        raise failed_sample(error, where) from error
    for name in list(values):
        value = values.pop(name)
        yield name, value.numpy() if hasattr(value, "numpy") else value
