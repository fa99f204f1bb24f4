"""What this machine has, as a worker announces it, and why a worker may not take part in a run.

| resource                             | stands for                                            | quantity   |
|--------------------------------------|-------------------------------------------------------|------------|
| `slots`                              | stages at a time                                      | of them    |
| `memory`                             | bytes that they may use together                      | of them    |
| `onnxruntime`, `openvino`, ...       | an engine that works here, by `engines/registry.py`   | 1000       |
| `tensorrt-10`                        | the same, of one major version                        | 1000       |
| `export`                             | PyTorch models become ONNX here: torch and onnxscript | 1000       |
| `cpu-vnni`, `cpu-bf16`, `cpu-amx` ...| instruction sets                                      | 1000       |
| `gpu-sm90`                           | GPUs of this compute capability                       | of them    |

A step takes one of each that it needs, so 1000 is more than a worker has steps at a time.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..artifact import tool_versions
from ..machine_memory import machine_bytes
from ..processor import processor
from ..spec.words import Isa

PLENTY = 1000.0
"""What is announced of a capability that many steps may use at a time."""
MUST_MATCH = ("qcompile", "onnx", "onnxruntime", "onnxsim", "numpy", "torch", "onnxscript")
"""Packages whose versions a worker and its client have in common: they decide what the files hold."""
_PACKAGES = (
    "onnx", "onnxruntime", "onnxsim", "numpy", "torch", "onnxscript", "openvino", "tensorrt",
    "tensorrt-rtx", "cuda-bindings", "numba", "polygraphy", "timm", "transformers", "torchvision",
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
_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_UNKNOWN_BYTES = 1 << 30


class Facts(msgspec.Struct, frozen=True):
    """What a worker's machine has.

    Attributes:
        name: Of the worker.
        address: Of the worker.
        host: Identifies the machine: workers with the same one share processor and devices.
        versions: Package to version, of those installed; "qcompile" and "python" among them.
        resources: What it announces to Dask: "slots", "memory", "cpu-vnni", "openvino", "gpu-sm90", ...
        cores: That its stages may use.
        memory_bytes: That its stages may use.
        gpus: Each GPU: "index", "name", "capability" ("sm90").
        why_not: Engine to why it cannot be used there.
    """

    name: str
    address: str
    host: str
    versions: dict[str, str]
    resources: dict[str, float]
    cores: int
    memory_bytes: int
    gpus: tuple[dict[str, Any], ...] = ()
    why_not: dict[str, str] = {}


class Found(msgspec.Struct, frozen=True):
    """What a look at the runtimes and the devices found, in a process of its own.

    Attributes:
        why_not: Engine to why it cannot be used; empty where it can.
        gpus: Each GPU: "index", "name", "capability", "memory_bytes".
    """

    why_not: dict[str, str] = {}
    gpus: tuple[dict[str, Any], ...] = ()


def versions_here() -> dict[str, str]:
    """Return the versions of the packages that matter, of those installed; nothing is imported."""
    versions = {"python": platform.python_version(), **tool_versions(*_PACKAGES)}
    for name, others in _INSTEAD.items():
        there = list(tool_versions(*others).values())[1:]  # the first is qcompile's
        if name not in versions and there:
            versions[name] = there[0]
    return versions


def why_refused(facts: Facts, versions: Mapping[str, str]) -> str:
    """Return why a worker may not carry out steps for a client; empty where it may.

    Args:
        facts: What the worker has.
        versions: What the client has. A package that only one of them has is no reason.
    """
    different = [
        f"{name} {facts.versions[name]}; {versions[name]} is required"
        for name in MUST_MATCH
        if name in versions and name in facts.versions and facts.versions[name] != versions[name]
    ]
    return f"worker {facts.name} ({facts.address}) has {', '.join(different)}" if different else ""


def look() -> Found:
    """Look at the engines and the GPUs; imports the runtimes, but not torch, whose import takes seconds."""
    from ..engines.gpu import find_gpus
    from ..engines.registry import engine, names

    no_torch = "" if "torch" in tool_versions("torch") else "torch is not installed"
    why_not = {
        name: no_torch if name in ("pytorch", "torchscript") else engine(name).why_not_build()
        for name in names()
    }
    gpus = tuple(
        {
            "index": index,
            "name": gpu.name,
            "capability": gpu.architecture,
            "memory_bytes": gpu.memory_bytes,
        }
        for index, gpu in enumerate(find_gpus())
    )
    return Found(why_not, gpus)


def facts_here(
    found: Found,
    *,
    name: str,
    address: str,
    slots: int = 1,
    cores: int = 0,
    memory_bytes: int = 0,
    extra: Mapping[str, float] | None = None,
) -> Facts:
    """Return what this machine has.

    Args:
        found: What `look` returned, here.
        name: Of the worker.
        address: Of the worker.
        slots: Stages at a time.
        cores: That they may use; 0 means all that this process may use.
        memory_bytes: That they may use; 0 means all of the machine's or container's.
        extra: Resources that the user announces besides.
    """
    from ..model.session import usable_cores

    memory = memory_bytes or machine_bytes() or _UNKNOWN_BYTES
    versions = versions_here()
    resources = {"slots": float(slots), "memory": float(memory)}
    resources |= capabilities(found.why_not, [gpu["capability"] for gpu in found.gpus], versions)
    return Facts(
        name=name,
        address=address,
        host=host_id(),
        versions=versions,
        resources=resources | dict(extra or {}),
        cores=cores or usable_cores(),
        memory_bytes=memory,
        gpus=found.gpus,
        why_not={engine: reason for engine, reason in found.why_not.items() if reason},
    )


def host_id() -> str:
    """Return 16 hexadecimal digits that are the same for all processes of one kernel since its start.

    The kernel's boot id also joins containers on one machine, which share its cores and devices. Where the
    system does not tell it, the machine's id and its name stand for it.
    """
    text = _first_text(["/proc/sys/kernel/random/boot_id"])
    if not text:
        text = f"{_first_text(_MACHINE_IDS)} {platform.node()}"
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


def _first_text(paths: Sequence[str]) -> str:
    for path in paths:
        try:
            text = Path(path).read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            continue
        if text:
            return text
    return ""
