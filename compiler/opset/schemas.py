"""What ONNX's schemas say: which newer form adds only types, or attributes that may be left out; bodies.

ONNX gives an operator a new version for a new element type as for a new meaning. Those listed here kept
their meaning from opset 7 to 25 (onnx, docs/Changelog.md); a node of theirs is of the older form as it
stands, if its types, operands and attributes are.

`write_out` expands an operator into its ONNX function body (Attention, Mish, ...).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import helper

from ...model.graph import attribute, subgraphs
from ...model.graph_edits import set_nodes
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

_FLOAT8_ONLY = ("saturate", "round_mode")
"""Attributes that mean something for 8-bit floats alone, which no older form takes."""


_REDUCTIONS = (("reduction", "max", 18), ("reduction", "min", 18))
_LATER_VALUES = {
    "ScatterElements": _REDUCTIONS,
    "ScatterND": _REDUCTIONS,
    "Pad": (("mode", "wrap", 19),),
    "Resize": (("coordinate_transformation_mode", "half_pixel_symmetric", 19),),
}
"""Operator to values of its attributes that are younger than the attributes, with their opset."""


def trim(node: onnx.NodeProto, older: Any, newer: Any) -> None:
    """Take attributes off a node that say what its older form does anyway."""
    for item in list(node.attribute):
        if item.name in older.attributes:
            continue
        value = helper.get_attribute_value(item)
        default = newer.attributes[item.name].default_value
        usual = bool(default.type) and value == helper.get_attribute_value(default)
        if usual or item.name in _FLOAT8_ONLY or _says_nothing(node, item.name, value):
            node.attribute.remove(item)


def _says_nothing(node: onnx.NodeProto, name: str, value: Any) -> bool:
    """Whether an attribute that is not its default means what the older form does."""
    if name == "dilations":
        return all(extent == 1 for extent in value)
    if name == "output_dtype" and node.op_type == "QuantizeLinear":
        given = len(node.input) > 2 and bool(node.input[2])
        return given or value == 2  # uint8, as without a zero point
    if name in ("output_dtype", "precision"):
        return bool(value == 1)  # float32, the only type that the older form has for it
    return False


def why_other(node: onnx.NodeProto, scope: Scope, older: Any, newer: Any) -> str:
    """Return why a node is not of the older form; empty when it is."""
    for name in [item.name for item in node.attribute]:
        if name not in older.attributes:
            return f"attribute {name} = {attribute(node, name)} came with opset {newer.since_version}"
    if len(node.input) > older.max_input or len(node.input) < older.min_input:
        return f"it has {len(node.input)} operands; {older.min_input} to {older.max_input} were allowed"
    if len(node.output) > older.max_output:
        return f"it has {len(node.output)} results; at most {older.max_output} were allowed"
    bound: dict[str, str] = {}
    for names, formal in ((node.input, older.inputs), (node.output, older.outputs)):
        if reason := _unfit_types(names, formal, scope, bound):
            return reason
    return _unfit_values(node, older)


def _unfit_types(names: Sequence[str], formal: Sequence[Any], scope: Scope, bound: dict[str, str]) -> str:
    for index, name in enumerate(names):
        parameter = formal[min(index, len(formal) - 1)]
        kind = scope.type(name) if name else ""
        if not kind:
            continue
        if kind not in parameter.types:
            return f"{name!r} is {kind}, which it takes only in newer opsets"
        common = bound.setdefault(parameter.type_str, kind) if parameter.is_homogeneous else kind
        if common != kind:
            return f"{name!r} is {kind} beside {common}, which it takes only in newer opsets"
    return ""


def _unfit_values(node: onnx.NodeProto, older: Any) -> str:
    for name, value, version in _LATER_VALUES.get(node.op_type, ()):
        if attribute(node, name) == value and older.since_version < version:
            return f"{name} {value!r} came with opset {version}"
    return ""


def write_out(node: onnx.NodeProto, scope: Scope, version: int) -> list[onnx.NodeProto]:
    """Return the nodes of an operator's body, wired to what the node reads and makes, if any."""
    schema = onnx.defs.get_schema(node.op_type, version, "")
    body = _body(node, scope, schema, version)
    if body is None:
        return []
    base = node_name(node)
    actual = dict.fromkeys(body.input, "") | dict(zip(body.input, node.input, strict=False))
    actual |= dict.fromkeys(body.output, "") | dict(zip(body.output, node.output, strict=False))
    actual = {name: given or (scope.fresh(f"{base}/{name}") if name in body.output else "")
              for name, given in actual.items()}  # fmt: skip
    defaults = (item.default_value for item in schema.attributes.values())
    given = {default.name: default for default in defaults if default.type}
    given |= {attribute.name: attribute for attribute in node.attribute}
    return [_copied(inner, base, actual, given, scope) for inner in body.node]


def _body(node: onnx.NodeProto, scope: Scope, schema: Any, version: int) -> onnx.FunctionProto | None:
    depends = schema.has_context_dependent_function
    if not depends and not schema.has_function:
        return None
    offered = schema.context_dependent_function_opset_versions if depends else schema.function_opset_versions
    for offer in sorted((item for item in offered if item <= version), reverse=True):
        if depends:
            types = [_type(node, name, scope) for name in node.input]
            content = schema.get_context_dependent_function_with_opset_version(
                offer, node.SerializeToString(), [item.SerializeToString() for item in types]
            )
        else:
            content = schema.get_function_with_opset_version(offer)
        body = onnx.FunctionProto.FromString(content)
        if all(_means_the_same(inner.op_type, offer, version) for inner in body.node):
            return body
    return None


def _type(node: onnx.NodeProto, name: str, scope: Scope) -> onnx.TypeProto:
    if not name:
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(scope.elem_type(node, name), scope.shape(name))


def _means_the_same(operator: str, offer: int, version: int) -> bool:
    old, new = (onnx.defs.get_schema(operator, at, "") for at in (offer, version))
    return operator in COMPATIBLE or bool(old.since_version == new.since_version)


def _copied(
    node: onnx.NodeProto, base: str, actual: dict[str, str], given: Mapping[str, Any], scope: Scope
) -> onnx.NodeProto:
    """A node of a body, with the names and attributes of the node that the body stands for."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = scope.fresh(f"{base}/{node.op_type}")
    copy.input[:] = [actual.get(name, name) for name in node.input]
    for name in node.output:
        if name and name not in actual:
            actual[name] = scope.fresh(f"{base}/{name}")
    copy.output[:] = [actual.get(name, name) for name in node.output]
    drop_trailing(copy)
    kept = []
    for item in copy.attribute:
        if item.ref_attr_name:
            if item.ref_attr_name not in given:
                continue
            name = item.name
            item.CopyFrom(given[item.ref_attr_name])
            item.name = name
        kept.append(item)
    attributes = [onnx.AttributeProto.FromString(item.SerializeToString()) for item in kept]
    del copy.attribute[:]
    copy.attribute.extend(attributes)
    for graph in subgraphs(copy):
        for value in graph.input:
            actual[value.name] = scope.fresh(f"{base}/{value.name}")
        set_nodes(graph, [_copied(item, base, actual, given, scope) for item in graph.node])
        for value in (*graph.input, *graph.output):
            value.name = actual.get(value.name, value.name)
    return copy
