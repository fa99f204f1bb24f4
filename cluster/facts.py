"""What this machine has, as a worker announces it, and why a worker may not take part in a run.

| resource                             | stands for                                            | quantity   |
|--------------------------------------|-------------------------------------------------------|------------|
| `slots`                              | stages at a time                                      | of them    |
| `onnxruntime`, `openvino`, ...       | an engine that works here, by `engines/registry.py`   | 1000       |
| `tensorrt-10`                        | the same, of one major version                        | 1000       |
| `export`                             | PyTorch models become ONNX here: torch and onnxscript | 1000       |
| `cpu-vnni`, `cpu-bf16`, `cpu-amx` ...| instruction sets                                      | 1000       |
| `gpu-sm90`                           | GPUs of this compute capability                       | of them    |
| `onnx==1.23.0`                       | the version of a package that decides what files hold | 1000       |
| `host=3f9c…`                         | the machine: its workers take turns for measurements  | 1000       |

A step takes one of each that it needs, so 1000 is more than a worker has steps at a time.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..artifact import tool_versions
from ..processor import processor
from ..spec.words import Isa

PLENTY = 1000.0
"""What is announced of a capability that many steps may use at a time."""
MUST_MATCH = ("qcompile", "onnx", "onnxruntime", "onnxsim", "numpy", "torch", "onnxscript")
"""Packages whose versions a worker and its client have in common: they decide what the files hold."""
_PACKAGES = (
    "onnx", "onnxruntime", "onnxsim", "numpy", "torch", "onnxscript", "openvino", "tensorrt",
    "tensorrt-rtx", "pycuda", "cuda-bindings", "numba", "polygraphy", "timm", "transformers", "torchvision",
    "distributed",
)  # fmt: skip
_INSTEAD = {"onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")}
_SETS = {
    "cpu-avx2": ("avx2",),
    "cpu-avx512": ("avx512f",),
    "cpu-vnni": ("avx512_vnni", "avx_vnni"),
    "cpu-bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "cpu-fp16": ("avx512_fp16", "amx_fp16", "asimdhp"),
    "cpu-amx": ("amx_int8", "amx_bf16", "amx_fp16"),
    "cpu-dotprod": ("asimddp",),
    "cpu-i8mm": ("i8mm",),
    "cpu-sve": ("sve",),
}
"""Resource to the flags of /proc/cpuinfo of which one is enough."""


@dataclass(frozen=True)
class Facts:
    """What a worker announces.

    Attributes:
        name: Of the worker.
        address: Of the worker.
        resources: See the module's table.
    """

    name: str
    address: str
    resources: Mapping[str, float]

    def value(self, name: str, between: str) -> str:
        """Return what stands behind a resource's name: "1.23.0" of "onnx==1.23.0"; empty where none does."""
        head = f"{name}{between}"
        return next((text.removeprefix(head) for text in self.resources if text.startswith(head)), "")


def versions_here() -> dict[str, str]:
    """Return the versions of the packages that matter, of those installed; nothing is imported."""
    versions = {"python": platform.python_version(), **tool_versions(*_PACKAGES)}
    for name, others in _INSTEAD.items():
        there = list(tool_versions(*others).values())[1:]  # the first is qcompile's
        if name not in versions and there:
            versions[name] = there[0]
    return versions


def why_refused(facts: Facts) -> str:
    """Return why a worker may not carry out steps for this client; empty where it may.

    A package that only one of them has is no reason.
    """
    here = versions_here()
    different = [
        f"{name} {there}; {here[name]} is required"
        for name in MUST_MATCH
        if name in here and (there := facts.value(name, "==")) and there != here[name]
    ]
    return f"worker {facts.name} ({facts.address}) has {', '.join(different)}" if different else ""


def resources_here() -> dict[str, float]:
    """Return what this machine has; imports the runtimes, but not torch, whose import takes seconds."""
    from ..engines.gpu import find_gpus
    from ..engines.registry import engine, names

    no_torch = "" if "torch" in tool_versions("torch") else "torch is not installed"
    why_not = {
        name: no_torch if name in ("pytorch", "torchscript") else engine(name).why_not_build()
        for name in names()
    }
    versions = versions_here()
    found = capabilities(why_not, [gpu.architecture for gpu in find_gpus()], versions)
    found |= {f"{name}=={versions[name]}": PLENTY for name in MUST_MATCH if name in versions}
    return {**found, f"host={host_id()}": PLENTY}


def host_id() -> str:
    """Return 16 hexadecimal digits that are the same for all processes of one kernel since its start.

    The kernel's boot id also joins containers on one machine, which share its cores and devices. Where the
    system does not tell it, the machine's id and its name stand for it.
    """
    text = _text("/proc/sys/kernel/random/boot_id") or f"{_text('/etc/machine-id')} {platform.node()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def capabilities(
    why_not: Mapping[str, str], gpus: Sequence[str], versions: Mapping[str, str]
) -> dict[str, float]:
    """Return what a worker announces of its engines, instruction sets and GPUs.

    Args:
        why_not: Engine to why it cannot be used; empty where it can.
        gpus: Compute capability of each GPU.
        versions: Package to version.
    """
    there = [name for name, reason in why_not.items() if not reason]
    there += [
        f"{name}-{versions[name].split('.')[0]}" for name in there if name == "tensorrt" and name in versions
    ]
    if "torch" in versions and "onnxscript" in versions:
        there.append("export")
    features = processor()["features"]
    flags = set(features) if isinstance(features, list) else set()
    there += [name for name, needed in _SETS.items() if flags & set(needed)]
    found = dict.fromkeys(there, PLENTY)
    for gpu in gpus:
        found[f"gpu-{gpu}"] = found.get(f"gpu-{gpu}", 0.0) + 1.0
    return found


def isa_announced(facts: Facts) -> Isa | None:
    """Return the instruction set that multiplies integers on a worker; None where it does not tell."""
    has = facts.resources
    if has.get("cpu-avx2") or has.get("cpu-avx512"):
        vnni: Isa = "avx512-vnni" if has.get("cpu-avx512") else "avx-vnni"
        return "amx" if has.get("cpu-amx") else vnni if has.get("cpu-vnni") else "avx2"
    arm: Mapping[str, Isa] = {"cpu-i8mm": "i8mm", "cpu-dotprod": "neon-dotprod"}
    return next((isa for name, isa in arm.items() if has.get(name)), None)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
