"""Explain refusals of TensorRT's ONNX parser: the node at fault, the parser's message, and a hint.

The hints depend on the operator and the parser's message. The messages of TensorRT 8.5 and 10.1 come from
builtin_op_importers.cpp, onnxOpImporters.cpp, importerUtils.cpp and ModelImporter.cpp of onnx/onnx-tensorrt,
8.5-GA and 10.1-GA; newer messages come from TensorRT-RTX 1.7.1. Other messages get a general hint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ....errors import UnsupportedOperator
from ....model import onnx
from ....model.graph.graph import every_graph, opset
from ..adapter import Adapter
from ..log import plain

_NAMESPACE = "namespace"
"""Key under which PyTorch's exporter stores the path of a node's module in the node's metadata."""

_QUANTIZED = "it must be quantized for tensorrt: `qcompile quantize` the float model with `target` tensorrt"
_CHANGE = "change that in the model"

_HINTS: Sequence[tuple[str, str, str]] = (
    (r"(Q|Deq)uantizeLinear", r"type int32|type uint8|unsupported.*type|import initializer", _QUANTIZED),
    (r"(Q|Deq)uantizeLinear", r"zero.?p|zero shift|symmetric quant|all zeros", _QUANTIZED),
    (r"(Q|Deq)uantizeLinear", r"coefficients must all be positive",
     "a scale is 0 or negative: quantize the float model again"),
    (r"QLinear\w+|QAttention|QGemm|DynamicQuantize\w+|\w+Integer\w*", r"plugin", _QUANTIZED),
    (r"NonZero|RoiAlign|InstanceNormalization", r"plugin",
     "TensorRT has it as a plugin, which is missing: give its library with `plugins`, or write the model "
     "without it (torch.where with three inputs in place of a boolean index)"),
    (r"", r"plugin (creator|not found)|could not find plugin|no importer registered",
     "TensorRT lacks the operator: give a library that has it with `plugins`, or write it with operators "
     "of ONNX in the model"),
    (r"", r"import initializer",
     "a stored tensor has a type that TensorRT lacks: cast it to float32 or int32 in the model"),
    (r"", r"convert onnx da\w+ type|unsupported onnx data type",
     "TensorRT takes float32, float16, int32, int64 and bool, and newer versions bfloat16 and uint8: declare "
     "the input in one of these types, and cast inside of the model"),
    (r"Cast", r"unsupported data type|unsupported cast",
     "cast to float32, float16, int32 or bool in the model"),
    (r"MatMul|Gemm|Conv\w*|Einsum", r"type",
     "TensorRT multiplies only floats: cast both operands to float32 in the model"),
    (r"", r"must have same input types|bound to different types|types .* identical",
     "cast one of its inputs to the type of the other in the model"),
    (r"", r"requires inputs with type|must have type|(input|data) type|type of .* not supported",
     "cast its inputs in the model to a type that the message names"),
    (r"Conv\w*|\w+Pool", r"\.nbDims == 2|kernel_shape misaligns|1D, 2D or 3D",
     "TensorRT has it for 2 and 3 spatial axes: reshape to these in the model"),
    (r"", r"broadcast dimensions|but must match|misaligns? |doesn't match|must be conformable",
     "the shapes in the graph contradict each other, or their rank is not known: export it again with shapes "
     "of its inputs, then simplify"),
    (r"", r"is not in the valid range \[-1|MAX_DIMS",
     "a tensor of TensorRT has at most 8 axes: merge axes in the model"),
    (r"", r"isInFlight|data.?dependent",
     "an extent is computed from values of an input, which TensorRT cannot plan for: compute it from shapes, "
     "or make it a constant or an input of int64"),
    (r"Resize|Upsample", r"mode|antialias|outermost|extrapolation",
     f"{_CHANGE}: mode nearest or linear without antialias, coordinates half_pixel, asymmetric or "
     "align_corners, on at most 3 last axes"),
    (r"Pad", r"mode|dynamic|axes", f"{_CHANGE}: mode constant, reflect or edge, with constant pads"),
    (r"BatchNormalization|Dropout", r"training",
     "the file is in training mode: export it in evaluation mode (model.eval())"),
    (r"MaxPool", r"outputs|indices", "its indices are not supported: remove their consumers"),
    (r"\w+Pool", r"dilations", f"{_CHANGE}: dilations of 1"),
    (r"LRN", r"window", f"{_CHANGE}: an odd size, 1 to 15"),
    (r"", r"unknown activation", f"{_CHANGE}: activations such as Sigmoid, Tanh and Relu"),
    (r"Scatter\w+", r"reduction",
     "write the sum as a product with a one-hot matrix in the model, or build for onnxruntime"),
    (r"", r"must be (an? )?(initializer|constant)|as an initializer|a constant tensor|dynamic",
     "simplify first, which folds constants; then make the input a constant in the model, or fix its axes "
     "in `inputs` of the export"),
)  # fmt: skip
"""Patterns of the operator and the parser's message, and the hint; the first match counts."""

