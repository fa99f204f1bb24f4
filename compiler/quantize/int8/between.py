"""Q/DQ between convolutions for TensorRT, beside the residual adds.

    squeeze and excite                           conv ─ Resize ─┐
    conv ─┬─ Q ─ DQ ──────────────── Mul         conv ──────────┴─ Concat ─ Q ─ DQ ─ conv
          └─ mean ─ conv ─ σ ─ Q ─ DQ ─┘              one scale before and behind

1. Both operands of a Mul that two convolutions make get Q/DQ (NVIDIA/TensorRT, tools/tensorflow-quantization,
   custom_qdq_cases.py, `EfficientNetQDQCase`).
2. So does what a Resize by nearest or linear reads behind a convolution, if an INT8 layer reads its result
   (NVIDIA/Model-Optimizer, onnx/quantization/partitioning.py, `_find_quantizable_kgen_partitions`).
3. What a Concat joins, a MaxPool or a Resize reads has the scale of the result: else TensorRT rescales it
   (graph_utils.py, `get_concat_eliminated_tensors`; NVIDIA-AI-IOT/yolo_deepstream, yolov7_qat,
   Guidance_of_QAT_performance_optimization.md: 180 and 207 inferences a second).
4. A MaxPool gets no pair of its own: TensorRT moves Q and DQ over it (the same guide).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ....model.graph import attribute, consumers, producers

if TYPE_CHECKING:
    import onnx

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_POINTWISE = frozenset(
    """
    Add BatchNormalization Clip Div Dropout Elu HardSigmoid HardSwish Identity LeakyRelu Mul Relu Sigmoid Sub
    Tanh
    """.split()
)
_ONE_SCALE = ("Concat", "MaxPool", "Resize")


class Between:
    """What lies between the quantized convolutions of a graph."""

    def __init__(self, graph: onnx.GraphProto, constants: Collection[str]) -> None:
        self.made_by, self.readers = producers(graph), consumers(graph)
        self.makers: dict[str, str | None] = {}  # tensor to the one convolution that makes it by element
        for node in graph.node:
            if node.op_type in _CONVOLUTIONS:
                self.makers[node.output[0]] = node.name
            elif node.op_type in _POINTWISE:
                before = {self.makers.get(name) for name in node.input if name and name not in constants}
                self.makers[node.output[0]] = before.pop() if len(before) == 1 else None

    def quantizes(self, node: onnx.NodeProto, planned: Collection[str]) -> bool:
        """Whether the operands of a node get Q/DQ as cases 1 and 2 say."""
        makers = {self.makers.get(name) for name in node.input}
        if node.op_type == "Mul":
            return len(makers) == 2 and makers <= set(planned)
        if node.op_type != "Resize" or attribute(node, "mode", "nearest") not in ("nearest", "linear"):
            return False
        before = self.made_by.get(node.input[0])
        behind = bool(makers & set(planned)) or (before is not None and before.name in planned)
        return behind and _is_read(node.output[0], self.readers, planned)


def share_scales(
    graph: onnx.GraphProto, planned: Collection[str], limits: dict[str, tuple[float, float]]
) -> None:
    """Give tensors one range as case 3 says, the widest of theirs, in place."""
    readers = consumers(graph)
    scaled = {name for node in graph.node if node.name in planned for name in node.input} & limits.keys()
    groups: dict[str, set[str]] = {}
    for node in graph.node:
        if node.op_type in _ONE_SCALE and _is_read(node.output[0], readers, planned):
            values = node.input if node.op_type == "Concat" else node.input[:1]
            group = set[str]().union(*(groups.get(name, {name}) for name in (*values, node.output[0])))
            groups |= dict.fromkeys(group, group)
    for name, group in groups.items():
        if name in scaled:
            limits[name] = max((limits[other] for other in group & scaled), key=lambda limit: limit[1])


def _is_read(name: str, readers: Mapping[str, list[onnx.NodeProto]], planned: Collection[str]) -> bool:
    """Whether a planned node reads a tensor, through what has its scale."""
    seen, ahead = {name}, [name]
    while ahead:
        for node in readers.get(ahead.pop(), ()):
            if node.name in planned:
                return True
            if node.op_type in _ONE_SCALE and node.output[0] not in seen:
                seen.add(node.output[0])
                ahead.append(node.output[0])
    return False
