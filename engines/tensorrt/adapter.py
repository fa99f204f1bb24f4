"""Most differences between TensorRT's versions, in one class.

docs/tensorrt.md has a table of the differences ("Differences between versions"). The names in the TensorRT
module show most features. Otherwise the version or the target decides: TensorRT-RTX's module has names
without effect.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.installation import install_hint
from ...errors import EngineUnavailable, InvalidOption
from ...spec.words import BLOCK_FORMATS, Precision
from ..words import version_numbers
from .parser_operators import UNKNOWN_OPSET, ParserOperators, ask_parser, parser_of

MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}

_WEAK_FLAGS = {"fp32": (), "tf32": (), "fp16": ("FP16",), "bf16": ("BF16",), "int8": ("INT8",)}
"""Builder flags that permit a precision in weakly typed networks."""

_IN_GRAPH = ("int8", "int4", "fp8", *BLOCK_FORMATS)

_WITHOUT_DLA = ((10, 8), (11, 4))
"""The first version without DLA (deep learning accelerators), and the first with DLA again (docs.nvidia.com,
"Working with DLA" of 11.4.1). The modules of the versions between them still have DLA's names."""

_HARDWARE = {"ampere+": "AMPERE_PLUS", "same-sm": "SAME_COMPUTE_CAPABILITY"}


def _module_has(name: str) -> property:
    return property(lambda adapter: hasattr(adapter.module, name))


