"""Find the OpenVINO kernel that computes each layer of a file, and so the layer's precision.

OpenVINO reports the ONNX nodes of each kernel, but its passes lose some names. A kernel may have the name of
a node that a pass created ("Multiply_7048", after moving a scale through a residual add), or of the bias or
activation fused with the layer. A block is a kernel of several nodes ("Subgraph"). The rules apply in order,
rule 5 to blocks and the others to kernels that multiply. Rules 2, 3, 4 and 6 skip kernels that are matched
already. If several kernels fit a rule, they must compute in one precision.

1. The kernel has the name of the node or of the node's output.
2. The kernel reads the node's stored weight, which no other layer reads.
3. The kernel has the name of the node's sole consumer (a bias) or of the next sole consumer (an activation).
4. The kernel has no names from the file, and reads the node's operands.
5. For MatMul and Gemm: the block has the node's name, or has its consumer's name and holds or reads both
   operands. Attention is such a block; most blocks hold only element-wise operators.
6. For a recurrent node: the kernel is recurrent. A bidirectional node has two kernels with OpenVINO's names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...model import onnx
from ...model.graph.graph import WEIGHTED, consumers, producers

UNREPORTED = "unreported"
_RT_INFO_KEYS = ("layerType", "runtimePrecision", "primitiveType", "originalLayersNames", "outputPrecisions")
_PRECISIONS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8"}
_BLOCK = "Subgraph"
_MULTIPLIES = frozenset(
    """
    Convolution Deconvolution FullyConnected MatMul GatherMatmul RNNCell RNNSeq ScaledDotProductAttention
    QKVProjection LLMMLP
    """.split()
)
_RECURRENT = ("LSTM", "GRU", "RNN")
_RECURRENT_KERNELS = ("RNNCell", "RNNSeq")
_MOVERS = frozenset(["Const", "Transpose", "Reorder", "Reshape", "Convert", "Quantize"])
_MAX_FUSED = 2  # nodes fused into the kernel of their producer: a bias, an activation
_SUFFIXES = ("/WithoutBiases", "/DequantizationMultiply", "/DequantizationSubtract")


@dataclass(frozen=True)
class Kernel:
    """A node of the graph that OpenVINO executes; several such nodes may have the same `name`.

    `names` are the ONNX nodes that OpenVINO reports for the kernel. `inputs` are the keys of the kernels that
    produce the kernel's inputs, and `writes` is the precision of the kernel's first output.
    """

    key: str
    name: str
    kind: str
    precision: str
    primitive: str
    names: frozenset[str]
    inputs: tuple[str, ...]
    writes: str = UNREPORTED

    @property
    def nodes(self) -> set[str]:
        """`names` without the suffixes that OpenVINO's passes append."""
        return {re.split("|".join(_SUFFIXES), name)[0] for name in self.names}


@dataclass(frozen=True)
class Computed:
    """The precision of a layer ("unreported" if OpenVINO reports none), and a description."""

    precision: str
    detail: str


def computed_by(
    graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], kernels: Sequence[Kernel]
) -> dict[str, Computed]:
    search = _KernelSearch(graph, kernels)
    computed: dict[str, Computed] = {}
    for match in (
        search.by_name, search.by_weight, search.by_follower, search.by_operands, search.by_block,
        search.by_recurrence,
    ):  # fmt: skip
        for node in nodes:
            if node.name not in computed:
                kernel = match(node)
                if kernel is not None:
                    precision = search.precision(kernel, node)
                    detail = f"computes it in {precision} ({kernel.primitive})"
                    if precision == UNREPORTED:
                        detail = f"reports no precision of {kernel.name} ({kernel.primitive})"
                    computed[node.name] = Computed(precision, f"OpenVINO {detail}")
                    search.matched.add(kernel.key)
    unreported = Computed(UNREPORTED, "OpenVINO reports no kernel for it")
    return {node.name: computed.get(node.name, unreported) for node in nodes}


