"""Resources that workers announce to Dask, checks of a worker's versions, and the placement of stages.

The cluster page of the documentation lists the resources; `host=3f9c…` identifies the machine, whose workers
measure in turn. A stage takes one unit of each required resource and one of `slots`; a measurement takes all
slots. `pipeline.stages.graph.KINDS` defines the required and preferred resources of each stage.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.artifact import tool_versions
from ...core.processor import processor
from ...errors import EngineUnavailable
from ...spec.words import Isa
from ..recipe.recipe import Recipe
from ..stages.graph import kind_of
from ..stages.stage import Stage

PLENTY = 1000.0
"""Announced quantity of a capability that many stages may use at a time."""
MUST_MATCH = ("qcompile", "onnx", "onnxruntime", "onnxsim", "numpy", "torch", "onnxscript")
"""Packages that determine the contents of files: their versions must be equal on workers and client."""
_CPU_FLAGS = {
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
"""Resource to flags of /proc/cpuinfo; one of the flags is sufficient."""


@dataclass(frozen=True)
class WorkerFacts:
    """Name, address and announced resources of a worker."""

    name: str
    address: str
    resources: Mapping[str, float]

    def value(self, name: str, between: str) -> str:
        """Return the value in a resource's name: "1.23.0" of "onnx==1.23.0"; empty if it is missing."""
        head = f"{name}{between}"
        return next((text.removeprefix(head) for text in self.resources if text.startswith(head)), "")


def versions_here() -> dict[str, str]:
    """Return the versions of the relevant packages that are installed, without importing them."""
    versions = tool_versions(*MUST_MATCH, "tensorrt")
    from ...engines.onnx_runtime.words import PACKAGES

    _, *runtimes = tool_versions(*reversed(PACKAGES)).values()  # the first is qcompile's; the last is used
    return {**versions, "onnxruntime": runtimes[-1]} if runtimes else versions


def why_refused(facts: WorkerFacts) -> str:
    """Return why a worker must not serve this client, or ""; a package missing on one side is ignored."""
    required = versions_here()
    different = [
        f"{name} {version}; {required[name]} is required"
        for name in MUST_MATCH
        if name in required and (version := facts.value(name, "==")) and version != required[name]
    ]
    return f"worker {facts.name} ({facts.address}) has {', '.join(different)}" if different else ""


def resources_here() -> dict[str, float]:
    """Return the resources of this machine; imports the runtimes, but not torch, which takes seconds."""
    from ...engines.gpu import find_gpus
    from ...engines.registry import engine, names

    no_torch = "" if "torch" in tool_versions("torch") else "torch is not installed"
    why_not = {
        name: no_torch if engine(name).takes == "pytorch" else engine(name).why_not_build()
        for name in names()
    }
    versions = versions_here()
    present = [name for name, reason in why_not.items() if not reason]
    if "tensorrt" in present and "tensorrt" in versions:
        present.append(f"tensorrt-{versions['tensorrt'].split('.')[0]}")
    if "torch" in versions and "onnxscript" in versions:
        present.append("export")
    features = processor()["features"]
    flags = set(features) if isinstance(features, list) else set()
    present += [name for name, needed in _CPU_FLAGS.items() if flags & set(needed)]
    present += [f"{name}=={versions[name]}" for name in MUST_MATCH if name in versions]
    gpus = Counter(f"gpu-{gpu.architecture}" for gpu in find_gpus())
    return {**dict.fromkeys([*present, f"host={host_id()}"], PLENTY), **gpus}


def host_id() -> str:
    """Return 16 hexadecimal digits that all processes of one running kernel share.

    Containers on a machine share its cores, devices and boot id. Fallback: machine id and host name.
    """
    identity = f"no machine id {platform.node()}"
    for path, name in (("/proc/sys/kernel/random/boot_id", ""), ("/etc/machine-id", f" {platform.node()}")):
        with contextlib.suppress(OSError):
            identity = Path(path).read_text(encoding="ascii", errors="replace").strip() + name
            break
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def isa_announced(facts: WorkerFacts) -> Isa | None:
    """Return the instruction set for INT8 on a worker; None without a known CPU flag."""
    quantities = facts.resources
    if quantities.get("cpu-avx2") or quantities.get("cpu-avx512"):
        vnni: Isa = "avx512-vnni" if quantities.get("cpu-avx512") else "avx-vnni"
        return "amx" if quantities.get("cpu-amx") else vnni if quantities.get("cpu-vnni") else "avx2"
    arm: Mapping[str, Isa] = {"cpu-i8mm": "i8mm", "cpu-dotprod": "neon-dotprod"}
    return next((isa for name, isa in arm.items() if quantities.get(name)), None)


def place_stage(
    recipe: Recipe, stage: Stage, workers: Sequence[WorkerFacts], home: WorkerFacts | None = None
) -> tuple[list[str], dict[str, float]]:
    """Return the addresses of the workers that may carry out a stage, best first, and the resources it takes.

    `home` is the worker that will measure the artifact. Builds prefer workers with the same CPU features,
    because another processor may execute the artifact differently.
    """
    needs, alone = kind_of(stage).needs(recipe, stage), kind_of(stage).measures
    usable = [facts for facts in sorted(workers, key=lambda facts: facts.name) if _has(facts, needs.required)]
    if needs.gpu and not alone:
        usable = [facts for facts in usable if gpus_of(facts)]
    if not usable:
        required = needs.required or ("a GPU",)
        missing = [name for name in required if not any(_has(facts, (name,)) for facts in workers)]
        lacking = " and ".join(missing or required)
        names = {name for facts in workers for name in facts.resources if "=" not in name} - {"slots"}
        raise EngineUnavailable(
            f"{stage.name}: no worker has {lacking}; they announce {', '.join(sorted(names)) or 'nothing'}",
            hint="start a worker that has it; `qcompile doctor` there shows the reason",
            engine=required[0],
            reason=f"no worker has {lacking}",
        )
    for name in needs.preferred:
        usable = [facts for facts in usable if _has(facts, (name,))] or usable
    if needs.gpu and alone:
        usable = [facts for facts in usable if gpus_of(facts)] or usable
    if home is not None and needs.as_measured and not needs.gpu:
        usable = [facts for facts in usable if _processor(facts) == _processor(home)] or usable
    usable = usable[:1] if alone else usable
    slots = usable[0].resources["slots"] if alone else 1.0
    resources = {"slots": slots, **dict.fromkeys(needs.required, 1.0)}
    shared = set.intersection(*(set(gpus_of(facts)) for facts in usable))
    if needs.gpu and not alone and shared:  # Dask can count one kind of GPU, but not "any GPU"
        resources[min(shared)] = 1.0
    return [facts.address for facts in usable], resources


def gpus_of(facts: WorkerFacts) -> list[str]:
    """Return the resources of a worker's GPUs: "gpu-sm90"."""
    return sorted(name for name, number in facts.resources.items() if name.startswith("gpu-") and number >= 1)


def _has(facts: WorkerFacts, names: Sequence[str]) -> bool:
    return all(facts.resources.get(name, 0) >= 1 for name in names)


def _processor(facts: WorkerFacts) -> set[str]:
    return {name for name in facts.resources if name.startswith("cpu-")}
