"""Inputs, outputs and files of an ONNX model as Triton sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..artifact import Check
from ..errors import EngineUnavailable, ModelError
from ..model.onnx_file import external_files, load_onnx, model_io
from ..model.session import make_session, session_options
from ..tensors import ModelIO, TensorInfo


def onnx_io(path: Path, *, with_onnxruntime: bool) -> tuple[ModelIO, tuple[Check, ...], list[str]]:
    """Return inputs and outputs, what was checked, and what the user should know.

    ONNX Runtime infers extents that the file leaves open, and Triton compares the configured outputs with
    what it inferred, exactly (onnxruntime_backend, `CompareDimsSupported`): so it is asked where it is here.

    Raises:
        ModelError: If the file is damaged, or gives no rank for an input or output.
    """
    model = load_onnx(path, external_data=False)
    declared = model_io(model)
    io = declared
    checks: tuple[Check, ...] = ()
    notes: list[str] = []
    if with_onnxruntime:
        try:
            session = make_session(path, session_options(optimize=False))
            io = _as_session(declared, session)
            checks = (Check("ONNX Runtime loads it", True, "inputs and outputs are what it tells"),)
        except (EngineUnavailable, ModelError) as error:
            notes.append(f"not loaded by ONNX Runtime here: {error.message}")
    unknown = {
        value.name
        for value in (*model.graph.input, *model.graph.output)
        if not value.type.tensor_type.HasField("shape")
    }
    for tensor in (*io.inputs, *io.outputs):
        if tensor.name in unknown and not tensor.shape:
            raise ModelError(
                f"{path}: the rank of {tensor.name!r} is not known; Triton must be told its dims",
                hint="export the model with declared shapes, or simplify it",
                file=path,
            )
    return io, checks, notes


def onnx_side_files(path: Path) -> dict[str, Path]:
    """Return the files with a model's external data, by the place beside it that the model names.

    Raises:
        ModelError: If one is missing, or (as `load_onnx` finds) lies outside the model's folder.
    """
    folder = path.resolve().parent
    side_files: dict[str, Path] = {}
    for file in external_files(path, load_onnx(path, external_data=False)):
        if not file.is_file():
            raise ModelError(
                f"{path}: its external data {file} does not exist",
                hint="keep the data file beside the model",
                file=path,
            )
        side_files[file.relative_to(folder).as_posix()] = file
    return side_files


def _as_session(declared: ModelIO, session: Any) -> ModelIO:
    shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}

    def seen(tensor: TensorInfo) -> TensorInfo:
        shape = shapes.get(tensor.name)
        if shape is None:
            return tensor
        dims = (extent if isinstance(extent, int) else extent or "?" for extent in shape)
        return TensorInfo(tensor.name, tensor.dtype, tuple(dims))

    return ModelIO(tuple(map(seen, declared.inputs)), tuple(map(seen, declared.outputs)))
