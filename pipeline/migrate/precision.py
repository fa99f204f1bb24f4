"""What a command line leaves unsaid and its meaning depends on: the ONNX file, and where files lie here.

Which precision a command means for this file and its layers, and where the scales of INT8 come from.

Where types are weak, a flag permits a precision and TensorRT chooses. Where they are strong, the graph has
them: the lowest precision that is permitted becomes the artifact's, the next one that of what stays in float.
"""

from __future__ import annotations

import difflib
import fnmatch
import glob
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from ...errors import InvalidOption
from ...tensors import TensorInfo, format_shape
from .intent import KINDS, Fate, Intent, Invocation, Profile, Shape, wrong

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

    def input(self, name: str) -> TensorInfo:
        return next(tensor for tensor in self.inputs if tensor.name == name)

    @property
    def has_scales(self) -> bool:
        """Whether the file holds the scales of INT8 or FP8, as Q/DQ."""
        return self.precision in ("int8", "fp8")


def read_facts(path: Path) -> ModelFacts:
    """Read a file, which is refused if it is an engine or of another format."""
    from ...model.graph import graph_precision
    from ...model.onnx_file import read_weightless

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
    return [name for name in names if fnmatch.fnmatchcase(name, as_glob(pattern))]


def as_glob(pattern: str) -> str:
    """Return the glob that a name stands for, whatever else it holds."""
    return _STAR.join(glob.escape(part) for part in pattern.split(_STAR))


def complete_profiles(intent: Intent, facts: ModelFacts) -> list[Profile]:
    """Return a shape for every dynamic input of each profile; nothing for a model that is static.

    An input without any gets 1 for its dynamic axes, as both tools give it.
    """
    profiles = [
        {kind: _by_input(shapes, facts) for kind, shapes in profile.items()} for profile in intent.profiles
    ]
    names = {name for profile in profiles for shapes in profile.values() for name in shapes}
    ones = {
        tensor.name: tuple(extent if isinstance(extent, int) else 1 for extent in tensor.shape)
        for tensor in facts.inputs
        if tensor.dynamic_axes
    }
    needed = {*ones, *(name for name in names if _holds_shape(facts.input(name)))}
    if not needed:
        return []
    completed: list[Profile] = []
    for profile in profiles or [{}]:
        shaped = {name for shapes in profile.values() for name in shapes}
        complete: Profile = {
            kind: {name: shape for name, shape in profile[kind].items() if name in needed}
            for kind in KINDS
            if kind in profile
        }
        if shapeless := {name: shape for name, shape in ones.items() if name not in shaped}:
            complete["opt"] = complete.get("opt", {}) | shapeless
        completed.append(complete)
    return completed


def _holds_shape(tensor: TensorInfo) -> bool:
    """Whether an input may hold a shape: its range is one of values then."""
    return not tensor.dynamic_axes and tensor.dtype in ("int32", "int64") and len(tensor.shape) <= 1


