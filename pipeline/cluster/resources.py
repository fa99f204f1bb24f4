"""What workers announce to Dask, who may take part in a run, and which of them a stage may go to.

The page on clusters has the table of resources; `host=3f9c…` is the machine, whose workers take turns for
measurements. A stage takes one of each that it needs, and one of `slots`; a measurement takes all of them.
`pipeline.graph.KINDS` has a stage's needs: what a worker must have, and what it is better with.
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
"""What is announced of a capability that many stages may use at a time."""
MUST_MATCH = ("qcompile", "onnx", "onnxruntime", "onnxsim", "numpy", "torch", "onnxscript")
"""Packages whose versions a worker and its client have in common: they decide what the files hold."""
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
    """What a worker announces: `resources` are those of the module's table."""

    name: str
    address: str
    resources: Mapping[str, float]

    def value(self, name: str, between: str) -> str:
        """Return what stands behind a resource's name: "1.23.0" of "onnx==1.23.0"; empty where none does."""
        head = f"{name}{between}"
        return next((text.removeprefix(head) for text in self.resources if text.startswith(head)), "")


def versions_here() -> dict[str, str]:
    """Return the versions of the packages that matter, of those installed; nothing is imported."""
    versions = tool_versions(*MUST_MATCH, "tensorrt")
    from ...engines.onnx_runtime.words import PACKAGES

    _, *runtimes = tool_versions(*reversed(PACKAGES)).values()  # the first is qcompile's; the last one counts
    return {**versions, "onnxruntime": runtimes[-1]} if runtimes else versions


def why_refused(facts: Facts) -> str:
    """Return why a worker may not carry out stages for this client; empty where it may.

    A package that only one of them has is no reason.
    """
    required = versions_here()
    different = [
        f"{name} {version}; {required[name]} is required"
        for name in MUST_MATCH
        if name in required and (version := facts.value(name, "==")) and version != required[name]
    ]
    return f"worker {facts.name} ({facts.address}) has {', '.join(different)}" if different else ""


def resources_here() -> dict[str, float]:
    """Return what this machine has; imports the runtimes, but not torch, whose import takes seconds."""
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
    present += [name for name, needed in _SETS.items() if flags & set(needed)]
    present += [f"{name}=={versions[name]}" for name in MUST_MATCH if name in versions]
    gpus = Counter(f"gpu-{gpu.architecture}" for gpu in find_gpus())
    return {**dict.fromkeys([*present, f"host={host_id()}"], PLENTY), **gpus}


def host_id() -> str:
    """Return 16 hexadecimal digits that are the same for all processes of one kernel since its start.

    The kernel's boot id also joins containers on one machine, which share its cores and devices. Where the
    system does not tell it, the machine's id and its name stand for it.
    """
    identity = f"no machine id {platform.node()}"
    for path, name in (("/proc/sys/kernel/random/boot_id", ""), ("/etc/machine-id", f" {platform.node()}")):
        with contextlib.suppress(OSError):
            identity = Path(path).read_text(encoding="ascii", errors="replace").strip() + name
            break
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def isa_announced(facts: Facts) -> Isa | None:
    """Return the instruction set that multiplies integers on a worker; None where it does not tell."""
    has = facts.resources
    if has.get("cpu-avx2") or has.get("cpu-avx512"):
        vnni: Isa = "avx512-vnni" if has.get("cpu-avx512") else "avx-vnni"
        return "amx" if has.get("cpu-amx") else vnni if has.get("cpu-vnni") else "avx2"
    arm: Mapping[str, Isa] = {"cpu-i8mm": "i8mm", "cpu-dotprod": "neon-dotprod"}
    return next((isa for name, isa in arm.items() if has.get(name)), None)


def place(
    recipe: Recipe, stage: Stage, workers: Sequence[Facts], home: Facts | None = None
) -> tuple[list[str], dict[str, float]]:
    """Return the addresses of the workers that a stage may go to, the best first, and what it takes there.

    `home` is the worker that will measure what is built: another processor may run it otherwise.
    """
    needs, alone = kind_of(stage).needs(recipe, stage), kind_of(stage).measures
    able = [facts for facts in sorted(workers, key=lambda facts: facts.name) if _has(facts, needs.required)]
    if needs.gpu and not alone:
        able = [facts for facts in able if gpus_of(facts)]
    if not able:
        required = needs.required or ("a GPU",)
        missing = [name for name in required if not any(_has(facts, (name,)) for facts in workers)]
        words = " and ".join(missing or required)
        names = {name for facts in workers for name in facts.resources if "=" not in name} - {"slots"}
        raise EngineUnavailable(
            f"{stage.name}: no worker has {words}; they announce {', '.join(sorted(names)) or 'nothing'}",
            hint="start a worker that has it; `qcompile doctor` there says why it has not",
            engine=required[0],
            reason=f"no worker has {words}",
        )
    for name in needs.preferred:
        able = [facts for facts in able if _has(facts, (name,))] or able
    if needs.gpu and alone:
        able = [facts for facts in able if gpus_of(facts)] or able
    if home is not None and needs.as_measured and not needs.gpu:
        able = [facts for facts in able if _processor(facts) == _processor(home)] or able
    able = able[:1] if alone else able
    slots = able[0].resources["slots"] if alone else 1.0
    resources = {"slots": slots, **dict.fromkeys(needs.required, 1.0)}
    shared = set.intersection(*(set(gpus_of(facts)) for facts in able))
    if needs.gpu and not alone and shared:  # else each has another kind, and Dask cannot count "any of them"
        resources[min(shared)] = 1.0
    return [facts.address for facts in able], resources


def gpus_of(facts: Facts) -> list[str]:
    """Return the resources of a worker's GPUs: "gpu-sm90"."""
    return sorted(name for name, number in facts.resources.items() if name.startswith("gpu-") and number >= 1)


def _has(facts: Facts, names: Sequence[str]) -> bool:
    return all(facts.resources.get(name, 0) >= 1 for name in names)


def _processor(facts: Facts) -> set[str]:
    return {name for name in facts.resources if name.startswith("cpu-")}
