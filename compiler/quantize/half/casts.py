"""The casts of a model that becomes half: each float tensor in the form a node asks for, made once.

A stored weight is stored again in the other type; a tensor that DequantizeLinear makes is dequantized
again, so that a quantized layer has its DequantizeLinear right in front of it in either type, which is how
TensorRT knows that it is INT8; anything else goes through a Cast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ....errors import InvalidOption
from ....model.graph import subgraphs
from ....model.graph_edits import drop_unused_initializers, rename_inputs

if TYPE_CHECKING:
    import onnx

Half = Literal["float16", "bfloat16"]


@dataclass(frozen=True)
class HalfType:
    """A float of 16 bits.

    Attributes:
        name: "float16" or "bfloat16".
        elem_type: ONNX's number of it.
        dtype: numpy's type of it, ml_dtypes' for bfloat16.
        largest: The largest finite number: 65504, or 3.39e38.
        smallest_normal: Below it precision is lost bit by bit: 6.1e-5, or 1.18e-38.
        smallest_subnormal: Half of it and less rounds to zero: 6e-8, or 9.2e-41.
    """

    name: Half
    elem_type: int
    dtype: np.dtype[Any]
    largest: float
    smallest_normal: float
    smallest_subnormal: float

    def rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values in this type; halves go to the even number, what is beyond becomes infinite."""
        with np.errstate(over="ignore"):
            return values.astype(self.dtype)


def half_type(name: str) -> HalfType:
    """Return the type of a name.

    Raises:
        InvalidOption: If there is no such type.
    """
    import ml_dtypes
    import onnx

    if name == "float16":
        elem_type, dtype = onnx.TensorProto.FLOAT16, np.dtype(np.float16)
        known: Half = "float16"
    elif name == "bfloat16":
        elem_type, dtype = onnx.TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)
        known = "bfloat16"
    else:
        raise InvalidOption(f"type {name!r}: float16 or bfloat16 is required")
    limits = ml_dtypes.finfo(dtype)
    numbers = (limits.max, limits.smallest_normal, limits.smallest_subnormal)
    return HalfType(known, elem_type, dtype, *map(float, numbers))


