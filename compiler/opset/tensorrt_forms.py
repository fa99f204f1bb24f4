"""Rewrite operators into forms that TensorRT's parser reads.

Einsum          with lower-case letters: the parser rejects capital letters in an equation
EyeLike(x)      becomes      Cast(Equal(rows[:, None] + k, columns[None, :])): dynamic extents are rejected
                             (TensorRT-RTX 1.7.1)
Elu(x)          becomes      Max(x, 0) + alpha (Exp(Min(x, 0)) - 1): Myelin fails with "2 inputs. Expected 1"
                             between a recurrent layer and a convolution (TensorRT-RTX 1.7.1)
Range(a, b, c)  becomes      Cast(Range of int64), if b is a Cast of an integer: beside FP16, Myelin mixes the
                             types of a float Range's operands (TensorRT-RTX 1.7.1)
Cast(Ceil(Cast(n) / c)) becomes (n + c - 1) / c in integers, for an extent n: beside FP16, floats that lead to
                             a shape become FP16, and Myelin mixes their types (TensorRT-RTX 1.7.1)

Col2Im of disjoint blocks, such as PyTorch's `fold` with a stride equal to its kernel:

x [N, C bh bw, H/bh W/bw] ─ Reshape [N, C, bh, bw, H/bh, W/bw]
                          ─ Transpose [N, C, H/bh, bh, W/bw, bw] ─ Reshape [N, C, H, W]

Col2Im of overlapping or padded blocks, with a one-hot kernel for each position in a block:

x [N, C bh bw, L] ─ Reshape [N C, bh bw, Lh, Lw] ─ ConvTranspose [N C, 1, H, W] ─ Reshape [N, C, H, W]

w ─ Q/DQ ─ Conv <pads=...>      becomes      w ─ Q/DQ ─ Conv <pads=..., kernel_shape=[3, 3]>

TensorRT's Q/DQ operators, as ModelOpt exports them, become ONNX's:

    trt::TRT_FP8QuantizeLinear(x, scale)          QuantizeLinear(x, scale, zero of float8e4m3fn)      opset 19
    trt::TRT_FP8DequantizeLinear(q, scale)        DequantizeLinear(q, scale)
    trt::TRT_INT4QuantizeLinear, ...              the same with int4 and block_size                   opset 21
    trt::QuantizeLinear, trt::DequantizeLinear    the same in ONNX's domain

ModelOpt's exporters do the same as a last step (modelopt/onnx/export/fp8_exporter.py, post_process).
TRT_FP4DynamicQuantize and TRT_MXFP8... compute their scales at run time and have no equivalent in ONNX.
"""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ...errors import QCompileError
from ...model.graph.graph import ONNX_DOMAINS, attribute, every_graph, opset, pinned_names, producers
from ...model.graph.graph_edits import drop_attributes, refill, store
from ...model.graph.graph_names import Names
from ...model.graph.onnx_file import copy_model
from ...spec.opsets import FLOAT8, INT4
from .fit import upgrade_in_place
from .passes import Pass, form_pass, replace_model
from .scope import Chain, Scope, rewriting_each

_INT64 = TensorProto.INT64
_WHOLE = (_INT64, TensorProto.INT32, TensorProto.INT16)
_SIDE_BY_SIDE = (0, 1, 4, 2, 5, 3)
_KEEPS_SHAPE = ("QuantizeLinear", "DequantizeLinear", "Identity", "Cast")


@rewriting_each("Einsum")
def einsums_in_lower_case(node: onnx.NodeProto, _: Scope) -> list[onnx.NodeProto] | None:
    """Replace the capital letters in an Einsum's equation by unused lower-case letters; None without any."""
    text = attribute(node, "equation", "")
    axes = dict.fromkeys(letter for letter in text if letter.isalpha())
    if text == text.lower() or len(axes) > len(ascii_lowercase):
        return None
    free = iter(letter for letter in ascii_lowercase if letter not in axes)
    names = {axis: axis if axis.islower() else next(free) for axis in axes}
    drop_attributes(node, "equation")
    equation = "".join(names.get(letter, letter) for letter in text)
    node.attribute.append(helper.make_attribute("equation", equation))
    return [node]


