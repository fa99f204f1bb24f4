"""Operators whose newer form is the older one with more types, or with attributes that may be left out.

ONNX gives an operator a new version for a new element type as for a new meaning. Those listed here kept
their meaning from opset 7 to 25 (onnx, docs/Changelog.md); a node of theirs is of the older form as it
stands, if its types, operands and attributes are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...model.graph import attribute
from .scope import Scope

if TYPE_CHECKING:
    import onnx

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
    """Take attributes off a node that say what its older form does anyway.

    Args:
        node: It is changed.
        older, newer: The schemas of both forms.
    """
    from onnx import helper

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
    """Return why a node is not of the older form; empty when it is.

    Args:
        node: After `trim`.
        scope: The graph it is in.
        older, newer: The schemas of both forms.
    """
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
