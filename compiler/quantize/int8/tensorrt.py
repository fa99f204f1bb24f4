"""Placement for TensorRT: residual adds, operators between convolutions, layers without a good kernel.

A. Adds that close a residual branch (`ResidualAdds`) get Q/DQ on that branch, not behind the convolution.

    ┌────────────── Q ─ DQ ─┐              ┌── Conv ─ Q ─ DQ ─┐
    x ─ Q ─ DQ ─ Conv ───── Add            x ─ Conv ─ Conv ── Add

TensorRT computes a convolution and the Add behind it in one INT8 kernel if the other operand is INT8 and no
Q/DQ stands between the two. The rules with their sources:

1. The residual operand gets Q/DQ; the result of the convolution does not (NVIDIA/TensorRT,
   tools/tensorflow-quantization, docs/add_custom_qdq_cases.md, and `ResidualConnectionQDQCase` in
   custom_qdq_cases.py; tools/pytorch-quantization, examples/torchvision, resnet.py: `residual_quantizer`).
2. Of two convolutions, that of the longer branch gets no Q/DQ; if both are equally long, the second operand
   gets none (NVIDIA/Model-Optimizer, onnx/quantization/graph_utils.py, `build_non_residual_input_map`).
3. A convolution with another consumer cannot be fused with the sum and gets Q/DQ
   (`ResidualConnectionQDQCase`: one outbound node). If no convolution can be fused, both operands get Q/DQ.
   But if the other branch begins at that convolution, as in ConvNeXt, the sum is not a residual add and
   remains in float (`build_non_residual_input_map`: the lowest common ancestor is the backbone).
4. Allowed between convolution and Add: BatchNormalization, an activation, Dropout (the patterns of
   `ResidualConnectionQDQCase`) and x * Sigmoid(x) (`get_fusible_backbone`).
5. The sum of a matrix product, as in a Transformer, remains in float: docs/quantization.md has the reason.

B. Operators between convolutions, beside the residual adds, get Q/DQ (`ChainPlacement`):
    squeeze and excite                           conv ─ Resize ─┐
    conv ─┬─ Q ─ DQ ──────────────── Mul         conv ──────────┴─ Concat ─ Q ─ DQ ─ conv
          └─ mean ─ conv ─ σ ─ Q ─ DQ ─┘              one scale before and behind

1. Both operands of a Mul of two convolutions get Q/DQ (NVIDIA/TensorRT, tools/tensorflow-quantization,
   custom_qdq_cases.py, `EfficientNetQDQCase`).
2. The input of a nearest or linear Resize behind a convolution gets Q/DQ if an INT8 layer reads the result
   (NVIDIA/Model-Optimizer, onnx/quantization/partitioning.py, `_find_quantizable_kgen_partitions`).
3. Inputs of Concat, MaxPool and Resize have the scale of the result; otherwise TensorRT rescales the inputs
   (graph_utils.py, `get_concat_eliminated_tensors`; NVIDIA-AI-IOT/yolo_deepstream, yolov7_qat,
   Guidance_of_QAT_performance_optimization.md: 180 inferences a second instead of 207).
4. A MaxPool gets no extra pair: TensorRT moves Q and DQ over it (the same guide).

C. Layers without a good INT8 kernel, each with the reason to leave it in float (`TensorRTKernels`):

1. MatMul and Gemm, [m, k] by [k, n], with m or n of 1, or k or n below 16; a dynamic m, such as a batch,
   counts as more than 1 (Model-Optimizer graph_utils.py:1090-1150, 1281-1406).
2. Conv of one group with fewer than 16 input or output channels, if neither is a multiple of 8, or both are
   below 16 and the input is not the model's, or the kernel is longer on one axis. Conv of several groups
   with fewer than 16 inputs a group or 16 outputs, if the outputs are not a multiple of 8 or a kernel axis is
   below 3 (graph_utils.py:1160-1206).
3. Both products of attention with more than 512 queries or keys, or a dynamic number of them
   (graph_utils.py:1510; issue 3714: three kernels, slower than FP16), or with heads of other than 16, 32 or
   64 values (issue 4167 quotes the developer guide, "MHA fusion").
4. Attention with an added mask of activations (partitioning.py:404-440).

The files are of NVIDIA/Model-Optimizer, modelopt/onnx/quantization; the issues are of NVIDIA/TensorRT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import onnx

from ....model.graph.graph import attribute, captured_names, consumers, infer_shapes, producers
from ...opset.scope import iterate_consumers

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
        """Return whether an Add joins a planned convolution with a residual activation (rules A)."""
        values = [name for name in node.input if name not in self.constants]
        if node.op_type != "Add" or len(values) != 2:
            return False
        first, second = (self._convolution(name, planned, alone=False) for name in values)
        if first and second:
            return True
        convolution, residual = (first, values[1]) if first else (second, values[0])
        return bool(convolution) and convolution not in self._ancestors(residual)

    def fused_operand(self, node: onnx.NodeProto, planned: Collection[str]) -> str | None:
        """Return the operand without Q/DQ, or None: its convolution's kernel adds the other operand."""
        fusible: list[str] = [n for n in node.input if self._convolution(n, planned, alone=True)]
        if len(fusible) < 2:
            return fusible[0] if fusible else None
        first, second = (self._ancestors(name) for name in fusible)
        return fusible[0] if len(first - second) > len(second - first) else fusible[1]

    def _convolution(self, name: str, planned: Collection[str], *, alone: bool) -> str:
        """Return the output of the planned convolution that computes a tensor through fused nodes, or "".

        With `alone`, neither the tensor nor any tensor between may have another consumer.
        """
        node, reads = self.made_by.get(name), 1
        while node is not None:
            if alone and self.reads[name] != reads:
                return ""
            if node.op_type in _CONVOLUTIONS:
                return node.output[0] if node.name in planned else ""
            name, reads = self._skip_fused(node)
            node = self.made_by.get(name)
        return ""

    def _skip_fused(self, node: onnx.NodeProto) -> tuple[str, int]:
        """Return a fused node's input, and the number of the input's readers in the fusion, or ("", 0)."""
        if node.op_type in _FUSED:
            return node.input[0], 1
        if node.op_type == "Mul":
            for value, gate in (node.input, reversed(node.input)):
                producer = self.made_by.get(gate)
                if producer is not None and producer.op_type == "Sigmoid" and producer.input[0] == value:
                    return value, 2
        return "", 0

    def _ancestors(self, name: str) -> set[str]:
        """Return a tensor and those from which it is computed."""
        seen, pending = set[str](), [name]
        while pending:
            name = pending.pop()
            if name and name not in seen and name not in self.constants:
                seen.add(name)
                pending += self.made_by[name].input if name in self.made_by else ()
        return seen


