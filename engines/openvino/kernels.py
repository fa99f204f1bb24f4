"""Match the products of a file to OpenVINO's kernels and their precisions.

OpenVINO tells, for each kernel, which of the file's nodes it made it of. Its passes lose some of these names:
a product whose scale was moved through a residual add goes by the name of a node that the pass made
("Multiply_7048"), and one whose bias or activation went into the same kernel goes by the name of that. So a
node's kernel is looked for in this order, among the kernels that multiply:

1. one that is named after the node or its result;
2. one that reads the node's stored weight;
3. one that is named after what alone reads the node's result: a bias, an activation;
4. one that is not taken, has no name that is in the file, and reads what the node reads.

5. a block of several nodes ("Subgraph"; attention is one): by the node's own name, or by that of what reads
   its result, where the block holds or reads both operands. Most blocks are of element-wise operators alone;
6. of a bidirectional recurrent node a kernel for each direction, under names of OpenVINO's own: where all
   such kernels compute in one precision, it is the node's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...model import onnx
from ...model.graph.graph import WEIGHTED, consumers, producers

UNREPORTED = "unreported"
_FACTS = ("layerType", "runtimePrecision", "primitiveType", "originalLayersNames", "outputPrecisions")
_PRECISIONS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8"}
_BLOCK = "Subgraph"
_MULTIPLIES = frozenset(
    """
    Convolution Deconvolution FullyConnected MatMul GatherMatmul RNNCell RNNSeq ScaledDotProductAttention
    QKVProjection LLMMLP
    """.split()
)
_RECURRENT = ("LSTM", "GRU", "RNN")
_RECURRENCES = ("RNNCell", "RNNSeq")
_MOVES = frozenset(["Const", "Transpose", "Reorder", "Reshape", "Convert", "Quantize"])
_FUSED_BEHIND = 2  # nodes that go into the kernel in front of them: a bias, an activation
_SUFFIXES = ("/WithoutBiases", "/DequantizationMultiply", "/DequantizationSubtract")


@dataclass(frozen=True)
class Kernel:
    """One node of the graph that OpenVINO executes.

    Several may share OpenVINO's name. `names` are of the file's nodes that it was made of, as far as that is
    told; `inputs` keys of the kernels whose results it reads; `writes` the precision of its first result.
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
        """Its names without what OpenVINO's passes put behind them."""
        return {re.split("|".join(_SUFFIXES), name)[0] for name in self.names}


@dataclass(frozen=True)
class Computed:
    """How a node is computed: its precision ("unreported" where OpenVINO reports none), and a description."""

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
                        detail = f"tells no precision of {kernel.name} ({kernel.primitive})"
                    computed[node.name] = Computed(precision, f"OpenVINO {detail}")
                    search.taken.add(kernel.key)
    unreported = Computed(UNREPORTED, "OpenVINO does not tell what computes it")
    return {node.name: computed.get(node.name, unreported) for node in nodes}


