"""The extras of the installation: which are complete, what is missing, and which packages do not fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch", "onnxscript"),
    "cpu": ("onnxruntime", "onnxsim", "polygraphy", "nvidia-ml-py", "numba"),
    "openvino": ("openvino",),
    "cluster": ("distributed",),
    "tensorrt-rtx": ("tensorrt-rtx",),
    "tensorrt": ("tensorrt",),
    "cuda": ("cuda-bindings",),
    "models": ("torch", "onnxscript", "pillow", "timm", "torchvision", "transformers"),
    "data": ("datasets", "pillow", "scipy", "soundfile", "transformers"),
    "metrics": ("jiwer",),
    "qat": ("torch", "onnxscript", "torchao"),
    "report": ("jinja2",),
    "triton": ("tritonclient",),
    "tensorflow": ("tensorflow", "tf2onnx"),
}
"""Extra of setup.cfg to its packages, by the names of their distributions."""
_INSTEAD = {
    "tensorflow": ("tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"),
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"),
}
"""Distributions that serve as well."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(;.*)?")
_ONE_BUILD = "install torch and torchvision of one build together: https://pytorch.org/get-started"
_PAIRS = ("torchvision", "torchao", "tensorflow", "tensorflow-cpu", "tf2onnx", "transformers")
"""Packages whose requirements decide whether they can be imported beside the others."""

Versions = Callable[[str], str]
"""Distribution to its version; empty where it is not installed."""
Requirements = Callable[[str], Sequence[str]]


@dataclass(frozen=True)
class ExtraState:
    """An extra.

    Attributes:
        extra: Its name.
        state: "installed", "missing", "incomplete", "broken": there, but packages do not fit together, or
            "limited": they do not fit, and qcompile does without what is lacking.
        missing: Packages that are not installed.
        problem: What does not fit; empty where all does.
        fix: What to type; empty where nothing is needed.
    """

    extra: str
    state: str
    missing: tuple[str, ...] = ()
    problem: str = ""
    fix: str = ""


def extra_states(
    version_of: Versions, requirements_of: Requirements, *, torchvision: str = ""
) -> list[ExtraState]:
    """Return the state of every extra.

    Args:
        version_of: Version of an installed distribution; empty where it is not installed.
        requirements_of: What a distribution asks for, as its metadata spells it.
        torchvision: Why torchvision's compiled operators do not load; empty where they do.
    """
    states = [_state(extra, names, version_of, requirements_of) for extra, names in EXTRAS.items()]
    if not torchvision:
        return states
    problem = f"{torchvision}: qcompile computes nms itself, others of torchvision.ops are lacking"
    return [
        replace(one, state="limited", problem=problem, fix=_ONE_BUILD)
        if "torchvision" in EXTRAS[one.extra] and one.state == "installed"
        else one
        for one in states
    ]


def clash(name: str, version_of: Versions, requirements_of: Requirements) -> str:
    """Return which requirement of a distribution the installed versions do not meet; empty where they do."""
    if not version_of(name):
        return ""
    for text in requirements_of(name):
        match = _REQUIREMENT.fullmatch(text.strip())
        if match is None or (match[3] and "extra" in match[3]):
            continue
        found = version_of(match[1])
        if found and not meets(found, match[2]):
            return (
                f"{name} {version_of(name)} is built for {match[1]}{match[2].strip()}; {found} is installed"
            )
    return ""


def meets(version: str, specifiers: str) -> bool:
    """Return whether a version is within `>=2,<3`; a specifier that cannot be read is met.

    Local parts (`+cpu`) and pre-releases are left out of the comparison.
    """
    for one in specifiers.split(","):
        match = re.fullmatch(r"\s*(==|!=|>=|<=|<|>|~=)\s*([\w.*+!-]+)\s*", one)
        if match is None:
            continue
        sign, bound = match[1], match[2]
        exact = bound.endswith(".*")
        asked = _release(bound.removesuffix(".*"))
        found = _release(version)
        if exact or sign == "~=":
            kept = len(asked) - (0 if exact else 1)
            padded = found + (0,) * len(asked)
            same = padded[:kept] == asked[:kept]
            if {"==": not same, "!=": same, "~=": not same or padded < asked}.get(sign, False):
                return False
            continue
        width = max(len(found), len(asked))
        left, right = (part + (0,) * (width - len(part)) for part in (found, asked))
        held = {
            "==": left == right, "!=": left != right, ">=": left >= right, "<=": left <= right,
            "<": left < right, ">": left > right,
        }  # fmt: skip
        if not held[sign]:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _state(
    extra: str, names: Sequence[str], version_of: Versions, requirements_of: Requirements
) -> ExtraState:
    there = {name: _installed(name, version_of) for name in names}
    missing = tuple(name for name, found in there.items() if not found)
    install = f"pip install 'qcompile[{extra}]'"
    problems = [
        said
        for found in there.values()
        if found in _PAIRS and (said := clash(found, version_of, requirements_of))
    ]
    if problems:
        fix = (
            _ONE_BUILD
            if problems[0].startswith("torchvision")
            else f"{install}, in an environment of its own if other packages need these versions"
        )
        return ExtraState(extra, "broken", missing, problems[0], fix)
    if not missing:
        return ExtraState(extra, "installed")
    return ExtraState(extra, "missing" if len(missing) == len(names) else "incomplete", missing, fix=install)


def _installed(name: str, version_of: Versions) -> str:
    return next((one for one in (name, *_INSTEAD.get(name, ())) if version_of(one)), "")