class Casts:
    """Which float tensors are half by now, and the nodes of the new graph in their order."""

    def __init__(self, graph: onnx.GraphProto, half_type: HalfType) -> None:
        self.graph, self.type = graph, half_type
        self.nodes: list[onnx.NodeProto] = []
        self.weights = {t.name: t for t in graph.initializer if t.data_type == 1}
        self.half: set[str] = set()  # tensors that are half now, copies and casts among them
        self.overflowing: set[str] = set()  # float32 tensors that may be beyond the half type
        self._dequantizers: dict[str, onnx.NodeProto] = {}  # tensor to the float32 form of its node
        self._forms: dict[tuple[str, bool], str] = {}
        self._taken = {name for node in graph.node for name in (*node.input, *node.output)}
        self._taken |= {tensor.name for tensor in graph.initializer}

    def form(self, name: str, *, half: bool) -> str:
        """Return the name under which a tensor has one of its two types: half or float32."""
        if (name in self.half) == half:
            return name
        key = (name, half)
        if key not in self._forms:
            made = self._new(f"{name}/{self.type.name if half else 'float32'}")
            self._forms[key] = made
            self.half.update([made] if half else [])
            if name in self.weights:
                values = self.type.rounded(self.values(name))
                self.graph.initializer.append(stored_tensor(values, made))
            elif name in self._dequantizers:
                self._dequantize_again(name, made)
            else:
                self._cast(name, made, half=half)
        return self._forms[key]

    def values(self, weight: str) -> NDArray[Any]:
        """Return the values of a stored float32 tensor."""
        from onnx import numpy_helper

        weight_array: NDArray[Any] = numpy_helper.to_array(self.weights[weight])
        return weight_array

    def remember(self, node: onnx.NodeProto) -> None:
        """Keep the float32 form of a DequantizeLinear that is about to become half."""
        import onnx

        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        self._dequantizers[node.output[0]] = kept

    def finish(self) -> None:
        """Write the nodes into the graph; the model's outputs have the types they had."""
        self._restore_outputs()
        read = {name for node in self.nodes for name in _read(node)}
        read |= {output.name for output in self.graph.output}
        del self.graph.node[:]
        for node in self.nodes:
            if node.op_type != "DequantizeLinear" or node.output[0] in read:
                self.graph.node.append(node)
        drop_unused_initializers(self.graph)
        del self.graph.value_info[:]  # their types are stale; readers infer them again

    def _new(self, name: str) -> str:
        unique, number = name, 1
        while unique in self._taken:
            number += 1
            unique = f"{name}_{number}"
        self._taken.add(unique)
        return unique

    def _cast(self, name: str, made: str, *, half: bool) -> None:
        import onnx

        if half and name in self.overflowing:
            name = self._saturated(name)
        to = self.type.elem_type if half else onnx.TensorProto.FLOAT
        self.nodes.append(onnx.helper.make_node("Cast", [name], [made], name=f"cast/{made}", to=to))

    def _dequantize_again(self, name: str, made: str) -> None:
        import onnx

        node = onnx.NodeProto()
        node.CopyFrom(self._dequantizers[name])
        node.name, node.output[0] = f"{node.name}/float32", made
        self.nodes.append(node)

    def _saturated(self, name: str) -> str:
        """Clip to the half type's range: a mask of -3.4e38 becomes its lowest number, not an infinity that
        makes NaN."""
        import onnx

        limits = {f"{self.type.name}/low": -self.type.largest, f"{self.type.name}/high": self.type.largest}
        stored = {tensor.name for tensor in self.graph.initializer}
        for limit, value in limits.items():
            if limit not in stored:
                self.graph.initializer.append(stored_tensor(np.asarray(value, np.float32), limit))
        clipped = self._new(f"{name}/clipped")
        node = onnx.helper.make_node("Clip", [name, *limits], [clipped], name=f"clip/{name}")
        self.nodes.append(node)
        return clipped

    def _restore_outputs(self) -> None:
        """A model output that became half is made under another name and cast back."""
        import onnx

        for name in [output.name for output in self.graph.output if output.name in self.half]:
            inner = self._new(f"{name}/inner")
            for node in self.nodes:
                node.output[:] = [inner if made == name else made for made in node.output]
                node.input[:] = [inner if read == name else read for read in node.input]
                for graph in subgraphs(node):
                    rename_inputs(graph, {name: inner})
            self.nodes.append(
                onnx.helper.make_node("Cast", [inner], [name], name=f"cast/{name}", to=onnx.TensorProto.FLOAT)
            )


def set_own_type(node: onnx.NodeProto, half: HalfType) -> None:
    """Let a Cast or ConstantOfShape that makes float32 make the half type."""
    import onnx
    from onnx import numpy_helper

    for attribute in node.attribute:
        if attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
            attribute.i = half.elem_type
        elif attribute.name == "value" and attribute.t.data_type == onnx.TensorProto.FLOAT:
            values = half.rounded(numpy_helper.to_array(attribute.t))
            attribute.t.CopyFrom(stored_tensor(values, attribute.t.name))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        zero = stored_tensor(np.zeros(1, half.dtype), "")
        node.attribute.append(onnx.helper.make_attribute("value", zero))


def stored_tensor(values: NDArray[Any], name: str) -> onnx.TensorProto:
    """Return a tensor of float32, float16 or bfloat16; older onnx cannot make the last by itself."""
    import onnx

    elem_type = {
        "float32": onnx.TensorProto.FLOAT,
        "float16": onnx.TensorProto.FLOAT16,
        "bfloat16": onnx.TensorProto.BFLOAT16,
    }[values.dtype.name]
    raw = np.ascontiguousarray(values).tobytes()
    return onnx.helper.make_tensor(name, elem_type, values.shape, raw, raw=True)


def _read(node: onnx.NodeProto) -> set[str]:
    names = set(node.input)
    for graph in subgraphs(node):
        names |= {output.name for output in graph.output}
        for inner in graph.node:
            names |= _read(inner)
    return names
