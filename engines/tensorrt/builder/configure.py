"""Apply options to TensorRT's builder configuration, and refuse what TensorRT does not take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ....errors import BuildError, InvalidOption, first_line
from ....spec.tensorrt import TensorRTOptions
from ....tensors import format_shape
from ..adapter import Adapter
from ..log import Log, setting
from ..runner.io_tensors import InputRange

_VERBOSITY = {"": "DETAILED", "detailed": "DETAILED", "layer-names": "LAYER_NAMES_ONLY", "none": "NONE"}


def configure(adapter: Adapter, builder: Any, config: Any, log: Log, options: TensorRTOptions) -> None:
    """Set everything but precision, GPUs, profiles, calibrator and timing cache."""
    module, name = adapter.module, adapter.name
    adapter.share_profiles(config)
    config.profiling_verbosity = verbosity(adapter, "detailed")  # the proof reads every layer
    kinds, sizes = module.MemoryPoolType, options.pool_bytes
    pools = {adapter.member(kinds, pool, "`memory_pools`", "pool"): size for pool, size in sizes.items()}
    if options.workspace_bytes:
        pools[kinds.WORKSPACE] = options.workspace_bytes
    for pool, size in pools.items():
        option = f"`memory_pools` {pool.name.lower().replace('_', '-')}"
        with setting(log, f"`workspace` {options.workspace}" if pool.name == "WORKSPACE" else option, name):
            config.set_memory_pool_limit(pool, size)
    for option, attribute, value in _attributes(adapter, config, options):
        adapter.require_config(attribute, option)
        with setting(log, option, name):
            setattr(config, attribute, value)
        if getattr(config, attribute) != value:
            raise InvalidOption(f"{option}: {name} did not take it", option=option.split()[0])
    if options.tactic_sources:
        with setting(log, "`tactic_sources`", name):
            config.set_tactic_sources(adapter.tactic_sources(options.tactic_sources))
    if options.dla_core >= 0:  # for every layer
        if options.dla_core >= builder.num_DLA_cores:
            raise InvalidOption(
                f"`dla_core` {options.dla_core}: this machine has {builder.num_DLA_cores} DLA cores",
                hint="leave it out: the GPU is used",
                option="dla_core",
            )
        config.default_device_type, config.DLA_core = module.DeviceType.DLA, options.dla_core
    for option, flag in _flags(adapter, options):
        with setting(log, option, name):
            config.set_flag(flag)
        if not config.get_flag(flag):
            raise InvalidOption(f"{option}: {name} did not take it", option=option)


def _attributes(adapter: Adapter, config: Any, options: TensorRTOptions) -> Iterator[tuple[str, str, Any]]:
    """Option in words, the configuration's attribute, and its value."""
    if (effort := options.optimization_level) >= 0:
        yield f"`optimization_level` {effort}", "builder_optimization_level", effort
    if options.aux_streams >= 0:
        yield "`aux_streams`", "max_aux_streams", options.aux_streams
    if (tiling := options.tiling_level) >= 0:
        kind = getattr(adapter.module, "TilingOptimizationLevel", int)
        yield f"`tiling_level` {tiling}", "tiling_optimization_level", kind(tiling)
    if options.l2_limit_bytes:
        yield "`tiling_l2_limit`", "l2_limit_for_tiling", options.l2_limit_bytes
    if options.build_route:
        # A recipe of a stranger must not reach options of the compiler that it does not list.
        adapter.require_config("build_route", "`build_route`")
        known = build_routes(config)
        for option in (word.partition("=")[0] for word in options.build_route.split()):
            if option not in known:
                hint = "`dry_run` lists the options and their values"
                raise adapter.lacks(f"`build_route` {option}", "such option of its compiler", hint)
        yield "`build_route`", "build_route", options.build_route
    if options.hardware_compatible:
        level = adapter.hardware_level(options.hardware_compatible)
        yield "`hardware_compatible`", "hardware_compatibility_level", level


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


def build_routes(config: Any) -> dict[str, str]:
    """Return the options that a `build_route` may be made of, each with its values; {} before 11.1.

    JSON, as NvInfer.h of 11.1:11402 (getAllBuildRoutes) shows it; empty in TensorRT-RTX 1.7.1.
    """
    text = getattr(config, "all_build_routes", "")
    options = json.loads(text)["tuner_options"] if text else []
    return {str(option["option"]): str(option["allowed_values"]) for option in options}


def add_profiles(builder: Any, config: Any, profiles: Sequence[Sequence[InputRange]]) -> None:
    """Add optimization profiles."""
    for number, ranges in enumerate(profiles, 1):
        if config.add_optimization_profile(_profile(builder, ranges)) < 0:
            spelled = ", ".join(map(_spelled, ranges))
            raise BuildError(f"TensorRT refuses optimization profile {number} ({spelled})")


def set_calibration_profile(builder: Any, config: Any, ranges: Sequence[InputRange]) -> None:
    """TensorRT calibrates at the OPT shape of a profile; this one has the shapes of the data only."""
    profile = _profile(builder, ranges)
    if not config.set_calibration_profile(profile):
        raise BuildError(f"TensorRT refuses the calibration profile ({', '.join(map(_spelled, ranges))})")


def _profile(builder: Any, ranges: Sequence[InputRange]) -> Any:
    """A profile of ranges.

    `set_shape` and `set_shape_input` return nothing and raise RuntimeError where C++ answers false
    (python/src/infer/pyCore.cpp, `opt_profile_set_shape`, release/8.5 to 11.1); the binding itself raises
    TypeError for what no `Dims` can hold.
    """
    profile = builder.create_optimization_profile()
    for item in ranges:
        set_range = profile.set_shape_input if item.of_values else profile.set_shape
        try:
            set_range(item.name, item.min, item.opt, item.max)
        except (RuntimeError, TypeError, ValueError) as error:
            raise BuildError(
                f"TensorRT refuses the range of {_spelled(item)}: {first_line(error)}"
            ) from error
    return profile


def _spelled(item: InputRange) -> str:
    least, usual, most = (format_shape(shape) for shape in (item.min, item.opt, item.max))
    kind = "values of input" if item.of_values else "input"
    return f"{kind} {item.name!r}: {least}, {usual}, {most} (min, opt, max)"
