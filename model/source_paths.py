"""Take out of an ONNX model what it tells of the machine that wrote it: stack traces and absolute paths.

PyTorch's exporters note for every node which line of which file it comes from. An artifact that is shipped
would tell the names of users and folders, and lines of source code. Module paths (`layer4.1.conv2`) stay:
errors name them. Classes stay too, under the name of their file: the name that a module was imported by
differs from folder to folder, and two machines would write different bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .input_notes import KEY
from .source_modules import with_file_names

if TYPE_CHECKING:
    import onnx

_TRACES = frozenset(["pkg.torch.onnx.stack_trace", "stack_trace"])
_ROOTS = "home|root|Users|tmp|var|usr|opt|mnt|media|srv|private|workspace|work|data|etc|nix|app"
_PART = r"[^#\s/\\\"'`:;,|<>()\[\]{}]"
_PATH = re.compile(
    rf"""(?<![\w./\\]) (?:
        /(?:{_ROOTS})/ (?:{_PART}+/)*                               # below a folder that systems have
        | /(?:{_PART}+/)+ (?={_PART}*\.[A-Za-z]\w*(?![/\\\w]))      # of a file with an ending
        | [A-Za-z]:[\\/] (?:{_PART}+[\\/])*                        # of Windows
    ) (?={_PART}|\s|$)""",
    re.VERBOSE,
)
"""The folders of an absolute path; the name behind them is kept."""


def strip_source_paths(model: onnx.ModelProto) -> bool:
    """Remove stack traces, and from texts that nothing computes with the folders of absolute paths.

    A module that was imported from a file gets the name of the file.

    Names of nodes, tensors and functions stay as they are.

    Args:
        model: It is changed.

    Returns:
        Whether anything was removed.
    """
    changed = _strip_entries(model.metadata_props) | _strip_text(model)
    for message in _messages(model):
        changed |= _strip_entries(message.metadata_props) | _strip_text(message)
    return changed


def _messages(model: onnx.ModelProto) -> Iterator[Any]:
    """Everything that has a description and metadata of its own."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield function
        yield from function.value_info
        yield from _of_nodes(function.node)


def _of_graph(graph: onnx.GraphProto) -> Iterator[Any]:
    yield graph
    for values in (graph.input, graph.output, graph.value_info, graph.initializer):
        yield from values
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _of_graph(attribute.g)
            for graph in attribute.graphs:
                yield from _of_graph(graph)


def _strip_entries(entries: Any) -> bool:
    kept = [entry for entry in entries if entry.key not in _TRACES]
    changed = len(kept) < len(entries)
    if changed:
        values = [(entry.key, entry.value) for entry in kept]
        del entries[:]
        for key, value in values:
            entries.add(key=key, value=value)
    for entry in entries:
        if entry.key == KEY:  # the folder of a tokenizer is where samples are read with it
            continue
        shorter = with_file_names(entry.value)
        if "/" in shorter or "\\" in shorter:
            shorter = without_folders(shorter)
        if shorter != entry.value:
            entry.value, changed = shorter, True
    return changed


def _strip_text(message: Any) -> bool:
    text = message.doc_string
    if not text:
        return False
    shorter = without_folders(with_file_names(text))
    if shorter == text:
        return False
    message.doc_string = shorter
    return True


def without_folders(text: str) -> str:
    """Return a text whose absolute paths have lost their folders: `/home/ann/net.py` becomes `net.py`."""
    return _PATH.sub("", text)
