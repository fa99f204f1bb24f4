"""What OpenVINO says of a graph that it refuses or fails on: the user's node, and a sentence.

It says it in several lines, behind places in its source, headings and the conditions that failed (2026.4):

    Exception from src/inference/src/cpp/core.cpp:105:
    -- Add-17 with a message:
    While validating ONNX node '<Node(Add): n>': Check 'TRShape::broadcast_merge_into(...)' failed at src/...:
    While validating node 'opset1::Add Add_83 (...) -> (dynamic[...])' with friendly_name 'Add_83':
    Argument shapes are inconsistent.

    Add 'n': Argument shapes are inconsistent.

A node of its plugin has the name of the ONNX node or of its output, or one that a pass made.
"""

from __future__ import annotations

import re

from ...errors import first_line
from ...model import onnx
from ...model.graph.graph import every_graph
from ...model.sessions.refusals import lacking

_NAMES = re.compile(
    r"<Node\(\w+\): (.*?)>'|with friendly_name '(.*?)':|node with name '(.*?)' |^Node (\S+) of type",
    re.MULTILINE,
)
_LACKS = re.compile(r"No conversion rule found for operations: (?:([\w.]+)\.)?(\w+)")
_NOISE = (
    "Exception from", "Check '", "src/", "Summary", "While validating", "Shape inference", "Model wasn't",
    "To facilitate", "Encountered unconverted",
)  # fmt: skip
_AROUND = re.compile(
    r"^-- |^\[cpu\]\w+: |^(?:\[CPU\] )?\w+ node with name '.*?' | Run workload with environment variable.*"
)


def reason(error: Exception, model: onnx.ModelProto) -> str:
    """Return what OpenVINO says is wrong, and at which node of the model."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(_NOISE) and not line.endswith(("Failure:", ":"))]
    said = [line for line in said if not re.match(r"Node \S+ of type", line)]
    exact = [line for line in said if not line.startswith("-- Conversion is failed")]
    checks = [line.partition(" failed at ")[0] + " failed" for line in lines if line.startswith("Check '")]
    node = _node(str(error), model)
    sentences = (exact or said)[:2] or checks[-1:] or [first_line(error)]
    if not node:
        return "; ".join(sentence.removeprefix("-- ") for sentence in sentences)
    return f"{node}: {'; '.join(_AROUND.sub('', sentence) for sentence in sentences)}"


def _node(words: str, model: onnx.ModelProto) -> str:
    """The node of the model that words are of; empty where they name none of it."""
    named = [name for names in _NAMES.findall(words) for name in names if name]
    nodes = [node for graph in every_graph(model.graph) for node in graph.node]
    for name in named:
        for node in nodes:
            if name == node.name or name in node.output:
                return f"{node.op_type} {node.name or node.output[0]!r}"
    lacks = _LACKS.search(words)
    return lacking(lacks[2], lacks[1] or "", model) if lacks else ""
