"""Apply options to TensorRT's builder configuration, and refuse what TensorRT does not take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ....errors import BuildError, InvalidOption, first_line
from ....spec.tensorrt import TensorRTOptions
from ....tensors import format_shape
from ..adapter import Adapter
from ..log import Log, setting
from .profiles import InputRange

_VERBOSITY = {"": "DETAILED", "detailed": "DETAILED", "layer-names": "LAYER_NAMES_ONLY", "none": "NONE"}


def configure(adapter: Adapter, builder: Any, config: Any, log: Log, options: TensorRTOptions) -> None:
    """Set everything but precision, GPUs, profiles, calibrator and timing cache."""
    module, name = adapter.module, adapter.name
    adapter.share_profiles(config)
    config.profiling_verbosity = verbosity(adapter, "detailed")  # the proof reads every layer
    if options.workspace_bytes:
        with setting(log, f"`workspace` {options.workspace}", name):
            config.set_memory_pool_limit(module.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    for pool, size in options.pool_bytes.items():
        with setting(log, f"`memory_pools` {pool}", name):
            config.set_memory_pool_limit(adapter.memory_pool(pool), size)
    if options.optimization_level >= 0:
        _set(adapter, config, log, "builder_optimization_level", options.optimization_level,
             f"`optimization_level` {options.optimization_level}")  # fmt: skip
    if options.aux_streams >= 0:
        _set(adapter, config, log, "max_aux_streams", options.aux_streams, "`aux_streams`")
    if options.tiling_level >= 0:
        option = f"`tiling_level` {options.tiling_level}"
        adapter.require_config("tiling_optimization_level", option)
        level = module.TilingOptimizationLevel(options.tiling_level)
        _set(adapter, config, log, "tiling_optimization_level", level, option)
    if options.l2_limit_bytes:
        limit = options.l2_limit_bytes
        _set(adapter, config, log, "l2_limit_for_tiling", limit, "`tiling_l2_limit`")
    if options.build_route:
        _require_routes(adapter, config, options.build_route)
        _set(adapter, config, log, "build_route", options.build_route, "`build_route`")
    if options.hardware_compatible:
        level = adapter.hardware_level(options.hardware_compatible)
        _set(adapter, config, log, "hardware_compatibility_level", level, "`hardware_compatible`")
    if options.tactic_sources:
        with setting(log, "`tactic_sources`", name):
            config.set_tactic_sources(adapter.tactic_sources(options.tactic_sources))
    if options.dla_core >= 0:
        _use_dla(adapter, builder, config, options)
    for option, flag in _flags(adapter, options):
        with setting(log, option, name):
            config.set_flag(flag)
        if not config.get_flag(flag):
            raise InvalidOption(f"{option}: {name} did not take it", option=option)


def verbosity(adapter: Adapter, name: str) -> Any:
    """Return the profiling verbosity of `profiling_verbosity`."""
    return getattr(adapter.module.ProfilingVerbosity, _VERBOSITY[name])


def _flags(adapter: Adapter, options: TensorRTOptions) -> list[tuple[str, Any]]:
    """The builder flags that the options ask for, each with the option's name."""
    flags = [
        ("`strip_weights`" if options.strip_weights else "`refit`", flag)
        for flag in adapter.strip_flags(refit=options.refit, strip=options.strip_weights)
    ]
    asked = {
        "`version_compatible`": ("VERSION_COMPATIBLE", options.version_compatible),
        "`exclude_lean_runtime`": ("EXCLUDE_LEAN_RUNTIME", options.exclude_lean_runtime),
        "`gpu_fallback`": ("GPU_FALLBACK", options.gpu_fallback),
        "`sparse_weights`": ("SPARSE_WEIGHTS", options.sparse_weights),
        "`weight_streaming`": ("WEIGHT_STREAMING", bool(options.weight_streaming)),
    }
    return flags + [
        (option, adapter.flag(name, option)) for option, (name, enabled) in asked.items() if enabled
    ]


def _set(adapter: Adapter, config: Any, log: Log, attribute: str, value: Any, option: str) -> None:
    adapter.require_config(attribute, option)
    with setting(log, option, adapter.name):
        setattr(config, attribute, value)
    if getattr(config, attribute) != value:
        raise InvalidOption(f"{option}: {adapter.name} did not take it", option=option.split()[0])


def build_routes(config: Any) -> dict[str, str]:
    """Return the options that a `build_route` may be made of, each with its values; {} before 11.1.

    JSON, as NvInfer.h of 11.1:11402 (getAllBuildRoutes) shows it; empty in TensorRT-RTX 1.7.1.
    """
    text = getattr(config, "all_build_routes", "")
    options = json.loads(text)["tuner_options"] if text else []
    return {str(option["option"]): str(option["allowed_values"]) for option in options}


def _require_routes(adapter: Adapter, config: Any, route: str) -> None:
    """Refuse what the compiler does not list: a recipe of a stranger must not reach its other options."""
    adapter.require_config("build_route", "`build_route`")
    known = build_routes(config)
    for option in (word.partition("=")[0] for word in route.split()):
        if option not in known:
            hint = "`dry_run` lists the options and their values"
            raise adapter.lacks(f"`build_route` {option}", "such option of its compiler", hint)


def _use_dla(adapter: Adapter, builder: Any, config: Any, options: TensorRTOptions) -> None:
    """Put every layer on a deep learning accelerator."""
    if options.dla_core >= builder.num_DLA_cores:
        raise InvalidOption(
            f"`dla_core` {options.dla_core}: this machine has {builder.num_DLA_cores} DLA cores",
            hint="leave it out: the GPU is used",
            option="dla_core",
        )
    config.default_device_type = adapter.module.DeviceType.DLA
    config.DLA_core = options.dla_core


def add_profiles(builder: Any, config: Any, profiles: Sequence[Sequence[InputRange]]) -> None:
    """Add optimization profiles."""
    for number, ranges in enumerate(profiles, 1):
        profile = builder.create_optimization_profile()
        for item in ranges:
            _give(profile, item)
        if config.add_optimization_profile(profile) < 0:
            raise BuildError(
                f"TensorRT refuses optimization profile {number} ({', '.join(map(_spelled, ranges))})"
            )


def set_calibration_profile(builder: Any, config: Any, ranges: Sequence[InputRange]) -> None:
    """TensorRT calibrates at the OPT shape of a profile; this one has the shapes of the data only."""
    profile = builder.create_optimization_profile()
    for item in ranges:
        _give(profile, item)
    if not config.set_calibration_profile(profile):
        raise BuildError(f"TensorRT refuses the calibration profile ({', '.join(map(_spelled, ranges))})")


def _give(profile: Any, item: InputRange) -> None:
    """Give a profile one range.

    `set_shape` and `set_shape_input` return nothing and raise RuntimeError where C++ answers false
    (python/src/infer/pyCore.cpp, `opt_profile_set_shape`, release/8.5 to 11.1); the binding itself raises
    TypeError for what no `Dims` can hold.
    """
    give = profile.set_shape_input if item.of_values else profile.set_shape
    try:
        give(item.name, item.min, item.opt, item.max)
    except (RuntimeError, TypeError, ValueError) as error:
        raise BuildError(f"TensorRT refuses the range of {_spelled(item)}: {first_line(error)}") from error


def _spelled(item: InputRange) -> str:
    least, usual, most = (format_shape(shape) for shape in (item.min, item.opt, item.max))
    kind = "values of input" if item.of_values else "input"
    return f"{kind} {item.name!r}: {least}, {usual}, {most} (min, opt, max)"
