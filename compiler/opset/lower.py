"""Lower an ONNX model to an older opset, or raise an error that names the node.

ONNX's schemas define which operators differ between two opsets. A node with the same schema in both is not
changed. Any other node is

1. rewritten, if its operands or attributes moved (`rewrites`),
2. decomposed, if the older opset lacks the operator (`rewrites`),
3. left unchanged, if the newer version only added types or attributes that the node does not use (`schemas`),
4. expanded into its function body of other operators, if ONNX defines one (`schemas`),
5. refused.

`onnx.version_converter` is not used: it cannot downgrade most of these, and treats some as unchanged.

`without_missing` replaces operators that a parser lacks by operators that it has, in the same opset. The
runtime adapter lists the parser's operators by version:

    IsInf                          Equal(Abs(x), inf), or Equal(x, +-inf); Greater or Less before opset 11
    CastLike                       Cast, if the type is known
    `DECOMPOSITIONS`               LayerNormalization, RMSNormalization, Gelu, ...
    function bodies                Swish, RotaryEmbedding, Attention, HannWindow, ... (`schemas`)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ...errors import ModelError, UnsupportedOperator
from ...model.graph.choices import CHOICES, selection_inputs
from ...model.graph.graph import ONNX_DOMAINS, attribute, every_graph, opset
from ...model.graph.graph_edits import drop_unread, drop_unused_initializers
from ...model.graph.onnx_file import Graph, copy_model
from ...model.graph.plain_forms import inline_functions
from ...spec.opsets import NEWEST, OLDEST
from .rewrites import DECOMPOSITIONS, REWRITES, cast_to_known
from .schemas import COMPATIBLE, expand_body, trim, why_invalid
from .scope import Chain, Rewrite, Scope, replace_nodes

_MAX_DEPTH = 8  # levels of function bodies
_EQUAL_OF_FLOATS = 11  # the opset


def lower_opset(model: onnx.ModelProto, highest: int) -> onnx.ModelProto:
    """Return a copy of the model in opset `highest`, or in its opset if that is not newer.

    Args:
        model: Of opset `NEWEST` at most; external data loaded. It may exceed protobuf's 2 GB.
        highest: The newest opset allowed, `OLDEST` or more.
    """
    copy = copy_model(model)
    current = opset(copy)
    if current <= highest:
        return copy
    if current > NEWEST or highest < OLDEST:
        raise ModelError(
            f"opset {current} to {highest}: only {OLDEST} to {NEWEST} are supported",
            hint=f"export the model again with opset {NEWEST} or older",
        )
    inline_functions(copy)
    for _ in range(_MAX_DEPTH):
        if not replace_nodes(copy, highest, partial(_write_out, current=current)):
            break
    replace_nodes(copy, highest, partial(_lower, current=current))
    drop_unread(copy.graph)  # operands that became attributes, and unused parts of bodies
    drop_unused_initializers(copy.graph)
    imports = [item for item in copy.opset_import if item.domain in ONNX_DOMAINS]
    for item in imports:
        item.version = highest
    copy.ir_version = min(copy.ir_version, onnx.helper.find_min_ir_version_for(imports))
    try:
        Graph(copy, Path("graph")).check()
    except ModelError as error:
        raise UnsupportedOperator(
            f"opset {current} cannot be brought to {highest}: {error.message.removeprefix('graph: ')}",
            hint=f"export the model again with opset {highest}",
        ) from error
    return copy


def _schema(node: onnx.NodeProto, version: int) -> Any:
    """Return ONNX's schema of a node's operator; None if the opset has no schema or a deprecated one."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def _is_unchanged(node: onnx.NodeProto, newer: Any, older: Any) -> bool:
    same = older is not None and newer is not None and older.since_version == newer.since_version
    return same or node.domain not in ONNX_DOMAINS


def _write_out(node: onnx.NodeProto, scope: Scope, *, current: int) -> list[onnx.NodeProto] | None:
    """Return the nodes of an operator's function body if no rule applies; None otherwise."""
    newer, older = _schema(node, current), _schema(node, scope.target)
    rules = DECOMPOSITIONS.keys() if older is None else COMPATIBLE | REWRITES.keys()
    if _is_unchanged(node, newer, older) or newer is None or node.op_type in rules:
        return None
    return expand_body(node, scope, current) or None


def _lower(node: onnx.NodeProto, scope: Scope, *, current: int) -> list[onnx.NodeProto] | None:
    """Return the nodes that replace a node in the older opset; None if it does not change."""
    newer, older = _schema(node, current), _schema(node, scope.target)
    operator = node.op_type
    if _is_unchanged(node, newer, older):
        return None
    changed_at, rewrite = REWRITES.get(operator, (0, None))
    if older is None and operator in DECOMPOSITIONS:
        return DECOMPOSITIONS[operator](node, scope)
    nodes = rewrite(node, scope) if rewrite and changed_at > scope.target else [node]
    if older is None and any(result.op_type == operator for result in nodes):
        first = next((at for at in range(1, current + 1) if _schema(node, at)), 0)
        since = f"came with opset {first}" if newer else f"is not in opset {current}"
        raise scope.unsupported(
            node, f"the operator {since}", "write it with older operators, or use a newer runtime"
        )
    if rewrite is None and operator not in COMPATIBLE:
        why = f"opset {newer.since_version} changed it, and qcompile has no older form"
        raise scope.unsupported(node, why, "use a newer runtime")
    for result in nodes:
        if result.op_type == operator:
            trim(result, older, newer)
            if reason := why_invalid(result, scope, older, newer):
                raise scope.unsupported(node, reason)
    return nodes


