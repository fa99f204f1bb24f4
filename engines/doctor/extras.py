"""The extras of the installation: which are complete, what is missing, and which packages do not fit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import requires

from ...artifact import tool_versions
from ...spec.words import CPU_TARGETS, TENSORRT_TARGETS
from ..onnx_runtime.words import PACKAGES as ONNX_RUNTIMES
from ..registry import engine


@functools.cache
def extras() -> Mapping[str, tuple[str, ...]]:
    """Return extra of setup.cfg to its packages, by the names of their distributions."""

    def of_engines(targets: Iterable[str]) -> dict[str, tuple[str, ...]]:
        runtimes = [engine(name) for name in targets]
        return {one.extra: tuple(one.packages) for one in runtimes if one.extra}

    return {
        "torch": ("torch", "onnxscript"),
        **of_engines(CPU_TARGETS),
        "cpu": ("onnxruntime", "onnxsim", "polygraphy", "nvidia-ml-py", "numba"),
        "cluster": ("distributed",),
        **of_engines(TENSORRT_TARGETS[::-1]),
        "cuda": ("cuda-bindings",),
        "models": ("torch", "onnxscript", "pillow", "timm", "torchvision", "transformers"),
        "data": ("datasets", "pillow", "scipy", "soundfile", "transformers"),
        "metrics": ("jiwer", "pycocotools", "scikit-learn", "seqeval"),
        "qat": ("torch", "onnxscript", "torchao"),
        "report": ("jinja2",),
        "triton": ("tritonclient",),
        "tensorflow": ("tensorflow", "tf2onnx"),
    }


_INSTEAD = {
    "tensorflow": ("tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"),
    "onnxruntime": tuple(ONNX_RUNTIMES)[1:],
}
"""Distributions that serve as well."""
_ONE_BUILD = "install torch and torchvision of one build together: https://pytorch.org/get-started"
_PAIRS = ("torchvision", "torchao", "tensorflow", "tensorflow-cpu", "tf2onnx", "transformers")
"""Packages whose requirements decide whether they can be imported beside the others."""

Versions = Callable[[str], str]  # of a distribution; empty where it is not installed
Requirements = Callable[[str], Sequence[str] | None]  # of an installed distribution


def installed_version(package: str) -> str:
    """Return the version of an installed distribution; empty where it is not installed."""
    return tool_versions(package).get(package, "")


@dataclass(frozen=True)
class ExtraState:
    """An extra: "installed", "missing", "incomplete", or "broken" where its packages do not
    fit together; what is missing or does not fit, and what to type."""

    extra: str
    state: str
    missing: tuple[str, ...] = ()
    problem: str = ""
    fix: str = ""


def extra_states(version_of: Versions = installed_version, asks: Requirements = requires) -> list[ExtraState]:
    """Return the state of every extra."""
    states = []
    for extra, names in extras().items():
        present = {name: next(filter(version_of, (name, *_INSTEAD.get(name, ()))), "") for name in names}
        missing = tuple(name for name, distribution in present.items() if not distribution)
        install = f"pip install 'qcompile[{extra}]'"
        pairs = [distribution for distribution in present.values() if distribution in _PAIRS]
        problem = next(filter(None, (clash(pair, version_of, asks) for pair in pairs)), "")
        if problem:
            apart = f"{install}, in an environment of its own if other packages need these versions"
            fix = _ONE_BUILD if problem.startswith("torchvision") else apart
            states.append(ExtraState(extra, "broken", missing, problem, fix))
        elif missing:
            state = "missing" if len(missing) == len(names) else "incomplete"
            states.append(ExtraState(extra, state, missing, fix=install))
        else:
            states.append(ExtraState(extra, "installed"))
    return states


def clash(name: str, version_of: Versions, asks: Requirements) -> str:
    """Return which requirement of a distribution the installed versions do not meet; empty where they do."""
    from packaging.requirements import Requirement

    for text in (asks(name) or ()) if version_of(name) else ():
        required = Requirement(text)
        if required.marker is not None and not required.marker.evaluate({"extra": ""}):
            continue
        present = version_of(required.name)
        if present and not required.specifier.contains(present, prereleases=True):
            asked = f"{required.name}{required.specifier}"
            return f"{name} {version_of(name)} is built for {asked}; {present} is installed"
    return ""
