"""Precisions of layers, and types and memory formats of inputs and outputs, by names of the ONNX file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ...tensors import TensorInfo
from .intent import Intent
from .model_facts import ModelFacts, as_glob, matching
from .precision import ChosenPrecision
from .translate import wrong

_LAYERS, _FORMATS = "artifact.layers", "artifact.tensorrt.io_formats"
_PREFER = (
    "prefer: a typed graph has no fallback; `typing` weak and `precision_constraints` prefer have one, on "
    "TensorRT 8 and 10"
)
_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8"}
"""Type of a layer to the precision of that name."""
_FLOATS = ("float16", "bfloat16", "float32")
_OF_THE_DLA = ("chw16", "dla_linear", "dla_hwc4")
"""Memory formats that only a DLA has (TensorFormat in NvInferRuntime.h of 10.16)."""
_INTEGERS = ("int8", "uint8", "int32", "int64")


def layer_precisions(intent: Intent, facts: ModelFacts, chosen: ChosenPrecision) -> list[str]:
    """Return `artifact.layers`; what is not kept is said of the options that asked for it."""
    why_none = _why_no_layers(intent, facts, chosen)
    if why_none or not intent.layers:
        fate: Literal["unneeded", "missing"] = "missing" if why_none.startswith("missing: ") else "unneeded"
        intent.revise(_LAYERS, fate, why_none.removeprefix("missing: ") or "it names no layer")
        return []
    listed: list[str] = []
    problems: list[str] = []
    for name, dtype in intent.layers:
        precision = _PRECISIONS.get(dtype)
        hits = matching(name, facts.nodes)
        if precision is None:
            continue  # int32 and its like: the graph has them
        if not hits:
            problems.append(f"the file has no node {name!r}")
        elif precision == "int8" and chosen.precision not in ("int8", "best"):
            problems.append(f"{name!r} in int8 needs scales, and int8 is not permitted")
        elif not _is_given(precision, chosen):
            problems.append(f"{name!r} in {precision}, which the command permits nowhere else")
        else:
            listed.append(f"{_pattern(name, hits)}={precision}")
    if problems:
        intent.revise(_LAYERS, "missing", "; ".join(problems))
    elif intent.constraints == "prefer":
        intent.revise(_LAYERS, "kept", _PREFER)
    return listed


def _why_no_layers(intent: Intent, facts: ModelFacts, chosen: ChosenPrecision) -> str:
    if intent.strong:
        return "the types of the graph decide: the tool ignores it too"
    if not intent.constraints:
        return "without precision constraints the tool ignores it"
    if facts.precision != "fp32" and intent.layers:
        return f"missing: the file is {facts.precision} already; name the layers and build from the FP32 file"
    if chosen.precision in ("fp32", "tf32") and intent.layers:
        return "missing: the command permits no lower precision, and TensorRT refuses it"
    return ""


def _is_given(precision: str, chosen: ChosenPrecision) -> bool:
    """Whether a graph of this artifact can hold a precision: FP32, its own, and one half."""
    halves = {chosen.precision, chosen.float_precision} & {"fp16", "bf16"}
    if chosen.precision == "best":
        halves = {"fp16"}
    return precision in ("fp32", "int8") or not halves or precision in halves


def _pattern(name: str, hits: Sequence[str]) -> str:
    if "*" in name:
        return as_glob(name)
    return as_glob(hits[0])


def io_formats(intent: Intent, facts: ModelFacts) -> list[str]:
    """Return `artifact.tensorrt.io_formats`; what is not kept is said of the options that asked for it.

    Raises:
        InvalidOption: If there are neither one format nor as many as inputs or outputs.
    """
    asked: list[tuple[TensorInfo, str, str]] = []
    sides = {"inputs": facts.inputs, "outputs": facts.outputs}
    for side, given in intent.ranks.items():
        tensors = sides[side]
        if len(given) not in (1, len(tensors)):
            shown = ", ".join(one.name for one in tensors)
            raise wrong(f"formats of {side}", f"{len(given)} are given for {len(tensors)}: {shown}")
        spread = given * len(tensors) if len(given) == 1 else given
        asked += [(tensor, *one) for tensor, one in zip(tensors, spread, strict=True)]
    everything = {one.name: one for one in (*facts.inputs, *facts.outputs)}
    for name, (dtype, memory) in intent.formats.items():
        if name != "*" and name not in everything:
            raise wrong("formats", f"{facts.path} has no input or output {name!r}")
        asked += [(one, dtype, memory) for one in everything.values() if name in ("*", one.name)]
    listed: list[str] = []
    problems: list[str] = []
    for tensor, dtype, memory in asked:
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
    kept = "" if dtype == tensor.dtype else dtype
    problem = ""
    kinds = next((kinds for kinds in (_FLOATS, _INTEGERS) if tensor.dtype in kinds), ())
    if kept and kept not in kinds:
        problem = f"{tensor.name!r} of {tensor.dtype} as {kept}: a cast would change what the numbers mean"
        kept = ""
    if memory in _OF_THE_DLA and not dla:
        problem, memory = f"{tensor.name!r}: the format {memory} is the DLA's, and there is none", ""
    memory = "" if memory == "linear" else memory
    if not (kept or memory):
        return "", problem
    return f"{tensor.name}={kept}{':' if memory else ''}{memory}", problem
