"""The options that only TensorRT's builders take, as one group of `qcompile build`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .session import split

if TYPE_CHECKING:
    from ..engines.tensorrt.options import TensorRTOptions

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--profile", "profiles", multiple=True, metavar="NAME:MIN..OPT..MAX,...",
        help="One optimization profile with every dynamic input; repeat for several.",
    ),
    click.option("--workspace", metavar="SIZE", help="Most memory a layer may use, such as 4G."),
    click.option("--memory-pool", "memory_pools", multiple=True, metavar="NAME=SIZE",
                 help="Another pool, such as tactic-shared-memory=64K."),
    click.option("--optimization-level", type=click.IntRange(0, 5), help="5 searches longest; 3 by itself."),
    click.option("--timing-cache", metavar="FILE|auto|off", help="auto: one per device and version."),
    click.option("--refit", is_flag=True, help="Let `qcompile refit` give it new weights."),
    click.option("--strip-weights", is_flag=True, help="Store it without weights; refit before it runs."),
    click.option("--version-compatible", is_flag=True, help="Newer TensorRT of this major can load it."),
    click.option("--exclude-lean-runtime", is_flag=True, help="Without the runtime that makes it so."),
    click.option("--hardware-compatible", type=click.Choice(["ampere+", "same-sm"]),
                 help="GPUs that it runs on, beside this one."),
    click.option("--dla-core", type=click.IntRange(0), help="Deep learning accelerator to build for."),
    click.option("--gpu-fallback", is_flag=True, help="Layers the accelerator cannot take run on the GPU."),
    click.option("--sparse-weights", is_flag=True, help="Allow kernels for weights that are 2:4 sparse."),
    click.option("--io-format", "io_formats", multiple=True, metavar="NAME=[DTYPE][:FORMAT]",
                 help="Type and memory format of an input or output, such as x=float16:hwc8."),
    click.option("--plugin", "plugins", multiple=True, metavar="LIBRARY", help="Library of plugins to load."),
    click.option("--tactic-source", "tactic_sources", multiple=True, metavar="NAME",
                 help="Where kernels may come from, such as jit-convolutions; none."),
    click.option("--aux-streams", type=click.IntRange(0), help="Most streams beside an inference's own."),
)  # fmt: skip

_NAMES = (
    "profiles", "workspace", "memory_pools", "optimization_level", "timing_cache", "refit", "strip_weights",
    "version_compatible", "exclude_lean_runtime", "hardware_compatible", "dla_core", "gpu_fallback",
    "sparse_weights", "io_formats", "plugins", "tactic_sources", "aux_streams",
)  # fmt: skip
"""Fields of `TensorRTOptions`, which is not imported for `--help`."""


def tensorrt_options(function: Command) -> Command:
    """Add TensorRT's options; the command gets them as `tensorrt`, None when none is given."""

    @functools.wraps(function)
    def wrapper(*args: Any, **given: Any) -> Any:
        chosen = {name: given.pop(name) for name in _NAMES}
        return function(*args, tensorrt=_read(chosen), **given)

    decorated: Any = wrapper
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def _read(chosen: dict[str, Any]) -> TensorRTOptions | None:
    # Not by equality: core 0 and level 0 are values.
    given = {name: value for name, value in chosen.items() if value is not None and value is not False}
    given = {name: value for name, value in given.items() if value != ()}
    if not given:
        return None
    from ..engines.tensorrt.options import TensorRTOptions

    if "tactic_sources" in given:
        given["tactic_sources"] = tuple(split(given["tactic_sources"]))
    return TensorRTOptions(**given)
