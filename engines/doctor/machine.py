"""The processor, the memory and the disk of this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ...model.session import usable_cores
from ...processor import processor

_SAYS = {
    "avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "AVX-512 VNNI", "avx_vnni": "AVX-VNNI",
    "amx_int8": "AMX INT8", "amx_bf16": "AMX BF16", "amx_fp16": "AMX FP16", "avx512_bf16": "AVX-512 BF16",
    "avx512_fp16": "AVX-512 FP16", "asimd": "NEON", "asimddp": "dot product", "asimdhp": "FP16",
    "i8mm": "I8MM", "bf16": "BF16", "sve": "SVE", "sme": "SME",
}  # fmt: skip
"""Flags of /proc/cpuinfo to the names that vendors use."""
_INT8_X86 = ("avx512_vnni", "avx_vnni", "amx_int8")
_INT8_ARM = ("asimddp", "i8mm")
_CACHES = ("HF_HOME", "~/.cache/huggingface"), ("TORCH_HOME", "~/.cache/torch"), ("KERAS_HOME", "~/.keras")
_MOST_FILES = 20_000


@dataclass(frozen=True)
class Place:
    """A folder: what it is for, where it is, and how much it holds and could hold, in bytes."""

    what: str
    path: str
    used_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Machine:
    """What the processor and the system offer.

    Attributes:
        processor: Its name.
        architecture: Such as "x86_64".
        features: Flags of the instruction sets that matter; empty where the system does not tell.
        instruction_sets: The same by the names that vendors use.
        cores: Cores, of which `usable` may be used by this process.
        usable: Threads that this process may run at once.
        caches: Level to size in bytes, of one core's view.
        memory_bytes: All memory, 0 where the system does not tell; a container's limit where it is lower.
        memory_free_bytes: What can be had without swapping.
        places: The working folder, the temporary folder and the caches of packages.
    """

    processor: str
    architecture: str
    features: tuple[str, ...]
    instruction_sets: tuple[str, ...]
    cores: int
    usable: int
    caches: dict[str, int]
    memory_bytes: int
    memory_free_bytes: int
    places: tuple[Place, ...]

    @property
    def is_arm(self) -> bool:
        """Whether its instruction sets are ARM's."""
        return self.architecture.startswith(("arm", "aarch"))

    def why_int8_is_slow(self) -> str:
        """Return why products of 8 bits have no instruction of their own here; empty where they have."""
        needed = _INT8_ARM if self.is_arm else _INT8_X86
        if not self.features or set(needed) & set(self.features):
            return ""
        names = ", ".join(_SAYS[one] for one in needed)
        return f"the processor has none of {names}: products of 8 bits take several instructions"

    def as_json(self) -> dict[str, object]:
        """Return the `--json` form."""
        return asdict(self)


def this_machine() -> Machine:
    """Look at this machine; nothing heavy is imported."""
    here = processor()
    found = here["features"]
    features = tuple(str(one) for one in found) if isinstance(found, list) else ()
    total, free = _memory()
    return Machine(
        processor=str(here["processor"]),
        architecture=str(here["architecture"]),
        features=features,
        instruction_sets=tuple(_SAYS[one] for one in features if one in _SAYS),
        cores=_cores(),
        usable=usable_cores(),
        caches=dict(_caches(Path("/sys/devices/system/cpu/cpu0/cache"))),
        memory_bytes=total,
        memory_free_bytes=free,
        places=tuple(_places()),
    )


def _cores() -> int:
    """Cores without their second threads; as many as threads where the system does not tell."""
    siblings = {
        path.read_text(encoding="ascii").strip()
        for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    }
    return len(siblings) or os.cpu_count() or 1


def _caches(folder: Path) -> Iterator[tuple[str, int]]:
    for index in sorted(folder.glob("index[0-9]*")):
        try:
            level, kind, size = (
                (index / name).read_text(encoding="ascii").strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K"):
            yield f"L{level}", int(size[:-1]) << 10


def _memory() -> tuple[int, int]:
    """All memory and what is free, in bytes; a container's limit counts."""
    told = dict.fromkeys(("MemTotal", "MemAvailable"), 0)
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name in told:
                told[name] = int(value.split()[0]) << 10
    total, free = told["MemTotal"], told["MemAvailable"]
    limit = _number(Path("/sys/fs/cgroup/memory.max"))
    if limit and limit < total:
        total, free = limit, min(free, max(limit - _number(Path("/sys/fs/cgroup/memory.current")), 0))
    return total, free


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _places() -> Iterator[Place]:
    yield _place("working folder", Path.cwd(), look=False)
    yield _place("temporary files", Path(tempfile.gettempdir()), look=False)
    for variable, usual in _CACHES:
        path = Path(os.environ.get(variable) or usual).expanduser()
        if path.is_dir():
            yield _place(f"cache ({variable})", path)


def _place(what: str, path: Path, *, look: bool = True) -> Place:
    try:
        free = shutil.disk_usage(path).free
    except OSError:
        free = 0
    return Place(what, str(path), _size(path) if look else 0, free)


def _size(folder: Path) -> int:
    """Bytes of the files in a folder, of the first 20,000: a cache of models has few and large ones."""
    total = count = 0
    for root, _, files in os.walk(folder):
        for name in files:
            path = Path(root) / name
            if not path.is_symlink():
                try:
                    total += path.stat().st_size
                except OSError:
                    continue
                count += 1
        if count > _MOST_FILES:
            break
    return total