_DEFAULT = "simplify first, or write the node with other operators; `target` onnxruntime has more of them"


def refusal(adapter: Adapter, error: Any, model: onnx.ModelProto, shown: str) -> UnsupportedOperator:
    """Return the error for a refusal of the parser; `shown` is the file's name in messages."""
    message = _clean_message(str(error.desc()))
    name = error.node_name() if hasattr(error, "node_name") else ""
    operator = error.node_operator() if hasattr(error, "node_operator") else ""
    node = _node(model, error.node(), name) or _node_of_message(model, message)
    if node is not None:
        operator = operator or node.op_type
        name = name or node.name or f"making {', '.join(node.output)}"
    module = _module_path(node) if node is not None else ""
    where = f" (PyTorch module {module})" if module else ""
    subject = f"{operator} {name!r}" if operator else "the graph"
    return UnsupportedOperator(
        f"{shown}: {adapter.name} refuses {subject} of opset {opset(model)}{where}: {message}"
        f"{_input_types(model, message)}",
        hint=hint_for(operator, message),
        operator=operator,
        node=name,
        module=module,
    )


def hint_for(operator: str, message: str) -> str:
    for operators, pattern, hint in _HINTS:
        fits = not operators or re.fullmatch(operators, operator)
        if fits and re.search(pattern, message, re.IGNORECASE):
            return hint
    return _DEFAULT


def _clean_message(description: str) -> str:
    """Return the parser's message on one line, without C++ conditions, source locations, and CUDA errors
    that the parser repeats on a machine without a GPU."""
    text = " ".join(description.split())
    text = re.sub(r"\[checkMacros\.cpp::\w+::\d+\] Error Code 1: Cuda Runtime \(.*?\)\)\)?", "", text)
    text = re.sub(
        r"^Invalid Node - \S+ |\w+::\w+: Error Code \d+: [\w ]+ \(|\[\w+\.cpp::\w+::\d+\] ", "", text
    )
    text = re.sub(r" In \w+ at /_src/[^\s)]+\)?", "", text)
    text = re.sub(r"^Failed to import initializer: In node .* (?=Failed to import)", "", text)
    if quoted := re.search(r'&& ("[^"]+"(?: "[^"]+")*)$', text):
        return quoted[1].strip('"').replace('" "', "").strip()
    return plain(re.sub(r"^Assertion failed: \S.*?[^:]: (?=\S)", "", text)).strip()


def _node(model: onnx.ModelProto, index: int, name: str) -> onnx.NodeProto | None:
    """Return the refused node: by name, in subgraphs too, or by its index."""
    nodes = model.graph.node
    by_index = nodes[index] if 0 <= index < len(nodes) else None
    if not name or (by_index is not None and by_index.name == name):
        return by_index
    return next(
        (node for graph in every_graph(model.graph) for node in graph.node if node.name == name), None
    )


def _node_of_message(model: onnx.ModelProto, message: str) -> onnx.NodeProto | None:
    """Return the node for a message without location: by an initializer, activation or reduction in it."""
    stored = re.search(r"import initializer: (\S+)$", message)
    value = re.search(r"unknown activation type: (\w+)", message, re.IGNORECASE)
    reduces = "reduction type" in message.lower()
    for graph in every_graph(model.graph):
        for node in graph.node:
            texts = {text for item in node.attribute for text in (item.s, *item.strings)}
            if (
                (stored and stored[1] in node.input)
                or (value and value[1].encode() in texts)
                or (reduces and node.op_type.startswith("Scatter") and texts - {b"", b"none"})
            ):
                return node
    return None


def _input_types(model: onnx.ModelProto, message: str) -> str:
    """Return the inputs and their types if the parser refuses a type without naming it, else ""."""
    if "type to TensorRT data type" not in message:
        return ""
    kinds = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    inputs = [f"{name}:{onnx.TensorProto.DataType.Name(kind).lower()}" for name, kind in kinds.items()]
    return f" (inputs {', '.join(inputs)})"


def _module_path(node: onnx.NodeProto) -> str:
    """Return "layer4.1.conv2" for ": Net/layer4: Sequential/layer4.1.conv2: Conv2d/conv2d: aten"."""
    for entry in node.metadata_props:
        if entry.key == _NAMESPACE:
            scopes = [part.split(":")[0].strip() for part in entry.value.split("/")]
            return next((scope for scope in reversed(scopes[:-1]) if scope), "")
    return ""