class _KernelSearch:
    """An index of a model's kernels by name and by inputs; each `by_…` method finds the kernel of a node."""

    def __init__(self, graph: onnx.GraphProto, kernels: Sequence[Kernel]) -> None:
        self.readers, self.producer_of = consumers(graph), producers(graph)
        self.names = {name for node in graph.node for name in (node.name, *node.output)}
        self.kernels = {kernel.key: kernel for kernel in kernels}
        self.products = [kernel for kernel in kernels if kernel.kind in _MULTIPLIES]
        self.blocks = [kernel for kernel in kernels if kernel.kind == _BLOCK]
        # The names of each kernel's inputs, and of inputs behind kernels that only move data.
        self.reads = {
            kernel.key: {name for key in kernel.inputs for name in self._names_of(self.kernels[key])}
            for kernel in (*self.products, *self.blocks)
        }
        self.matched: set[str] = set()

    def by_name(self, node: onnx.NodeProto) -> Kernel | None:
        names = {node.name, node.output[0]}
        return _pick(kernel for kernel in self.products if kernel.nodes & names)

    def by_weight(self, node: onnx.NodeProto) -> Kernel | None:
        stored = set(self._source_names(node.input[1])) | {f"{node.name}/transpose_b"}
        if self._is_shared(stored):
            return None
        return self._unmatched(lambda kernel: bool(self.reads[kernel.key] & stored))

    def by_follower(self, node: onnx.NodeProto) -> Kernel | None:
        for follower in self._fusible_names(node):
            kernel = self._unmatched(lambda kernel, name=follower: name in kernel.nodes)  # type: ignore[misc]
            if kernel is not None:
                return kernel
        return None

    def by_operands(self, node: onnx.NodeProto) -> Kernel | None:
        operands = self._operands(node)
        return self._unmatched(
            lambda kernel: (
                not kernel.nodes & self.names and all(self.reads[kernel.key] & names for names in operands)
            )
        )

    def by_block(self, node: onnx.NodeProto) -> Kernel | None:
        if node.op_type not in ("MatMul", "Gemm"):
            return None
        names = {node.name, node.output[0]}
        names |= {f"{name}/WithoutBiases" for name in names}  # other suffixes mark scales of other kernels
        if named := [kernel for kernel in self.blocks if kernel.names & names]:
            return _pick(named)
        next_names = set(self._fusible_names(node))
        operands = self._operands(node)
        return _pick(
            kernel
            for kernel in self.blocks
            if kernel.names & next_names
            and all((kernel.names | self.reads[kernel.key]) & operand for operand in operands)
        )

    def by_recurrence(self, node: onnx.NodeProto) -> Kernel | None:
        if node.op_type not in _RECURRENT:
            return None
        return self._unmatched(lambda kernel: kernel.kind in _RECURRENT_KERNELS)

    def precision(self, kernel: Kernel, node: onnx.NodeProto) -> str:
        """Return a node's precision in a kernel. For a block, OpenVINO reports the widest type of the inputs;
        a layer inside takes both operands in 8 bits or neither, so one 8-bit operand means INT8."""
        if kernel.kind == _BLOCK:
            sources = [self.kernels[key] for key in kernel.inputs]
            for operand in self._operands(node):
                if any(source.writes == "int8" and self._names_of(source) & operand for source in sources):
                    return "int8"
        return kernel.precision

    def _unmatched(self, fits: Callable[[Kernel], bool]) -> Kernel | None:
        return _pick(kernel for kernel in self.products if kernel.key not in self.matched and fits(kernel))

    def _fusible_names(self, node: onnx.NodeProto) -> Iterator[str]:
        for _ in range(_MAX_FUSED):
            next_nodes = self.readers.get(node.output[0], [])
            if len(next_nodes) != 1 or next_nodes[0].op_type in WEIGHTED:
                return
            node = next_nodes[0]
            yield from (node.name, node.output[0])

    def _operands(self, node: onnx.NodeProto) -> list[set[str]]:
        return [set(self._source_names(name)) for name in node.input[:2]]

    def _source_names(self, tensor: str) -> Iterator[str]:
        """Yield the names of a tensor and of its predecessors, through Q/DQ, Transpose and Reshape."""
        while tensor:
            yield tensor
            node = self.producer_of.get(tensor)
            if node is None:
                return
            yield node.name
            if node.op_type not in ("QuantizeLinear", "DequantizeLinear", "Transpose", "Reshape"):
                return
            tensor = node.input[0]

    def _is_shared(self, names: set[str]) -> bool:
        """Return whether several layers read a weight, which then identifies none of them."""
        weight_readers = [reader for name in names for reader in self.readers.get(name, ())]
        return len({node.name for node in weight_readers if node.op_type in WEIGHTED}) > 1

    def _names_of(self, kernel: Kernel) -> set[str]:
        names: set[str] = set()
        seen: set[str] = set()
        stack = [kernel]
        while stack:
            source = stack.pop()
            if source.key not in seen:
                seen.add(source.key)
                names |= {source.name} | source.names | source.nodes
                stack.extend(self.kernels[key] for key in source.inputs if source.kind in _MOVERS)
        return names


def _pick(kernels: Iterable[Kernel]) -> Kernel | None:
    """Return the first kernel if all compute in one precision, else None."""
    candidates = list(kernels)
    return candidates[0] if len({kernel.precision for kernel in candidates}) == 1 else None


def read_kernels(compiled: Any) -> list[Kernel]:
    kernels = []
    for operator in compiled.get_runtime_model().get_ordered_ops():
        rt_info = operator.get_rt_info()
        kind, runs_in, primitive, names, writes = (str(rt_info[key].value) for key in _RT_INFO_KEYS)
        precisions = (_PRECISIONS.get(types.split(",")[0].lower(), UNREPORTED) for types in (runs_in, writes))
        inputs = tuple(value.get_node().get_name() for value in operator.input_values())
        of_nodes = frozenset(filter(None, names.split(",")))
        key, name = operator.get_name(), operator.get_friendly_name()
        kernels.append(
            Kernel(key, name, kind, next(precisions), primitive, of_nodes, inputs, next(precisions))
        )
    return kernels
