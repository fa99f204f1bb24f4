"""Q/DQ for TensorRT at Adds that close a residual branch: on that branch, not behind the convolution.

    ┌────────────── Q ─ DQ ─┐              ┌── Conv ─ Q ─ DQ ─┐
    x ─ Q ─ DQ ─ Conv ───── Add            x ─ Conv ─ Conv ── Add

TensorRT computes a convolution and the Add behind it in one INT8 kernel if the other operand is INT8 and no
Q/DQ stands between the two. The rules, and where they are from:

1. The residual operand gets Q/DQ; the one that a convolution makes does not (NVIDIA/TensorRT,
   tools/tensorflow-quantization, docs/add_custom_qdq_cases.md, and `ResidualConnectionQDQCase` in
   custom_qdq_cases.py; tools/pytorch-quantization, examples/torchvision, resnet.py: `residual_quantizer`).
2. Convolutions on both sides: one of them. The longer branch stays without Q/DQ; of two of one length, the
   second operand (NVIDIA/Model-Optimizer, onnx/quantization/graph_utils.py, `build_non_residual_input_map`).
3. What another node reads too cannot be computed inside the kernel of the sum: such a convolution gets Q/DQ
   (`ResidualConnectionQDQCase`: one outbound node). With no other, both operands get it; but if the other
   branch begins at that convolution, as in ConvNeXt, the sum is no residual add, and stays in float
   (`build_non_residual_input_map`: the lowest common ancestor is the backbone).
4. Between the convolution and the Add may stand BatchNormalization, an activation, Dropout (the patterns of
   `ResidualConnectionQDQCase`) and x * Sigmoid(x) (`get_fusible_backbone`).
5. The sum of a matrix product, as in a Transformer, stays in float: docs/quantization.md has the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ....model.graph import captured_names, producers

if TYPE_CHECKING:
    import onnx

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_FUSED = frozenset(
    ["Relu", "Clip", "BatchNormalization", "Identity", "Dropout", "LeakyRelu", "HardSwish", "Sigmoid", "Tanh"]
)


class ResidualAdds:
    """The Adds of a graph that close residual branches."""

    def __init__(self, graph: onnx.GraphProto, constants: Collection[str]) -> None:
        self.constants = constants
        self.made_by = producers(graph)
        self.reads = Counter(name for node in graph.node for name in (*node.input, *captured_names(node)))
        self.reads.update(value.name for value in graph.output)

    def closes(self, node: onnx.NodeProto, planned: Collection[str]) -> bool:
        """Whether two activations meet in an Add, and a planned convolution makes one of them.

        Where all convolutions stay in float there is nothing that an INT8 Add could be fused with.
        """
        values = [name for name in node.input if name not in self.constants]
        if node.op_type != "Add" or len(values) != 2:
            return False
        first, second = (self._convolution(name, planned, alone=False) for name in values)
        if first and second:
            return True
        made, other = (first, values[1]) if first else (second, values[0])
        return bool(made) and made not in self._branch(other)

    def fused_operand(self, node: onnx.NodeProto, planned: Collection[str]) -> str | None:
        """Return the operand without Q/DQ, to which its convolution's kernel adds; None for none."""
        fusible: list[str] = [n for n in node.input if self._convolution(n, planned, alone=True)]
        if len(fusible) < 2:
            return fusible[0] if fusible else None
        first, second = (self._branch(name) for name in fusible)
        return fusible[0] if len(first - second) > len(second - first) else fusible[1]

    def _convolution(self, name: str, planned: Collection[str], *, alone: bool) -> str:
        """The result of the planned convolution that makes a tensor, through what is fused with it; or "".

        Args:
            name: Of the tensor.
            planned: Names of the nodes that are quantized.
            alone: Whether nothing else may read what lies between, nor the tensor.
        """
        node, reads = self.made_by.get(name), 1
        while node is not None:
            if alone and self.reads[name] != reads:
                return ""
            if node.op_type in _CONVOLUTIONS:
                return node.output[0] if node.name in planned else ""
            name, reads = self._passed_through(node)
            node = self.made_by.get(name)
        return ""

    def _passed_through(self, node: onnx.NodeProto) -> tuple[str, int]:
        """What a fused node computes from, and how many nodes then read that; "" for other nodes."""
        if node.op_type in _FUSED:
            return node.input[0], 1
        if node.op_type == "Mul":
            for value, gate in (node.input, reversed(node.input)):
                made = self.made_by.get(gate)
                if made is not None and made.op_type == "Sigmoid" and made.input[0] == value:
                    return value, 2
        return "", 0

    def _branch(self, name: str) -> set[str]:
        """The tensors that a tensor is computed from, itself among them."""
        seen, ahead = set[str](), [name]
        while ahead:
            name = ahead.pop()
            if name and name not in seen and name not in self.constants:
                seen.add(name)
                ahead += self.made_by[name].input if name in self.made_by else ()
        return seen


def join_with_convolutions(graph: onnx.GraphProto, fused: Mapping[str, str]) -> None:
    """Let Adds read the float value of their fused operand, in place.

        conv ─ Q ─ DQ ─ Add        becomes        conv ─ Add

    Args:
        graph: With Q/DQ on all operands; pairs that nobody reads any more stay.
        fused: Name of an Add to its operand of `ResidualAdds.fused_operand`.
    """
    made_by = producers(graph)
    for node in graph.node:
        if node.name not in fused:
            continue
        for index, name in enumerate(node.input):
            dequantize = made_by.get(name)
            quantize = made_by.get(dequantize.input[0]) if dequantize is not None else None
            if quantize is not None and quantize.input[0] == fused[node.name]:
                node.input[index] = quantize.input[0]
