"""Translate a failure of PyTorch's exporter into one sentence: operator, module, line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...errors import ExportError, QCompileError, first_line


def explain_export_failure(error: Exception, label: str) -> QCompileError:
    """Return the error to raise for an exception of `torch.onnx.export`.

    Args:
        error: What the exporter raised.
        label: The model's spelling.

    Returns:
        An `ExportError` whose data has a `reason`: "axis" where an axis cannot be dynamic, "values" where
        the model branches on values; or the error itself, where it is one of ours of another kind.
    """
    if isinstance(error, ExportError):
        message = error.message if error.message.startswith(label) else f"{label}: {error.message}"
        return ExportError(message, hint=error.hint, **error.data)
    if isinstance(error, QCompileError):
        return error
    chain = list(_causes(error))
    text = "\n".join(str(item) for item in chain)
    node = _failing_node(error)
    module = _module(node)
    if node is not None:
        text += str(node.meta.get("stack_trace") or "")
    place = f" in module {module}" if module else ""
    operator = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", text)
    if operator:
        return ExportError(
            f"{label}: operator {operator.group(1)}{place} has no ONNX form{_line(text)}",
            hint="replace the operator in the model, or leave it out of the exported part",
            operator=operator.group(1),
            module=module,
        )
    target = re.search(r"Error when translating node .*?target=torch\.ops\.([\w.]+)", text, re.S)
    if target:
        return ExportError(
            f"{label}: operator {target.group(1)}{place} cannot be translated: {first_line(chain[-1])}"
            f"{_line(text)}",
            hint="replace the operator in the model, or leave it out of the exported part",
            operator=target.group(1),
            module=module,
        )
    if "data-dependent" in text:
        return ExportError(
            f"{label}: forward branches on a value of its input{place}, which ONNX cannot freeze"
            f"{_line(text)}",
            hint="use torch.where or torch.cond in place of the Python `if`; `freeze_branches` exports the "
            "branches that the example takes",
            module=module,
            reason="values",
        )
    constraint = re.search(r"[Cc]onstraints violated \((.+?)\).*?\n\s*- ([^\n]+)", text, re.S)
    if constraint:
        return ExportError(
            f"{label}: axis {constraint.group(1)} cannot be dynamic in this model: "
            f"{constraint.group(2).split('. If ')[0]}{_line(text)}",
            hint="give that axis a number in `inputs`, or leave it out of `dynamic`",
            module=module,
            reason="axis",
        )
    cause = chain[-1]
    return ExportError(
        f"{label}: the exporter failed with {type(cause).__name__}: {first_line(cause)}{_line(text)}",
        module=module,
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def _failing_node(error: BaseException) -> Any:
    """The FX node that the exporter was translating, read from the frames it failed in.

    The exporter's messages name the node but not the module it came from; the node itself knows.
    """
    for cause in _causes(error):
        trace = cause.__traceback__
        while trace is not None:
            node = trace.tb_frame.f_locals.get("node")
            if hasattr(node, "meta") and hasattr(node, "target"):
                return node
            trace = trace.tb_next
    return None


def _module(node: Any) -> str:
    """The innermost module of an FX node: "inner.0 (Bad)"."""
    stack = list((node.meta.get("nn_module_stack") or {}).values()) if node is not None else []
    if not stack:
        return ""
    path, kind = stack[-1]
    name = kind if isinstance(kind, str) else kind.__name__
    return f"{path or '(root)'} ({name.rsplit('.', 1)[-1]})"


def _line(text: str) -> str:
    """The user's own line that led there, when the exporter says it."""
    places = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', text)
    own = [place for place in places if "site-packages" not in place[0]]
    if not own:
        return ""
    file, line, function = own[-1]
    return f" ({file.rsplit('/', 1)[-1]}, line {line}, in {function})"