@dataclass(frozen=True)
class Adapter:
    """An installed TensorRT module for the target "tensorrt" or "tensorrt-rtx". With `weak`, TensorRT
    chooses types (weakly typed networks), even if strongly typed networks are available."""

    module: Any
    target: str
    weak: bool = False

    @property
    def version(self) -> str:
        """The full version: "10.16.1.11"."""
        return str(self.module.__version__)

    @property
    def package(self) -> str:
        """Name of the distribution: "tensorrt" or "tensorrt-rtx"."""
        return str(self.module.__name__).replace("_", "-")

    @property
    def name(self) -> str:
        return f"{self.module.__name__} {self.version}"

    @property
    def strongly_typed(self) -> bool:
        """Whether the graph's types are binding: the module has STRONGLY_TYPED, and `weak` is off."""
        return not self.weak and hasattr(self.module.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")

    @property
    def has_weak_types(self) -> bool:
        """Whether TensorRT can choose among the precisions that builder flags permit."""
        return hasattr(self.module.BuilderFlag, "FP16")

    def typed(self, typing: str) -> Adapter:
        """Return the adapter for `typing` "weak", "strong" or "" (no change); raise InvalidOption if TensorRT
        lacks these types."""
        if typing == "weak" and not self.has_weak_types:
            raise self.lacks("`typing` weak", "flags that permit a precision", "leave it out")
        if typing == "strong" and not self.strongly_typed:
            raise self.lacks("`typing` strong", "strongly typed networks", "leave it out, or use TensorRT 10")
        return replace(self, weak=True) if typing == "weak" else self

    has_progress_monitor = _module_has("IProgressMonitor")
    """Whether a build can report its progress and be cancelled."""
    builds_ahead_of_time = _module_has("ComputeCapability")
    """Whether engines can be built for GPUs of other machines."""
    captures_by_itself = _module_has("CudaGraphStrategy")
    """Whether an execution context can capture and replay CUDA graphs by itself."""
    keeps_runtime_caches = _module_has("IRuntimeCache")
    """Whether TensorRT compiles kernels when an engine runs, and can store them in a cache."""

    @property
    def is_rtx(self) -> bool:
        return self.target == "tensorrt-rtx"

    @property
    def keeps_timing_caches(self) -> bool:
        """Whether timing caches have an effect; TensorRT-RTX chooses kernels when an engine runs."""
        return not self.is_rtx

    def parser(self) -> ParserOperators | None:
        """Return the operators of TensorRT's ONNX parser, from the data for the version or else from the
        parser; None if the data lack the version and the parser cannot be created here."""
        return self._parser_of_version() or ask_parser(self.module)

    @property
    def highest_opset(self) -> int:
        """The newest opset to write for TensorRT's parser; newer files are accepted without an error."""
        parser = self._parser_of_version()
        return parser.highest_opset if parser else UNKNOWN_OPSET

    def _parser_of_version(self) -> ParserOperators | None:
        return None if self.is_rtx else parser_of(self.version)

    def has_calibrators(self) -> bool:
        return hasattr(self.module, "IInt8EntropyCalibrator2") and hasattr(self.module.BuilderFlag, "INT8")

    def require_calibrators(self) -> None:
        if not self.has_calibrators():
            problem = f"`calibrator`: {self.name} has no INT8 calibrators; its INT8 is in the graph, as Q/DQ"
            hint = "leave `calibrator` out and give `ranges` FILE"
            raise InvalidOption(problem, hint=hint, option="calibrator")

    def network_flags(self, *, weak: bool = False) -> int:
        """Return the flags for `create_network`: STRONGLY_TYPED if available and not `weak` (calibrators need
        weak types), else EXPLICIT_BATCH in the versions that have this flag."""
        flags = self.module.NetworkDefinitionCreationFlag
        name = "STRONGLY_TYPED" if self.strongly_typed and not weak else "EXPLICIT_BATCH"
        return 1 << int(getattr(flags, name)) if hasattr(flags, name) else 0

    def set_precision(self, config: Any, precision: str, floats: str, *, weak: bool, tf32: bool) -> None:
        """Set or clear the TF32 flag, and set a precision's flags in weakly typed networks. TF32 is on by
        default. Its products have 10-bit mantissas, so only `tf32` and the precision "tf32" permit it."""
        flags = self.module.BuilderFlag
        (config.set_flag if tf32 or precision == "tf32" else config.clear_flag)(flags.TF32)
        for flag in self.permitting_flags(precision, floats, weak=weak):
            config.set_flag(flag)

    def permitting_flags(self, precision: str, floats: str, *, weak: bool = False) -> list[Any]:
        """Return the builder flags that permit a precision; [] in a strongly typed network."""
        if self.strongly_typed and not weak:
            return []
        if precision not in _WEAK_FLAGS:
            missing_feature = "flag for it, and no strongly typed networks"
            hint = "use TensorRT 10 or newer, or another precision"
            raise self.lacks(f"`precision` {precision}", missing_feature, hint)
        extra = _WEAK_FLAGS[floats] if precision == "int8" else ()
        return [self.flag(name, f"`precision` {precision}") for name in (*_WEAK_FLAGS[precision], *extra)]

    def graph_precision(self, precision: Precision) -> Precision:
        """Return the precision that the graph must have. In a strongly typed network it is the requested
        precision ("fp32" for "tf32"). A weakly typed network has only integers, FP8 and block formats in the
        graph, as Q/DQ; builder flags permit the other precisions, and the graph is "fp32"."""
        if precision == "tf32":
            return "fp32"
        return precision if self.strongly_typed or precision in _IN_GRAPH else "fp32"

    def flag(self, name: str, option: str) -> Any:
        if not hasattr(self.module.BuilderFlag, name):
            raise self.lacks(option, f"builder flag {name}")
        return getattr(self.module.BuilderFlag, name)

    def lacks(
        self, option: str, what: str, hint: str = "leave it out, or use another version"
    ) -> InvalidOption:
        return InvalidOption(f"{option}: {self.name} has no {what}", hint=hint, option=option.split()[0])

    def set_gpus(self, config: Any, gpus: Sequence[str]) -> None:
        """`require_gpus` has checked the compute capabilities."""
        if not gpus:
            return
        if not self.builds_ahead_of_time:
            problem = f"`gpus`: TensorRT {self.version} builds only for the GPU in this machine"
            raise InvalidOption(problem, hint="leave `gpus` out, or use `target` tensorrt-rtx")
        capabilities = self.compute_capabilities()
        config.num_compute_capabilities = len(gpus)
        for index, gpu in enumerate(gpus):
            config.set_compute_capability(capabilities[gpu.upper()], index)

    def compute_capabilities(self) -> dict[str, Any]:
        members: dict[str, Any] = self.module.ComputeCapability.__members__
        return {name: value for name, value in members.items() if name.startswith("SM")}

    def member(self, kind: Any, name: str, option: str, what: str) -> Any:
        """Return an enumeration's member by its spelling in options, for instance "tactic-shared-memory"."""
        members = kind.__members__
        key = name.upper().replace("-", "_")
        if key not in members:
            spellings = ", ".join(sorted(member.lower().replace("_", "-") for member in members))
            raise self.lacks(f"{option} {name}", f"such {what}; it has {spellings}", "choose one of these")
        return members[key]

    def require_dla(self) -> None:
        """Raise InvalidOption if this TensorRT does not support DLA."""
        removed, restored = _WITHOUT_DLA
        if self.is_rtx or removed <= version_numbers(self.version) < restored:
            hint = "leave it out: the GPU is used; TensorRT 8.5 to 10.7 and 11.4 have DLA"
            raise self.lacks("`dla_core`", "support for DLA", hint)

    def hardware_level(self, name: str) -> Any:
        option = "`hardware_compatible`"
        if self.is_rtx:
            raise self.lacks(option, "such levels; its engines are for the GPUs of `gpus`", "give `gpus`")
        levels = getattr(self.module, "HardwareCompatibilityLevel", None)
        if levels is None or not hasattr(levels, _HARDWARE[name]):
            raise self.lacks(f"{option} {name}", "such level of hardware compatibility")
        return getattr(levels, _HARDWARE[name])

    def require_config(self, attribute: str, option: str) -> None:
        if not hasattr(self.module.IBuilderConfig, attribute):
            raise self.lacks(option, f"IBuilderConfig.{attribute}")

    def tactic_sources(self, names: Sequence[str]) -> int:
        """Return the bit mask of tactic sources in options' spelling: "jit-convolutions"; 0 for ("none",)."""
        sources = () if tuple(names) == ("none",) else dict.fromkeys(names)
        kind = self.module.TacticSource
        return sum({1 << int(self.member(kind, name, "`tactic_sources`", "source")) for name in sources})

    def strip_flags(self, *, refit: bool, strip: bool) -> list[Any]:
        """Return the builder flags for an engine that accepts new weights (`refit`) or is stored without
        weights (`strip`).

        With `strip` only, the engine accepts only the weights of its build, and loses no speed. Its flag is
        kREFIT_IDENTICAL, which excludes kREFIT (NvInfer.h of 10.16:10566; trtexec: sampleEngines.cpp of
        10.16:1006).
        """
        flags = [self.flag("REFIT", "`refit`")] if refit else []
        if not strip:
            return flags
        stripped = self.flag("STRIP_PLAN", "`strip_weights`")
        return [*(flags or [self.flag("REFIT_IDENTICAL", "`strip_weights`")]), stripped]

    def memory_bytes(self, engine: Any) -> int:
        """Return the device memory of an execution context, in bytes."""
        newer = hasattr(self.module.ICudaEngine, "device_memory_size_v2")
        return int(engine.device_memory_size_v2 if newer else engine.device_memory_size)

    def share_profiles(self, config: Any) -> None:
        """Let several execution contexts use one profile; TensorRT 8.6 permits this only on request."""
        if hasattr(self.module.PreviewFeature, "PROFILE_SHARING_0806"):
            config.set_preview_feature(self.module.PreviewFeature.PROFILE_SHARING_0806, True)

    def shares_profiles(self) -> bool:
        """Return whether contexts of an engine with dynamic shapes may use one profile at the same time."""
        # The flag is new in 8.6, always on in 10 ("can not be changed", NvInferRuntime.h), and removed in 11.
        # 8.5, the only other version without the flag, has numbered bindings.
        has_flag = hasattr(self.module.PreviewFeature, "PROFILE_SHARING_0806")
        return has_flag or not hasattr(self.module.ICudaEngine, "num_bindings")

    def profile_values(self, engine: Any, name: str, profile: int) -> list[Sequence[int]]:
        """Return smallest, optimal and largest values of a shape input in a profile, [] if unavailable.

        In 8.x they are unavailable, because the binding exchanges the two arguments of
        `getProfileShapeValues` and reads a value per axis, not per element (python/src/infer/pyCore.cpp,
        `engine_get_profile_shape_input`).
        """
        has_values = hasattr(engine, "get_tensor_profile_values") and engine.is_shape_inference_io(name)
        # Arguments by position: the order is (profile, name), but the parameter names are exchanged.
        return list(engine.get_tensor_profile_values(profile, name)) if has_values else []

    def can_be_captured(self, context: Any, stream: int) -> bool:
        """Return whether a context can be captured in a CUDA graph; True in versions without this query."""
        return bool(getattr(context, "is_stream_capturable", lambda _: True)(stream))


def member_name(value: Any) -> str:
    """Return the name of a member of an enumeration: "HALF" for a type of a tensor."""
    return str(value).rsplit(".", 1)[-1]


def load_adapter(target: str) -> Adapter:
    try:
        module = importlib.import_module(MODULES[target])
    except Exception as error:  # besides ImportError: missing libraries raise RuntimeError or OSError
        problem = f"{MODULES[target]} cannot be imported ({error})"
        raise EngineUnavailable(problem, hint=install_hint(target), engine=target) from error
    return Adapter(module, target)
