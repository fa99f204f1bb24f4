"""Options of a TensorRT build besides its precision."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Literal

from .decode import Checked, Refused, non_default_options
from .option import COMMA, option
from .words import Texts

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

_PERCENT = 100

AUTO, OFF = "auto", "off"
_Size = Annotated[str, option("SIZE")]


class TensorRTOptions(Checked):
    """Options of one build. The default of each leaves the choice to TensorRT.

    Raises:
        InvalidOption: If a value cannot be read, or two contradict each other.
    """

    profiles: Annotated[
        Texts, "Optimization profile with every dynamic input.", option("--profile NAME:MIN..OPT..MAX,...")
    ] = ()
    device: Annotated[
        int,
        "Number of this machine's GPU to build, calibrate and verify on, as CUDA counts them.",
        option("N", ge=0),
    ] = 0
    workspace: Annotated[_Size, "Largest workspace of a layer, such as 4G (powers of 1024)."] = ""
    memory_pools: Annotated[
        Texts,
        "Size of another memory pool, such as tactic-shared-memory=64K.",
        option("--memory-pool NAME=SIZE"),
    ] = ()
    optimization_level: Annotated[
        int, "Builder optimization level, 0 to 5; -1 means TensorRT's default, 3.", option(ge=-1, le=5)
    ] = -1
    timing_cache: Annotated[
        str,
        "Timing cache of kernel measurements: a file, off, or auto for one per device and version.",
        option("FILE|auto|off", names="cache"),
    ] = AUTO
    refit: Annotated[bool, "Make the engine refittable by `qcompile refit`."] = False
    profiling_verbosity: Annotated[
        Literal["", "detailed", "layer-names", "none"],
        "Layer information in the engine; default: detailed, which costs latency outside of qcompile. "
        "Without it, precisions are unreported.",
    ] = ""
    strip_weights: Annotated[bool, "Store the engine without weights; it needs a refit before it runs."] = (
        False
    )
    version_compatible: Annotated[
        bool, "Build an engine that newer TensorRT of the same major version loads."
    ] = False
    exclude_lean_runtime: Annotated[
        bool, "Omit the lean runtime that version compatibility adds to the engine."
    ] = False
    hardware_compatible: Annotated[
        Literal["", "ampere+", "same-sm"], "GPUs that the engine runs on in addition to this one."
    ] = ""
    dla_core: Annotated[
        int, "Deep learning accelerator (DLA) core to build for; -1 means the GPU.", option(ge=-1)
    ] = -1
    gpu_fallback: Annotated[bool, "Run the layers that the DLA does not support on the GPU."] = False
    sparse_weights: Annotated[bool, "Allow kernels for 2:4 sparse weights."] = False
    io_formats: Annotated[
        Texts,
        "Type and memory format of an input or output, such as x=float16:hwc8.",
        option("--io-format NAME=[DTYPE][:FORMAT]"),
    ] = ()
    plugins: Annotated[Texts, "Plugin library to load.", option("--plugin LIBRARY", names="library")] = ()
    weight_streaming: Annotated[
        str,
        "Weights that stay on the GPU while the others stream from the host: a share such as 50%, a size "
        "such as 2G, or all.",
        option("PERCENT|SIZE|all"),
    ] = ""
    allocation_strategy: Annotated[
        Literal["", "static", "profile", "runtime"],
        "Shapes that an execution context has memory for: the largest of all profiles (static, the "
        "default), those of the chosen profile, or those of the inference (runtime).",
    ] = ""
    tiling_level: Annotated[
        int,
        "Effort of tiling layers for the L2 cache, 0 to 3; -1 means TensorRT's default, 0.",
        option(ge=-1, le=3),
    ] = -1
    tiling_l2_limit: Annotated[_Size, "Part of the L2 cache that tiling may use, such as 8M."] = ""
    build_route: Annotated[
        str,
        "Options of TensorRT's compiler, such as -conv_use_long_w=off; `dry_run` lists them.",
        option("ROUTE"),
    ] = ""
    tactic_sources: Annotated[
        Texts,
        "Tactic source, such as jit-convolutions; none disables all but TensorRT's own kernels.",
        option("--tactic-source NAME", split=COMMA),
    ] = ()
    aux_streams: Annotated[
        int, "Largest number of auxiliary streams; -1 means TensorRT's default.", option(ge=-1)
    ] = -1

    typing: Annotated[
        Literal["", "strong", "weak"],
        "Source of the layers' types: the graph (strong), or TensorRT as far as flags permit (weak, "
        "TensorRT 8 and 10); default: strong, if possible.",
    ] = ""
    precision_constraints: Annotated[
        Literal["", "obey", "prefer"],
        "If a weakly typed network has no kernel of a named layer's precision: obey (default) fails the "
        "build, prefer takes another kernel.",
    ] = ""
    ignore_faults: Annotated[
        Texts,
        "Known TensorRT fault to leave without workaround, such as cumsum-axes; all for every one.",
        option("--ignore-fault NAME", split=COMMA),
    ] = ()

    def check(self) -> None:
        """Read every value, and refuse options that contradict each other."""
        # Each property raises Refused for an invalid value.
        _ = self.workspace_bytes, self.l2_limit_bytes, self.pool_bytes, self.tensor_formats
        if self.weight_streaming:
            weights_on_gpu(self.weight_streaming, 0)
        if self.weight_streaming and self.typing == "weak":
            raise Refused("weight_streaming", "is for `typing` strong; weak was given")
        if self.tiling_l2_limit and self.tiling_level < 1:
            raise Refused("tiling_l2_limit", "belongs to `tiling_level` 1 to 3, which is not given")
        if self.exclude_lean_runtime and not self.version_compatible:
            raise Refused("exclude_lean_runtime", "belongs to `version_compatible`, which is not given")
        if self.gpu_fallback and self.dla_core < 0:
            raise Refused("gpu_fallback", "belongs to `dla_core`, which is not given")
        if self.precision_constraints and self.typing == "strong":
            raise Refused("precision_constraints", "is for `typing` weak; strong was given")
        if "none" in self.tactic_sources and len(self.tactic_sources) > 1:
            raise Refused("tactic_sources", "none excludes the others that are given")

    @property
    def workspace_bytes(self) -> int:
        """The workspace in bytes; 0 lets TensorRT choose."""
        return parse_bytes(self.workspace, option="workspace") if self.workspace else 0

    @property
    def l2_limit_bytes(self) -> int:
        """The part of the L2 cache for tiling in bytes; 0 lets TensorRT choose."""
        return parse_bytes(self.tiling_l2_limit, option="tiling_l2_limit") if self.tiling_l2_limit else 0

    @property
    def pool_bytes(self) -> dict[str, int]:
        """Memory pool to its size in bytes."""
        sizes = {}
        for text in self.memory_pools:
            name, equals, size = text.partition("=")
            if not (name and equals):
                hint = "for instance tactic-shared-memory=64K"
                raise Refused("memory_pools", "NAME=SIZE is required", value=text, hint=hint)
            try:
                sizes[name] = parse_bytes(size, option="memory_pools")
            except Refused as error:
                raise Refused("memory_pools", error.problem, value=text) from error
        return sizes

    @property
    def tensor_formats(self) -> dict[str, tuple[str, str]]:
        """Input or output to (dtype, format), either of which may be empty."""
        formats = {}
        for text in self.io_formats:
            name, equals, form = text.rpartition("=")
            match = re.fullmatch(r"([a-z]+\d*)?(?::([a-z_]+\d*))?", form)
            if not (name and equals and form and match):
                hint = "for instance x=float16:chw32, or y=float16"
                raise Refused("io_formats", "NAME=[DTYPE][:FORMAT] is required", value=text, hint=hint)
            formats[name] = (match[1] or "", match[2] or "")
        return formats

    def as_json(self) -> dict[str, object]:
        """Return the options that differ from their defaults, for manifests."""
        return non_default_options(self)


def weights_on_gpu(text: str, total: int) -> int:
    """Return how many of `total` bytes of weights are on the GPU, from "all", a share ("50%") or a size."""
    if text == "all":
        return total
    share = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)%", text, re.A)
    if share and Fraction(share[1]) <= _PERCENT:
        return int(total * Fraction(share[1]) / _PERCENT)
    try:
        return min(parse_bytes(text, option="weight_streaming"), total)
    except Refused as error:
        problem = "all, a share such as 50%, or a size such as 2G is required"
        raise Refused("weight_streaming", problem, value=text) from error


def parse_bytes(text: str, *, option: str) -> int:
    """Read a size such as "64K", "512M", "4G" (powers of 1024) or a number of bytes."""
    match = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]{1,18})?)([KMG]?)(?:i?B)?", text.strip(), re.I | re.A)
    size = int(Fraction(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise Refused(option, "a size such as 512M or 4G is required", value=text)
    return size
