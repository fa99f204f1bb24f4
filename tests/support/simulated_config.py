"""Behaviours of TensorRT's builder configuration, profiles, timing caches and host memory."""

from __future__ import annotations

import json
from typing import Any

from simulated_network import say, usage_error

_EXCLUSIVE = ("REFIT", "REFIT_IDENTICAL", "REFIT_INDIVIDUAL")
_POOLS = {"WORKSPACE": 64 << 30, "TACTIC_DRAM": 64 << 30, "TACTIC_SHARED_MEMORY": 1 << 30}
_CACHE_MAGIC = b"timing"
_MYELIN = (
    "1: [myelinCache.h::deserializeFromBuffer::52] Error Code 1: Myelin (Myelin error from unknown graph)"
)
_NO_MAGIC = (
    "1: [stdArchiveReader.cpp::StdArchiveReaderInitCommon::36] Error Code 1: Serialization (Serialization "
    "assertion magicTagRead == kMAGIC_TAG failed.Magic tag does not match)"
)


class HostMemory(bytes):
    """IHostMemory: a buffer, and no sequence.

    Source: python/src/infer/pyFoundationalTypes.cpp of release/10.13, `IHostMemory`: a buffer with `dtype`
    and `nbytes`, and nothing else.
    """

    def _refuse(self, *_: Any) -> Any:
        raise TypeError("'IHostMemory' has neither a length nor items")

    __len__ = __getitem__ = _refuse