class _KernelSearch:
    """The kernels of one model, by what they are named after and what they read."""

    def __init__(self, graph: onnx.GraphProto, kernels: Sequence[Kernel]) -> None:
        self.readers, self.made_by = consumers(graph), producers(graph)
        self.in_file = {name for node in graph.node for name in (node.name, *node.output)}
        self.kernels = {kernel.key: kernel for kernel in kernels}
        self.products = [kernel for kernel in kernels if kernel.kind in _MULTIPLIES]
        self.blocks = [kernel for kernel in kernels if kernel.kind == _BLOCK]
        # Names of all that a kernel reads, also through kernels that only move data.
        self.read = {
            kernel.key: {name for key in kernel.inputs for name in self._names_of(self.kernels[key])}
            for kernel in (*self.products, *self.blocks)
        }
        self.taken: set[str] = set()

    def by_name(self, node: onnx.NodeProto) -> Kernel | None:
        names = {node.name, node.output[0]}
        return _one(kernel for kernel in self.products if kernel.nodes & names)

    def by_weight(self, node: onnx.NodeProto) -> Kernel | None:
        stored = set(self._chain(node.input[1])) | {f"{node.name}/transpose_b"}
        if self._is_shared(stored):
            return None
        return self._free(lambda kernel: bool(self.read[kernel.key] & stored))

    def by_follower(self, node: onnx.NodeProto) -> Kernel | None:
        for follower in self._followers(node):
            kernel = self._free(lambda kernel, name=follower: name in kernel.nodes)  # type: ignore[misc]
            if kernel is not None:
                return kernel
        return None

    def by_operands(self, node: onnx.NodeProto) -> Kernel | None:
        operands = self._operands(node)
        return self._free(
            lambda kernel: (
                not kernel.nodes & self.in_file and all(self.read[kernel.key] & names for names in operands)
            )
        )

    def by_block(self, node: onnx.NodeProto) -> Kernel | None:
        if node.op_type not in ("MatMul", "Gemm"):
            return None
        names = {node.name, node.output[0]}
        names |= {f"{name}/WithoutBiases" for name in names}  # not the scales that came from other kernels
        if named := [kernel for kernel in self.blocks if kernel.names & names]:
            return _one(named)
        behind = set(self._followers(node))
        operands = self._operands(node)
        return _one(
            kernel
            for kernel in self.blocks
            if kernel.names & behind
            and all((kernel.names | self.read[kernel.key]) & operand for operand in operands)
        )

    def by_recurrence(self, node: onnx.NodeProto) -> Kernel | None:
        """A kernel of the direction of a recurrent node, where all that it may be compute alike."""
        if node.op_type not in _RECURRENT:
            return None
        return self._free(lambda kernel: kernel.kind in _RECURRENCES)

    def precision(self, kernel: Kernel, node: onnx.NodeProto) -> str:
        """What a kernel computes a node in.

        OpenVINO tells the widest type that a block reads as the block's. A product inside takes both operands
        in 8 bits or neither, so an operand that the block reads in 8 bits tells more.
        """
        if kernel.kind == _BLOCK:
            read = [self.kernels[key] for key in kernel.inputs]
            for operand in self._operands(node):
                if any(source.writes == "int8" and self._names_of(source) & operand for source in read):
                    return "int8"
        return kernel.precision

    def _free(self, fits: Callable[[Kernel], bool]) -> Kernel | None:
        return _one(kernel for kernel in self.products if kernel.key not in self.taken and fits(kernel))

    def _followers(self, node: onnx.NodeProto) -> Iterator[str]:
        for _ in range(_FUSED_BEHIND):
            behind = self.readers.get(node.output[0], [])
            if len(behind) != 1 or behind[0].op_type in WEIGHTED:
                return
            node = behind[0]
            yield from (node.name, node.output[0])

    def _operands(self, node: onnx.NodeProto) -> list[set[str]]:
        return [set(self._chain(name)) for name in node.input[:2]]

    def _chain(self, tensor: str) -> Iterator[str]:
        """A tensor's names on its way from the stored or computed value, through Q/DQ and what moves data."""
        while tensor:
            yield tensor
            node = self.made_by.get(tensor)
            if node is None:
                return
            yield node.name
            if node.op_type not in ("QuantizeLinear", "DequantizeLinear", "Transpose", "Reshape"):
                return
            tensor = node.input[0]

    def _is_shared(self, names: set[str]) -> bool:
        """Whether more than one product reads a weight: it then tells nothing about which is which."""
        reading = [reader for name in names for reader in self.readers.get(name, ())]
        return len({node.name for node in reading if node.op_type in WEIGHTED}) > 1

    def _names_of(self, kernel: Kernel) -> set[str]:
        names: set[str] = set()
        seen: set[str] = set()
        waiting = [kernel]
        while waiting:
            source = waiting.pop()
            if source.key not in seen:
                seen.add(source.key)
                names |= {source.name} | source.names | source.nodes
                waiting.extend(self.kernels[key] for key in source.inputs if source.kind in _MOVES)
        return names


def _one(kernels: Iterable[Kernel]) -> Kernel | None:
    """The only kernel, or one of several that compute alike; None where they differ."""
    candidates = list(kernels)
    return candidates[0] if len({kernel.precision for kernel in candidates}) == 1 else None


def read_kernels(compiled: Any) -> list[Kernel]:
    kernels = []
    for operator in compiled.get_runtime_model().get_ordered_ops():
        about = operator.get_rt_info()
        kind, runs_in, primitive, names, writes = (str(about[key].value) for key in _FACTS)
        precisions = (_PRECISIONS.get(types.split(",")[0].lower(), UNREPORTED) for types in (runs_in, writes))
        inputs = tuple(value.get_node().get_name() for value in operator.input_values())
        of_nodes = frozenset(filter(None, names.split(",")))
        key, name = operator.get_name(), operator.get_friendly_name()
        kernels.append(
            Kernel(key, name, kind, next(precisions), primitive, of_nodes, inputs, next(precisions))
        )
    return kernels
