"""TensorRT's builder configuration, profiles, timing caches, host memory, and where INT8 gets its scales."""

from __future__ import annotations

import json
from typing import Any

from simulated_network import kind_of, say, usage_error

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


# The words of logs of 8.6 and 10 (NVIDIA/TensorRT issues 1413, 2643).
_NO_CALIBRATOR = (
    "Calibrator is not being used. Users must provide dynamic range for all tensors that are not Int32 or "
    "Bool."
)
_MISSING_SCALE = (
    "Missing scale and zero-point for tensor {}, expect fall back to non-int8 implementation for any layer "
    "consuming or producing given tensor"
)
_NO_VALUES = (
    # As TensorRT-RTX 1.7.1 says it of the profiles that it builds with.
    "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (Optimization profile 0 is missing "
    "values for shape input tensor {}.)"
)


def find_scales(builder: Any, network: Any, config: Any) -> set[str] | None:
    """Return the tensors that have a scale; None where that failed. Q/DQ nodes are the graph's own scales.

    Source: NvInfer.h, `IBuilderConfig::setInt8Calibrator` and `ITensor::setDynamicRange`.
    """
    if not config._has("INT8") or any(kind_of(layer) == "QUANTIZE" for layer in network._layers):
        return set()
    tensors = [tensor for layer in network._layers for tensor in (*layer._inputs, *layer._outputs)]
    if vars(config).get("_int8_calibrator") is not None:
        return _calibrate(builder, network, config, {tensor._name for tensor in tensors})
    say(builder, "WARNING", _NO_CALIBRATOR)
    for name in sorted({tensor._name for tensor in tensors if tensor._range is None}):
        say(builder, "WARNING", _MISSING_SCALE.format(name))
    return {tensor._name for tensor in tensors if tensor._range is not None}


def _calibrate(builder: Any, network: Any, config: Any, tensors: set[str]) -> set[str] | None:
    """Drive a calibrator to the end of its batches.

    Source: NvInfer.h, `IInt8Calibrator::getBatch` (device memory of every input, by names),
    `readCalibrationCache` (no batch is asked for where a cache is given; issue 1378 on other headers), and
    `setCalibrationProfile` ("must be set if int8 calibration is used to set scales for a network with runtime
    dimensions").
    """
    calibrator = config.int8_calibrator
    known = calibrator.read_calibration_cache()
    if known and bytes(known).startswith(_cache_header(builder._module, calibrator).encode()):
        return tensors
    missing = _without_shape(network, config)
    if missing:
        say(builder, "ERROR", _NO_VALUES.format(missing))
        return None
    names = [tensor._name for tensor in network._inputs]
    calibrator.get_batch_size()
    while (addresses := calibrator.get_batch(names)) is not None:
        if len(addresses) != len(names):  # pyInt8.cpp copies as many as there are names, whatever it got
            raise TypeError(f"get_batch() must return {len(names)} addresses")
    header = _cache_header(builder._module, calibrator)
    lines = [header, *(f"{name}: 3c010a14" for name in sorted(tensors)), ""]
    calibrator.write_calibration_cache(memoryview("\n".join(lines).encode()))
    return tensors


def _without_shape(network: Any, config: Any) -> str:
    """An input whose shape or values are not fixed, and not in the calibration profile.

    Source: NvInfer.h of release/8.6, `IBuilderConfig::setCalibrationProfile`.
    """
    profile = config._calibration_profile
    for tensor in network._inputs:
        if tensor._holds_shape:
            known = profile is not None and tensor._name in profile._values
        else:
            dynamic = min(tensor._shape, default=0) < 0
            known = not dynamic or (profile is not None and tensor._name in profile._shapes)
        if not known:
            return str(tensor._name)
    return ""


def _cache_header(module: Any, calibrator: Any) -> str:
    """Source: caches in NVIDIA/TensorRT issue 2036 (TRT-8203) and ultralytics issue 14121 (TRT-8601);
    NvInferRuntimeBase.h of release/10.13, `NV_TENSORRT_VERSION_INT`, for the number from 10 on.
    """
    major, minor, patch = (int(part) for part in module.__version__.split(".")[:3])
    number = major * 1000 + minor * 100 + patch if major < 10 else major * 10000 + minor * 100 + patch
    minmax = isinstance(calibrator, module.IInt8MinMaxCalibrator)
    return f"TRT-{number}-{'MinMaxCalibration' if minmax else 'EntropyCalibration2'}"
