"""Judge the integers that a runtime made of a Q/DQ graph, by `onnx.reference` in float64.

The check goes from one integer tensor to the next: each is judged by what the runtime itself had computed
before, so a rounding that went the other way is no error of what follows. An integer is right if it is the
rounding of a number within `STEPS` of the exact quotient, which float32 keeps in small networks.

onnx.reference lacks two operators of ONNX Runtime and the backward Scan. It computes QuantizeLinear otherwise
than ONNX says: 1.23 converts the quotient to int32 before it adds the zero point and clips, so what is beyond
2**31 wraps. Those are written here, and DynamicQuantizeLinear, which is judged by the scale of the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_quantize_linear import _reshape_input

Array = NDArray[Any]
STEPS = 0.0005
"""Beside a half: the error of float32 in a quotient of at most 255 steps, of sums of at most 300 products."""
RELATIVE = 1e-5
"""Of the largest magnitude of a float output."""
LIMITS = {
    "int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255), "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
}  # fmt: skip


Deviation = tuple[str, int, float]
"""What a runtime computed otherwise: a tensor, how many of its elements, the worst in steps or bounds."""


class QuantizeLinear(OpRun):
    """`saturate(round(x / y_scale) + y_zero_point)`; of floats of 8 bits onnx.reference is right."""

    op_domain = ""

    def _run(  # type: ignore[no-untyped-def]
        self, x, scale, zero=None, axis=1, saturate=1, block_size=0, output_dtype=None, precision=None
    ):
        kind = "uint8" if zero is None else zero.dtype.name
        scales = _reshape_input(scale, x.shape, axis, block_size)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            exact = x / scales
        if kind not in LIMITS:
            return (onnx.numpy_helper.saturate_cast(exact, dtype=zero.dtype),)
        offset = 0.0 if zero is None else _reshape_input(zero.astype(np.float64), x.shape, axis, block_size)
        low, high = LIMITS[kind]
        judge, name = self.run_params.get("judge"), self.onnx_node.output[0]
        if judge is not None and name in judge.given:
            given = judge.given[name].astype(np.float64)
            least, most = (
                np.clip(bound + offset, low, high)
                for bound in (np.ceil(exact - 0.5 - judge.steps), np.floor(exact + 0.5 + judge.steps))
            )
            judge.note(name, np.maximum(least - given, given - most))
            return (given.astype(np.uint8 if zero is None else zero.dtype),)
        integers = np.clip(np.rint(exact).astype(np.float64) + offset, low, high)
        return (integers.astype(np.uint8 if zero is None else zero.dtype),)


class DynamicQuantizeLinear(OpRun):
    """What the runtime made, judged by the scale that it told."""

    op_domain = ""

    def _run(self, x):  # type: ignore[no-untyped-def]
        judge = self.run_params["judge"]
        values, scale, zero = (judge.given[name] for name in self.onnx_node.output)
        low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
        judge.note(
            self.onnx_node.output[1], np.asarray(abs(float(scale) - (high - low) / 255) / float(scale) - 1e-5)
        )
        away = np.abs(values.astype(np.float64) - np.clip(np.rint(x / scale) + zero, 0, 255))
        tie = np.abs(np.abs(x / scale - np.floor(x / scale)) - 0.5) < judge.steps
        judge.note(self.onnx_node.output[0], np.where(tie, away - 1, away))
        return values, scale.astype(np.float64), zero


class MatMulNBits(OpRun):
    """Source: onnxruntime/docs/ContribOperators.md; B is [N, blocks, bytes of a block], lowest bits first."""

    op_domain = "com.microsoft"

    def _run(self, a, b, scales, zeros=None, _=None, bias=None, K=0, N=0, bits=4, block_size=0, **more):  # type: ignore[no-untyped-def]  # noqa: N803
        codes = unpacked(b.reshape(N, -1, b.shape[-1]), bits).astype(np.float64)
        blocks = codes.shape[1]
        zero = 1 << (bits - 1)
        if zeros is not None:
            zero = unpacked(zeros.reshape(N, -1), bits)[:, :blocks, None].astype(np.float64)
        weight = ((codes - zero) * scales.reshape(N, blocks, 1)).reshape(N, -1)[:, :K]
        return (a @ weight.T + (0 if bias is None else bias),)


class GatherBlockQuantized(OpRun):
    """Rows of a table of few bits, `(q - zero) * scale` in blocks of a row."""

    op_domain = "com.microsoft"

    def _run(self, data, ids, scales, zeros=None, bits=4, block_size=0, **more):  # type: ignore[no-untyped-def]
        codes = unpacked(data, bits).astype(np.float64)
        zero: Any = 1 << (bits - 1)
        if zeros is not None:
            zero = unpacked(zeros, bits)[:, : scales.shape[1]].astype(np.float64).repeat(block_size, 1)
        return (((codes - zero) * scales.repeat(block_size, 1)[:, : codes.shape[1]])[ids],)


class Scan(OpRun):
    """States go from step to step along the first axes; onnx.reference cannot go backwards."""

    op_domain = ""

    def need_context(self) -> bool:
        """The body reads weights of the graph around it."""
        return True

    def _run(  # type: ignore[no-untyped-def]
        self, *args, context=None, num_scan_inputs=1, scan_input_directions=None,
        scan_output_directions=None, **_,
    ):  # fmt: skip
        states, rows = list(args[:-num_scan_inputs]), args[-num_scan_inputs:]
        steps, made = len(rows[0]), []
        backward = scan_input_directions or [0] * num_scan_inputs
        names = self.body.input_names
        for step in range(steps):
            read = [row[steps - 1 - step if back else step] for row, back in zip(rows, backward, strict=True)]
            results = self.body.run(None, {**context, **dict(zip(names, [*states, *read], strict=True))})
            states = results[: len(states)]
            made.append(results[len(states) :])
        directions = scan_output_directions or [0] * len(made[0])
        stacked = [
            np.stack(column[::-1] if back else column)
            for column, back in zip(map(list, zip(*made, strict=True)), directions, strict=True)
        ]
        return (*states, *stacked)


OWN = [QuantizeLinear, DynamicQuantizeLinear, MatMulNBits, GatherBlockQuantized, Scan]


def unpacked(packed: Array, bits: int) -> Array:
    """The integers [..., values] of bytes [..., bytes], the lowest bits first."""
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


class Judge:
    """What a runtime made of some tensors, and what of it is wrong."""

    def __init__(self, given: Mapping[str, Array], steps: float) -> None:
        self.given, self.steps = given, steps
        self.deviations: list[Deviation] = []
        self.judged = 0

    def note(self, name: str, beyond: Array) -> None:
        """Count elements, of which those above zero are wrong by so many steps or bounds."""
        self.judged += beyond.size
        if (beyond > 0).any():
            self.deviations.append((name, int((beyond > 0).sum()), float(beyond.max())))


def judged(
    model: onnx.ModelProto, feeds: Mapping[str, Array], given: Mapping[str, Array], *, slack: float = 0.0
) -> tuple[list[Deviation], int]:
    """Return what of a runtime's tensors is wrong, and how many elements were judged.

    `given` is what the runtime made of integers and outputs; by `slack` steps beside `STEPS` an integer may
    be off, for kernels that round twice.
    """
    judge = Judge(given, STEPS + slack)
    evaluator = ReferenceEvaluator(in_float64(model), new_ops=OWN)
    for node in evaluator.rt_nodes_:
        node.run_params["judge"] = judge
    exact = {
        name: np.asarray(value, np.float64 if value.dtype == np.float32 else None)
        for name, value in feeds.items()
    }
    with np.errstate(all="ignore"):
        outputs = evaluator.run(None, exact)
    for value, expected in zip(model.graph.output, outputs, strict=True):
        if value.name in given and expected.dtype.kind == "f":
            bound = RELATIVE * max(float(np.abs(expected).max(initial=0)), 1e-30)
            judge.note(value.name, np.abs(given[value.name] - expected) / bound - 1)
    return judge.deviations, judge.judged


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose floats are of 64 bits: stored ones, inputs, and those of Constant and Cast."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen(wide.graph)
    return wide


def _widen(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _double(tensor)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _widen(attribute.g)
            elif attribute.type == onnx.AttributeProto.TENSOR:
                _double(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE


def _double(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)
        )


def watched(model: onnx.ModelProto, *, dequantized: bool = False) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a copy that returns its integers too, and output name to the tensor that it tells.

    With `dequantized` it returns what DequantizeLinear makes of them: some runtimes return no integers.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    made = {
        n.output[0]: n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in stored
    }
    present = {value.name for value in copy.graph.output}
    names = {name: name for name in present}

    def tell(output: str, tensor: str, kind: int) -> None:
        if output not in present:
            copy.graph.output.append(helper.make_tensor_value_info(output, kind, None))
        names[output] = tensor

    for node in model.graph.node:
        reads = node.input[0] if node.input else ""
        if dequantized:
            if node.op_type == "DequantizeLinear" and reads in made and reads not in names.values():
                tell(node.output[0], reads, TensorProto.FLOAT)
        elif node.op_type == "QuantizeLinear" and node.output[0] in made:
            tell(
                node.output[0], node.output[0], stored[node.input[2]].data_type if len(node.input) > 2 else 2
            )
        elif node.op_type == "DynamicQuantizeLinear":
            for name, kind in zip(node.output, (2, 1, 2), strict=True):
                tell(name, name, kind)
    return copy, names


def integers_of(
    model: onnx.ModelProto, outputs: Mapping[str, Array], names: Mapping[str, str]
) -> dict[str, Array]:
    """Return tensor name to what a runtime made of it; dequantized values become integers again, exactly."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    readers = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    integers: dict[str, Array] = {}
    for name, tensor in names.items():
        if name == tensor:
            integers[name] = outputs[name]
            continue
        node = readers[name]
        steps = outputs[name].astype(np.float64) / stored[node.input[1]].astype(np.float64)
        zero = float(stored[node.input[2]]) if len(node.input) > 2 else 0.0
        integers[tensor] = np.rint(steps) + zero
    return integers