class Profile:
    """IOptimizationProfile. Source: NvInfer.h of release/8.5 to 10.13, `IOptimizationProfile`."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._shapes: dict[str, list[tuple[int, ...]]] = {}
        self._values: dict[str, list[tuple[int, ...]]] = {}

    def set_shape(self, name: str, min: Any, opt: Any, max: Any) -> None:
        self._shapes[name] = [tuple(min), tuple(opt), tuple(max)]

    def set_shape_input(self, name: str, min: Any, opt: Any, max: Any) -> None:
        self._values[name] = [tuple(min), tuple(opt), tuple(max)]


def _option(name: str, default: Any, *, kind: str = "", of_rtx: bool = True) -> property:
    """An attribute; `kind` is its enumeration, of which `default` is then a name.

    Source: python/src/infer/pyCore.cpp, `def_property`; tensorrt_rtx 1.7.1.116, tried: it keeps nothing
    that is not `of_rtx`, and of hardware compatibility it says so.
    """

    def is_kept(config: Any, verb: str) -> bool:
        if config._module.__name__ != "tensorrt_rtx":
            return True
        if name == "hardware_compatibility_level":
            say(config, "WARNING", f"{verb}HardwareCompatibilityLevel() is unsupported in TensorRT-RTX.")
        return of_rtx

    def read(self: Any) -> Any:
        is_kept(self, "get")
        return vars(self).get(f"_{name}", getattr(self._module, kind)[default] if kind else default)

    def write(self: Any, value: Any) -> None:
        if kind:
            _require(value, getattr(self._module, kind), name)
        if is_kept(self, "set") and self._takes(name, f"set{name.title().replace('_', '')}"):
            vars(self)[f"_{name}"] = value

    return property(read, write)


class Config:
    """IBuilderConfig: every option is kept; what a test refuses is logged as an error and not taken.

    Source: NvInfer.h of release/8.5 to 10.13, `IBuilderConfig`, and python/src/infer/pyCore.cpp; what is
    refused, and in which words, is TensorRT-RTX 1.7.1's, tried.
    """

    DLA_core = -1
    builder_optimization_level = _option("builder_optimization_level", 3)
    max_aux_streams = _option("max_aux_streams", -1)
    tiling_optimization_level = _option("tiling_optimization_level", "NONE", kind="TilingOptimizationLevel")
    l2_limit_for_tiling = _option("l2_limit_for_tiling", 0)
    # Source: NvInfer.h of release/11.1, setBuildRoute answers a bool that pyCore.cpp, set_build_route, drops.
    build_route = _option("build_route", "", of_rtx=False)
    hardware_compatibility_level = _option(
        "hardware_compatibility_level", "NONE", kind="HardwareCompatibilityLevel", of_rtx=False
    )
    profiling_verbosity = _option("profiling_verbosity", "LAYER_NAMES_ONLY", kind="ProfilingVerbosity")
    default_device_type = _option("default_device_type", "GPU", kind="DeviceType")
    int8_calibrator = _option("int8_calibrator", None)
    progress_monitor = _option("progress_monitor", None)

    def __init__(self, builder: Any) -> None:
        self._builder, self._log = builder, builder._log
        self._circumstances = builder._circumstances
        self._flags = {"TF32"}
        self._pools = dict(_POOLS)
        self._profiles: list[Any] = []
        self._calibration_profile: Any = None
        self._cache: Any = None
        self._capabilities: list[Any] = []

    def _takes(self, name: str, where: str) -> bool:
        """Whether an option is taken; an error is logged where the test's circumstances refuse it."""
        reason = self._circumstances.refused.get(name)
        if reason is not None:
            usage_error(self, f"IBuilderConfig::{where}", reason)
        return reason is None

    def set_flag(self, flag: Any) -> None:
        _require(flag, self._module.BuilderFlag, "set_flag")
        if self._takes(flag.name, "setFlag"):
            self._flags -= {*_EXCLUSIVE} if flag.name in _EXCLUSIVE else set()
            self._flags.add(flag.name)

    def clear_flag(self, flag: Any) -> None:
        self._flags.discard(flag.name)

    def get_flag(self, flag: Any) -> bool:
        return self._has(flag.name)

    def _has(self, name: str) -> bool:
        return name in self._flags

    @property
    def all_build_routes(self) -> str:
        # Source: NvInfer.h of release/11.1, getAllBuildRoutes; tensorrt_rtx 1.7.1.116, tried: empty.
        known = {"option": "-conv_use_long_w", "allowed_values": "-conv_use_long_w=[on|off]"}
        routes = json.dumps({"tuner_version": "2.19.15", "tuner_options": [known]})
        return "" if self._module.__name__ == "tensorrt_rtx" else routes

    def set_memory_pool_limit(self, pool: Any, size: int) -> None:
        _require(pool, self._module.MemoryPoolType, "set_memory_pool_limit")
        if pool.name.startswith("DLA_") and not self._circumstances.dla_cores:
            reason = "Setting DLA memory pool size on TensorRT build with DLA disabled."
            usage_error(self, "IBuilderConfig::setMemoryPoolLimit", reason)
        elif self._takes(pool.name, "setMemoryPoolLimit"):
            self._pools[pool.name] = size

    def set_tactic_sources(self, sources: int) -> bool:
        return self._takes("tactic_sources", "setTacticSources")

    def set_preview_feature(self, feature: Any, on: bool) -> None:
        _require(feature, self._module.PreviewFeature, "set_preview_feature")

    def add_optimization_profile(self, profile: Any) -> int:
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def set_calibration_profile(self, profile: Any) -> bool:
        self._calibration_profile = profile
        return True

    def create_timing_cache(self, content: Any) -> Any:
        """Of bytes that it cannot read it makes an empty cache.

        Source: NvInfer.h, `createTimingCache`; the logs of NVIDIA/TensorRT issue 3566 (8.6) and KataGo issue
        739 (8.5 without cuDNN), whose builds go on.
        """
        device, tactics, content = self._circumstances.device, {}, bytes(content)
        if content and self._module.__name__ != "tensorrt_rtx":
            magic, _, body = content.partition(b"\n")
            read = json.loads(body) if magic == _CACHE_MAGIC else {"version": ""}
            if self._circumstances.reads_no_caches:
                say(self, "ERROR", _MYELIN)
                say(self, "ERROR", "4: The timing cache will not be used!")
            elif read["version"] != self._module.__version__:
                say(self, "ERROR", _NO_MAGIC)
                say(self, "WARNING", "The timing cache will not be used!")
            else:
                device, tactics = read["device"], read["tactics"]
        return self._module.ITimingCache(self._log, device, tactics)

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        if cache._device != self._circumstances.device and not ignore_mismatch:
            return False
        self._cache = cache
        return True

    def get_timing_cache(self) -> Any:
        return self._cache


class TimingCache:
    """ITimingCache: measured tactics by layer, and the device and version they were measured on.

    Source: NvInfer.h of release/10.13, `ITimingCache`: `combine` is skipped and false where the header
    differs and `ignoreMismatch` is false.
    """

    def __init__(self, log: Any, device: str, tactics: dict[str, str]) -> None:
        self._log, self._device, self._tactics = log, device, tactics

    def serialize(self) -> Any:
        content = {"device": self._device, "version": self._module.__version__, "tactics": self._tactics}
        return self._module.IHostMemory(_CACHE_MAGIC + b"\n" + json.dumps(content, sort_keys=True).encode())

    def combine(self, other: Any, ignore_mismatch: bool) -> bool:
        if other._device != self._device and not ignore_mismatch:
            return False
        self._tactics |= other._tactics
        return True


def _require(value: Any, kind: type, where: str) -> None:
    """As pybind11 refuses an argument of another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{where}(): incompatible function arguments: {value!r} is no {kind.__name__}")


BEHAVIOURS: dict[str, Any] = {
    "IHostMemory": HostMemory,
    "ITimingCache": TimingCache,
    "IOptimizationProfile": Profile,
    "IBuilderConfig": Config,
}
