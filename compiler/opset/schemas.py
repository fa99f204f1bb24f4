"""Facts from ONNX's schemas: newer forms of an operator that equal an older form, and function bodies.

ONNX gives an operator a new version for a new element type as well as for a new meaning. The operators in
`COMPATIBLE` have the same meaning in opsets 7 to 25 (onnx, docs/Changelog.md): a node is valid in the older
form if that form has the node's types, operands and attributes. `expand_body` expands an operator into its
function body (Attention, Mish, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import onnx
from onnx import TensorProto, helper

from ...model.graph.graph import attribute, subgraphs
from ...model.graph.graph_edits import set_nodes
from .rewrites import REWRITES
from .scope import Scope, drop_trailing, node_name

COMPATIBLE = frozenset(
    """
    Acos Acosh Add Asin Asinh Atan Atanh AveragePool BatchNormalization Bernoulli Cast CastLike Constant
    ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DeformConv DequantizeLinear Det Div Dropout Elu Equal
    EyeLike Flatten GlobalAveragePool GlobalLpPool GlobalMaxPool GreaterOrEqual GRU HardSigmoid HardSwish
    Identity If InstanceNormalization IsInf IsNaN LeakyRelu LessOrEqual Loop LpNormalization LpPool LSTM
    MaxPool MaxRoiPool MaxUnpool Mish Mul Multinomial NegativeLogLikelihoodLoss Optional OptionalGetElement
    OptionalHasElement PRelu Pow QLinearMatMul QuantizeLinear RandomNormal RandomNormalLike RandomUniform
    RandomUniformLike Relu RNN Round Scan ScatterElements ScatterND Selu Shape Sin Sinh Size Softplus
    Softsign SplitToSequence Squeeze Sub Tan ThresholdedRelu TopK Transpose Unsqueeze Where
    """.split()
)

_FLOAT8_ONLY = ("saturate", "round_mode")  # attributes only for 8-bit floats, which no older form takes
_REDUCTIONS = (("reduction", "max", 18), ("reduction", "min", 18))
_LATER_VALUES = {
    "ScatterElements": _REDUCTIONS,
    "ScatterND": _REDUCTIONS,
    "Pad": (("mode", "wrap", 19),),
    "Resize": (("coordinate_transformation_mode", "half_pixel_symmetric", 19),),
}
"""Maps an operator to (attribute, value, opset) of values that are newer than the attribute."""


def trim(node: onnx.NodeProto, older: Any, newer: Any) -> None:
    """Remove attributes that the older form lacks, if their value is the older form's fixed behavior."""
    for item in list(node.attribute):
        if item.name in older.attributes:
            continue
        value = helper.get_attribute_value(item)
        default = newer.attributes[item.name].default_value
        usual = bool(default.type) and value == helper.get_attribute_value(default)
        if usual or item.name in _FLOAT8_ONLY or _is_redundant(node, item.name, value):
            node.attribute.remove(item)


def _is_redundant(node: onnx.NodeProto, name: str, value: Any) -> bool:
    """Return whether an attribute's value is the older form's fixed behavior, although not the default."""
    if name == "dilations":
        return all(extent == 1 for extent in value)
    if name == "output_dtype" and node.op_type == "QuantizeLinear":
        return any(node.input[2:3]) or value == TensorProto.UINT8  # uint8 is the type without a zero point
    # The older form computes only in float32.
    return name in ("output_dtype", "precision") and value == TensorProto.FLOAT


