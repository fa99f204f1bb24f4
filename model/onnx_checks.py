"""Refuse an ONNX model that is damaged, or beyond what qcompile takes, before anything else reads it.

ONNX's own checker finds names that nothing makes, nodes out of order, and attributes that do not fit. It
looks at a copy without weights. Here is what it lets pass, and what readers in Python fail on: texts that are
no UTF-8, versions, inputs that are no tensors, and stored tensors (`stored_tensors`). A file that crashes a
parser is for the watched child (`untrusted/`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from .stored_tensors import Refused, check_tensor, every_tensor

if TYPE_CHECKING:
    import onnx

MOST_INPUT_VALUES = 1 << 28
"""Values of one input of fixed shape: 1 GiB of float32. Making it at random takes three times that."""
_PLUGIN = "No Op registered for"
"""What ONNX's checker says of TensorRT's plugins, which are in ONNX's own domain."""
_LONGEST = 300


def check_model(model: onnx.ModelProto, path: Path) -> None:
    """Check a model that was read from a file. Its weights may lie elsewhere, or be gone.

    Args:
        model: The model.
        path: The file, for messages, and for the folder that external data must lie in.
    """
    try:
        for text in _texts(model):
            if isinstance(text, bytes):  # on which code that expects text fails anywhere
                raise Refused(f"holds a text that is no UTF-8: {text[:40]!r}")
        _check_versions(model)
        stored = {tensor.name for tensor in model.graph.initializer}
        for value in model.graph.input:
            if value.name not in stored:  # old files list their weights as inputs
                _check_value(value, "input", lowest=1)
        for value in model.graph.output:
            _check_value(value, "output", lowest=0)
        folder = path.resolve().parent
        for tensor in every_tensor(model):
            check_tensor(tensor, folder)
        _check_graph(model)
    except Refused as refused:
        hint = refused.hint or "the file is damaged or its exporter is wrong; export it again"
        raise ModelError(f"{path}: {refused}", hint=hint, file=path) from None


def finding(error: BaseException) -> str:
    """Return what ONNX's checker found, in one line, with the operator and the name of the node."""
    found, _, context = " ".join(str(error).split()).partition("==> Context")
    node = re.search(r"Name: (\S*) ?OpType: (\S+)", context)
    found = found.strip()[:_LONGEST]
    return f"{found} ({node[2]} {node[1]!r})" if node else found


def _check_graph(model: onnx.ModelProto) -> None:
    """Run ONNX's checker on the model with inputs in place of its initializers."""
    import onnx

    names = [tensor.name for tensor in model.graph.initializer]
    names += [tensor.values.name for tensor in model.graph.sparse_initializer]
    if "" in names:
        raise Refused("a stored tensor has no name")
    if len(set(names)) < len(names):
        raise Refused(f"tensor {max(names, key=names.count)!r} is stored twice")
    outputs = [value.name for value in model.graph.output]
    if len(set(outputs)) < len(outputs):
        raise Refused(f"output {max(outputs, key=outputs.count)!r} is declared twice")
    inputs = [value.name for value in model.graph.input]
    if len(set(inputs)) < len(inputs):
        raise Refused(f"input {max(inputs, key=inputs.count)!r} is declared twice")
    light = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = "graph"
    light.graph.node.extend(model.graph.node)
    for values, listed in ((light.graph.input, {*inputs, *names}), (light.graph.output, outputs)):
        values.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []) for name in listed)
    try:
        onnx.checker.check_model(light)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        if _PLUGIN not in str(error):
            raise Refused(f"ONNX's checker refuses it: {finding(error)}") from error
    made = {*inputs, *names} | {name for node in model.graph.node for name in node.output}
    for name in outputs:
        if name not in made:
            raise Refused(f"output {name!r}: no node makes it")


def _check_versions(model: onnx.ModelProto) -> None:
    import onnx

    if not 3 <= model.ir_version <= onnx.IR_VERSION:
        raise Refused(
            f"ir_version {model.ir_version}; onnx {onnx.__version__} knows 3 to {onnx.IR_VERSION}",
            "export it again" if model.ir_version < 3 else "install a newer onnx",
        )
    if not model.opset_import:
        raise Refused("imports no opset; one is required")
    newest = onnx.defs.onnx_opset_version()
    versions: dict[str, int] = {}
    for item in model.opset_import:
        domain = "" if item.domain == "ai.onnx" else item.domain
        if versions.setdefault(domain, item.version) != item.version:
            raise Refused(f"imports opsets {versions[domain]} and {item.version} of domain {domain!r}")
        if item.version < 1 or (not domain and item.version > newest):
            raise Refused(
                f"opset {item.version} of domain {domain!r}; onnx {onnx.__version__} knows 1 to {newest}",
                "export it for an older opset" if item.version > newest else "",
            )


def _check_value(value: onnx.ValueInfoProto, kind: str, *, lowest: int) -> None:
    import onnx

    which = value.type.WhichOneof("value")
    if not value.name:
        raise Refused(f"an {kind} has no name")
    if which not in (None, "tensor_type"):
        raise Refused(
            f"{kind} {value.name!r} is a {which.removesuffix('_type')}; tensors alone are supported",
            f"export the model with tensors as its {kind}s",
        )
    tensor = value.type.tensor_type
    if tensor.elem_type not in onnx.TensorProto.DataType.values() or (lowest and not tensor.elem_type):
        found = "has no type" if not which else f"has the unknown element type {tensor.elem_type}"
        raise Refused(f"{kind} {value.name!r} {found}; a tensor with an element type is required")
    fixed = [dim.dim_value for dim in tensor.shape.dim if dim.HasField("dim_value")]
    if fixed and min(fixed) < lowest:
        raise Refused(
            f"{kind} {value.name!r} has an axis of extent {min(fixed)}; {lowest} or more is required",
            "declare an axis of any extent by a name (dim_param)",
        )
    if math.prod(fixed) > MOST_INPUT_VALUES and lowest:
        raise Refused(
            f"{kind} {value.name!r} has {math.prod(fixed)} values; at most {MOST_INPUT_VALUES} are supported"
        )


def _texts(message: Any) -> Iterator[Any]:
    """Yield every field of text in a message; protobuf's Python gives bytes for what is no UTF-8."""
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING:
            value = getattr(message, field.name)
            yield from value if _repeated(field) else [value]
        elif field.type == field.TYPE_MESSAGE:
            if _repeated(field):
                for item in getattr(message, field.name):
                    yield from _texts(item)
            elif message.HasField(field.name):
                yield from _texts(getattr(message, field.name))


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)