def is_inf_by_comparison(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Return an IsInf as a comparison with infinity, of one sign or of both."""
    signs = [
        sign for sign, name in ((1, "detect_positive"), (-1, "detect_negative")) if attribute(node, name, 1)
    ]
    if not signs:
        raise scope.unsupported(node, "it detects neither sign")
    chain, value = Chain(node, scope), node.input[0]
    kind = scope.elem_type(node, value)
    if len(signs) == 2:
        value = chain.add("Abs", [value])
    if scope.target < _EQUAL_OF_FLOATS:
        largest = float(np.finfo(onnx.helper.tensor_dtype_to_np_dtype(kind)).max)
        beyond = chain.add(
            "Greater" if signs[0] > 0 else "Less", [value, chain.scalar(signs[0] * largest, kind)]
        )
        return chain.result(beyond)
    return chain.result(chain.add("Equal", [value, chain.scalar(signs[0] * np.inf, kind)]))


_FORMS: dict[str, Rewrite] = {**DECOMPOSITIONS, "IsInf": is_inf_by_comparison, "CastLike": cast_to_known}


def without_missing(model: onnx.ModelProto, operators: Container[str]) -> list[str]:
    """Replace operators that a parser lacks by others, in place; return the names of the replaced nodes.

    Args:
        operators: Operators of the parser. It may have plugins for operators that ONNX does not define.
    """
    version, replaced = opset(model), list[str]()

    def replace(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
        if not _lacks(node, operators, version):
            return None
        form = _FORMS.get(node.op_type)
        nodes = form(node, scope) if form else expand_body(node, scope, version)
        return None if any(result.op_type == node.op_type for result in nodes) else nodes or None

    for _ in range(_MAX_DEPTH):
        names = replace_nodes(model, version, replace)
        replaced += names
        if not names:
            break
    if replaced:
        drop_unread(model.graph)
        drop_unused_initializers(model.graph)
    return replaced


def require_operators(
    model: onnx.ModelProto,
    operators: Container[str],
    reader: str,
    file: str,
    read_by: Callable[[str], str] = lambda _: "",
) -> None:
    """Raise UnsupportedOperator for a node that the parser lacks; `read_by` names versions that have it."""
    version = opset(model)
    for graph in every_graph(model.graph):
        for node in graph.node:
            if _lacks(node, operators, version):
                name = node.name or f"making {', '.join(node.output)}"
                versions = read_by(node.op_type)
                rows = ((why, hint) for names, why, hint in _WAYS if re.fullmatch(names, node.op_type))
                otherwise = (
                    "which qcompile cannot write in other operators",
                    f"build for {versions}" if versions else _WAY,
                )
                why, hint = next(rows, otherwise)
                if node.op_type in CHOICES and (places := selection_inputs(model)):
                    tensors = " and ".join(repr(place.tensor) for place in places[:_NAMED])
                    hint = (
                        f"end the model at {tensors} (onnx.utils.extract_model), and select behind it; {_OR}"
                    )
                raise UnsupportedOperator(
                    f"{file}: {reader} has no {node.op_type}: node {name!r} of opset {version}, {why}",
                    hint=hint,
                    operator=node.op_type,
                    node=node.name,
                )


_NAMED = 4  # tensors
_OR = "or build for onnxruntime or openvino"
_WAYS: Sequence[tuple[str, str, str]] = (
    (r"Compress|NonMaxSuppression|NonZero|Unique",
     "whose output size depends on values, as in x[mask] with a boolean mask",
     "return all elements and the mask beside them, or torch.where(mask, x, 0), and select behind the model; "
     + _OR),
    (r"QLinear\w+|\w+Integer|DynamicQuantizeLinear",
     "which is of a graph that was quantized for another runtime",
     "quantize the float model for this one: `qcompile quantize` with its `target`"),
    (r"Sequence\w+|SplitToSequence|ConcatFromSequence|Optional\w*", "which is of lists of tensors",
     "simplify first; if it remains, use torch.stack or torch.cat of a fixed number of tensors"),
    (r"String\w+|RegexFullMatch|TfIdfVectorizer|ImageDecoder", "which reads texts or encoded images",
     "do that before the model, where samples are prepared, and give it numbers"),
    (r"Bernoulli|Multinomial", "which draws random numbers",
     "export the model in evaluation mode (model.eval()), or make the random numbers an input"),
    (r"NegativeLogLikelihoodLoss|SoftmaxCrossEntropyLoss", "which is a loss, for training",
     "export the model without it, with its operands as outputs"),
    (r"Bitwise\w+|BitShift", "which is of the bits of integers",
     "write it as arithmetic in the model: products, divisions by powers of two, torch.logical_and"),
)  # fmt: skip
"""Pattern of operators, the reason why they are missing, and the hint."""
_WAY = (
    "write it with other operators in the model, build for onnxruntime, or give `plugins` with an operator "
    "of that name"
)


def _lacks(node: onnx.NodeProto, operators: Container[str], version: int) -> bool:
    absent = node.domain in ONNX_DOMAINS and node.op_type not in operators
    return absent and onnx.defs.has(node.op_type, version, "")
