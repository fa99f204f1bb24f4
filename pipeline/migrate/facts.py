"""What a command line leaves unsaid and its meaning depends on: the ONNX file, and where files lie here."""

from __future__ import annotations

import difflib
import fnmatch
import glob
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...errors import InvalidOption
from ...tensors import TensorInfo, format_shape
from .command_line import Invocation
from .intent import KINDS, Intent, Profile, Shape

_STAR = "*"
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


@dataclass(frozen=True)
class ModelFacts:
    """An ONNX file without its weights; its precision is "fp32", or what it is quantized or converted to."""

    path: Path
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    nodes: tuple[str, ...]
    precision: str

    @property
    def has_scales(self) -> bool:
        """Whether the file holds the scales of INT8 or FP8, as Q/DQ."""
        return self.precision in ("int8", "fp8")


def read_facts(path: Path) -> ModelFacts:
    """Read a file, which is refused if it is an engine or of another format."""
    from ...model.graph import graph_precision
    from ...model.weightless import read_weightless

    if path.suffix.lower() != ".onnx":
        raise InvalidOption(
            f"{path}: is no ONNX file, and a recipe starts from one",
            hint="an engine is of one version and one GPU; migrate the command that built it",
        )
    light = read_weightless(path)
    names, io = tuple(node.name for node in light.model.graph.node), light.io
    return ModelFacts(path, tuple(io.inputs), tuple(io.outputs), names, graph_precision(light.model))


def matching(pattern: str, names: tuple[str, ...]) -> list[str]:
    """Return the names that one name stands for: itself, or with one `*`, which stands for any text.

    trtexec has the star from 10.0 on (sampleUtils.cpp).
    """
    if _STAR not in pattern:
        return [name for name in names if name == pattern]
    return [name for name in names if fnmatch.fnmatchcase(name, as_glob(pattern))]


def as_glob(pattern: str) -> str:
    """Return the glob that a name stands for, whatever else it holds."""
    return _STAR.join(glob.escape(part) for part in pattern.split(_STAR))


def complete_profiles(intent: Intent, facts: ModelFacts) -> list[Profile]:
    """Return a shape for every dynamic input of each profile; nothing for a model that is static.

    An input without any gets 1 for its dynamic axes, as both tools give it.
    """
    wanted = [{kind: _by_input(shapes, facts) for kind, shapes in one.items()} for one in intent.profiles]
    dynamic = [one for one in facts.inputs if one.dynamic_axes]
    held = {name for one in wanted for shapes in one.values() for name in shapes if _holds_shape(name, facts)}
    if not dynamic and not held:
        return []
    completed: list[Profile] = []
    for one in wanted or [{}]:
        given = {name for shapes in one.values() for name in shapes}
        kept = {
            kind: {
                name: shape
                for name, shape in one[kind].items()
                if name in held or _input(name, facts).dynamic_axes
            }
            for kind in KINDS
            if kind in one
        }
        for tensor in dynamic:
            if tensor.name not in given:
                ones = tuple(extent if isinstance(extent, int) else 1 for extent in tensor.shape)
                kept.setdefault("opt", {})[tensor.name] = ones
        completed.append(kept)
    return completed


def _input(name: str, facts: ModelFacts) -> TensorInfo:
    return next(one for one in facts.inputs if one.name == name)


def _holds_shape(name: str, facts: ModelFacts) -> bool:
    """Whether an input may hold a shape: its range is one of values then."""
    tensor = _input(name, facts)
    return not tensor.dynamic_axes and tensor.dtype in ("int32", "int64") and len(tensor.shape) <= 1


def _by_input(shapes: dict[str, Shape], facts: ModelFacts) -> dict[str, Shape]:
    names = tuple(one.name for one in facts.inputs)
    found: dict[str, Shape] = {}
    for pattern, shape in shapes.items():
        hits = matching(pattern, names)
        if not hits:
            near = difflib.get_close_matches(pattern, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the inputs are {', '.join(names)}"
            raise InvalidOption(f"{facts.path}: has no input {pattern!r}", hint=hint)
        for name in hits:
            if not (_input(name, facts).accepts(shape) or _holds_shape(name, facts)):
                raise InvalidOption(
                    f"{facts.path}: input {name!r} is {format_shape(_input(name, facts).shape)}; "
                    f"{format_shape(shape)} does not fit"
                )
        found |= dict.fromkeys(hits, shape)
    return found


class Places:
    """Where the files of a command lie, and how a recipe spells them.

    The call says where relative paths begin, and what a container sees of this machine; `renamed` are
    `OLD=NEW`, how folders or files of the command are named here, and come first.
    """

    def __init__(self, call: Invocation, renamed: Sequence[str], recipe: Path) -> None:
        self.recipe = recipe
        names: dict[str, str] = {}
        for text in renamed:
            old, equals, new = text.partition("=")
            if not (old and equals and new):
                raise InvalidOption(f"`paths` {text!r}: OLD=NEW is required", option="paths")
            names[old] = new
        self._folders = {**names, **call.mounts}
        self._start = call.folder

    def find(self, text: str) -> Path:
        """Return a path of the command as it is here."""
        path = os.path.expanduser(text) if text.startswith("~") else text
        for candidate in (path, str(PurePosixPath(self._start) / path) if self._start else path):
            for old, new in sorted(self._folders.items(), key=lambda pair: -len(pair[0])):
                bare = old.rstrip("/\\")
                if candidate == bare or candidate.startswith((f"{bare}/", f"{bare}\\")):
                    rest = candidate[len(bare) :].replace("\\", "/").lstrip("/")
                    return Path(os.path.expanduser(new)) / rest
        if _DRIVE.match(path):
            return Path(path)
        return Path(self._start) / path if self._start else Path(path)

    def spell(self, path: Path) -> str:
        """Return a path as the recipe spells it: relative to the recipe, unless it was absolute."""
        if path.is_absolute() or _DRIVE.match(str(path)):
            return str(path)
        return Path(os.path.relpath(path, self.recipe.parent)).as_posix()

    def find_data(self, text: str) -> str:
        """Return samples of the command as they are here: a file, or file.py:function."""
        return self._moved(text, self.find)

    def spell_data(self, text: str) -> str:
        """Return samples as the recipe spells them."""
        return self._moved(text, lambda script: self.spell(Path(script)))

    @staticmethod
    def _moved(text: str, move: Callable[[str], object]) -> str:
        script, colon, function = text.rpartition(":")
        if colon and script and function.isidentifier():
            return f"{move(script)}:{function}"
        return str(move(text))
