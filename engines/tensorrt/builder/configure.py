"""Apply options to TensorRT's builder configuration, and refuse what TensorRT does not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....errors import BuildError, InvalidOption
from ....spec.tensorrt import TensorRTOptions
from ....tensors import format_shape
from ..adapter import Adapter
from ..log import Log, setting
from .profiles import InputRange


def configure(adapter: Adapter, builder: Any, config: Any, log: Log, options: TensorRTOptions) -> None:
    """Set everything but precision, GPUs, profiles, calibrator and timing cache.

    Raises:
        InvalidOption: If this TensorRT lacks an option or refuses its value, in its own words.
    """
    module, name = adapter.module, adapter.name
    adapter.share_profiles(config)
    config.profiling_verbosity = module.ProfilingVerbosity.DETAILED  # the proof reads every layer
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
    """Add optimization profiles.

    Raises:
        BuildError: If TensorRT refuses one.
    """
    for ranges in profiles:
        profile = builder.create_optimization_profile()
        shapes = ", ".join(f"{item.name} up to {format_shape(item.max)}" for item in ranges)
        try:
            for item in ranges:
                give = profile.set_shape_input if item.of_values else profile.set_shape
                give(item.name, item.min, item.opt, item.max)
            accepted = config.add_optimization_profile(profile) >= 0
        except ValueError as error:
            raise BuildError(f"TensorRT refuses the optimization profile ({shapes}): {error}") from error
        if not accepted:
            raise BuildError(f"TensorRT refuses the optimization profile ({shapes})")
