"""Convert a TensorFlow model that is given as MODEL, and check the ONNX file as any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...artifact import Artifact
from ...errors import InvalidOption
from ...files import temporary_folder
from ...model.onnx_file import load_onnx, model_io, save_onnx
from ...model.preprocessing import Preprocessing
from ...model.source import Source
from ...model.tensorflow import HIGHEST_OPSET, convert, tensorflow_python
from ...progress import Progress
from ...tensors import Dim, TensorInfo, parse_dynamic_axis, parse_input
from ..opset.fit import upgrade_in_place
from .onnx_source import take_onnx
from .write import lower_to


def take_tensorflow(
    source: Source,
    output: Path,
    *,
    inputs: Sequence[str | TensorInfo],
    outputs: Sequence[str],
    dynamic: Sequence[str],
    opset_version: int,
    data: str | None,
    trust: bool,
    python: Sequence[str],
    preprocessing: Preprocessing | None,
    progress: Progress,
) -> Artifact:
    """Convert a SavedModel, Keras or TFLite file by tf2onnx, name its axes, and check it as an ONNX file.

    Args and Raises: As `export` and `model.tensorflow.convert` have them.
    """
    with temporary_folder("tensorflow") as folder:
        path = folder / "model.onnx"
        progress("convert to ONNX")
        interpreter = tensorflow_python(python)
        opset = min(opset_version, HIGHEST_OPSET)
        versions = convert(source, interpreter, path, outputs, opset=opset, trust=trust)
        proto = load_onnx(path)
        tensors = input_shapes(model_io(proto).inputs, inputs, dynamic)
        first = {tensor.shape[0] for tensor in tensors if tensor.shape}
        batch = first.pop() if len(first) == 1 else ""
        for value, tensor in zip(proto.graph.input, tensors, strict=True):
            for dimension, extent in zip(value.type.tensor_type.shape.dim, tensor.shape, strict=True):
                if isinstance(extent, int):
                    dimension.dim_value = extent
                else:
                    dimension.dim_param = extent
        for value in proto.graph.output:  # tf2onnx makes names up
            for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
                if isinstance(batch, int) and axis == 0:
                    dimension.dim_value = batch
                elif not dimension.HasField("dim_value"):
                    dimension.dim_param = str(batch) if axis == 0 and batch else f"{value.name}_{axis}"
        if opset_version > HIGHEST_OPSET:
            upgrade_in_place(proto, opset_version)
        save_onnx(proto, path)
        lower_to(path, opset_version, source.spec)
        converted = replace(source, kind="onnx", path=path)
        return take_onnx(converted, output, data, preprocessing, versions)


def input_shapes(
    tensors: Sequence[TensorInfo], requested: Sequence[str | TensorInfo], dynamic: Sequence[str]
) -> list[TensorInfo]:
    """Return inputs with the shapes that are requested; a first open axis is "batch", another INPUT_AXIS.

    Args:
        tensors: Inputs of the converted model.
        requested: Shapes of some of them, whose dtypes are the model's.
        dynamic: `INPUT:AXIS=NAME` each.

    Raises:
        InvalidOption: If an input is unknown, or a shape does not fit the model.
    """
    shapes: dict[str, list[Dim]] = {
        tensor.name: [
            dim if isinstance(dim, int) and dim > 0 else "batch" if axis == 0 else f"{tensor.name}_{axis}"
            for axis, dim in enumerate(tensor.shape)
        ]
        for tensor in tensors
    }
    infos = [parse_input(item) if isinstance(item, str) else item for item in requested]
    labels = [parse_dynamic_axis(text) for text in dynamic]
    for name in (*(info.name for info in infos), *(label[0] for label in labels)):
        if name not in shapes:
            raise InvalidOption(
                f"`inputs` {name}: is no input of the model; it takes {', '.join(shapes)}", option="inputs"
            )
    for info in infos:
        if info.extents:
            raise InvalidOption(f"`inputs` {info}: TensorFlow's axes take names, no ranges", option="inputs")
        shape = shapes[info.name]
        if len(shape) != len(info.shape) or any(
            isinstance(dim, int) and dim != extent for dim, extent in zip(shape, info.shape, strict=True)
        ):
            spelled = "x".join(str(dim) if isinstance(dim, int) else "?" for dim in shape)
            raise InvalidOption(f"`inputs` {info}: the model's shape is {spelled}", option="inputs")
        shapes[info.name] = list(info.shape)
    for name, axis, label in labels:
        shapes[name][axis : axis + 1] = [label]
    return [replace(tensor, shape=tuple(shapes[tensor.name])) for tensor in tensors]
