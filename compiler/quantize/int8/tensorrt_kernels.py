"""Layers for which TensorRT has no good INT8 kernel, each with the reason to leave it in float.

1. MatMul and Gemm where m or n is 1, or k or n below 16; an m that is not fixed, as a dynamic batch, is taken
   for more than 1 (Model-Optimizer graph_utils.py:1090-1150, 1281-1406).
2. Conv of one group with fewer than 16 channels on a side, if neither side is a multiple of 8, or both are
   below 16 and it does not read the model's input, or its kernel is longer on one axis. Conv of groups with
   fewer than 16 channels each, if its outputs are no multiple of 8, or a kernel axis is below 3
   (graph_utils.py:1160-1206).
3. Attention in INT8, both products, over more than 512 queries or keys, or a number that is not fixed
   (graph_utils.py:1510; issue 3714: it becomes three kernels, slower than FP16), or with heads of other than
   16, 32 or 64 values (issue 4167 quotes the developer guide, "MHA fusion").
4. Attention to which a mask of activations is added (partitioning.py:404-440).

The files are NVIDIA/Model-Optimizer's in modelopt/onnx/quantization, the issues NVIDIA/TensorRT's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from ....model.graph import attribute, consumers, infer_shapes, producers

if TYPE_CHECKING:
    import onnx

_LEAST = 16
"""Channels of a convolution, k and n of a product."""
_LONGEST = 512
"""Queries and keys of fused INT8 attention."""
_HEADS = (16, 32, 64)
_POINTWISE = frozenset("Add Sub Mul Div Where Min Max Clip Neg Cast Identity Dropout Flatten Reshape".split())
_MASKS = ("Add", "Sub", "Where")


class TensorRTKernels:
    """The kernels of TensorRT for the weighted nodes of one graph."""

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
        """Return why a node is better left in float; None where it has a good kernel."""
        if node.op_type == "Conv" and not self.float8:
            return self._convolution(node)
        if node.op_type in ("MatMul", "Gemm"):
            return self.attention.get(node.name) or self._product(node)
        return None

    def _convolution(self, node: onnx.NodeProto) -> str | None:
        outputs, inputs, *kernel = self.shapes[node.input[1]]
        if min(outputs, inputs) >= _LEAST:
            return None
        if attribute(node, "group", 1) > 1:
            if outputs % 8 == 0 and min(kernel) >= 3:
                return None
            return f"a group has {inputs} channels: INT8 takes multiples of 8 outputs, and kernels from 3 on"
        channels = f"its {inputs} and {outputs} channels are few for INT8"
        if outputs % 8 and inputs % 8:
            return f"{channels}: neither is a multiple of 8"
        if max(outputs, inputs) < _LEAST and node.input[0] not in self.inputs:
            return f"{channels}: both are below {_LEAST}"
        return f"{channels}: its kernel is longer on one axis" if len(set(kernel)) > 1 else None

    def _product(self, node: onnx.NodeProto) -> str | None:
        result, right = self.shapes.get(node.output[0], []), self.shapes.get(node.input[1], [])
        transposed = node.op_type == "Gemm" and attribute(node, "transB", 0)
        depth = right[-1 if transposed else -2] if len(right) >= 2 else 0
        width = result[-1] if len(result) >= 2 else 0
        activations = node.input[1] not in self.constants
        if 1 in (result[-2:] if activations else result if len(result) < 3 else ()):
            return "it is a matrix by a vector, for which INT8 has no tensor cores"
        small = [f"{name} of {n}" for name, n in (("k", depth), ("n", width)) if 0 < n < _LEAST]
        return f"its {' and '.join(small)} are below the {_LEAST} of INT8 kernels" if small else None

    def _attention(self, softmax: onnx.NodeProto) -> Iterator[tuple[str, str]]:
        """Yield the products around a Softmax that are no attention for INT8, with the reason."""
        masked = False
        scores: list[onnx.NodeProto] = []
        for node in self._around(softmax.input[0], backward=True):
            activations = [name for name in node.input if name and name not in self.constants]
            masked = masked or (node.op_type in _MASKS and len(activations) > 1)
            scores += [node] if node.op_type == "MatMul" else []
        results = [n for n in self._around(softmax.output[0], backward=False) if n.op_type == "MatMul"]
        if not scores or not results:
            return
        reason = None if self.float8 else self._not_fused(scores[0])
        reason = (
            "it is attention with an added mask, which Model-Optimizer leaves in float" if masked else reason
        )
        if reason is not None:
            yield from ((node.name, reason) for node in (*scores, *results))

    def _not_fused(self, scores: onnx.NodeProto) -> str | None:
        lengths = self.shapes.get(scores.output[0], [])[-2:] or [0]
        head = (self.shapes.get(scores.input[0]) or [0])[-1]
        if min(lengths) < 1:
            return f"it is attention of no fixed length; TensorRT fuses it in INT8 up to {_LONGEST} positions"
        if max(lengths) > _LONGEST:
            return f"it is attention over {max(lengths)} positions; TensorRT fuses up to {_LONGEST} in INT8"
        widths = ", ".join(map(str, _HEADS))
        return None if head in (0, *_HEADS) else f"its heads are {head} wide; TensorRT fuses {widths} in INT8"

    def _around(self, name: str, *, backward: bool) -> Iterator[onnx.NodeProto]:
        """Yield the operators by element before or behind a tensor, and the products of two activations."""
        seen, ahead = set[str](), [name]
        while ahead:
            name = ahead.pop()
            nodes = [self.made_by[name]] if name in self.made_by else []
            for node in nodes if backward else self.readers.get(name, []):
                if node.name in seen:
                    continue
                seen.add(node.name)
                if node.op_type in _POINTWISE:
                    ahead += node.input if backward else node.output
                elif node.op_type != "MatMul" or set(node.input) & set(self.constants):
                    continue
                yield node
