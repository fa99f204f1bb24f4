"""Run one side of a layer comparison in a worker: the answer to the request `layers`.

A job names the artifact, the feeds and the taps. The reference's taps are written to files, one per batch.
The artifact's taps are compared with them piece by piece as they arrive; only sums remain in memory. The
process ends with the run: its memory is freed, its peak belongs to this run, and a crash affects no other.

Taps are additional outputs. ONNX Runtime reads the extended graph from memory and the weights from the file;
other runtimes read a file in a folder with links to the weights. A TensorRT engine exposes its outputs only.
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

PIECE = 1 << 17  # elements per comparison: 1 MB as float64


@dataclass(frozen=True)
class Job:
    """One run of one side. Paths are strings, because a job is sent as JSON.

    Attributes:
        path, runtime, threads, io: The artifact and its load options.
        feeds, batches, batch_names: Folder of `N.npz`, number of batches, and name of each batch in errors.
        taps: `{"tensor", "file", "form"}` each: a tensor of the artifact, the folder of its reference's
            values, and the conversion of the tensor. Empty for a run without taps.
        output_folders: Artifact output to the folder that it is written to, or compared with.
        outputs: Artifact output to the folder of its reference's values.
        write: Folder for the values of taps and outputs.
        reference: Folder of the reference's values for `taps`.
        reference_outputs: Folder of the reference's values for `outputs`.
        own_outputs: Folder of the artifact's outputs without taps, to detect changes.
        cast: Input to the type that it is rounded to.
        inputs: Names of the inputs to feed; empty for all.
        debug: Whether to read debug tensors of an engine in addition to its outputs.
    """

    path: str
    runtime: str
    threads: int
    io: Mapping[str, Any] | None
    feeds: str
    batches: int
    batch_names: Sequence[str]
    taps: Sequence[Mapping[str, Any]] = ()
    output_folders: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    write: str = ""
    reference: str = ""
    reference_outputs: str = ""
    own_outputs: str = ""
    cast: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    debug: bool = False


def run_job(job: Mapping[str, Any], on_batch: Callable[[int], None]) -> dict[str, Any]:
    """Run a job, a mapping with the keys of `Job`; pass the number of finished batches to `on_batch`."""
    from ...worker import peak_memory_bytes

    taps = {tap["tensor"]: tap for tap in job["taps"]}
    work = _TensorSums(job, taps)
    with open_tapped(job, list(taps)) as infer:
        for number in range(job["batches"]):
            for name, array in _tensors(infer, _feeds(job, number), job["batch_names"][number]):
                work.take(name, number, array)
                del array
            on_batch(number + 1)
    return {**work.answer(), "peak_bytes": peak_memory_bytes()}


class _TensorSums:
    """Sums over the tensors of a run: compare each with the reference, or write it to a file."""

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
        if tap is None and job["own_outputs"] and name in job["output_folders"]:
            sums = self.changed.setdefault(name, ErrorSums())
            _compare_file(sums, Path(job["own_outputs"]) / job["output_folders"][name], number, array, Form())
        subfolder = tap["file"] if tap is not None else job["output_folders"].get(name)
        if job["write"] and subfolder is not None:
            folder = Path(job["write"]) / subfolder
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
    """Add the error of a tensor to the sums; return the reason if its shape differs from the file's."""
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
    """Yield a function that runs the artifact and returns the tensors `names`; without names, its outputs.

    Temporary files may lie in the job's folder. With `debug`, an engine returns debug tensors, too.
    """
    path, threads = Path(job["path"]), job["threads"]
    if not names:
        io = ModelIO.from_json(job["io"]) if job["io"] else None
        with load(str(path), threads=threads, io=io, trust=True) as runner:
            trt: Any = runner  # only the runner of TensorRT has debug tensors
            debug = functools.partial(trt.debug_tensors, names=[*job["outputs"]]) if job["debug"] else None
            yield debug or runner.infer
        return
    weightless = read_weightless(path)
    model, outputs = with_taps(weightless.model, names)
    runtime, folder = engine(job["runtime"]), Path(job["folder"])
    with runtime.open_tapped(weightless, model, outputs, threads=threads, folder=folder) as infer:
        del model, weightless
        yield infer


def with_taps(model: onnx.ModelProto, names: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a copy of the model with the tensors as additional outputs, and each tensor's output name.

    numpy has no bfloat16, so these tensors are widened to float32, without loss.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    types, new = infer_types(model), Names(model.graph)
    existing_outputs = {value.name for value in model.graph.output}
    outputs: dict[str, str] = {}
    for name in names:
        kind, output = types.get(name), name
        if kind == "bfloat16":
            kind, output = "float32", new.fresh(f"{name}/tapped")
            to = onnx.TensorProto.FLOAT
            copy.graph.node.append(onnx.helper.make_node("Cast", [name], [output], name=output, to=to))
        outputs[name] = output
        if output in existing_outputs:
            continue
        value = onnx.ValueInfoProto(name=output)  # ONNX Runtime infers the types of its operators
        if kind is not None:
            import ml_dtypes

            elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, kind, kind)))
            value = onnx.helper.make_tensor_value_info(output, elem_type, None)
        copy.graph.output.append(value)
    return copy, outputs


def _tensors(
    infer: Callable[[Feeds], dict[str, Any]], feeds: Feeds, where: str
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield each tensor; its memory is freed at the next request."""
    try:
        values = infer(feeds)
    except QCompileError:
        raise
    except Exception as error:  # the exceptions of runtimes share no narrower base
        raise failed_sample(error, where) from error
    for name in list(values):
        value = values.pop(name)
        yield name, value.numpy() if hasattr(value, "numpy") else value
