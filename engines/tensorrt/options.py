"""What a TensorRT build may be told beside its precision, spelled as in a recipe."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ...errors import InvalidOption

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_HARDWARE = ("", "ampere+", "same-sm")
_LEVELS = range(6)

AUTO, OFF = "auto", "off"


@dataclass(frozen=True)
class TensorRTOptions:
    """Options of one build. All have a value that leaves TensorRT's own choice.

    Attributes:
        profiles: One optimization profile each: `NAME:MIN..OPT..MAX`, inputs divided by commas.
        workspace: Most memory a layer may use while it runs, such as "4G" (powers of 1024).
        memory_pools: `NAME=SIZE` of the other pools, such as "tactic-shared-memory=64K".
        optimization_level: 0 (builds fast) to 5 (searches long); -1 for TensorRT's own, 3.
        timing_cache: "auto" keeps one per device and version among the user's caches; "off"; or a file.
        refit: Whether the engine takes new weights later (`qcompile refit`).
        strip_weights: Whether it is stored without weights, to be refitted before it runs.
        version_compatible: Whether newer TensorRT of the same major version can load it.
        exclude_lean_runtime: Leave out the runtime that version compatibility puts into the engine.
        hardware_compatible: "ampere+", "same-sm", or empty for this GPU alone.
        dla_core: The deep learning accelerator to build for; -1 for the GPU.
        gpu_fallback: Whether layers that the accelerator cannot take run on the GPU.
        sparse_weights: Whether kernels for weights that are 2:4 sparse may be used.
        io_formats: `NAME=[DTYPE][:FORMAT]` of an input or output, such as "x=float16:chw32".
        plugins: Libraries of plugins to load first.
        tactic_sources: Where kernels may come from, such as "jit-convolutions"; "none"; empty for all.
        aux_streams: Most streams an inference may use beside its own; -1 for TensorRT's own choice.

    Raises:
        InvalidOption: If a value cannot be read, or two contradict each other.
    """

    profiles: tuple[str, ...] = ()
    workspace: str = ""
    memory_pools: tuple[str, ...] = ()
    optimization_level: int = -1
    timing_cache: str = AUTO
    refit: bool = False
    strip_weights: bool = False
    version_compatible: bool = False
    exclude_lean_runtime: bool = False
    hardware_compatible: str = ""
    dla_core: int = -1
    gpu_fallback: bool = False
    sparse_weights: bool = False
    io_formats: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    tactic_sources: tuple[str, ...] = ()
    aux_streams: int = -1

    def __post_init__(self) -> None:
        _ = self.workspace_bytes, self.pool_bytes, self.tensor_formats  # each refuses what it cannot read
        if self.optimization_level != -1 and self.optimization_level not in _LEVELS:
            raise InvalidOption(
                f"--optimization-level {self.optimization_level}: 0 to {_LEVELS[-1]} is required",
                option="--optimization-level",
            )
        if self.hardware_compatible not in _HARDWARE:
            raise InvalidOption(
                f"--hardware-compatible {self.hardware_compatible!r}: one of {', '.join(_HARDWARE[1:])} "
                "is required",
                option="--hardware-compatible",
            )
        if self.exclude_lean_runtime and not self.version_compatible:
            raise InvalidOption("--exclude-lean-runtime: belongs to --version-compatible, which is not given")
        if self.gpu_fallback and self.dla_core < 0:
            raise InvalidOption("--gpu-fallback: belongs to --dla-core, which is not given")
        if "none" in self.tactic_sources and len(self.tactic_sources) > 1:
            raise InvalidOption("--tactic-source none: excludes the others that are given")

    @property
    def workspace_bytes(self) -> int:
        """The workspace in bytes; 0 for TensorRT's own choice."""
        return parse_bytes(self.workspace, option="--workspace") if self.workspace else 0

    @property
    def pool_bytes(self) -> dict[str, int]:
        """Memory pool to its size in bytes."""
        sizes = {}
        for text in self.memory_pools:
            name, equals, size = text.partition("=")
            if not (name and equals):
                raise InvalidOption(
                    f"--memory-pool {text!r}: NAME=SIZE is required",
                    hint="for instance tactic-shared-memory=64K",
                    option="--memory-pool",
                )
            sizes[name] = parse_bytes(size, option=f"--memory-pool {name}")
        return sizes

    @property
    def tensor_formats(self) -> dict[str, tuple[str, str]]:
        """Input or output to (dtype, format), either of which may be empty."""
        found = {}
        for text in self.io_formats:
            name, equals, rest = text.rpartition("=")
            match = re.fullmatch(r"([a-z]+\d*)?(?::([a-z]+\d*))?", rest)
            if not (name and equals and rest and match):
                raise InvalidOption(
                    f"--io-format {text!r}: NAME=[DTYPE][:FORMAT] is required",
                    hint="for instance x=float16:chw32, or y=float16",
                    option="--io-format",
                )
            found[name] = (match[1] or "", match[2] or "")
        return found

    def as_json(self) -> dict[str, object]:
        """Return what differs from the defaults, for manifests."""
        default = TensorRTOptions()
        chosen = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in chosen.items()
            if value != getattr(default, name)
        }


def parse_bytes(text: str, *, option: str) -> int:
    """Read a size such as "64K", "512M", "4G" (powers of 1024) or a number of bytes.

    Raises:
        InvalidOption: If it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(Fraction(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise InvalidOption(f"{option} {text!r}: a size such as 512M or 4G is required", option=option)
    return size