def fuse_residual_adds(graph: onnx.GraphProto, fused: Mapping[str, str]) -> None:
    """Connect Adds to the float value of their fused operand, in place.

        conv ─ Q ─ DQ ─ Add        becomes        conv ─ Add

    `fused` maps names of Adds to their `ResidualAdds.fused_operand`. Pairs without a consumer remain.
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


_POINTWISE = frozenset(
    """
    Add BatchNormalization Clip Div Dropout Elu HardSigmoid HardSwish Identity LeakyRelu Mul Relu Sigmoid Sub
    Tanh
    """.split()
)
_ONE_SCALE = ("Concat", "MaxPool", "Resize")


class ChainPlacement:
    """The operators between the quantized convolutions of a graph that get Q/DQ."""

    def __init__(self, graph: onnx.GraphProto, constants: Collection[str]) -> None:
        self.made_by, self.readers = producers(graph), consumers(graph)
        self.makers: dict[str, str | None] = {}  # the one convolution that feeds a tensor, through pointwise
        for node in graph.node:
            if node.op_type in _CONVOLUTIONS:
                self.makers[node.output[0]] = node.name
            elif node.op_type in _POINTWISE:
                convs = {self.makers.get(name) for name in node.input if name and name not in constants}
                self.makers[node.output[0]] = convs.pop() if len(convs) == 1 else None

    def quantizes(self, node: onnx.NodeProto, planned: Collection[str]) -> bool:
        """Return whether the operands of a node get Q/DQ by cases B1 and B2."""
        makers = {self.makers.get(name) for name in node.input}
        if node.op_type == "Mul":
            return len(makers) == 2 and makers <= set(planned)
        if node.op_type != "Resize" or attribute(node, "mode", "nearest") not in ("nearest", "linear"):
            return False
        producer = self.made_by.get(node.input[0])
        follows_conv = bool(makers & set(planned)) or (producer is not None and producer.name in planned)
        return follows_conv and _is_consumed(node.output[0], self.readers, planned)


def share_scales(
    graph: onnx.GraphProto, planned: Collection[str], limits: dict[str, tuple[float, float]]
) -> None:
    """Give the tensors of case B3 the widest of their ranges, in place."""
    readers = consumers(graph)
    scaled = {name for node in graph.node if node.name in planned for name in node.input} & limits.keys()
    groups: dict[str, set[str]] = {}
    for node in graph.node:
        if node.op_type in _ONE_SCALE and _is_consumed(node.output[0], readers, planned):
            values = node.input if node.op_type == "Concat" else node.input[:1]
            group = set[str]().union(*(groups.get(name, {name}) for name in (*values, node.output[0])))
            groups |= dict.fromkeys(group, group)
    for name, group in groups.items():
        if name in scaled:
            limits[name] = max((limits[other] for other in group & scaled), key=lambda limit: limit[1])


def _is_consumed(name: str, readers: Mapping[str, list[onnx.NodeProto]], planned: Collection[str]) -> bool:
    """Return whether a planned node consumes a tensor, directly or through operators with one scale."""
    return any(node.name in planned for node in iterate_consumers(name, readers, _ONE_SCALE))


_MIN_SIZE = 16  # channels of a convolution; k and n of a product
_LONGEST = 512  # queries and keys of fused INT8 attention
_HEADS = (16, 32, 64)
_ELEMENTWISE = frozenset(
    "Add Sub Mul Div Where Min Max Clip Neg Cast Identity Dropout Flatten Reshape".split()
)
_MASKS = ("Add", "Sub", "Where")


class TensorRTKernels:
    """Finds the weighted nodes of a graph without a good kernel in TensorRT."""

    def __init__(self, model: onnx.ModelProto, constants: Collection[str], *, float8: bool) -> None:
        self.constants, self.float8 = constants, float8
        self.stored = {tensor.name: tensor for tensor in model.graph.initializer}
        self.inputs = {value.name for value in model.graph.input}
        shapes = infer_shapes(model)
        self.shapes = {name: [n if isinstance(n, int) else 0 for n in shapes[name]] for name in shapes}
        self.shapes |= {name: list(tensor.dims) for name, tensor in self.stored.items()}
        self.made_by, self.readers = producers(model.graph), consumers(model.graph)
        self.attention: dict[str, str] = {}
        for node in model.graph.node:
            if node.op_type == "Softmax":
                self.attention.update(self._attention(node))

    def unfit(self, node: onnx.NodeProto) -> str | None:
        if node.op_type == "Conv" and not self.float8:
            return self._convolution(node)
        if node.op_type in ("MatMul", "Gemm"):
            return self.attention.get(node.name) or self._product(node)
        return None

    def _convolution(self, node: onnx.NodeProto) -> str | None:
        outputs, inputs, *kernel = self.shapes[node.input[1]]
        if min(outputs, inputs) >= _MIN_SIZE:
            return None
        if attribute(node, "group", 1) > 1:
            if outputs % 8 == 0 and min(kernel) >= 3:
                return None
            return f"a group has {inputs} channels: INT8 takes multiples of 8 outputs, and kernels from 3 on"
        channels = f"its {inputs} and {outputs} channels are few for INT8"
        if outputs % 8 and inputs % 8:
            return f"{channels}: neither is a multiple of 8"
        if max(outputs, inputs) < _MIN_SIZE and node.input[0] not in self.inputs:
            return f"{channels}: both are below {_MIN_SIZE}"
        return f"{channels}: its kernel is longer on one axis" if len(set(kernel)) > 1 else None

    def _product(self, node: onnx.NodeProto) -> str | None:
        result, right = self.shapes.get(node.output[0], []), self.shapes.get(node.input[1], [])
        transposed = node.op_type == "Gemm" and attribute(node, "transB", 0)
        depth = right[-1 if transposed else -2] if len(right) >= 2 else 0
        width = result[-1] if len(result) >= 2 else 0
        activations = node.input[1] not in self.constants
        if 1 in (result[-2:] if activations else result if len(result) < 3 else ()):
            return "it is a matrix by a vector, for which INT8 has no tensor cores"
        small = [f"{name} of {n}" for name, n in (("k", depth), ("n", width)) if 0 < n < _MIN_SIZE]
        return f"its {' and '.join(small)} are below the {_MIN_SIZE} of INT8 kernels" if small else None

    def _attention(self, softmax: onnx.NodeProto) -> Iterator[tuple[str, str]]:
        """Yield the products around a Softmax that lack a good attention kernel, with the reason."""
        masked = False
        scores: list[onnx.NodeProto] = []
        for node in self._neighbours(softmax.input[0], backward=True):
            activations = [name for name in node.input if name and name not in self.constants]
            masked = masked or (node.op_type in _MASKS and len(activations) > 1)
            scores += [node] if node.op_type == "MatMul" else []
        results = [n for n in self._neighbours(softmax.output[0], backward=False) if n.op_type == "MatMul"]
        if not scores or not results:
            return
        reason = None if self.float8 else self._unfused_reason(scores[0])
        if masked:
            reason = "it is attention with an added mask, which Model-Optimizer leaves in float"
        if reason is not None:
            yield from ((node.name, reason) for node in (*scores, *results))

    def _unfused_reason(self, scores: onnx.NodeProto) -> str | None:
        lengths = self.shapes.get(scores.output[0], [])[-2:] or [0]
        head = (self.shapes.get(scores.input[0]) or [0])[-1]
        if min(lengths) < 1:
            return f"it is attention of dynamic length; TensorRT fuses it in INT8 up to {_LONGEST} positions"
        if max(lengths) > _LONGEST:
            return f"it is attention over {max(lengths)} positions; TensorRT fuses up to {_LONGEST} in INT8"
        widths = ", ".join(map(str, _HEADS))
        return None if head in (0, *_HEADS) else f"its heads are {head} wide; TensorRT fuses {widths} in INT8"

    def _neighbours(self, name: str, *, backward: bool) -> Iterator[onnx.NodeProto]:
        """Yield elementwise operators before or behind a tensor, and MatMuls of activations beyond them."""
        seen, pending = set[str](), [name]
        while pending:
            name = pending.pop()
            nodes = [self.made_by[name]] if name in self.made_by else []
            for node in nodes if backward else self.readers.get(name, []):
                if node.name in seen:
                    continue
                seen.add(node.name)
                if node.op_type in _ELEMENTWISE:
                    pending += node.input if backward else node.output
                elif node.op_type != "MatMul" or set(node.input) & set(self.constants):
                    continue
                yield node
