"""Pair the tensors of an artifact with those of the reference, by name, else by structure.

1. Tensors of the same name pair, except in case 2.
2. The quantizer removes `Relu` before a QuantizeLinear with a lowest integer of zero. The float tensor named
   as Relu's output then is Relu's input; only the integers pair with Relu's output.
3. Integers pair by the name of QuantizeLinear's input, or by their producer.
4. A renamed output pairs through its node: by node name, else by operator, inputs and position.

Casts, and DequantizeLinear of integers that are paired already, do not count as tensors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ....model.graph.graph import captured_names, constant_names, consumers, infer_types, producers
from .sides import Form, Forms, plain_name

if TYPE_CHECKING:
    import onnx

FLOATS = ("float32", "float16", "bfloat16", "float64")
_ACTIVATIONS = frozenset(["Relu", "Clip"])
_PASS_THROUGH = frozenset(["QuantizeLinear", "DequantizeLinear", "Cast", "Identity"])


@dataclass(frozen=True)
class TensorPair:
    """A tensor of the reference and its counterpart in the artifact.

    Attributes:
        node, operator: Producer in the artifact. A QuantizeLinear counts as part of its producer, unless the
            float tensor has other consumers and forms a pair by itself.
        form: Conversion of the artifact's values.
        upstream: Bit i is set if pair i is upstream of this one in the artifact.
        parents: The pairs directly before this one, without other pairs in between.
    """

    reference: str
    artifact: str
    node: str
    operator: str
    form: Form
    upstream: int
    parents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pairs:
    """All pairs, in the artifact's order of execution, and float tensors without a partner.

    Those of the reference are folded into a kernel; those of the artifact exclude Q/DQ and casts.
    """

    pairs: tuple[TensorPair, ...]
    reference_only: tuple[str, ...] = ()
    artifact_only: tuple[str, ...] = ()

    def named(self, artifact: str) -> int | None:
        return next((i for i, pair in enumerate(self.pairs) if pair.artifact == artifact), None)


def float_tensors(model: onnx.ModelProto) -> dict[str, str]:
    """Return the dtypes by name of the float tensors that depend on an input, including inputs."""
    constants = constant_names(model)
    types = infer_types(model)
    return {name: kind for name, kind in types.items() if kind in FLOATS and name not in constants}


def pair_tensors(reference: onnx.ModelProto, artifact: onnx.ModelProto) -> Pairs:
    """Pair the float tensors of two graphs; ignore weights."""
    walk = _PairWalk(reference, artifact)
    for node in artifact.graph.node:
        walk.visit(node)
    return walk.result()


def pair_outputs(reference: onnx.ModelProto, outputs: Iterable[str]) -> Pairs:
    """Pair the outputs of an engine with the tensors of these names; its graph cannot be read."""
    pairs, names = pair_tensors(reference, reference), set(outputs)
    shown = [index for index, pair in enumerate(pairs.pairs) if pair.reference in names]
    return replace(subset(pairs, shown), artifact_only=())


def subset(pairs: Pairs, indexes: Sequence[int]) -> Pairs:
    """Keep only these pairs; recompute each pair's ancestors among them."""
    place_of = {index: at for at, index in enumerate(indexes)}
    nearest: list[set[int]] = []  # of each pair, the closest upstream pairs that remain
    for pair in pairs.pairs:
        sets = ({place_of[parent]} if parent in place_of else nearest[parent] for parent in pair.parents)
        nearest.append(set().union(*sets))
    selected = tuple(
        replace(
            pairs.pairs[index],
            upstream=sum(1 << at for at, i in enumerate(indexes) if pairs.pairs[index].upstream >> i & 1),
            parents=tuple(sorted(nearest[index])),
        )
        for index in indexes
    )
    paired = {pair.reference for pair in selected}
    unpaired = [*pairs.reference_only, *(p.reference for p in pairs.pairs if p.reference not in paired)]
    return Pairs(selected, tuple(dict.fromkeys(unpaired)), pairs.artifact_only)


