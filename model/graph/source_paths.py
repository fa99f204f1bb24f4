"""Remove stack traces and absolute paths of the exporting machine from an ONNX model.

Module paths (`layer4.1.conv2`) remain, because errors name them. So do classes, after the name of their file.
`module_name` makes a unique name for the module of a user's file (`qcompile_source_3f9c01ab77de_net`; in a
package, `qcompile_source_81c8a3d64e0f_zoo.net`). `with_file_names` restores the file's name, so that two
machines write the same bytes.

`map_folder`, `path_there` and `path_here` map a folder that has another path on the machine with the recipe
(the configuration of a run) than on this one, such as a worker of a cluster. An ONNX file names its
tokenizer's folder by the path on the recipe's machine; readers of the tokenizer, also in child processes, use
the local path.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import onnx
from .input_notes import KEY
from .onnx_checks import every_node, graphs_of

PREFIX = "qcompile_source_"
_NAME = re.compile(rf"\b{PREFIX}[0-9a-f]{{12}}_(\w+)")
_NO_WORD = re.compile(r"\W")
_RELATIVE = re.compile(rb"^[ \t]*from[ \t]+(\.+)", re.MULTILINE)


def packages_around(path: Path) -> tuple[Path, ...]:
    """Return the packages, outermost first, in which the relative imports of a file start, if it has any.

    The dots of the imports determine the depth; further parent folders with `__init__.py` count, too.
    """
    depth = max((len(match[1]) for match in _RELATIVE.finditer(path.read_bytes())), default=0)
    folders = list(path.parents)
    while 0 < depth < len(folders) and (folders[depth] / "__init__.py").is_file():
        depth += 1
    return tuple(reversed(folders[:depth]))


def module_name(path: Path, packages: Sequence[Path] = ()) -> str:
    """Return a module name that is unique to a file and its code, so that edited code is imported again."""
    code = sorted(packages[0].rglob("*.py")) if packages else [path]
    digest = hashlib.sha256(str(path).encode())
    for file in code:
        digest.update(file.read_bytes())
    parts = [*(package.name for package in packages), path.stem]
    return f"{PREFIX}{digest.hexdigest()[:12]}_{'.'.join(_NO_WORD.sub('_', part) for part in parts)}"


def with_file_names(text: str) -> str:
    """Return a text with the names of `module_name` replaced by the names of their files."""
    return _NAME.sub(r"\1", text) if PREFIX in text else text


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
"""The folders of an absolute path, without the file name."""


def strip_source_paths(model: onnx.ModelProto) -> bool:
    """Remove stack traces and, in metadata and doc strings, folders of paths; return whether any existed.

    Names of modules become those of their files. Names of nodes, tensors and functions do not change.
    """
    graphs = list(graphs_of(model))
    holders: list[Any] = [model, *graphs, *model.functions, *every_node(model)]
    for graph in graphs:
        for values in (graph.input, graph.output, graph.value_info, graph.initializer):
            holders += values
    for function in model.functions:
        holders += function.value_info
    changed = False
    for message in holders:
        for index in reversed(range(len(message.metadata_props))):
            if message.metadata_props[index].key in _TRACES:
                del message.metadata_props[index]
                changed = True
        # The entry `KEY` contains the folder of a tokenizer, which readers of samples need.
        texts = [(entry, "value") for entry in message.metadata_props if entry.key != KEY]
        for holder, field in [*texts, (message, "doc_string")]:
            shorter = without_folders(with_file_names(getattr(holder, field)))
            if shorter != getattr(holder, field):
                setattr(holder, field, shorter)
                changed = True
    return changed


def without_folders(text: str) -> str:
    """Return a text without the folders of absolute paths: `/home/ann/net.py` becomes `net.py`."""
    return _PATH.sub("", text) if "/" in text or "\\" in text else text


_VARIABLE = "QCOMPILE_MOVED"


@contextmanager
def map_folder(original: str, local: Path) -> Iterator[None]:
    """In the block, map `original`, a path on the recipe's machine, to `local`; an empty one maps nothing."""
    before = os.environ.get(_VARIABLE)
    if original:
        os.environ[_VARIABLE] = json.dumps([original, str(local.resolve())])
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before


def path_there(path: Path) -> str:
    """Return a path of this machine as a path on the recipe's machine."""
    original, local = _folders()
    return _swap_folder(str(path), local, original)


def path_here(path: str) -> str:
    """Reverse `path_there`; a path outside of the mapped folder, or of no file here, is unchanged."""
    swapped = _swap_folder(path, *_folders())
    return swapped if os.path.exists(swapped) else path


def _folders() -> tuple[str, str]:
    """Return the mapped folder on the recipe's machine and here; empty if no folder is mapped."""
    original, local = json.loads(os.environ.get(_VARIABLE, '["", ""]'))
    return original, local


def _swap_folder(path: str, old: str, new: str) -> str:
    is_inside = old and Path(path).is_relative_to(old)
    return str(Path(new, Path(path).relative_to(old))) if is_inside else path
