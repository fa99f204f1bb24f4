"""Check by its manifest whether an engine can run here, before TensorRT loads it and aborts."""

from __future__ import annotations

from pathlib import Path

from ...artifact import Manifest
from ...errors import ArtifactError
from ..gpu import Gpu
from .adapter import Adapter

_RTX_MAGIC = b"vtrt"
_AMPERE = 80
_FOUR_NUMBERS = (8, 6)


def check_loadable(path: Path, manifest: Manifest, adapter: Adapter, gpu: Gpu) -> None:
    """Refuse an engine of another TensorRT or another GPU, or without weights.

    Raises:
        ArtifactError: Saying what it was built by and for, and what is here.
    """
    check_version_and_gpu(path, manifest, adapter, gpu)
    if manifest.options.get("strip_weights") and not manifest.proof.get("refitted_with"):
        raise ArtifactError(
            f"{path}: is stored without weights",
            hint=f"give it weights first: qcompile refit {path} MODEL.onnx -o full.engine",
            file=path,
        )


def check_version_and_gpu(path: Path, manifest: Manifest, adapter: Adapter, gpu: Gpu) -> None:
    """Refuse an engine of another TensorRT or another GPU.

    Raises:
        ArtifactError: Saying what it was built by and for, and what is here.
    """
    built_by = str(manifest.tools.get(adapter.package, ""))
    if not _same_version(built_by, adapter.version, carries_runtime(manifest)):
        raise ArtifactError(
            f"{path}: was built by {adapter.package} {built_by or 'of unknown version'}; "
            f"here is {adapter.version}",
            hint="build it here, install that version, or build with `version_compatible`",
            file=path,
        )
    listed = manifest.device.get("gpus")
    gpus = [str(name) for name in listed] if isinstance(listed, list) else []
    if not _runs_on(gpus, gpu, str(manifest.options.get("hardware_compatible") or "")):
        raise ArtifactError(
            f"{path}: was built for {', '.join(gpus) or 'an unknown GPU'}"
            f"{_named(manifest)}; here is {gpu.name} ({gpu.architecture})",
            hint="build it for this GPU, or with `hardware_compatible` ampere+",
            file=path,
        )


def target_of(plan: bytes) -> str:
    """Return the target that reads a plan, by its first bytes."""
    return "tensorrt-rtx" if plan.startswith(_RTX_MAGIC) else "tensorrt"


def carries_runtime(manifest: Manifest) -> bool:
    """Whether an engine holds the lean runtime, which newer versions run it with, as host code.

    Without it only its own version loads it, unless the lean library of that version is given to
    `IRuntime::loadRuntime` (NvInferRuntime.h).
    """
    options = manifest.options
    return bool(options.get("version_compatible")) and not options.get("exclude_lean_runtime")


def _same_version(built_by: str, here: str, compatible: bool) -> bool:
    """Plans are of one version; version-compatible ones of one major version.

    From 8.6 on a plan is of one version to its fourth number ("expecting library version 8.6.1.6 got
    8.6.1.2", NVIDIA/TensorRT issue 3069; "9.2.0.5 got 9.2.0.4", issue 3793), before to its third
    ("8.2.4 got 8.2.3", pytorch/TensorRT issue 1059).
    """
    built, present = (
        tuple(int(part) for part in text.split(".")[:4] if part.isdecimal()) for text in (built_by, here)
    )
    if not built:
        return False
    if compatible and built[0] == present[0] and present[:3] >= built[:3]:
        return True
    count = min(len(built), len(present), 4 if built >= _FOUR_NUMBERS else 3)
    return built[:count] == present[:count]


def _runs_on(gpus: list[str], gpu: Gpu, level: str) -> bool:
    if gpu.architecture in gpus:
        return True
    return level == "ampere+" and _number(gpu.architecture) >= _AMPERE


def _number(architecture: str) -> int:
    digits = architecture.removeprefix("sm")
    return int(digits) if digits.isdecimal() else 0


def _named(manifest: Manifest) -> str:
    name = manifest.device.get("gpu")
    return f" ({name})" if name else ""
