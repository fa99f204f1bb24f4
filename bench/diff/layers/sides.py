"""The two sides of a layer comparison: checks of both, and conversion of tensors to the reference's form.

In a quantized graph, the integers are read and scaled here. The values are exactly those that the kernel
writes, take a quarter of the memory, and preserve the fusion of operator and QuantizeLinear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ....calibration.taps import MOVES
from ....core.artifact import checked_input, read_manifest, trust_content
from ....core.files import manifest_path, require_file
from ....engines.registry import engine, engine_of
from ....errors import EngineUnavailable, InvalidOption, ModelError
from ....model.graph.graph import graph_precision, stored_tensors, tensor_values, weighted_nodes
from ....model.graph.onnx_file import Graph, read_weightless
from ....spec.tensors import ModelIO, TensorInfo
from .outcome import THRESHOLD_DB

if TYPE_CHECKING:
    import onnx

_MOVES = MOVES | {"Resize", "Slice", "Expand", "Pad", "NhwcMaxPool"}
_LOSES_AXES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Shape", "Size")
_TO_LAST, _TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
_OPTIMIZER_SUFFIX = re.compile(r"(_token_\d+|_nhwc|_nchwc|/MatMulAddFusion|/GemmTransposeFusion|_quant)+$")
_BIAS_LAST = frozenset(["QLinearConv"])
_SCALE_FIRST = frozenset(["QLinearConcat"])


@dataclass(frozen=True)
class Form:
    """Conversion of a tapped tensor to numbers in the reference's order.

    Attributes:
        scale, zero_point, axis: Of integers, one value or one per index of `axis`; empty for floats.
        dtype: Float type of DequantizeLinear's output, "float32" or "float16".
        channels_last: Whether the tensor is [n, h, w, c] and the reference's [n, c, h, w].
    """

    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = (0,)
    axis: int = 0
    dtype: str = "float32"
    channels_last: bool = False

    @property
    def is_integer(self) -> bool:
        return bool(self.scale)

    def ordered(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array in the reference's order of axes, contiguous."""
        if self.channels_last and array.ndim == 4:
            array = array.transpose(_TO_FIRST)
        return np.asarray(array, order="C")

    def pieces(self, array: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
        """Yield the values of an array from `ordered`, flat, `size` elements at a time, as floats."""
        if len(self.scale) > 1:
            along = [-1 if axis == self.axis % array.ndim else 1 for axis in range(array.ndim)]
            array = self._scaled(array, along)
        flat = array.reshape(-1)
        for start in range(0, flat.size, size):
            piece = flat[start : start + size]
            yield self._scaled(piece, [1]) if len(self.scale) == 1 else piece

    def _scaled(self, array: NDArray[Any], along: list[int]) -> NDArray[Any]:
        scale = np.asarray(self.scale, np.float32).reshape(along)
        zero = np.asarray(self.zero_point, np.int32).reshape(along if len(self.zero_point) > 1 else [1])
        values: NDArray[Any] = (array.astype(np.int32) - zero).astype(np.float32) * scale
        return values.astype(np.float16) if self.dtype == "float16" else values


class Forms:
    """Scales of the integer tensors of a graph, and its tensors with channels last."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._stored = {  # without external data, which holds large weights
            name: tensor_values(tensor)
            for name, tensor in stored_tensors(graph).items()
            if tensor.data_location != tensor.EXTERNAL and tensor.data_type != tensor.STRING
        }
        self.scales: dict[str, tuple[str, str, int]] = {}  # integers to names of scale and zero point
        self.channels_last: set[str] = set()
        for node in graph.node:
            self._add_scale(node)
            self._add_layout(node)

    def of(self, tensor: str) -> Form | None:
        """Return the form of an integer tensor; None if its scale is not stored in the graph."""
        if tensor not in self.scales:
            return None
        scale_name, zero_name, axis = self.scales[tensor]
        scale = self._stored.get(scale_name)
        if scale is None or (zero_name and zero_name not in self._stored):
            return None
        zero = self._stored[zero_name] if zero_name else np.zeros(1, np.int32)
        if zero.dtype.kind not in "iu" or scale.ndim > 1:
            return None
        dtype = "float16" if scale.dtype == np.float16 else "float32"
        numbers = tuple(float(value) for value in scale.reshape(-1))
        zeros = tuple(int(value) for value in zero.reshape(-1))
        return Form(numbers, zeros, axis, dtype, tensor in self.channels_last)

    def _add_scale(self, node: onnx.NodeProto) -> None:
        inputs = list(node.input)
        if node.op_type == "QuantizeLinear":
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            self.scales[node.output[0]] = (inputs[1], inputs[2] if len(inputs) > 2 else "", axis)
        elif node.op_type.startswith("QLinear") and len(inputs) > 2:
            at = 0 if node.op_type in _SCALE_FIRST else 6 if node.op_type in _BIAS_LAST else len(inputs) - 2
            self.scales[node.output[0]] = (inputs[at], inputs[at + 1], 1)
        elif node.op_type == "QGemm" and len(inputs) > 8:
            self.scales[node.output[0]] = (inputs[7], inputs[8], 1)
        elif (node.op_type in _MOVES or node.op_type == "Concat") and inputs and inputs[0] in self.scales:
            for name in node.output:
                self.scales[name] = self.scales[inputs[0]]

    def _add_layout(self, node: onnx.NodeProto) -> None:
        order = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
        is_last = any(a.name == "channels_last" and a.i for a in node.attribute)
        is_last = is_last or "nhwc" in node.domain or node.op_type.startswith("Nhwc")
        if node.op_type == "Transpose":
            is_last = order == _TO_LAST
        elif not is_last and node.op_type not in _LOSES_AXES:
            is_last = any(name in self.channels_last for name in node.input)
        if is_last:
            self.channels_last.update(node.output)


def plain_name(node: onnx.NodeProto) -> str:
    """Return a node's name without the suffixes of ONNX Runtime's optimizer."""
    return _OPTIMIZER_SUFFIX.sub("", node.name)


_HINT = "compare with the ONNX file that the engine was built from, to compare layers"


@dataclass(frozen=True)
class Side:
    """An ONNX file, or an engine without a `weightless` graph: only its outputs are readable."""

    path: Path
    runtime: str
    precision: str
    weightless: Graph | None
    io: ModelIO

    @property
    def layers(self) -> int:
        """Number of computing nodes; 1 if it is unknown."""
        nodes = weighted_nodes(self.weightless.model).values() if self.weightless else ()
        return max(1, sum(map(len, nodes)))


def reference_side(reference: str, *, trust: bool = False) -> Side:
    path = Path(reference)
    if path.suffix != ".onnx":
        raise InvalidOption(
            f"{reference}: layers are compared with those of an ONNX file",
            hint="export a PyTorch model with `qcompile export`",
        )
    return artifact_side(reference, trust=trust)


def artifact_side(artifact: str, *, trust: bool = False) -> Side:
    """Return a side without running it; check its digest against the manifest, unless the user trusts it."""
    path = Path(artifact)
    if path.suffix not in (".onnx", ".engine", ".plan"):
        raise InvalidOption(
            f"{artifact}: its layers cannot be read; an ONNX file or an engine is required",
            hint="leave `layers` out to compare the outputs",
        )
    require_file(path, what="artifact")
    runtime = engine_of(artifact, trust=trust)
    manifest = read_manifest(path)
    if trust:
        trust_content(path)
    else:
        checked_input(path)  # compares the digest before any code runs
    if reason := engine(runtime).why_not_run():
        fix = engine(runtime).fix()
        raise EngineUnavailable(
            f"{path}: cannot run here: {reason}",
            hint=f"{fix}; or {_HINT}" if path.suffix != ".onnx" else fix,
            engine=runtime,
        )
    if path.suffix != ".onnx":
        if manifest is None or manifest.io is None:
            raise ModelError(
                f"{path}: {manifest_path(path).name} names no inputs and outputs", hint=_HINT, file=path
            )
        # "best" may be anything down to INT8
        precision = manifest.precision if manifest.precision in THRESHOLD_DB else "int8"
        return Side(path, runtime, precision, None, manifest.io)
    weightless = read_weightless(path)
    precision = graph_precision(weightless.model)
    if precision == "fp32" and manifest is not None and manifest.precision in ("fp16", "bf16"):
        precision = manifest.precision  # a hint to the runtime; the graph is float32
    return Side(path, runtime, precision, weightless, weightless.io)


def input_casts(reference: Side, artifact: Side) -> dict[str, str]:
    """Return input to the artifact's float type, for inputs of another float type in the reference."""
    artifact_inputs = {tensor.name: tensor for tensor in artifact.io.inputs}
    casts: dict[str, str] = {}
    if set(artifact_inputs) != {tensor.name for tensor in reference.io.inputs}:
        raise InvalidOption(
            f"inputs differ: {reference.path.name} takes {_names(reference.io.inputs)}; "
            f"{artifact.path.name} takes {_names(artifact.io.inputs)}",
            hint="compare an artifact with the model that it was made from",
        )
    for tensor in reference.io.inputs:
        dtype = artifact_inputs[tensor.name].dtype
        if dtype == tensor.dtype:
            continue
        if not (dtype in ("float16", "float32") and "float" in tensor.dtype):
            raise InvalidOption(
                f"input {tensor.name!r} is {tensor.dtype} in {reference.path.name} "
                f"and {dtype} in {artifact.path.name}"
            )
        casts[tensor.name] = dtype
    return casts


def _names(tensors: Sequence[TensorInfo]) -> str:
    return ", ".join(tensor.name for tensor in tensors) or "none"
