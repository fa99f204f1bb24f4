"""FP16 where the graph can take it: types are changed and casts put between the halves.

Which operand may be float16 is read from ONNX's own operator schemas (a Resize keeps its float32
scales, an operator of a foreign domain keeps everything), not from a list kept by hand. A node stays in
float32

1. when it is excluded by name, glob or operator type,
2. when ONNX does not allow float16 for its operands,
3. when one of its constants is finite and beyond float16's 65504,
4. when one of its tensors was observed beyond 65504 (where ranges are given),
5. when it holds a subgraph, or is a QuantizeLinear or DequantizeLinear.

Inputs and outputs of the model keep their types, so one set of data serves every artifact.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..calibration import Method, Ranges
from ..model.graph import (
    captured_names,
    drop_unused_initializers,
    infer_types,
    name_nodes,
    rename_inputs,
    subgraphs,
)
from ..model.onnx_file import copy_model, opset
from .placement import matching

if TYPE_CHECKING:
    import onnx

LARGEST_HALF = 65504.0
_OWN_TYPE = ("Cast", "Constant", "ConstantOfShape")  # their output's type is an attribute
_QDQ = ("QuantizeLinear", "DequantizeLinear")


def to_half(
    model: onnx.ModelProto, *, block: Iterable[str] = (), ranges: Ranges | None = None
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a float16 copy of a float32 model, and node name to reason for what stayed in float32.

    Args:
        model: The model; inputs, outputs and its float32 parts keep their types.
        block: Names, globs or operator types of nodes that stay in float32.
        ranges: Observed values, for the overflow check of activations.
    """
    copy = copy_model(model)
    name_nodes(copy.graph)
    conversion = _Conversion(copy, matching(copy.graph, block), ranges)
    conversion.run()
    return copy, conversion.kept


