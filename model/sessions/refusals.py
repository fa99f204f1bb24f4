"""Turn a runtime's error about a graph into a message for users: the node, the reason, and a hint.

ONNX Runtime prefixes the reason with a status code, a place in its source, a signature and a condition:

    [ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Reshape node. Name:'fix'
    Status Message: /onnxruntime_src/.../reshape_helper.h:91 onnxruntime::ReshapeHelper::ReshapeHelper(...)
    a == b was false. The input tensor cannot be reshaped to the requested shape.

    Reshape 'fix': The input tensor cannot be reshaped to the requested shape.

The patterns match texts of 1.31.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ...errors import DataError
from ...spec.opsets import NEWEST
from .. import onnx
from ..graph.graph import every_graph

RENAMED = re.compile(r"(.+?)(_token_\d+|_nchwc|/\w+Fusion\w*|_(?:quant|QuantizeLinear)\w*)$")
"""The optimizer's name for a node made from another: `conv1_token_4`, `conv1_nchwc`, `mm/MatMulAddFusion`."""

_HEAD = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from .*? failed: ?|Fatal error: "
    r"|This is an invalid model\. |^Exception during initialization: "
)
"""A status code, and the loaded file, which is often not the user's."""
_NODE = re.compile(r"Non-zero status code returned while running (\S+) node\. Name:'(.*?)' Status Message: ")
_UNREGISTERED = re.compile(r"(?:ai\.onnx|(.*?)):(\w+)\(-?\d+\) is not a registered")
_PLACE = re.compile(r"\S*\w\.(?:cc|cpp|cu|cuh|h|hpp):\d+ (.*)")
_CONDITION = re.compile(r".*? was false\.\s+(?=\S)")
_SIGNATURE = re.compile(
    r"[\w:<>*&~, ]*::[\w~]+(?:<.*?>)?\([^()]*(?:\([^()]*\)[^()]*)*\)(?: const)?(?: \[with .*?\])? "
    r"|[A-Z]\w+ (?=[A-Z])"
)


def onnxruntime_words(error: BaseException) -> str:
    """Return the reason in an error of ONNX Runtime, and the node."""
    text = " ".join(str(error).partition("\nStacktrace")[0].split()) or type(error).__name__
    text = _NODE.sub(lambda match: f"{match[1]} {_original_name(match[2])}: ", _HEAD.sub("", text))
    return _PLACE.sub(lambda match: _strip_source(match[1]), text)


def first_node_of(operator: str, domain: str, model: onnx.ModelProto) -> str:
    """Return the first node of an operator, formatted for messages, or "" without one."""
    for graph in every_graph(model.graph):
        for node in graph.node:
            if (node.op_type, node.domain) == (operator, domain):
                return f"{operator} {node.name or node.output[0]!r}"
    return ""


def refused_words(error: BaseException, read: Callable[[], onnx.ModelProto]) -> str:
    """Return `onnxruntime_words` of a rejected model; for an unknown operator, name its node."""
    words = onnxruntime_words(error)
    unknown = _UNREGISTERED.match(words)
    node = first_node_of(unknown[2], unknown[1] or "", read()) if unknown else ""
    return f"{node}: {words}" if node else words


def _original_name(node: str) -> str:
    while match := RENAMED.fullmatch(node):
        node = match[1]
    return repr(node)


def _strip_source(text: str) -> str:
    """Remove the leading function signature or condition from a text of the source."""
    condition = _CONDITION.match(text)
    signature = None if condition else _SIGNATURE.match(text)
    return text[(condition or signature).end() :] if condition or signature else text  # type: ignore[union-attr]


_REFUSALS: Sequence[tuple[str, str]] = (
    (r"not a registered function|no conversion rule|find an implementation|unsupported type",
     "the runtime does not support this operator or its types: use ONNX operators in float32, or build for "
     "another target"),
    (r"opset \d+ is under development|unsupported model ir version",
     f"it is newer than the runtime: export it with opset {NEWEST} or older"),
    (r"type error|same element type", "cast the inputs of that operator in the model to supported types"),
    (r"shapeinferenceerror|shapes are inconsistent|incompatible",
     "shapes in the graph contradict each other: correct them in the model, and export it again"),
    (r"conversion is failed|during initialization|cannot compile|could not create|unsupported",
     "the runtime does not support this form of the operator: change it in the model, or build for another "
     "target"),
)  # fmt: skip
_FAILURES: Sequence[tuple[str, str]] = (
    (r"out of (data )?bounds|out of range|non-existing",
     "an index is out of the model's range: check the values of the data against the model"),
    (r"shape|dimension|broadcast|extent|channel|rank|larger than|exceed|greater than|divide",
     "the graph does not accept these extents: use samples with the extents of its export, or export it with "
     "dynamic axes (`inputs`)"),
)  # fmt: skip


def refusal_hint(words: str) -> str:
    """Return the hint for a graph that ONNX Runtime or OpenVINO rejects, by the words of the error."""
    return _first_hint(_REFUSALS, words, "qcompile inspect shows its operators and opset")


def failure_hint(words: str) -> str:
    """Return the hint for input on which a runtime fails, by the words of the error."""
    return _first_hint(_FAILURES, words, "check the sample's shape and values against the model")


def failed_sample(error: Exception, where: str) -> DataError:
    """Return the error for a sample on which ONNX Runtime fails."""
    words = onnxruntime_words(error)
    text = f"{where}: the model failed on it: {words}"
    return DataError(text, hint=failure_hint(words), sample=where)


def _first_hint(rows: Sequence[tuple[str, str]], words: str, otherwise: str) -> str:
    hints = (hint for pattern, hint in rows if re.search(pattern, words, re.IGNORECASE))
    return next(hints, otherwise)
