"""Run one side of a layer comparison in a worker: the answer to the request `layers`.

A job names the artifact, the feeds and the taps. The reference's taps are written to files, one a batch;
the artifact's are compared with them as they come, piece by piece, and only sums remain. The process ends
with the run: what it took is given back, its peak is that of this run, and a crash is nobody else's.

Taps are additional outputs. ONNX Runtime reads the graph with more outputs from memory, its weights from the
file; OpenVINO from a file in a folder of its own, which links to the weights. An engine shows what it was
built to show: its outputs. Memory is given back after each run: only the taps at hand count.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...artifact import digest_artifact, read_manifest
from ...engines.load import load
from ...engines.registry import engine
from ...errors import DataError, QCompileError, first_line
from ...files import manifest_path, write_json
from ...model.graph import holds_half, infer_types
from ...model.judgement import ErrorSums
from ...model.session import make_session, session_options
from ...model.weightless import WeightlessModel, read_weightless
from ...processes.arrays import load_arrays
from ...tensors import Feeds, ModelIO
from .forms import Form

if TYPE_CHECKING:
    import onnx

Run = Callable[[Feeds, str], Iterator[tuple[str, NDArray[Any]]]]
"""Of feeds, and what errors call them: yields each tensor, which is freed when the next is asked for."""

PIECE = 1 << 17
"""Elements that are compared at once: 1 MB as float64."""


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


def run_job(job: Mapping[str, Any], told: Callable[[int], None]) -> dict[str, Any]:
    """Run a job; its keys are those of `Job`. `told` is called with the number of batches done."""
    from ...bench.worker import peak_memory_bytes

    taps = {tap["tensor"]: tap for tap in job["taps"]}
    io = ModelIO.from_json(job["io"]) if job["io"] else None
    work = _Work(job, taps)
    arguments = {"threads": job["threads"], "folder": Path(job["folder"]), "io": io}
    debug = list(job["outputs"]) if job["debug"] else []
    with open_tapped(Path(job["path"]), job["runtime"], list(taps), debug=debug, **arguments) as run:
        for number in range(job["batches"]):
            feeds = _feeds(job, number)
            for name, array in run(feeds, job["where"][number]):
                work.take(name, number, array)
                del array
            told(number + 1)
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
            self._compare(
                name, Form.from_json(tap["form"]), Path(job["reference"]) / tap["file"], number, array
            )
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
            np.save(folder / f"{number}.npy", np.ascontiguousarray(array), allow_pickle=False)

    def answer(self) -> dict[str, Any]:
        return {
            "errors": {name: one.as_json() for name, one in self.errors.items()},
            "changed": {name: one.as_json() for name, one in self.changed.items()},
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
    asked = set(job["inputs"]) or set(arrays)
    return {
        name: array.astype(job["cast"].get(name, array.dtype))
        for name, array in arrays.items()
        if name in asked
    }


@contextlib.contextmanager
def open_tapped(
    path: Path,
    runtime: str,
    names: Sequence[str],
    *,
    threads: int,
    folder: Path,
    io: ModelIO | None,
    debug: Sequence[str] = (),
) -> Iterator[Run]:
    """Yield the artifact with tensors to be read.

    Args:
        path: The artifact.
        runtime: Name of its engine.
        names: Tensors of its graph; empty runs it as it is, for its own outputs.
        threads: Threads of one run; 0 lets the runtime choose.
        folder: Where files of this run may lie.
        io: Inputs and outputs of an engine that does not say.
        debug: Debug tensors of an engine, which it shows beside its outputs.
    """
    if not names:
        with load(str(path), threads=threads, io=io, trust=True) as runner:
            engine_runner: Any = runner  # TensorRT's alone has debug tensors
            shown = functools.partial(engine_runner.debug_tensors, names=debug) if debug else runner.infer
            yield _emptying(shown)
        return
    weightless = read_weightless(path)
    model, outputs = with_taps(weightless.model, names)
    if runtime == "openvino":
        with _openvino(weightless, model, outputs, threads, folder) as run:
            yield run
        return
    manifest = read_manifest(path)
    built = manifest is not None and manifest.stage == "build"
    # The layout level crashes the process on some float16 graphs: see `session_options`.
    options = session_options(threads, layouts=not holds_half(weightless.model), optimize=not built)
    options.enable_cpu_mem_arena = False
    weights = str(path.resolve().parent)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", weights)
    session = make_session(path, options, content=model.SerializeToString())
    del model, weightless
    yield _emptying(functools.partial(_infer, session, outputs))


def with_taps(model: onnx.ModelProto, names: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a copy of a model whose outputs hold tensors too, and tensor to the output that holds it.

    numpy has no bfloat16: such a tensor comes out widened, exactly.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    types = infer_types(model)
    present = {value.name for value in model.graph.output}
    outputs: dict[str, str] = {}
    for name in names:
        kind, output = types.get(name), name
        if kind == "bfloat16":
            kind, output = "float32", f"{name}/tapped"
            to = onnx.TensorProto.FLOAT
            copy.graph.node.append(onnx.helper.make_node("Cast", [name], [output], name=output, to=to))
        outputs[name] = output
        if output in present:
            continue
        value = onnx.ValueInfoProto(name=output)  # ONNX Runtime infers the type of its own operators
        if kind is not None:
            elem_type = onnx.helper.np_dtype_to_tensor_dtype(_numpy_type(kind))
            value = onnx.helper.make_tensor_value_info(output, elem_type, None)
        copy.graph.output.append(value)
    return copy, outputs


@contextlib.contextmanager
def _openvino(
    weightless: WeightlessModel, model: onnx.ModelProto, outputs: dict[str, str], threads: int, folder: Path
) -> Iterator[Run]:
    """Write the tapped graph beside links to the weights and the manifest, which says the precision."""
    import onnx

    from ...model.onnx_file import external_files

    place = folder / "openvino"
    place.mkdir()
    path = weightless.path.resolve()
    for file in [path, *external_files(path, weightless.model)]:
        _link(file, place / file.name)
    tapped = place / "tapped.onnx"
    onnx.save(model, str(tapped))
    if (manifest := read_manifest(path)) is not None:
        write_json(manifest_path(tapped), replace(manifest, digest=digest_artifact(tapped)).as_json())
    with engine("openvino").open(str(tapped), threads=threads) as runner:
        taps = set(outputs.values())
        shown = outputs | {
            tensor.name: tensor.name for tensor in runner.io.outputs if tensor.name not in taps
        }

        def infer(feeds: Feeds) -> dict[str, NDArray[Any]]:
            arrays = runner.infer(feeds)
            return {name: arrays[output] for name, output in shown.items()}

        yield _emptying(infer)


def _link(file: Path, beside: Path) -> None:
    """Let a file lie in another folder too; OpenVINO follows no symbolic link out of the model's folder."""
    try:
        os.link(file, beside)
    except OSError:  # another file system, or one without links
        shutil.copyfile(file, beside)


