"""Run a small Q/DQ graph in float64, and judge the integers that a runtime made of the same.

Float32 arithmetic is only so near to exact arithmetic; `bounded` says how near. A runtime's integer is right
if it is the rounding of some number within that bound: almost always one integer, and either of two where the
exact quotient lies on a tie. The check goes from one integer tensor to the next: each is judged by what the
runtime itself had computed before: a rounding that went the other way is no error of what follows.
An integer that the runtime does not tell has an error, too: the steps by which it may be another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from . import recurrent  # noqa: F401  # registers its operators
from .bounded import UNIT, Bounded, moved
from .formats import FLOAT8, LIMITS
from .linear import dequantize_linear, dynamic_quantize_linear, quotient, spread
from .operators import OPERATORS
from .products import matmul_integer

Array = NDArray[Any]

QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger")
"""Operators of this file; the others are in `operators.OPERATORS`."""


@dataclass(frozen=True)
class Deviation:
    """What a runtime computed otherwise.

    Attributes:
        tensor: Its name.
        count, size: Wrong elements, of so many.
        worst: By how many steps the worst is beyond what is right; of floats, by how many bounds.
    """

    tensor: str
    count: int
    size: int
    worst: float


class Interpreter:
    """One run over a model.

    Args:
        model: Of operators that `operates` knows.
        given: What a runtime made of some tensors; integers are judged, and taken in place of our own.
        dtype: Of the floats: float64, or float32 to round as a runtime does.
        slack: Steps by which an integer may be beyond the bound, for kernels that round twice.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        given: Mapping[str, Array] | None = None,
        *,
        dtype: Any = np.float64,
        slack: float = 0.0,
    ) -> None:
        self.model, self.given, self.dtype, self.slack = model, dict(given or {}), dtype, slack
        self.kinds: dict[str, str] = {}  # tensor to its integer type, or float of 8 bits
        self.values: dict[str, Bounded] = {}
        self.deviations: list[Deviation] = []
        self.judged = 0

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Bounded]:
        """Return the outputs; `deviations` says what of `given` is wrong."""
        for name, array in feeds.items():
            self.values[name] = self._float_or_int(array)
        self._walk(self.model.graph)
        outputs = {value.name: self.values[value.name] for value in self.model.graph.output}
        for name, bounded in outputs.items():
            if name in self.given and name not in self.kinds and bounded.value.dtype.kind == "f":
                self._judge_floats(name, bounded)
        return outputs

    def _walk(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self.values[tensor.name] = self._stored(tensor)
        for node in graph.node:
            self._compute(node)

    def _scan(self, node: onnx.NodeProto, xs: list[Any], how: dict[str, Any]) -> None:
        """Section Scan-9 to 23: states go from step to step, and results are stacked; axes are the first."""
        body, count = how["body"], how["num_scan_inputs"]
        states, rows = xs[:-count], xs[-count:]
        steps, made = rows[0].value.shape[0], []
        backward = how.get("scan_input_directions", [0] * count)
        for step in range(steps):
            at = [steps - 1 - step if reverse else step for reverse in backward]
            read = [moved(lambda array, i=i: array[i], row) for i, row in zip(at, rows, strict=True)]
            for value, bounded in zip(body.input, [*states, *read], strict=True):
                self.values[value.name] = bounded
            self._walk(body)
            results = [self.values[value.name] for value in body.output]
            states = results[: len(states)]
            made.append(results[len(states) :])
        stacked = []
        for index, reverse in enumerate(how.get("scan_output_directions", [0] * len(made[0]))):
            column = [row[index] for row in (reversed(made) if reverse else made)]
            stacked.append(Bounded(np.stack([b.value for b in column]), np.stack([b.off for b in column])))
        for name, bounded in zip(node.output, [*states, *stacked], strict=False):
            self.values[name] = bounded

    def _stored(self, tensor: onnx.TensorProto) -> Bounded:
        name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        kind = {"float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}.get(name, name)
        array = numpy_helper.to_array(tensor)
        if kind in FLOAT8:
            self.kinds[tensor.name] = kind
            return Bounded(array.view(np.uint8))
        if kind in LIMITS:
            self.kinds[tensor.name] = kind
            return Bounded(array.astype({"int4": np.int8, "uint4": np.uint8}.get(kind, array.dtype)))
        return self._float_or_int(array)

    def _float_or_int(self, array: Array) -> Bounded:
        return Bounded(array.astype(self.dtype)) if array.dtype.kind in "fV" else Bounded(array)

    def _compute(self, node: onnx.NodeProto) -> None:
        xs = [self.values[name] if name else None for name in node.input]
        how = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        how = {name: value.decode() if isinstance(value, bytes) else value for name, value in how.items()}
        if node.op_type == "Constant":
            self.values[node.output[0]] = self._stored(_constant(node, how))
        elif node.op_type == "Scan":
            self._scan(node, xs, how)
        elif node.op_type == "QuantizeLinear":
            self._quantize(node, xs, how)
        elif node.op_type == "DequantizeLinear":
            self._dequantize(node, xs, how)
        elif node.op_type == "DynamicQuantizeLinear":
            made = dynamic_quantize_linear(xs[0].value.astype(np.float32))  # type: ignore[union-attr]
            for name, array in zip(node.output, made, strict=True):
                self.values[name] = self._float_or_int(self.given.get(name, array))
        elif node.op_type == "MatMulInteger":
            self.values[node.output[0]] = Bounded(matmul_integer(*(x.value for x in xs if x is not None)))
        else:
            made = OPERATORS[node.op_type](xs, how, len(node.output))
            for name, bounded in zip(node.output, made, strict=False):
                floats = bounded.value.dtype.kind == "f"
                value = bounded.value.astype(self.dtype) if floats else bounded.value
                self.values[name] = Bounded(value, bounded.error)
                if node.input and node.input[0] in self.kinds:  # moved integers stay what they are
                    self.kinds[name] = self.kinds[node.input[0]]

    def _quantize(self, node: onnx.NodeProto, xs: list[Any], how: dict[str, Any]) -> None:
        x, scale, zero = (*xs, None)[:3]
        told = {"axis": how.get("axis", 1), "block_size": how.get("block_size", 0)}
        kind = self.kinds[node.input[2]] if zero is not None else "uint8"
        if kind in FLOAT8:
            raise NotImplementedError("FP8 is tested operator by operator: its steps are not even")
        exact = quotient(x.value, scale.value, **told, compute=np.float64)
        error = quotient(x.off, scale.value, **told, compute=np.float64) + 4 * UNIT * np.abs(exact)
        offset = 0.0 if zero is None else spread(zero.value.astype(np.float64), x.value.shape, **told)
        low, high = LIMITS[kind]
        name = node.output[0]
        integers = np.clip(np.rint(exact) + offset, low, high)
        least = np.clip(np.ceil(exact - error - 0.5 - self.slack) + offset, low, high)
        most = np.clip(np.floor(exact + error + 0.5 + self.slack) + offset, low, high)
        steps: Any = np.maximum(most - integers, integers - least)
        if name in self.given:
            integers, steps = self.given[name].astype(np.float64), None
            self._note(name, np.maximum(least - integers, integers - most))
        holder = {"int4": "int8", "uint4": "uint8"}.get(kind, kind)
        self.kinds[name], self.values[name] = kind, Bounded(integers.astype(holder), steps)

    def _dequantize(self, node: onnx.NodeProto, xs: list[Any], how: dict[str, Any]) -> None:
        x, scale, zero = (*xs, None)[:3]
        kind = self.kinds.get(node.input[0], "")
        told = {"axis": how.get("axis", 1), "block_size": how.get("block_size", 0)}
        value = dequantize_linear(
            x.value,
            scale.value,
            None if zero is None else zero.value,
            kind=kind if kind in FLOAT8 else "",
            **told,
            compute=self.dtype,
        )
        scales = np.abs(spread(np.asarray(scale.value), x.value.shape, told["axis"], told["block_size"]))
        self.values[node.output[0]] = Bounded(value, x.off * scales + 2 * UNIT * np.abs(value))

    def _judge_floats(self, name: str, expected: Bounded) -> None:
        away = np.abs(self.given[name].astype(np.float64) - expected.value)
        bound = expected.off + 4 * UNIT * np.abs(expected.value) + 1e-30
        self._note(name, np.where(away > bound, away / bound, 0))

    def _note(self, name: str, beyond: Array) -> None:
        self.judged += beyond.size
        wrong = beyond > 0
        if wrong.any():
            self.deviations.append(Deviation(name, int(wrong.sum()), beyond.size, float(beyond.max())))


def operates(node: onnx.NodeProto) -> bool:
    """Whether the interpreter knows an operator."""
    return node.op_type in OPERATORS or node.op_type in (*QUANTIZED, "Constant", "Scan")


def _constant(node: onnx.NodeProto, how: dict[str, Any]) -> onnx.TensorProto:
    if "value" in how:
        tensor: onnx.TensorProto = how["value"]
        tensor.name = node.output[0]
        return tensor
    (value,) = how.values()
    kind = np.float32 if np.asarray(value).dtype.kind == "f" else np.int64
    return numpy_helper.from_array(np.asarray(value, kind), node.output[0])
