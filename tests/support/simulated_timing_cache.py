"""TensorRT's timing caches."""

from __future__ import annotations

import json
from typing import Any

from simulated_network import say

_CACHE_MAGIC = b"timing\n"
_MYELIN = (
    "1: [myelinCache.h::deserializeFromBuffer::52] Error Code 1: Myelin (Myelin error from unknown graph)"
)
_NO_MAGIC = (
    "1: [stdArchiveReader.cpp::StdArchiveReaderInitCommon::36] Error Code 1: Serialization (Serialization "
    "assertion magicTagRead == kMAGIC_TAG failed.Magic tag does not match)"
)


class TimingCache:
    """ITimingCache: measured tactics by layer, and the device and version they were measured on.

    Source: NvInfer.h of release/10.13, `ITimingCache`: `combine` is skipped and false where the header
    differs and `ignoreMismatch` is false.
    """

    def __init__(self, log: Any, device: str, tactics: dict[str, str]) -> None:
        self._log, self._device, self._tactics = log, device, tactics

    def serialize(self) -> Any:
        content = {"device": self._device, "version": self._module.__version__, "tactics": self._tactics}
        return self._module.IHostMemory(_CACHE_MAGIC + json.dumps(content, sort_keys=True).encode())

    def combine(self, other: Any, ignore_mismatch: bool) -> bool:
        if other._device != self._device and not ignore_mismatch:
            return False
        self._tactics |= other._tactics
        return True


def make_cache(config: Any, content: bytes) -> Any:
    """What `IBuilderConfig.create_timing_cache` does; of bytes that it cannot read it makes an empty cache.

    Source: NvInfer.h, `createTimingCache`; the logs of NVIDIA/TensorRT issue 3566 (8.6) and KataGo issue 739
    (8.5 without cuDNN), whose builds go on.
    """
    device, tactics = config._circumstances.device, {}
    if content and config._module.__name__ != "tensorrt_rtx":
        read = _read_cache(content)
        if config._circumstances.reads_no_caches:
            say(config, "ERROR", _MYELIN)
            say(config, "ERROR", "4: The timing cache will not be used!")
        elif read is None or read["version"] != config._module.__version__:
            say(config, "ERROR", _NO_MAGIC)
            say(config, "WARNING", "The timing cache will not be used!")
        else:
            device, tactics = read["device"], read["tactics"]
    return config._module.ITimingCache(config._log, device, tactics)


def _read_cache(content: bytes) -> dict[str, Any] | None:
    """Source: the tests' own."""
    if not content.startswith(_CACHE_MAGIC):
        return None
    read: dict[str, Any] = json.loads(content.removeprefix(_CACHE_MAGIC))
    return read
