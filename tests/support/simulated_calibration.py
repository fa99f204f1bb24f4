"""Where a weakly typed build gets the scales of INT8 from: dynamic ranges, or a calibrator."""

from __future__ import annotations

from typing import Any

from simulated_network import kind_of, say

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
