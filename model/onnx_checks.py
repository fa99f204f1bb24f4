"""Refuse an ONNX model that is damaged, or beyond what qcompile takes, before anything else reads it.

Each finding is one `ModelError` that names the node or the tensor. ONNX's own checker finds some of this too,
but it needs the weights, it knows nothing of limits, and shape inference and runtimes fail without it in ways
of their own: by an exception without a name, or by a crash. What is checked:

| part     | is refused                                                                                |
|----------|-------------------------------------------------------------------------------------------|
| versions | none, or ones that this `onnx` does not know                                              |
| inputs   | no type; a sequence, optional or map; unknown element types; extents below 1; too large   |
| tensors  | `stored_tensors`: types, extents, data too short or too long, data outside of the folder  |
| graphs   | `graph_checks`: names twice, names that nothing makes, cycles, attributes, recursion      |
| texts    | names that are no UTF-8                                                                   |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from .function_checks import check_functions
from .graph_checks import check_graph, opsets_of
from .stored_tensors import check_tensor, every_tensor

if TYPE_CHECKING:
    import onnx

MOST_INPUT_VALUES = 1 << 28
"""Values of one input of fixed shape: 1 GiB of float32. Making it at random takes three times that."""
_KINDS = {
    "sequence_type": "a sequence",
    "optional_type": "an optional",
    "map_type": "a map",
    "sparse_tensor_type": "a sparse tensor",
    "opaque_type": "an opaque value",
}


class _Refused(Exception):
    """What is wrong, and the way out; the file is added where it is caught."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def check_model(model: onnx.ModelProto, path: Path) -> None:
    """Check a model that was read from a file. Its weights may lie elsewhere, or be gone.

    Args:
        model: The model.
        path: The file, for messages, and for the folder that external data must lie in.

    Raises:
        ModelError: Naming the file, the node or tensor, and what is required. Data: `file`.
    """
    try:
        _check_texts(model)
        _check_versions(model)
        stored = {tensor.name for tensor in model.graph.initializer}
        for value in model.graph.input:
            if value.name not in stored:  # old files list their weights as inputs
                _check_value(value, "input")
        for value in model.graph.output:
            _check_value(value, "output")
        folder = path.resolve().parent
        for tensor in every_tensor(model):
            problem = check_tensor(tensor, folder)
            if problem:
                raise _Refused(*problem)
        problem = check_functions(model.functions, model.graph) or check_graph(
            model.graph, opsets_of(model.opset_import)
        )
        if problem:
            raise _Refused(*problem)
    except _Refused as refused:
        hint = refused.hint or "the file is damaged or its exporter is wrong; export it again"
        raise ModelError(f"{path}: {refused}", hint=hint, file=path) from None


def _check_versions(model: onnx.ModelProto) -> None:
    import onnx

    if not 3 <= model.ir_version <= onnx.IR_VERSION:
        raise _Refused(
            f"ir_version {model.ir_version}; onnx {onnx.__version__} knows 3 to {onnx.IR_VERSION}",
            "export it again" if model.ir_version < 3 else "install a newer onnx",
        )
    if not model.opset_import:
        raise _Refused("imports no opset; one is required")
    newest = onnx.defs.onnx_opset_version()
    versions: dict[str, int] = {}
    for item in model.opset_import:
        domain = "" if item.domain == "ai.onnx" else item.domain
        if versions.setdefault(domain, item.version) != item.version:
            raise _Refused(f"imports opsets {versions[domain]} and {item.version} of domain {domain!r}")
        if item.version < 1 or (not domain and item.version > newest):
            raise _Refused(
                f"opset {item.version} of domain {domain!r}; onnx {onnx.__version__} knows 1 to {newest}",
                "export it for an older opset" if item.version > newest else "",
            )


