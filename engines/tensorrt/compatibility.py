"""Refuse by name what a TensorRT or a GPU cannot do: load an engine, build for a GPU or in a format.

Engines are checked by their manifests, before TensorRT loads them and aborts. NVFP4 and MXFP8 need a TensorRT
and a GPU that have them:

- Types: `DataType.FP4` is in NvInferRuntime.h from release/10.8 on, `E8M0` from release/10.12 on.
  TensorRT-RTX 1.7 has both. The module is asked, not its version.
- GPUs: both begin with compute capability 10.0 (TensorRT-RTX support matrix on docs.nvidia.com: FP4 on 12.0
  and 12.1, not on 8.9; TransformerEngine, support_matrix: both from 10.0). TensorRT-RTX 1.7 refuses
  NVFP4 for sm89 itself ("HW-specific datatypes: fp4_e2m1"). MXFP8 it would build, as dequantizations
  in front of a product of floats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...artifact import Manifest
from ...errors import ArtifactError, InvalidOption
from ...spec.tensorrt import TensorRTOptions
from ..gpu import Gpu, find_gpu
from ..words import version_numbers
from .adapter import Adapter

_RTX_MAGIC = b"vtrt"
_AMPERE = 80
_FOUR_NUMBERS = (8, 6)


def check_loadable(path: Path, manifest: Manifest, adapter: Adapter, gpu: Gpu) -> None:
    """Refuse an engine of another TensorRT or another GPU, or without weights."""
    check_version_and_gpu(path, manifest, adapter, gpu)
    if manifest.options.get("strip_weights") and not manifest.proof.get("refitted_with"):
        raise ArtifactError(
            f"{path}: is stored without weights",
            hint=f"give it weights first: qcompile refit {path} MODEL.onnx -o full.engine",
            file=path,
        )


def check_version_and_gpu(path: Path, manifest: Manifest, adapter: Adapter, gpu: Gpu) -> None:
    """Refuse an engine of another TensorRT or another GPU."""
    built_by = str(manifest.tools.get(adapter.package, ""))
    if not _same_version(built_by, adapter.version, carries_runtime(manifest.options)):
        raise ArtifactError(
            f"{path}: was built by {adapter.package} {built_by or 'of unknown version'}; "
            f"here is {adapter.version}",
            hint="build it here, install that version, or build with `version_compatible`",
            file=path,
        )
    listed = manifest.device.get("gpus")
    gpus = [str(name) for name in listed] if isinstance(listed, list) else []
    portable = manifest.options.get("hardware_compatible") == "ampere+"
    if gpu.architecture not in gpus and not (portable and _capability(gpu.architecture) >= _AMPERE):
        name = manifest.device.get("gpu")
        raise ArtifactError(
            f"{path}: was built for {', '.join(gpus) or 'an unknown GPU'}"
            f"{f' ({name})' if name else ''}; here is {gpu.name} ({gpu.architecture})",
            hint="build it for this GPU, or with `hardware_compatible` ampere+",
            file=path,
        )


def _capability(gpu: str) -> int:
    """86 of "sm86"; -1 of what is no such name."""
    number = re.fullmatch(r"sm(\d+)", gpu, re.IGNORECASE)
    return int(number[1]) if number else -1


def target_of(plan: bytes) -> str:
    """Return the target that reads a plan, by its first bytes."""
    return "tensorrt-rtx" if plan.startswith(_RTX_MAGIC) else "tensorrt"


def carries_runtime(options: Mapping[str, object]) -> bool:
    """Whether an engine holds the lean runtime, which newer versions run it with, as host code.

    Without it only its own version loads it, unless the lean library of that version is given to
    `IRuntime::loadRuntime` (NvInferRuntime.h).
    """
    return bool(options.get("version_compatible")) and not options.get("exclude_lean_runtime")


def _same_version(built_by: str, here: str, compatible: bool) -> bool:
    """Plans are of one version; version-compatible ones of one major version.

    From 8.6 on a plan is of one version to its fourth number ("expecting library version 8.6.1.6 got
    8.6.1.2", NVIDIA/TensorRT issue 3069; "9.2.0.5 got 9.2.0.4", issue 3793), before to its third
    ("8.2.4 got 8.2.3", pytorch/TensorRT issue 1059).
    """
    built, present = version_numbers(built_by, 4), version_numbers(here, 4)
    if not built:
        return False
    if compatible and built[0] == present[0] and present[:3] >= built[:3]:
        return True
    count = min(len(built), len(present), 4 if built >= _FOUR_NUMBERS else 3)
    return built[:count] == present[:count]


_WHICH = (
    "RTX 30 and A10 are sm86, RTX 40 and L4 sm89, RTX 50 sm120; "
    "`qcompile doctor` tells it on the machine with the GPU"
)


def require_gpus(adapter: Adapter, gpus: Sequence[str]) -> None:
    """Check the compute capabilities that an engine is to be built for, before any work is done."""
    known = adapter.compute_capabilities()
    for gpu in gpus:
        if gpu.upper() in known:
            continue
        digits = "".join(re.findall("[0-9]", gpu))
        raise InvalidOption(
            f"`gpus` {gpu}: {adapter.name} builds for {', '.join(known).lower()}",
            hint=f"write sm{digits}" if f"SM{digits}" in known else _WHICH,
            option="gpus",
        )


ALLOCATIONS = {"static": "STATIC", "profile": "ON_PROFILE_CHANGE", "runtime": "USER_MANAGED"}
"""`allocation_strategy` to TensorRT's name (NvInferRuntime.h of 10.16:3106). For "profile", trtexec allocates
the size of the profile itself (sampleInference.cpp of 10.16:387), as TensorRT does with ON_PROFILE_CHANGE."""


def check_memory(adapter: Adapter, options: TensorRTOptions, *, calibrates: bool) -> None:
    """Refuse what this TensorRT cannot do to need less memory where an engine runs."""
    needed = {
        "`allocation_strategy`": (options.allocation_strategy, "get_device_memory_size_for_profile_v2"),
        "`weight_streaming`": (options.weight_streaming, "weight_streaming_budget_v2"),
    }
    for option, (value, name) in needed.items():
        if value and not hasattr(adapter.module.ICudaEngine, name):
            raise adapter.lacks(option, f"ICudaEngine.{name}", "leave it out, or use TensorRT 10.1 or newer")
    if options.weight_streaming and (calibrates or not adapter.strongly_typed):
        raise adapter.lacks(
            "`weight_streaming`",
            "weight streaming in weakly typed networks",  # trtexec: sampleOptions.cpp of 10.16:2799
            "leave `calibrator` and `typing` out, with INT8 as Q/DQ in the graph",
        )


_TYPES = {"nvfp4": ("FP4", "10.11"), "mxfp8": ("E8M0", "10.12")}
"""FP4 came with 10.8; its parser reads opset 23, in which ONNX has the type, from 10.11 on."""
_FIRST_CAPABILITY = 100


def check_block_format(adapter: Adapter, precision: str, gpus: Sequence[str], device: int = 0) -> None:
    """Refuse a block format that this TensorRT or one of the GPUs does not have.

    Args:
        adapter: Which TensorRT.
        precision: "nvfp4" or "mxfp8".
        gpus: Compute capabilities to build for, such as "sm120"; none for a GPU of this machine.
        device: The number of that GPU.
    """
    kind, since = _TYPES[precision]
    if not hasattr(adapter.module.DataType, kind):
        raise InvalidOption(
            f"`precision` {precision}: {adapter.name} has no type {kind}",
            hint=f"use TensorRT {since} or newer, or `precision` fp8 or int8",
            option="precision",
        )
    here = None if gpus else find_gpu(device)
    for gpu in gpus or ([here.architecture] if here is not None else []):
        if 0 <= _capability(gpu) < _FIRST_CAPABILITY:
            raise InvalidOption(
                f"`precision` {precision}: {gpu} has no {precision.upper()}; it begins with sm100",
                hint="name GPUs from sm100 on, such as sm120, or choose `precision` fp8 (from sm89) or int8",
                option="precision",
            )


def dequantized_products(adapter: Adapter, precision: str) -> list[str]:
    """Return the warning that TensorRT-RTX has no product of MXFP8; none for others.

    Found in engines of 1.7.1 for sm120: their generated programs make float16 of both operands
    (docs/tensorrt_builds.md).
    """
    if precision != "mxfp8" or not adapter.is_rtx:
        return []
    return [
        f"{adapter.name} stores MXFP8 and multiplies floats: engines of 1.7.1 dequantize both operands; "
        "`precision` nvfp4 and fp8 have products of their own"
    ]