def _by_input(shapes: dict[str, Shape], facts: ModelFacts) -> dict[str, Shape]:
    names = tuple(tensor.name for tensor in facts.inputs)
    by_name: dict[str, Shape] = {}
    for pattern, shape in shapes.items():
        hits = matching(pattern, names)
        if not hits:
            near = difflib.get_close_matches(pattern, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the inputs are {', '.join(names)}"
            raise InvalidOption(f"{facts.path}: has no input {pattern!r}", hint=hint)
        for tensor in map(facts.input, hits):
            if not (tensor.accepts(shape) or _holds_shape(tensor)):
                raise InvalidOption(
                    f"{facts.path}: input {tensor.name!r} is {format_shape(tensor.shape)}; "
                    f"{format_shape(shape)} does not fit"
                )
        by_name |= dict.fromkeys(hits, shape)
    return by_name


class Places:
    """Where the files of a command lie, and how a recipe spells them.

    The call says where relative paths begin, and what a container sees of this machine; `renamed` are
    `OLD=NEW`, how folders or files of the command are named here, and come first.
    """

    def __init__(self, call: Invocation, renamed: Sequence[str], recipe: Path) -> None:
        self.recipe = recipe
        folders: dict[str, str] = {}
        for text in renamed:
            old, equals, new = text.partition("=")
            if not (old and equals and new):
                raise InvalidOption(f"`paths` {text!r}: OLD=NEW is required", option="paths")
            folders[old] = new
        folders |= call.mounts
        self._folders = sorted(folders.items(), key=lambda pair: -len(pair[0]))
        self._start = PurePosixPath(call.folder)

    def find(self, text: str) -> Path:
        """Return a path of the command as it is here."""
        path = os.path.expanduser(text) if text.startswith("~") else text
        for candidate in (path, str(self._start / path)):
            for old, new in self._folders:
                folder = old.rstrip("/\\")
                if candidate == folder or candidate.startswith((f"{folder}/", f"{folder}\\")):
                    beyond = candidate[len(folder) :].replace("\\", "/").lstrip("/")
                    return Path(os.path.expanduser(new)) / beyond
        return Path(path) if _DRIVE.match(path) else Path(self._start) / path

    def spell(self, place: str | Path) -> str:
        """Return a path as the recipe spells it: relative to the recipe, unless it was absolute."""
        path = Path(place)
        if path.is_absolute() or _DRIVE.match(str(path)):
            return str(path)
        return Path(os.path.relpath(path, self.recipe.parent)).as_posix()

    @staticmethod
    def moved(text: str, move: Callable[[str], object]) -> str:
        """Return samples of the command, a file or file.py:function, with the file elsewhere."""
        script, colon, function = text.rpartition(":")
        if colon and script and function.isidentifier():
            return f"{move(script)}:{function}"
        return str(move(text))


_FLOAT = "artifact.float_precision"
_IN_GRAPH = "the types of the graph decide: the tool ignores it too"
Scales = Literal["", "cache", "data"]
_LAYERS, _FORMATS = "artifact.layers", "artifact.tensorrt.io_formats"
_PREFER = (
    "prefer: a typed graph has no fallback; `typing` weak and `precision_constraints` prefer have one, on "
    "TensorRT 8 and 10"
)
_FROM_FP32 = "name the layers and build from the FP32 file"
_NO_LOWER_PRECISION = "the command permits no lower precision, and TensorRT refuses it"
_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8"}
"""Type of a layer to the precision of that name."""
_FLOATS = ("float16", "bfloat16", "float32")
_OF_THE_DLA = ("chw16", "dla_linear", "dla_hwc4")
"""Memory formats that only a DLA has (TensorFormat in NvInferRuntime.h of 10.16)."""
_INTEGERS = ("int8", "uint8", "int32", "int64")


@dataclass(frozen=True)
class ChosenPrecision:
    """What an artifact computes in; `scales` is empty where none are needed, or the file holds them."""

    precision: str
    float_precision: str = "fp32"
    scales: Scales = ""


def choose_precision(intent: Intent, facts: ModelFacts, *, cache: bool) -> ChosenPrecision:
    """Decide, and say of each option what became of it; `cache`: whether the calibration cache is there."""
    if intent.strong:
        for name in intent.precisions:
            intent.settle(name, "unneeded", note=_IN_GRAPH)
        return _as_the_file(intent, facts)
    permitted = set(intent.precisions)
    if "int4" in permitted and facts.precision != "int4":
        intent.settle("int4", "unneeded", note="the file holds no weights of 4 bits, so it changed nothing")
        permitted.discard("int4")
    if "fp8" in permitted and facts.precision != "fp8" and not (cache or intent.data):
        intent.settle("fp8", "unneeded", note="the file holds no Q/DQ, so it changed nothing")
        permitted.discard("fp8")
    if intent.best:
        for name in permitted:
            intent.settle(name, "unneeded", note="best permits it")
        return ChosenPrecision("best", scales=_scales(intent, facts, "best", cache=cache))
    quantized = "fp8" if "fp8" in permitted else "int8"
    if facts.has_scales or {"int8", "fp8"} & permitted:
        return _quantized(intent, facts, facts.precision if facts.has_scales else quantized, permitted, cache)
    if facts.precision != "fp32":
        for name in permitted - {facts.precision}:
            intent.settle(name, "missing", note=f"the file is {facts.precision}; build from the FP32 file")
        return _as_the_file(intent, facts)
    if "fp16" in permitted:
        intent.settle("bf16", "unneeded", note="a layer has one type in a typed graph, and it is FP16")
        return ChosenPrecision("fp16")
    return ChosenPrecision("bf16") if "bf16" in permitted else _as_the_file(intent, facts)


def _as_the_file(intent: Intent, facts: ModelFacts) -> ChosenPrecision:
    if facts.precision == "fp32" and intent.tf32:
        return ChosenPrecision("tf32")
    return ChosenPrecision(facts.precision)


def _quantized(
    intent: Intent, facts: ModelFacts, precision: str, permitted: set[str], cache: bool
) -> ChosenPrecision:
    if not facts.has_scales and facts.precision != "fp32":
        raise InvalidOption(
            f"{facts.path}: its graph is {facts.precision}; {precision} is quantized from an FP32 file",
            hint="export the model in FP32",
        )
    floats = next((half for half in ("fp16", "bf16") if half in permitted), "fp32")
    if floats == "fp16":
        intent.settle("bf16", "unneeded", note="a layer has one type in a typed graph, and it is FP16")
    intent.settle(floats, "kept", _FLOAT, "of what is not quantized")
    return ChosenPrecision(precision, floats, _scales(intent, facts, precision, cache=cache))


def _scales(intent: Intent, facts: ModelFacts, precision: str, *, cache: bool) -> Scales:
    """Where scales come from; what the tool would do without any is not done in silence."""
    if facts.has_scales:
        intent.revise("calibrate.ranges", "unneeded", "the file's Q/DQ hold the scales, and no cache is read")
        return ""
    if cache:
        return "cache"
    if intent.cache:
        intent.revise("calibrate.ranges", "unneeded", "it is not there; the ranges are observed on the data")
    if intent.data:
        return "data"
    raise InvalidOption(
        f"`data` is missing: {precision} needs real samples. {facts.path} holds no Q/DQ, and the command "
        f"calibrates on {intent.random}: the speed is INT8's, the outputs are not the model's",
        hint="give `data`, samples as qcompile reads them, or a calibration cache that is there",
        option="data",
    )


def layer_precisions(intent: Intent, facts: ModelFacts, compute: ChosenPrecision) -> list[str]:
    """Return `artifact.layers`; what is not kept is said of the options that asked for it."""
    is_typed = facts.precision != "fp32"
    cases: tuple[tuple[bool, Fate, str], ...] = (
        (intent.strong, "unneeded", _IN_GRAPH),
        (not intent.constraints, "unneeded", "without precision constraints the tool ignores it"),
        (not intent.layers, "unneeded", "it names no layer"),
        (is_typed, "missing", f"the file is {facts.precision} already; {_FROM_FP32}"),
        (compute.precision in ("fp32", "tf32"), "missing", _NO_LOWER_PRECISION),
    )
    for applies, fate, why in cases:
        if applies:
            intent.revise(_LAYERS, fate, why)
            return []
    halves = {compute.precision, compute.float_precision} & {"fp16", "bf16"}
    halves |= {"fp16"} if compute.precision == "best" else set()
    listed, problems = list[str](), list[str]()
    for name, dtype in intent.layers:
        precision = _PRECISIONS.get(dtype)
        if precision is None:
            continue  # int32 and its like: the graph has them
        if not matching(name, facts.nodes):
            problems.append(f"the file has no node {name!r}")
        elif precision == "int8" and compute.precision not in ("int8", "best"):
            problems.append(f"{name!r} in int8 needs scales, and int8 is not permitted")
        elif precision in ("fp16", "bf16") and halves and precision not in halves:  # a graph holds one half
            problems.append(f"{name!r} in {precision}, which the command permits nowhere else")
        else:
            listed.append(f"{as_glob(name)}={precision}")
    if problems:
        intent.revise(_LAYERS, "missing", "; ".join(problems))
    elif intent.constraints == "prefer":
        intent.revise(_LAYERS, "kept", _PREFER)
    return listed


def io_formats(intent: Intent, facts: ModelFacts) -> list[str]:
    """Return `artifact.tensorrt.io_formats`; what is not kept is said of the options that asked for it."""
    formats: list[tuple[TensorInfo, str, str]] = []
    sides = {"inputs": facts.inputs, "outputs": facts.outputs}
    for side, ranked in intent.ranks.items():
        tensors = sides[side]
        if len(ranked) not in (1, len(tensors)):
            names = ", ".join(tensor.name for tensor in tensors)
            raise wrong(f"formats of {side}", f"{len(ranked)} are given for {len(tensors)}: {names}")
        spread = ranked * len(tensors) if len(ranked) == 1 else ranked
        formats += [(tensor, *pair) for tensor, pair in zip(tensors, spread, strict=True)]
    by_name = {tensor.name: tensor for tensor in (*facts.inputs, *facts.outputs)}
    for name, (dtype, memory) in intent.formats.items():
        if name != "*" and name not in by_name:
            raise wrong("formats", f"{facts.path} has no input or output {name!r}")
        tensors = tuple(by_name.values()) if name == "*" else (by_name[name],)
        formats += [(tensor, dtype, memory) for tensor in tensors]
    listed, problems = list[str](), list[str]()
    for tensor, dtype, memory in formats:
        text, problem = _format(tensor, dtype, memory, dla="dla_core" in intent.tensorrt)
        listed += [text] if text else []
        problems += [problem] if problem else []
    if problems:
        intent.revise(_FORMATS, "missing", "; ".join(problems))
    elif not listed:
        intent.revise(_FORMATS, "unneeded", "the file has these types, and linear is the default")
    return listed


def _format(tensor: TensorInfo, dtype: str, memory: str, *, dla: bool) -> tuple[str, str]:
    """One entry, empty where the file has it already; and why it cannot be."""
    problem = ""
    dtype = "" if dtype == tensor.dtype else dtype
    castable = next((dtypes for dtypes in (_FLOATS, _INTEGERS) if tensor.dtype in dtypes), ())
    if dtype and dtype not in castable:
        problem = f"{tensor.name!r} of {tensor.dtype} as {dtype}: a cast would change what the numbers mean"
        dtype = ""
    if memory in _OF_THE_DLA and not dla:
        problem, memory = f"{tensor.name!r}: the format {memory} is the DLA's, and there is none", ""
    memory = "" if memory in ("", "linear") else f":{memory}"
    return f"{tensor.name}={dtype}{memory}" if dtype or memory else "", problem