def _infer(session: Any, outputs: dict[str, str], feeds: Feeds) -> dict[str, Any]:
    """The taps and the graph's own outputs, which ONNX Runtime holds until they are read."""
    import onnxruntime

    taps = set(outputs.values())
    shown = outputs | {one.name: one.name for one in session.get_outputs() if one.name not in taps}
    if any(array.dtype.kind in "OSUT" for array in feeds.values()):
        fetched = session.run([*shown.values()], feeds)
    else:
        make = onnxruntime.OrtValue.ortvalue_from_numpy
        values = {name: make(array) for name, array in feeds.items()}
        fetched = session.run_with_ort_values([*shown.values()], values)
    return dict(zip(shown, fetched, strict=True))


def _emptying(infer: Callable[[Feeds], dict[str, Any]]) -> Run:
    def run(feeds: Feeds, where: str) -> Iterator[tuple[str, NDArray[Any]]]:
        with _translated(where):
            values = infer(feeds)
        for name in list(values):
            value = values.pop(name)
            yield name, value.numpy() if hasattr(value, "numpy") else value

    return run


@contextlib.contextmanager
def _translated(where: str) -> Iterator[None]:
    try:
        yield
    except QCompileError:
        raise
    except Exception as error:  # the exceptions of runtimes share no narrower base
        raise DataError(
            f"{where}: the model failed on it: {first_line(error)}",
            hint="check the sample's shape and values against the model, or give `data`",
            sample=where,
        ) from error


def _numpy_type(kind: str) -> Any:
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, kind)) if not hasattr(np, kind) else np.dtype(kind)