def why_invalid(node: onnx.NodeProto, scope: Scope, older: Any, newer: Any) -> str:
    """Return why a node is invalid in the older form; empty if it is valid."""
    for name in [item.name for item in node.attribute]:
        if name not in older.attributes:
            versions = range(older.since_version, newer.since_version + 1)
            schemas = (onnx.defs.get_schema(node.op_type, version, "") for version in versions)
            first = next(schema.since_version for schema in schemas if name in schema.attributes)
            return f"attribute {name} = {attribute(node, name)} came with opset {first}"
    if len(node.input) > older.max_input or len(node.input) < older.min_input:
        return f"it has {len(node.input)} operands; {older.min_input} to {older.max_input} were allowed"
    if len(node.output) > older.max_output:
        return f"it has {len(node.output)} results; at most {older.max_output} were allowed"
    bound: dict[str, str] = {}
    operands = ((name, older.inputs, index) for index, name in enumerate(node.input))
    results = ((name, older.outputs, index) for index, name in enumerate(node.output))
    for name, formal, index in (*operands, *results):
        parameter = formal[min(index, len(formal) - 1)]
        kind = scope.type(name) if name else ""
        if kind and kind not in parameter.types:
            return f"{name!r} is {kind}, which it takes only in newer opsets"
        common = bound.setdefault(parameter.type_str, kind) if kind and parameter.is_homogeneous else kind
        if common != kind:
            return f"{name!r} is {kind} beside {common}, which it takes only in newer opsets"
    for name, value, version in _LATER_VALUES.get(node.op_type, ()):
        if attribute(node, name) == value and older.since_version < version:
            return f"{name} {value!r} came with opset {version}"
    return ""


def expand_body(node: onnx.NodeProto, scope: Scope, version: int) -> list[onnx.NodeProto]:
    """Return the nodes of an operator's function body, wired to the node's inputs and outputs, or []."""
    schema = onnx.defs.get_schema(node.op_type, version, "")
    body = _body(node, scope, schema, version)
    if body is None:
        return []
    base = node_name(node)
    actual = dict.fromkeys(body.input, "") | dict(zip(body.input, node.input, strict=False))
    for formal, name in zip_longest(body.output, node.output, fillvalue=""):
        actual[formal] = name or scope.fresh(f"{base}/{formal}")
    defaults = (item.default_value for item in schema.attributes.values())
    attributes = {default.name: default for default in defaults if default.type}
    attributes |= {attribute.name: attribute for attribute in node.attribute}
    return [_copy_node(inner, base, actual, attributes, scope) for inner in body.node]


def _body(node: onnx.NodeProto, scope: Scope, schema: Any, version: int) -> onnx.FunctionProto | None:
    depends = schema.has_context_dependent_function
    if not depends and not schema.has_function:
        return None
    offered = schema.context_dependent_function_opset_versions if depends else schema.function_opset_versions
    for offer in sorted((item for item in offered if item <= version), reverse=True):
        if depends:
            types = [
                helper.make_tensor_type_proto(scope.elem_type(node, name), scope.shape(name))
                if name
                else onnx.TypeProto()
                for name in node.input
            ]
            content = schema.get_context_dependent_function_with_opset_version(
                offer, node.SerializeToString(), [item.SerializeToString() for item in types]
            )
        else:
            content = schema.get_function_with_opset_version(offer)
        body = onnx.FunctionProto.FromString(content)
        used = {inner.op_type for inner in body.node} - COMPATIBLE
        # If nothing moved, versions of an operator with a rewrite may differ: each adds to the one before.
        moved = {name for name, (at, _) in REWRITES.items() if offer < at <= version}
        since = [
            {onnx.defs.get_schema(operator, at, "").since_version for at in (offer, version)}
            for operator in used - (REWRITES.keys() - moved)
        ]
        if all(len(versions) == 1 for versions in since):
            return body
    return None


def _copy_node(
    node: onnx.NodeProto, base: str, names: dict[str, str], attributes: Mapping[str, Any], scope: Scope
) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = scope.fresh(f"{base}/{node.op_type}")
    copy.input[:] = [names.get(name, name) for name in node.input]
    for name in node.output:
        if name and name not in names:
            names[name] = scope.fresh(f"{base}/{name}")
    copy.output[:] = [names.get(name, name) for name in node.output]
    drop_trailing(copy)
    del copy.attribute[:]
    for item in node.attribute:
        if not item.ref_attr_name or item.ref_attr_name in attributes:
            copy.attribute.append(attributes.get(item.ref_attr_name, item))
            copy.attribute[-1].name = item.name
    for graph in subgraphs(copy):
        for value in graph.input:
            names[value.name] = scope.fresh(f"{base}/{value.name}")
        set_nodes(graph, [_copy_node(item, base, names, attributes, scope) for item in graph.node])
        for value in (*graph.input, *graph.output):
            value.name = names.get(value.name, value.name)
    return copy
