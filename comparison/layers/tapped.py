"""Run an artifact with taps as additional outputs.

ONNX Runtime reads the graph with more outputs from memory, its weights from the file; OpenVINO from a file
in a folder of its own, which links to the weights. An engine shows what it was built to show: its outputs.
Memory is given back after each run, not kept for the next: only the taps at hand count.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ...artifact import digest_artifact, read_manifest
from ...engines.load import load
from ...engines.registry import engine
from ...errors import DataError, first_line
from ...files import manifest_path, write_json
from ...model.graph import holds_half, infer_types
from ...model.session import make_session, session_options
from ...model.weightless import WeightlessModel, read_weightless
from ...tensors import Feeds, ModelIO

if TYPE_CHECKING:
    import onnx

Arrays = Iterator[tuple[str, NDArray[Any]]]


class Opened:
    """Something that yields the named tensors of one run."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def run(self, feeds: Feeds, where: str) -> Arrays:
        """Yield each tensor; it is freed when the next is asked for.

        Raises:
            DataError: If the model fails on the feeds.
        """
        raise NotImplementedError


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
) -> Iterator[Opened]:
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
            yield _Debugged(runner, debug) if debug else _Plain(runner)
        return
    weightless = read_weightless(path)
    model, outputs = with_taps(weightless.model, names)
    if runtime == "openvino":
        with _openvino(weightless, model, outputs, threads, folder) as opened:
            yield opened
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
    yield _Session(session, names, outputs)


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


class _Plain(Opened):
    def __init__(self, runner: Any) -> None:
        super().__init__([tensor.name for tensor in runner.io.outputs])
        self._runner = runner

    def run(self, feeds: Feeds, where: str) -> Arrays:
        with _translated(where):
            arrays = self._runner.infer(feeds)
        yield from _emptied(arrays)


class _Debugged(_Plain):
    """An engine with its debug tensors; one that the builder fused away is not there."""

    def __init__(self, runner: Any, names: Sequence[str]) -> None:
        super().__init__(runner)
        self._debug = list(names)

    def run(self, feeds: Feeds, where: str) -> Arrays:
        with _translated(where):
            arrays = self._runner.debug_tensors(feeds, self._debug)
        yield from _emptied(arrays)


class _Session(Opened):
    def __init__(self, session: Any, names: Sequence[str], outputs: Mapping[str, str]) -> None:
        own = [value.name for value in session.get_outputs() if value.name not in set(outputs.values())]
        super().__init__([*names, *own])
        self._session, self._asked = session, [*(outputs[name] for name in names), *own]

    def run(self, feeds: Feeds, where: str) -> Arrays:
        import onnxruntime

        with _translated(where):
            if any(array.dtype.kind in "OSUT" for array in feeds.values()):
                fetched = self._session.run(self._asked, feeds)
            else:
                make = onnxruntime.OrtValue.ortvalue_from_numpy
                values = {name: make(array) for name, array in feeds.items()}
                fetched = self._session.run_with_ort_values(self._asked, values)
        fetched = list(fetched)
        for name in self.names:
            value = fetched.pop(0)
            yield name, value.numpy() if hasattr(value, "numpy") else value


class _Compiled(Opened):
    def __init__(self, runner: Any, names: Sequence[str], outputs: Mapping[str, str]) -> None:
        taps = set(outputs.values())
        own = [tensor.name for tensor in runner.io.outputs if tensor.name not in taps]
        super().__init__([*names, *own])
        self._runner, self._outputs = runner, outputs

    def run(self, feeds: Feeds, where: str) -> Arrays:
        with _translated(where):
            arrays = self._runner.infer(feeds)
        yield from _emptied({name: arrays[self._outputs.get(name, name)] for name in self.names})


@contextlib.contextmanager
def _openvino(
    weightless: WeightlessModel,
    model: onnx.ModelProto,
    outputs: Mapping[str, str],
    threads: int,
    folder: Path,
) -> Iterator[Opened]:
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
        yield _Compiled(runner, list(outputs), outputs)


def _link(file: Path, beside: Path) -> None:
    """Let a file lie in another folder too; OpenVINO follows no symbolic link out of the model's folder."""
    try:
        os.link(file, beside)
    except OSError:  # another file system, or one without links
        shutil.copyfile(file, beside)


def _emptied(arrays: dict[str, NDArray[Any]]) -> Arrays:
    for name in list(arrays):
        yield name, arrays.pop(name)


@contextlib.contextmanager
def _translated(where: str) -> Iterator[None]:
    from ...errors import QCompileError

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