@rewriting_each("Dropout")
def dropouts_to_identities(node: onnx.NodeProto, _: Scope) -> list[onnx.NodeProto] | None:
    """Replace a Dropout without a mask or training mode by Identity: OpenVINO (2026.4) renames a model input
    that a Dropout reads to the Dropout's output, so the input's name is lost."""
    if "".join([*node.input[2:], *node.output[1:]]):
        return None
    return [helper.make_node("Identity", node.input[:1], node.output[:1], node.name)]


@rewriting_each("EyeLike")
def eyes_to_ranges(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    """Return the nodes for an EyeLike in a model of opset 13 or newer."""
    chain = Chain(node, scope)
    add, ints = chain.add, chain.ints
    kind = attribute(node, "dtype", 0) or scope.elem_type(node, node.input[0])
    shape = add("Shape", [node.input[0]])
    rows, columns = (add("Range", [ints(0), add("Gather", [shape, ints(at)]), ints(1)]) for at in (0, 1))
    diagonal = add("Unsqueeze", [add("Add", [rows, ints(attribute(node, "k", 0))]), ints([1])])
    where = add("Equal", [diagonal, add("Unsqueeze", [columns, ints([0])])])
    return chain.result(add("Cast", [where], to=kind))


@rewriting_each("Elu")
def elus_to_exponents(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto]:
    chain, x = Chain(node, scope), node.input[0]
    kind = scope.elem_type(node, x if scope.type(x) else node.output[0])
    zero, one, alpha = (chain.scalar(value, kind) for value in (0, 1, attribute(node, "alpha", 1.0)))
    power = chain.add("Sub", [chain.add("Exp", [chain.add("Min", [x, zero])]), one])
    return chain.result(chain.add("Add", [chain.add("Max", [x, zero]), chain.add("Mul", [power, alpha])]))


@rewriting_each("Range")
def counts_to_integers(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    """Return an integer Range for a Range of floats with integer values; None for others."""
    start, step = (scope.constant(node.input[at]) for at in (0, 2))
    end = scope.cast_from(node.input[1])
    kind = scope.elem_type(node, node.input[0])
    if (
        kind in _WHOLE
        or start is None
        or step is None
        or start % 1
        or step % 1
        or "int" not in scope.type(end)
    ):
        return None
    chain = Chain(node, scope)
    last = chain.add("Cast", [end], to=_INT64)
    count = chain.add("Range", [chain.ints(int(start)), last, chain.ints(int(step))])
    return chain.result(chain.add("Cast", [count], to=kind))


@rewriting_each("Cast")
def ceilings_to_integers(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    """Return an integer division for a Cast of an extent divided and rounded up as a float; else None."""
    ceiling = scope.producer_of(node.input[0], "Ceil")
    division = scope.producer_of(ceiling.input[0], "Div") if ceiling is not None else None
    if division is None or attribute(node, "to", 0) not in _WHOLE:
        return None
    divisor, count = scope.constant(division.input[1]), scope.cast_from(division.input[0])
    if divisor is None or divisor.size != 1 or divisor % 1 or divisor < 1 or not _is_extent(scope, count):
        return None
    chain, whole = Chain(node, scope), int(divisor.reshape(-1)[0])
    rounded_up = chain.add("Add", [chain.add("Cast", [count], to=_INT64), chain.ints(whole - 1)])
    return chain.result(
        chain.add("Cast", [chain.add("Div", [rounded_up, chain.ints(whole)])], to=attribute(node, "to", 0))
    )


def _is_extent(scope: Scope, name: str) -> bool:
    """Return whether a tensor is part of a shape, and thus never negative."""
    for operator in ("Squeeze", "Gather", "Slice", "Reshape"):
        if node := scope.producer_of(name, operator):
            return _is_extent(scope, node.input[0])
    return scope.producer_of(name, "Shape") is not None


@rewriting_each("Col2Im")
def folds_to_transposes(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    """Return the nodes for a Col2Im of two axes with stored blocks; None for others."""
    image, block = (scope.constant(name) for name in node.input[1:3])
    if block is None or block.size != 2 or (image is not None and image.size != 2):
        return None
    rows, columns = block.tolist()
    strides, dilations = (attribute(node, name, [1, 1]) for name in ("strides", "dilations"))
    pads = attribute(node, "pads", [0] * 4)
    chain = Chain(node, scope)
    add, ints = chain.add, chain.ints
    if image is not None and not (any(image % block) or any(pads)):
        height, width = image.tolist()
        if strides == [rows, columns] and dilations == [1, 1]:
            blocks = ints([0, -1, rows, columns, height // rows, width // columns])
            transposed = add("Transpose", [add("Reshape", [node.input[0], blocks])], perm=_SIDE_BY_SIDE)
            return chain.result(add("Reshape", [transposed, ints([0, -1, height, width])]))
    kind = helper.tensor_dtype_to_np_dtype(scope.elem_type(node, node.input[0]))
    ones = np.eye(rows * columns, dtype=kind).reshape(-1, 1, rows, columns)
    reach = [pads[at] + pads[at + 2] - dilations[at] * (block[at] - 1) - 1 for at in (0, 1)]
    options: dict[str, Any] = {
        "kernel_shape": [rows, columns], "strides": strides, "dilations": dilations, "pads": pads
    }  # fmt: skip
    if image is None:
        room = add("Add", [node.input[1], ints(reach)])
        steps = add("Div", [room, ints(strides)])
        counts = add("Concat", [ints([-1, rows * columns]), add("Add", [steps, ints([1, 1])])], axis=0)
        extents = node.input[1]
        # The largest image for these blocks; Slice cuts off the excess.
        options |= {"pads": [*pads[:2], 0, 0], "output_padding": [stride - 1 for stride in strides]}
    else:
        spaces = (image + reach).tolist()
        counts = ints([-1, rows * columns, *((image + reach) // strides + 1)])
        extents = ints(image)
        options["output_padding"] = [space % stride for space, stride in zip(spaces, strides, strict=True)]
    split = add("Reshape", [node.input[0], counts])
    places = scope.store(ones, f"{chain.output}/places")
    summed = add("ConvTranspose", [split, places], **options)
    if image is None:
        summed = add("Slice", [summed, ints([0, 0]), extents, ints([2, 3])])
    batch = add("Gather", [add("Shape", [node.input[0]]), ints([0])])
    shape = add("Concat", [batch, ints([-1]), extents], axis=0)
    return chain.result(add("Reshape", [summed, shape]))


def write_kernel_shapes(model: onnx.ModelProto) -> bool:
    """Give each convolution without kernel_shape the shape of its weights; return whether any was changed.

    TensorRT's parser infers the shape only from weights that are initializers. For weights behind Q/DQ and no
    attribute, it compares an array that was never set, and fails with "The input tensor shape misaligns with
    the input kernel shape" (onnx-tensorrt 8.5-GA to 10.1-GA, `convMultiInput`; issue 655).
    """
    dims = {item.name: list(item.dims) for item in model.graph.initializer}
    made_by, changed = producers(model.graph), False
    for node in model.graph.node:
        if node.op_type in ("Conv", "ConvTranspose") and attribute(node, "kernel_shape") is None:
            name = node.input[1]
            while name in made_by and made_by[name].op_type in _KEEPS_SHAPE:
                name = made_by[name].input[0]
            if name in dims and node.input[1] not in dims:
                node.attribute.append(helper.make_attribute("kernel_shape", dims[name][2:]))
                changed = True
    return changed


DOMAIN = "trt"
_TYPES = {
    "TRT_FP8": (TensorProto.FLOAT8E4M3FN, FLOAT8),
    "TRT_INT4": (TensorProto.INT4, INT4),
    "": (None, INT4),
}
"""Prefix of TensorRT's operators to their type, and the first opset with that type."""
_FORMS = {
    f"{prefix}{name}": (name, *kind)
    for prefix, kind in _TYPES.items()
    for name in ("QuantizeLinear", "DequantizeLinear")
}


def find_trt_operators(model: onnx.ModelProto) -> list[str]:
    """Return the TensorRT operators in a model, including those without an equivalent in ONNX."""
    nodes = [node for graph in every_graph(model.graph) for node in graph.node]
    return sorted({node.op_type for node in nodes if node.domain == DOMAIN or node.op_type[:4] == "TRT_"})


def in_standard_forms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with ONNX's operators in place of TensorRT's, where they have an equivalent."""
    opsets = [_FORMS[node.op_type][2] for node in model.graph.node if _is_replaced(node)]
    if not opsets:
        return model
    copy = copy_model(model)
    try:
        if opset(copy) < max(opsets):
            upgrade_in_place(copy, max(opsets))
    except QCompileError:  # the opset cannot be raised, but TensorRT reads its operators in every opset
        return model
    _replace(copy.graph)
    used = {node.domain for graph in every_graph(copy.graph) for node in graph.node}
    imports = [item for item in copy.opset_import if item.domain != DOMAIN or DOMAIN in used]
    refill(copy.opset_import, imports)
    return copy


def _is_replaced(node: onnx.NodeProto) -> bool:
    is_trt = node.domain == DOMAIN or (node.domain in ONNX_DOMAINS and node.op_type.startswith("TRT_"))
    return is_trt and node.op_type in _FORMS


def _replace(graph: onnx.GraphProto) -> None:
    stored, names = {tensor.name: tensor for tensor in graph.initializer}, Names(graph)
    foreign = [name for node in graph.node if not _is_replaced(node) for name in node.input]
    shared, retyped = pinned_names(graph).union(foreign), set[str]()
    for node in graph.node:
        if not _is_replaced(node):
            continue
        node.op_type, number, _ = _FORMS[node.op_type]
        node.domain = ""
        if number is None:
            continue
        if node.op_type == "QuantizeLinear":
            retyped.update(node.output)
            if len(node.input) < 3:
                scale = stored.get(node.input[1])
                dtype = helper.tensor_dtype_to_np_dtype(number)
                zeros = np.zeros(list(scale.dims) if scale is not None else [], dtype)
                node.input.append(store(graph, names.fresh(f"{node.output[0]}/zero_point"), zeros))
        elif node.input[0] in stored:
            if node.input[0] in shared:  # its other consumers read bytes
                graph.initializer.add().CopyFrom(stored[node.input[0]])
                node.input[0] = graph.initializer[-1].name = names.fresh(f"{node.input[0]}/typed")
                stored[node.input[0]] = graph.initializer[-1]
            _retype(stored[node.input[0]], number)
        if attribute(node, "block_size", 0) == 0:
            drop_attributes(node, "block_size")
    # Drop the declared types of quantized tensors: the bytes that the custom operators returned.
    refill(graph.value_info, (value for value in graph.value_info if value.name not in retyped))


def _retype(tensor: onnx.TensorProto, number: int) -> None:
    """Give stored weights the type that their bytes encode: a float8, or an int4 in one byte."""
    if tensor.data_type not in (TensorProto.INT8, TensorProto.UINT8):
        return
    values = numpy_helper.to_array(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(number)
    typed = values.view(dtype) if number == TensorProto.FLOAT8E4M3FN else values.view(np.int8).astype(dtype)
    tensor.CopyFrom(numpy_helper.from_array(typed, tensor.name))


PASSES = (
    form_pass("Ceil", ceilings_to_integers),
    form_pass("Col2Im", folds_to_transposes),
    form_pass("Dropout", dropouts_to_identities),
    form_pass("Einsum", einsums_in_lower_case),
    form_pass("Elu", elus_to_exponents),
    form_pass("EyeLike", eyes_to_ranges),
    form_pass("Range", counts_to_integers),
)
KERNEL_SHAPES = Pass("kernel shapes", lambda graph: ["kernel_shape"] * write_kernel_shapes(graph.model))
STANDARD_FORMS = Pass(
    "Q/DQ of TensorRT as those of ONNX",
    lambda graph: replace_model(graph, in_standard_forms(graph.model)),
    needs=lambda graph: find_trt_operators(graph.model),
)
"""ModelOpt writes such operators."""