class _Conversion:
    """The state of one conversion: which tensors are half by now, which casts exist."""

    def __init__(self, model: onnx.ModelProto, block: dict[str, str], ranges: Ranges | None) -> None:
        self.model, self.graph, self.block, self.ranges = model, model.graph, block, ranges
        self.observed = set(ranges.names()) if ranges else set()
        self.kept: dict[str, str] = {}
        types = infer_types(model)
        self.weights = {t.name: t for t in self.graph.initializer if t.data_type == 1}
        self.floats = {name for name, dtype in types.items() if dtype == "float32"}
        self.floats |= set(self.weights)
        self.half: set[str] = set()  # tensors that are float16 now, copies and casts among them
        self.half_weights: dict[str, str] = {}  # weight to its float16 copy
        self.casts: dict[tuple[str, bool], str] = {}
        self.overflowing: set[str] = set()  # float32 tensors that may be beyond float16
        self.nodes: list[onnx.NodeProto] = []

    def run(self) -> None:
        for node in list(self.graph.node):
            reason = self._reason_to_keep(node)
            if reason:
                self.kept[node.name] = reason
                self._keep(node)
            else:
                self._convert(node)
            self.nodes.append(node)
        self._restore_outputs()
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        drop_unused_initializers(self.graph)
        del self.graph.value_info[:]  # their types are stale; readers infer them again

    def _reason_to_keep(self, node: onnx.NodeProto) -> str | None:
        if node.name in self.block:
            return self.block[node.name]
        tensors = [name for name in (*node.input, *node.output) if name in self.floats]
        if node.op_type in _QDQ or any(True for _ in subgraphs(node)):
            return f"{node.op_type} keeps its types"
        if not tensors:
            return None
        if node.op_type not in _OWN_TYPE and not any(self._half_operands(node)):
            return "ONNX has no float16 form of it"
        for name in tensors:
            largest = self._largest(name)
            if largest > LARGEST_HALF:
                self.overflowing.update(node.output)
                return f"{name!r} reaches {largest:.3g}, beyond float16's {LARGEST_HALF:.0f}"
        return None

    def _largest(self, name: str) -> float:
        """The largest finite magnitude known of a tensor: a weight's, or what was observed."""
        from onnx import numpy_helper

        if name in self.weights:
            values = np.abs(numpy_helper.to_array(self.weights[name]))
            return float(values[np.isfinite(values)].max(initial=0.0))
        if name in self.observed:
            return self.ranges.amax(name, Method("minmax")) if self.ranges else 0.0
        return 0.0

    def _convert(self, node: onnx.NodeProto) -> None:
        for index, name in enumerate(node.input):
            if name in self.floats:
                node.input[index] = self._as(name, half=self._half_operands(node)[index])
        if node.op_type in _OWN_TYPE:
            self._set_own_type(node)
        outputs = self._half_results(node)
        self.half.update(n for n, half in zip(node.output, outputs, strict=True) if half)

    def _keep(self, node: onnx.NodeProto) -> None:
        for index, name in enumerate(node.input):
            if name in self.floats:
                node.input[index] = self._as(name, half=False)
        outer = {name: self._as(name, half=False) for name in captured_names(node) & self.half}
        for inner in subgraphs(node):
            rename_inputs(inner, outer)

    def _as(self, name: str, *, half: bool) -> str:
        """The name under which a tensor has the wanted type; a cast is put in once."""
        import onnx

        if name in self.weights:
            return self._half_weight(name) if half else name
        if (name in self.half) == half:
            return name
        key = (name, half)
        if key not in self.casts:
            self.casts[key] = f"{name}/{'float16' if half else 'float32'}"
            self.half.update([self.casts[key]] if half else [])
            to = onnx.TensorProto.FLOAT16 if half else onnx.TensorProto.FLOAT
            if half and name in self.overflowing:
                name = self._saturated(name)
            self.nodes.append(
                onnx.helper.make_node(
                    "Cast", [name], [self.casts[key]], name=f"cast/{self.casts[key]}", to=to
                )
            )
        return self.casts[key]

    def _saturated(self, name: str) -> str:
        """Clip to float16's range: a mask of -3.4e38 becomes -65504, not an infinity that makes NaN."""
        import onnx
        from onnx import numpy_helper

        limits = {"float16/low": -LARGEST_HALF, "float16/high": LARGEST_HALF}
        stored = {tensor.name for tensor in self.graph.initializer}
        for limit, value in limits.items():
            if limit not in stored:
                tensor = numpy_helper.from_array(np.asarray(value, np.float32), limit)
                self.graph.initializer.append(tensor)
        clipped = f"{name}/clipped"
        node = onnx.helper.make_node("Clip", [name, *limits], [clipped], name=f"clip/{name}")
        self.nodes.append(node)
        return clipped

    def _half_weight(self, name: str) -> str:
        from onnx import numpy_helper

        if name not in self.half_weights:
            self.half_weights[name] = f"{name}/float16"
            self.half.add(f"{name}/float16")
            values = numpy_helper.to_array(self.weights[name]).astype(np.float16)
            self.graph.initializer.append(numpy_helper.from_array(values, f"{name}/float16"))
        return self.half_weights[name]

    def _half_operands(self, node: onnx.NodeProto) -> list[bool]:
        """For each input: float32 here, and ONNX allows float16 in its place."""
        formal = self._formal(node, "inputs", len(node.input))
        return [
            name in self.floats and "tensor(float16)" in allowed
            for name, (_, allowed) in zip(node.input, formal, strict=True)
        ]

    def _half_results(self, node: onnx.NodeProto) -> list[bool]:
        """For each output: its type follows an operand that became float16."""
        if node.op_type in _OWN_TYPE:
            return [name in self.floats for name in node.output]
        formal = self._formal(node, "inputs", len(node.input))
        bound = {var for (var, _), name in zip(formal, node.input, strict=True) if name in self.half}
        results = self._formal(node, "outputs", len(node.output))
        return [
            name in self.floats and var in bound for name, (var, _) in zip(node.output, results, strict=True)
        ]

    def _formal(self, node: onnx.NodeProto, side: str, count: int) -> list[tuple[str, set[str]]]:
        """Type variable and allowed types of each operand; empty for operators ONNX does not define."""
        import onnx

        try:
            schema = onnx.defs.get_schema(node.op_type, opset(self.model, node.domain) or 1, node.domain)
        except onnx.defs.SchemaError:
            return [("", set())] * count
        parameters: Any = getattr(schema, side)
        found = [(p.type_str, set(p.types)) for p in parameters]
        return [found[min(index, len(found) - 1)] for index in range(count)] if found else []

    def _set_own_type(self, node: onnx.NodeProto) -> None:
        import onnx
        from onnx import numpy_helper

        half = onnx.TensorProto.FLOAT16
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = half
            elif attribute.name == "value" and attribute.t.data_type == onnx.TensorProto.FLOAT:
                values = numpy_helper.to_array(attribute.t).astype(np.float16)
                attribute.t.CopyFrom(numpy_helper.from_array(values))
            elif attribute.name in ("value_float", "value_floats"):
                number = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                value = numpy_helper.from_array(np.asarray(number, np.float16))
                attribute.CopyFrom(onnx.helper.make_attribute("value", value))
        if node.op_type == "ConstantOfShape" and not node.attribute:
            zero = numpy_helper.from_array(np.zeros(1, np.float16))
            node.attribute.append(onnx.helper.make_attribute("value", zero))

    def _restore_outputs(self) -> None:
        """A model output that became half is made under another name and cast back."""
        import onnx

        for output in self.graph.output:
            name = output.name
            if name not in self.half:
                continue
            inner = f"{name}/inner"
            for node in self.nodes:
                node.output[:] = [inner if made == name else made for made in node.output]
                node.input[:] = [inner if read == name else read for read in node.input]
                for graph in subgraphs(node):
                    rename_inputs(graph, {name: inner})
            self.nodes.append(
                onnx.helper.make_node("Cast", [inner], [name], name=f"cast/{name}", to=onnx.TensorProto.FLOAT)
            )
