"""What a TensorRT build may be told beside its precision."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

from .decode import Checked, Refused, changed
from .option import COMMA, option

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

AUTO, OFF = "auto", "off"


@dataclass(frozen=True)
class TensorRTOptions(Checked):
    """Options of one build. The default of each leaves the choice to TensorRT.

    Raises:
        InvalidOption: If a value cannot be read, or two contradict each other.
    """

    profiles: Annotated[
        tuple[str, ...],
        option(
            "Optimization profile with every dynamic input.",
            flag="--profile",
            metavar="NAME:MIN..OPT..MAX,...",
        ),
    ] = ()
    device: Annotated[
        int,
        option(
            "Number of this machine's GPU to build, calibrate and verify on, as CUDA counts them.",
            metavar="N",
            ge=0,
        ),
    ] = 0
    workspace: Annotated[
        str, option("Largest workspace of a layer, such as 4G (powers of 1024).", metavar="SIZE")
    ] = ""
    memory_pools: Annotated[
        tuple[str, ...],
        option(
            "Size of another memory pool, such as tactic-shared-memory=64K.",
            flag="--memory-pool",
            metavar="NAME=SIZE",
        ),
    ] = ()
    optimization_level: Annotated[
        int, option("Builder optimization level, 0 to 5; -1 means TensorRT's default, 3.", ge=-1, le=5)
    ] = -1
    timing_cache: Annotated[
        str,
        option(
            "Timing cache of kernel measurements: a file, off, or auto for one per device and version.",
            metavar="FILE|auto|off",
        ),
    ] = AUTO
    refit: Annotated[bool, option("Make the engine refittable by `qcompile refit`.")] = False
    strip_weights: Annotated[
        bool, option("Store the engine without weights; it needs a refit before it runs.")
    ] = False
    version_compatible: Annotated[
        bool, option("Build an engine that newer TensorRT of the same major version loads.")
    ] = False
    exclude_lean_runtime: Annotated[
        bool, option("Omit the lean runtime that version compatibility adds to the engine.")
    ] = False
    hardware_compatible: Annotated[
        Literal["", "ampere+", "same-sm"], option("GPUs that the engine runs on in addition to this one.")
    ] = ""
    dla_core: Annotated[
        int, option("Deep learning accelerator (DLA) core to build for; -1 means the GPU.", ge=-1)
    ] = -1
    gpu_fallback: Annotated[bool, option("Run the layers that the DLA does not support on the GPU.")] = False
    sparse_weights: Annotated[bool, option("Allow kernels for 2:4 sparse weights.")] = False
    io_formats: Annotated[
        tuple[str, ...],
        option(
            "Type and memory format of an input or output, such as x=float16:hwc8.",
            flag="--io-format",
            metavar="NAME=[DTYPE][:FORMAT]",
        ),
    ] = ()
    plugins: Annotated[
        tuple[str, ...], option("Plugin library to load.", flag="--plugin", metavar="LIBRARY")
    ] = ()
    tactic_sources: Annotated[
        tuple[str, ...],
        option(
            "Tactic source, such as jit-convolutions; none disables all but TensorRT's own kernels.",
            flag="--tactic-source",
            metavar="NAME",
            split=COMMA,
        ),
    ] = ()
    aux_streams: Annotated[
        int,
        option("Largest number of auxiliary streams; -1 means TensorRT's default.", ge=-1),
    ] = -1

    typing: Annotated[
        Literal["", "strong", "weak"],
        option(
            "Who chooses the types of layers: the graph (strong), or TensorRT by what flags permit (weak, "
            "TensorRT 8 and 10); strong wherever it can be by default."
        ),
    ] = ""
    precision_constraints: Annotated[
        Literal["", "obey", "prefer"],
        option(
            "What named layers of a weakly typed network demand: obey fails where there is no such kernel, "
            "prefer takes another; obey by default."
        ),
    ] = ""
    ignore_faults: Annotated[
        tuple[str, ...],
        option(
            "Known fault of TensorRT that is not worked around, such as cumsum-axes; all for every one.",
            flag="--ignore-fault",
            metavar="NAME",
            split=COMMA,
        ),
    ] = ()

    def check(self) -> None:
        """Read every value, and refuse options that contradict each other."""
        _ = self.workspace_bytes, self.pool_bytes, self.tensor_formats  # each refuses what it cannot read
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
        """The workspace in bytes; 0 for TensorRT's own choice."""
        return parse_bytes(self.workspace, option="workspace") if self.workspace else 0

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
            name, equals, rest = text.rpartition("=")
            match = re.fullmatch(r"([a-z]+\d*)?(?::([a-z_]+\d*))?", rest)
            if not (name and equals and rest and match):
                hint = "for instance x=float16:chw32, or y=float16"
                raise Refused("io_formats", "NAME=[DTYPE][:FORMAT] is required", value=text, hint=hint)
            formats[name] = (match[1] or "", match[2] or "")
        return formats

    def as_json(self) -> dict[str, object]:
        """Return what differs from the defaults, for manifests."""
        return changed(self)


def parse_bytes(text: str, *, option: str) -> int:
    """Read a size such as "64K", "512M", "4G" (powers of 1024) or a number of bytes.

    Raises:
        InvalidOption: If it is none.
    """
    match = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]{1,18})?)([KMG]?)(?:i?B)?", text.strip(), re.I | re.A)
    size = int(Fraction(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise Refused(option, "a size such as 512M or 4G is required", value=text)
    return size
