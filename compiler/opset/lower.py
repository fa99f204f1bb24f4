"""Lower an ONNX model to an older opset, or raise an error that names the node.

Which operators changed between two opsets is read from ONNX's own schemas. A node whose schema is the same
in both stays as it is. Any other is

1. rewritten, where its operands or attributes moved (`rewrites`),
2. decomposed, where the older opset has no such operator (`rewrites`),
3. taken as it stands, where only types or attributes were added that it does not use (`schemas`),
4. written out as ONNX defines it, where it has a body of other operators (`schemas`),
5. refused.

`onnx.version_converter` is not used: it has no way down for most of these, and takes some for unchanged.

`without_missing` writes operators that a reader of ONNX files lacks in operators that it has:

    IsInf                          Equal(Abs(x), inf), or Equal(x, +-inf)
    CastLike                       Cast, where the type is known
    `DECOMPOSITIONS`               LayerNormalization, RMSNormalization, Gelu, ...
    what ONNX defines by others    Swish, RotaryEmbedding, Attention, HannWindow, ... (`schemas`)

The opset stays. What lacks is data of the reader: it differs with its version.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
import onnx
from onnx.inliner import inline_local_functions

from ...errors import ModelError, UnsupportedOperator, first_line
from ...model.graph import ONNX_DOMAINS, attribute, every_graph, without_weights
from ...model.graph_edits import drop_unread, drop_unused_initializers
from ...model.onnx_file import (
    copy_model,
    opset,
)
from ...spec.opsets import NEWEST, OLDEST
from .rewrites import DECOMPOSITIONS, REWRITES, cast_to_known
from .schemas import COMPATIBLE, trim, why_other, write_out
from .scope import Chain, Rewrite, Scope, node_name, replace_nodes

_DEEPEST = 8  # bodies within bodies


def lower_opset(model: onnx.ModelProto, highest: int) -> onnx.ModelProto:
    """Return a copy of the model in opset `highest`, or as it is where its opset is no newer.

    Args:
        model: Of opset `NEWEST` at most; external data loaded. It may be over protobuf's 2 GB.
        highest: The newest opset allowed, `OLDEST` or more.
    """
    copy = copy_model(model)
    current = opset(copy)
    if current <= highest:
        return copy
    if current > NEWEST or highest < OLDEST:
        raise ModelError(
            f"opset {current} to {highest}: {OLDEST} to {NEWEST} are known",
            hint=f"export the model again with opset {NEWEST} or older",
        )
    _inline_functions(copy, current)
    lowering = _Lowering(copy, current, highest)
    for _ in range(_DEEPEST):
        lowering.changed = False
        lowering.walk(lowering.write_out)
        if not lowering.changed:
            break
    lowering.walk(lowering.lower)
    drop_unread(copy.graph)  # operands that are attributes now, and unused parts of bodies
    drop_unused_initializers(copy.graph)
    _stamp(copy, highest)
    _check(copy, current, highest)
    return copy


class _Lowering:
    def __init__(self, model: onnx.ModelProto, current: int, highest: int) -> None:
        self.model, self.current, self.highest = model, current, highest
        self.changed = False

    def walk(self, replace: Rewrite) -> None:
        """Replace the nodes that are of another schema, in all graphs, with their types before the walk."""

        def changed(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
            if node.domain not in ONNX_DOMAINS:
                return None
            newer, older = self._schema(node, self.current), self._schema(node, self.highest)
            same = older is not None and newer is not None and older.since_version == newer.since_version
            return None if same else replace(node, scope)

        replace_nodes(self.model, self.highest, changed)

    def _schema(self, node: onnx.NodeProto, version: int) -> Any:
        try:
            schema: Any = onnx.defs.get_schema(node.op_type, version, "")
        except onnx.defs.SchemaError:
            return None
        return None if schema.deprecated else schema

    def write_out(self, node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
        older = self._schema(node, self.highest)
        has_rule = (
            node.op_type in DECOMPOSITIONS
            if older is None
            else node.op_type in (COMPATIBLE | REWRITES.keys())
        )
        if has_rule or self._schema(node, self.current) is None:
            return [node]
        nodes = write_out(node, scope, self.current)
        self.changed |= bool(nodes)
        return nodes or [node]

    def lower(self, node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
        """Bring a node to the older opset."""
        newer, older = self._schema(node, self.current), self._schema(node, self.highest)
        operator = node.op_type
        changed_at, rewrite = REWRITES.get(operator, (0, None))
        if older is None and operator in DECOMPOSITIONS:
            return DECOMPOSITIONS[operator](node, scope)
        nodes = rewrite(node, scope) if rewrite and changed_at > self.highest else [node]
        if older is None and any(made.op_type == operator for made in nodes):
            first = next((at for at in range(1, self.current + 1) if self._schema(node, at)), 0)
            since = f"came with opset {first}" if newer else f"is not in opset {self.current}"
            raise scope.refusal(
                node, f"the operator {since}", "write it with older operators, or use a newer runtime"
            )
        if rewrite is None and operator not in COMPATIBLE:
            raise scope.refusal(
                node,
                f"opset {newer.since_version} changed it, in a way not known here",
                "use a newer runtime",
            )
        for made in nodes:
            if made.op_type == operator:
                trim(made, older, newer)
                if reason := why_other(made, scope, older, newer):
                    raise scope.refusal(node, reason)
        return nodes


def _inline_functions(model: onnx.ModelProto, current: int) -> None:
    if not model.functions:
        return
    for function in model.functions:
        versions = {item.version for item in function.opset_import if item.domain in ONNX_DOMAINS}
        if versions - {current}:
            raise UnsupportedOperator(
                f"function {function.name!r}: of opset {versions.pop()} in a model of {current}",
                hint="simplify first, which writes functions out",
                operator=function.name,
            )
    inlined = inline_local_functions(without_weights(model))
    del model.graph.node[:], model.graph.value_info[:], model.functions[:]
    model.graph.node.extend(inlined.graph.node)
    model.graph.value_info.extend(inlined.graph.value_info)
    del model.opset_import[:]
    model.opset_import.extend(inlined.opset_import)


def _stamp(model: onnx.ModelProto, version: int) -> None:
    for item in model.opset_import:
        if item.domain in ONNX_DOMAINS:
            item.version = version
    ours = [item for item in model.opset_import if item.domain in ONNX_DOMAINS]
    model.ir_version = min(model.ir_version, onnx.helper.find_min_ir_version_for(ours))


def _check(model: onnx.ModelProto, current: int, highest: int) -> None:
    try:
        onnx.checker.check_model(without_weights(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise UnsupportedOperator(
            f"opset {current} cannot be brought to {highest}: {first_line(error)}",
            hint=f"export the model again with opset {highest}",
        ) from error


def is_inf_by_comparison(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """IsInf as a comparison with infinity, of one sign or of both."""
    detected = ((1.0, "detect_positive"), (-1.0, "detect_negative"))
    signs = [sign for sign, name in detected if attribute(node, name, 1)]
    if not signs:
        raise scope.refusal(node, "it detects neither sign")
    chain, value = Chain(node, scope), node.input[0]
    infinity = chain.scalar(signs[0] * np.inf, scope.elem_type(node, value))
    if len(signs) == 2:
        value = chain.add("Abs", [value])
    chain.add("Equal", [value, infinity], last=True)
    return chain.nodes


_FORMS: dict[str, Rewrite] = {**DECOMPOSITIONS, "IsInf": is_inf_by_comparison, "CastLike": cast_to_known}


def without_missing(model: onnx.ModelProto, operators: Container[str]) -> list[str]:
    """Write what lacks in other operators, in place; return the names of the nodes that were replaced.

    Args:
        operators: What the reader has. What ONNX does not define is left to it: a plugin may be of that name.
    """
    version, replaced = opset(model), list[str]()
    changed = True

    def other(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
        nonlocal changed
        if not _lacks(node, operators, version):
            return None
        form = _FORMS.get(node.op_type)
        nodes = form(node, scope) if form else write_out(node, scope, version)
        if not nodes or any(made.op_type == node.op_type for made in nodes):
            return None
        changed = True
        replaced.append(node_name(node))
        return nodes

    for _ in range(_DEEPEST):
        if not changed:
            break
        changed = False
        replace_nodes(model, version, other)
    if replaced:
        drop_unread(model.graph)
        drop_unused_initializers(model.graph)
    return replaced


def require_operators(model: onnx.ModelProto, operators: Container[str], reader: str, file: str) -> None:
    """Refuse a model with a node whose operator the reader lacks."""
    version = opset(model)
    for graph in every_graph(model.graph):
        for node in graph.node:
            if _lacks(node, operators, version):
                name = node.name or f"making {', '.join(node.output)}"
                raise UnsupportedOperator(
                    f"{file}: {reader} has no {node.op_type}: node {name!r} of opset {version}, which has "
                    "no form in other operators here",
                    hint="write it with other operators in the model, use a version that has it, or give "
                    "`plugins` with an operator of that name",
                    operator=node.op_type,
                    node=node.name,
                )


def _lacks(node: onnx.NodeProto, operators: Container[str], version: int) -> bool:
    if node.domain not in ONNX_DOMAINS or node.op_type in operators:
        return False
    try:
        onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return False
    return True