def _check_value(value: onnx.ValueInfoProto, kind: str) -> None:
    import onnx

    which = value.type.WhichOneof("value")
    if not value.name:
        raise _Refused(f"an {kind} has no name")
    if which in _KINDS:
        raise _Refused(
            f"{kind} {value.name!r} is {_KINDS[which]}; tensors alone are supported",
            f"export the model with tensors as its {kind}s",
        )
    tensor = value.type.tensor_type
    if tensor.elem_type not in onnx.TensorProto.DataType.values() or (
        kind == "input" and not tensor.elem_type
    ):
        found = "has no type" if not which else f"has the unknown element type {tensor.elem_type}"
        raise _Refused(f"{kind} {value.name!r} {found}; a tensor with an element type is required")
    fixed = [dim.dim_value for dim in tensor.shape.dim if dim.HasField("dim_value")]
    lowest = 1 if kind == "input" else 0
    if fixed and min(fixed) < lowest:
        raise _Refused(
            f"{kind} {value.name!r} has an axis of extent {min(fixed)}; {lowest} or more is required",
            "declare an axis of any extent by a name (dim_param)",
        )
    if math.prod(fixed) > MOST_INPUT_VALUES and kind == "input":
        raise _Refused(
            f"{kind} {value.name!r} has {math.prod(fixed)} values; at most {MOST_INPUT_VALUES} are supported"
        )


def _check_texts(model: onnx.ModelProto) -> None:
    """Protobuf's Python gives bytes for what is no UTF-8, on which code that expects text fails anywhere."""
    for text in _texts(model):
        if isinstance(text, bytes):
            raise _Refused(f"holds a text that is no UTF-8: {text[:40]!r}")


def _texts(model: onnx.ModelProto) -> Iterator[Any]:
    yield from (model.producer_name, model.producer_version, model.domain, model.doc_string)
    yield from (item.domain for item in model.opset_import)
    yield from _entries(model.metadata_props)
    for function in model.functions:
        yield from (function.name, function.domain, function.doc_string, getattr(function, "overload", ""))
        yield from (*function.input, *function.output, *function.attribute)
        yield from (item.domain for item in function.opset_import)
        yield from _entries(function.metadata_props)
        yield from _texts_of_values(function.value_info)
        yield from _texts_of_nodes(function.node)
    yield from _texts_of_graph(model.graph)


def _texts_of_graph(graph: onnx.GraphProto) -> Iterator[Any]:
    yield from (graph.name, graph.doc_string)
    yield from _entries(graph.metadata_props)
    for values in (graph.input, graph.output, graph.value_info):
        yield from _texts_of_values(values)
    for tensor in graph.initializer:
        yield from _texts_of_tensor(tensor)
    for sparse in graph.sparse_initializer:
        yield from (*_texts_of_tensor(sparse.values), *_texts_of_tensor(sparse.indices))
    for note in graph.quantization_annotation:
        yield note.tensor_name
        yield from _entries(note.quant_parameter_tensor_names)
    yield from _texts_of_nodes(graph.node)


def _texts_of_values(values: Any) -> Iterator[Any]:
    for value in values:
        yield from (value.name, value.doc_string, value.type.denotation)
        yield from _entries(value.metadata_props)
        for dim in value.type.tensor_type.shape.dim:
            yield from (dim.dim_param, dim.denotation)


def _texts_of_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.doc_string, node.overload)
        yield from (*node.input, *node.output)
        yield from _entries(node.metadata_props)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name, attribute.doc_string)
            if attribute.HasField("t"):
                yield from _texts_of_tensor(attribute.t)
            if attribute.HasField("g"):
                yield from _texts_of_graph(attribute.g)
            for graph in attribute.graphs:
                yield from _texts_of_graph(graph)


def _texts_of_tensor(tensor: onnx.TensorProto) -> Iterator[Any]:
    yield from (tensor.name, tensor.doc_string)
    yield from _entries(tensor.external_data)


def _entries(entries: Any) -> Iterator[Any]:
    for entry in entries:
        yield from (entry.key, entry.value)
