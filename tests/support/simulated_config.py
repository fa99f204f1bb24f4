"""Behaviours of TensorRT's builder configuration, profiles and host memory."""

from __future__ import annotations

import json
from typing import Any

from simulated_network import say, usage_error
from simulated_timing_cache import TimingCache, make_cache

_EXCLUSIVE = ("REFIT", "REFIT_IDENTICAL", "REFIT_INDIVIDUAL")
_POOLS = {"WORKSPACE": 64 << 30, "TACTIC_DRAM": 64 << 30, "TACTIC_SHARED_MEMORY": 1 << 30}


class HostMemory(bytes):
    """IHostMemory: a buffer, and no sequence.

    Source: python/src/infer/pyFoundationalTypes.cpp of release/10.13, `IHostMemory`: a buffer with `dtype`
    and `nbytes`, and nothing else.
    """

    def __init__(self, content: bytes) -> None:
        self._size = len(content)

    def __len__(self) -> int:
        raise TypeError("object of type 'IHostMemory' has no len()")

    def __getitem__(self, key: Any) -> Any:
        raise TypeError("'IHostMemory' object is not subscriptable")


class Profile:
    """IOptimizationProfile."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._shapes: dict[str, list[tuple[int, ...]]] = {}
        self._values: dict[str, list[tuple[int, ...]]] = {}

    def set_shape(self, name: str, min: Any, opt: Any, max: Any) -> None:
        self._shapes[name] = [tuple(min), tuple(opt), tuple(max)]

    def set_shape_input(self, name: str, min: Any, opt: Any, max: Any) -> None:
        # Source: tensorrt_rtx 1.7.1.116, tried; python/src/infer/pyCore.cpp, opt_profile_set_shape_input.
        if not (len(min) == len(opt) == len(max) and all(a <= b for a, b in zip(min, opt, strict=True))):
            raise RuntimeError("opt input provided for shape tensor is inconsistent with other inputs.")
        self._values[name] = [tuple(min), tuple(opt), tuple(max)]

    def __bool__(self) -> bool:
        return not self._wrong()

    def _wrong(self) -> str:
        """The first tensor whose shapes are not in order."""
        for name, (low, opt, high) in (self._shapes | self._values).items():
            same_rank = len(low) == len(opt) == len(high)
            if not same_rank or any(not a <= b <= c for a, b, c in zip(low, opt, high, strict=True)):
                return name
        return ""


class Config:
    """IBuilderConfig: every option is kept; what a test refuses is logged as an error and not taken.

    Source: NvInfer.h of release/8.5 to 10.13, `IBuilderConfig`, and python/src/infer/pyCore.cpp; what is
    refused, and in which words, is TensorRT-RTX 1.7.1's, tried.
    """

    DLA_core = -1

    def __init__(self, builder: Any) -> None:
        self._builder, self._log = builder, builder._log
        self._circumstances = builder._circumstances
        self._clear()

    def _clear(self) -> None:
        module = self._module
        self._flags = 1 << int(module.BuilderFlag.TF32)
        self._pools = {name: _POOLS.get(name, 0) for name in module.MemoryPoolType.__members__}
        self._profiles: list[Any] = []
        self._calibration_profile: Any = None
        self._calibrator: Any = None
        self._monitor: Any = None
        self._level, self._streams = 3, -1
        self._tiling: Any = None
        self._l2_limit, self._route = 0, ""
        self._verbosity = module.ProfilingVerbosity.LAYER_NAMES_ONLY
        self._capability = module.EngineCapability.STANDARD
        self._device_type = module.DeviceType.GPU
        self._compatible = "NONE"
        self._cache: Any = None
        self._capabilities: list[Any] = []
        self._platform: Any = None

    def _takes(self, name: str, where: str) -> bool:
        """Whether an option is taken; an error is logged where the test's circumstances refuse it."""
        reason = self._circumstances.refused.get(name)
        if reason is not None:
            usage_error(self, f"IBuilderConfig::{where}", reason)
        return reason is None

    # Flags

    def set_flag(self, flag: Any) -> None:
        _require(flag, self._module.BuilderFlag, "set_flag")
        if not self._takes(flag.name, "setFlag"):
            return
        if flag.name in _EXCLUSIVE:
            for name in set(_EXCLUSIVE) & set(self._module.BuilderFlag.__members__):
                self._flags &= ~(1 << int(self._module.BuilderFlag[name]))
        self._flags |= 1 << int(flag)

    def clear_flag(self, flag: Any) -> None:
        _require(flag, self._module.BuilderFlag, "clear_flag")
        self._flags &= ~(1 << int(flag))

    def get_flag(self, flag: Any) -> bool:
        _require(flag, self._module.BuilderFlag, "get_flag")
        return bool(self._flags >> int(flag) & 1)

    def _has(self, name: str) -> bool:
        members = self._module.BuilderFlag.__members__
        return name in members and bool(self._flags >> int(members[name]) & 1)

    # Options with a value

    @property
    def builder_optimization_level(self) -> int:
        return self._level

    @builder_optimization_level.setter
    def builder_optimization_level(self, value: int) -> None:
        if self._takes("builder_optimization_level", "setBuilderOptimizationLevel"):
            self._level = min(max(value, 0), 5)  # as TensorRT-RTX 1.7.1 does, without a word

    @property
    def max_aux_streams(self) -> int:
        return self._streams

    @max_aux_streams.setter
    def max_aux_streams(self, value: int) -> None:
        if value < 0:
            text = f"nbStreams {value} should not be negative, IBuilderConfig::setMaxAuxStreams({value})"
            say(self, "WARNING", f"{text} has no effect.")
        elif self._takes("max_aux_streams", "setMaxAuxStreams"):
            self._streams = value

    @property
    def tiling_optimization_level(self) -> Any:
        return self._tiling or self._module.TilingOptimizationLevel.NONE

    @tiling_optimization_level.setter
    def tiling_optimization_level(self, value: Any) -> None:
        _require(value, self._module.TilingOptimizationLevel, "tiling_optimization_level")
        if self._takes("tiling_optimization_level", "setTilingOptimizationLevel"):
            self._tiling = value

    @property
    def l2_limit_for_tiling(self) -> int:
        return self._l2_limit

    @l2_limit_for_tiling.setter
    def l2_limit_for_tiling(self, value: int) -> None:
        if self._takes("l2_limit_for_tiling", "setL2LimitForTiling"):
            self._l2_limit = value

    @property
    def build_route(self) -> str:
        return self._route

    @build_route.setter
    def build_route(self, value: str) -> None:
        # Source: NvInfer.h of release/11.1, setBuildRoute answers a bool that pyCore.cpp, set_build_route,
        # drops; tensorrt_rtx 1.7.1.116, tried: it keeps none, without a word.
        if not _is_rtx(self) and self._takes("build_route", "setBuildRoute"):
            self._route = value

    @property
    def all_build_routes(self) -> str:
        # Source: NvInfer.h of release/11.1, getAllBuildRoutes; tensorrt_rtx 1.7.1.116, tried: empty.
        known = {"option": "-conv_use_long_w", "allowed_values": "-conv_use_long_w=[on|off]"}
        return "" if _is_rtx(self) else json.dumps({"tuner_version": "2.19.15", "tuner_options": [known]})

    @property
    def hardware_compatibility_level(self) -> Any:
        self._warn_of_hardware("get")
        return self._module.HardwareCompatibilityLevel[self._compatible]

    @hardware_compatibility_level.setter
    def hardware_compatibility_level(self, value: Any) -> None:
        self._warn_of_hardware("set")
        if not _is_rtx(self) and self._takes("hardware_compatibility_level", "setHardwareCompatibilityLevel"):
            self._compatible = value.name

    def _warn_of_hardware(self, verb: str) -> None:
        if _is_rtx(self):
            say(self, "WARNING", f"{verb}HardwareCompatibilityLevel() is unsupported in TensorRT-RTX.")

    @property
    def profiling_verbosity(self) -> Any:
        return self._verbosity

    @profiling_verbosity.setter
    def profiling_verbosity(self, value: Any) -> None:
        _require(value, self._module.ProfilingVerbosity, "profiling_verbosity")
        self._verbosity = value

    @property
    def default_device_type(self) -> Any:
        return self._device_type

    @default_device_type.setter
    def default_device_type(self, value: Any) -> None:
        self._device_type = value

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

    # Profiles, calibration, progress

    def add_optimization_profile(self, profile: Any) -> int:
        wrong = profile._wrong()
        if wrong:
            text = f"Invalid optimization profiles for input tensors {wrong}, please ensure that the "
            say(self, "ERROR", "IOptimizationProfile::isValid: Error Code 4: API Usage Error "
                f"({text}optimization profiles satisfy MIN<=OPT<=MAX.)")  # fmt: skip
            usage_error(self, "IBuilderConfig::addOptimizationProfile", "condition: profile->isValid().")
            return -1
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def set_calibration_profile(self, profile: Any) -> bool:
        if profile._wrong():
            return False
        self._calibration_profile = profile
        return True

    @property
    def int8_calibrator(self) -> Any:
        return self._calibrator

    @int8_calibrator.setter
    def int8_calibrator(self, value: Any) -> None:
        self._calibrator = value

    @property
    def progress_monitor(self) -> Any:
        return self._monitor

    @progress_monitor.setter
    def progress_monitor(self, value: Any) -> None:
        if value is not None:
            _require(value, self._module.IProgressMonitor, "progress_monitor")
        self._monitor = value

    # Timing caches

    def create_timing_cache(self, content: Any) -> Any:
        return make_cache(self, bytes(content))

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        if cache._device != self._circumstances.device and not ignore_mismatch:
            return False
        self._cache = cache
        return True

    def get_timing_cache(self) -> Any:
        return self._cache

    # GPUs to build for, of TensorRT-RTX


def _is_rtx(owner: Any) -> bool:
    return bool(owner._module.__name__ == "tensorrt_rtx")


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