class _Reference:
    """The reference's graph, indexed for the search of partners."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph, self.floats = model.graph, float_tensors(model)
        self.made_by, self.readers = producers(graph), consumers(graph)
        self.nodes = {node.name: node for node in graph.node if node.name}
        self.inputs = {value.name for value in graph.input}
        self.by_structure: dict[tuple[object, ...], list[str]] = defaultdict(list)
        for node in graph.node:
            for index, name in enumerate(node.output):
                if name in self.floats:
                    key = structure(node, index, [read for read in node.input if read in self.floats])
                    self.by_structure[key].append(name)


def structure(node: onnx.NodeProto, index: int, float_inputs: Iterable[str]) -> tuple[object, ...]:
    """Return the key that identifies a renamed output: operator, position, and inputs of its node."""
    operator = "Add" if node.op_type == "Sum" else node.op_type
    return operator, index, *float_inputs


class _PairWalk:
    def __init__(self, reference: onnx.ModelProto, artifact: onnx.ModelProto) -> None:
        self.reference = _Reference(reference)
        self.graph = artifact.graph
        self.forms = Forms(artifact.graph)
        self.types = infer_types(artifact)
        self.constants = constant_names(artifact)
        self.made_by = producers(self.graph)
        self.readers = consumers(self.graph)
        self.outputs = {value.name for value in self.graph.output}
        self.nodes = {plain_name(node) for node in self.graph.node}
        # Tensors in ONNX Runtime's blocked layout, which only its NCHWc convolutions can read.
        self.blocked = {
            name
            for node in self.graph.node
            if node.domain == "com.microsoft.nchwc" and node.op_type != "ReorderOutput"
            for name in node.output
        }
        self.as_ref = {value.name: value.name for value in self.graph.input}  # tensor to the reference's
        self.upstream: dict[str, int] = {}  # tensor to a bit set of the pairs up to it
        # Tensor to its pair, or to the closest pairs before it.
        self.nearest: dict[str, frozenset[int]] = {}
        self.structure_counts: dict[tuple[object, ...], int] = defaultdict(int)
        self.pairs: list[TensorPair] = []
        self.unpaired: list[str] = []

    def visit(self, node: onnx.NodeProto) -> None:
        before, nearest = 0, frozenset[int]()
        for name in (*node.input, *captured_names(node)):
            before |= self.upstream.get(name, 0)
            nearest |= self.nearest.get(name, frozenset())
        for index, name in enumerate(node.output):
            if not name or name in self.constants:
                continue
            self.upstream[name], self.nearest[name] = before, nearest
            match = self._find_partner(node, index, name)
            if match is None:
                continue
            partner, form, producer = match
            self.as_ref.setdefault(name, partner)
            self.upstream[name] = before | 1 << len(self.pairs)
            self.nearest[name] = frozenset([len(self.pairs)])
            label = producer.name or producer.output[0]
            parents = tuple(sorted(nearest))
            self.pairs.append(TensorPair(partner, name, label, producer.op_type, form, before, parents))

    def result(self) -> Pairs:
        paired = {pair.reference for pair in self.pairs}
        unpaired = [n for n in self.reference.floats if n not in paired and n not in self.reference.inputs]
        return Pairs(tuple(self.pairs), tuple(unpaired), tuple(self.unpaired))

    def _find_partner(
        self, node: onnx.NodeProto, index: int, name: str
    ) -> tuple[str, Form, onnx.NodeProto] | None:
        """Return the reference's tensor, the conversion, and the producer; None if there is no pair."""
        if name in self.forms.scales:
            return self._match_integers(node, index, name)
        if self.types.get(name, "float32") not in FLOATS:
            return None
        if node.op_type in _PASS_THROUGH and not (name in self.reference.floats and name in self.outputs):
            source = self.as_ref.get(node.input[0])
            if source is not None:
                self.as_ref[name] = source
            if node.op_type != "DequantizeLinear" or self.forms.of(node.input[0]) is not None:
                return None
            if source in self.reference.floats:  # FP8, or a computed scale
                return str(source), Form(channels_last=name in self.forms.channels_last), node
        partner = self._match_float(node, index, name)
        if partner is None:
            if node.op_type not in _PASS_THROUGH and name not in self.blocked:
                self.unpaired.append(name)
            return None
        self.as_ref[name] = partner
        if self._is_only_quantized(name) or name in self.blocked:
            return None
        channels_last = name in self.forms.channels_last
        return partner, Form(channels_last=channels_last), node

    def _match_integers(
        self, node: onnx.NodeProto, index: int, name: str
    ) -> tuple[str, Form, onnx.NodeProto] | None:
        floats, producer = self.reference.floats, node
        if node.op_type == "QuantizeLinear":
            raw = node.input[0]
            partner = raw if raw in floats else self._past_activation(self.as_ref.get(raw), name)
            if raw in self.made_by and self._is_only_quantized(raw):
                producer = self.made_by[raw]
        else:
            stem = name.removesuffix("_QuantizeLinear_Output")
            transposed = self.as_ref.get(node.input[0]) if node.op_type == "Transpose" else None
            by_name = stem if stem in floats and stem not in self.reference.inputs else None
            partner = by_name or self._match_by_node(node, index) or transposed
            partner = self._past_activation(partner, name)
        form = self.forms.of(name)
        if partner is None or partner not in floats:
            return None
        self.as_ref[name] = partner
        if node.op_type == "Transpose" and partner == self.as_ref.get(node.input[0]):
            return None  # the same integers in another layout
        return (partner, form, producer) if form is not None else None

    def _match_float(self, node: onnx.NodeProto, index: int, name: str) -> str | None:
        reference = self.reference
        producer = reference.made_by.get(name)
        if name in reference.floats and producer is not None:
            peer = reference.nodes.get(plain_name(node))
            folded = producer.op_type in _ACTIVATIONS and node.op_type not in _ACTIVATIONS
            is_same = node.op_type == producer.op_type or peer is None or peer is producer
            if folded and self._is_only_quantized(name):
                return str(producer.input[0]) if producer.input[0] in reference.floats else None
            if is_same or folded or name in self.outputs:
                return name
        partner = self._match_by_node(node, index) or self._match_by_structure(node, index)
        fuses = node.op_type.startswith("Fused") or any(a.name == "activation" for a in node.attribute)
        return self._past_activation(partner, name) if fuses else partner

    def _match_by_node(self, node: onnx.NodeProto, index: int) -> str | None:
        peer = self.reference.nodes.get(plain_name(node))
        if peer is None or index >= len(peer.output) or peer.output[index] not in self.reference.floats:
            return None
        return str(peer.output[index])

    def _match_by_structure(self, node: onnx.NodeProto, index: int) -> str | None:
        input_names = [self.as_ref[name] for name in node.input if name in self.as_ref]
        floats = [name for name in input_names if name in self.reference.floats]
        key = structure(node, index, floats)
        matches = self.reference.by_structure.get(key, [])
        position = self.structure_counts[key]
        self.structure_counts[key] += 1
        return matches[position] if floats and position < len(matches) else None

    def _past_activation(self, partner: str | None, name: str) -> str | None:
        """Return the output of an activation that follows in the reference only, else `partner`."""
        readers = self.reference.readers.get(partner or "", [])
        if partner is None or len(readers) != 1 or readers[0].op_type not in _ACTIVATIONS:
            return partner
        behind = [node for reader in self.readers.get(name, []) for node in self._consumers_of(reader)]
        if plain_name(readers[0]) in self.nodes or any(node.op_type in _ACTIVATIONS for node in behind):
            return partner
        return str(readers[0].output[0])

    def _consumers_of(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if node.op_type not in _PASS_THROUGH:
            return [node]
        return [n for reader in self.readers.get(node.output[0], []) for n in self._consumers_of(reader)]

    def _is_only_quantized(self, name: str) -> bool:
        """Return whether QuantizeLinear is the only consumer of a tensor, so that only integers remain."""
        readers = self.readers.get(name, [])
        stored = (n.op_type == "QuantizeLinear" and self.forms.of(n.output[0]) is not None for n in readers)
        return bool(readers) and name not in self.outputs and all(stored)
