"""Options of Triton beside the model itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import InvalidOption
from .triton_text import Message

_KINDS = ("", "gpu", "cpu")


@dataclass(frozen=True)
class TritonOptions:
    """Options of one packaging. All have a value that leaves the choice to the artifact or to Triton.

    Attributes:
        max_batch_size: Largest batch; 0 for a model that takes each request by itself; None for what the
            artifact allows.
        instances: Copies of the model on each GPU, or on the CPU.
        gpus: Numbers of the GPUs to run on; empty for all.
        kind: "gpu", "cpu", or empty for where the artifact belongs.
        preferred_batch: Batch sizes the dynamic batcher sends at once.
        max_queue_delay_us: Longest wait for a fuller batch, microseconds.
        dynamic_batching: Whether requests are put together into batches.
        warm_up: Whether a made-up request runs before the model counts as ready; None where it can be made.
        warm_up_shapes: Input to shape, for dynamic axes whose extents nothing tells.
        version_policy: "latest", "latest:2", "all", "specific:1,3"; empty for Triton's own, the latest.
        response_cache: Whether answers are kept.
        cuda_graph: Whether engines run as CUDA graphs.

    Raises:
        InvalidOption: If a value cannot be used, or two contradict each other.
    """

    max_batch_size: int | None = None
    instances: int = 1
    gpus: tuple[int, ...] = ()
    kind: str = ""
    preferred_batch: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    dynamic_batching: bool = True
    warm_up: bool | None = None
    warm_up_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    version_policy: str = ""
    response_cache: bool = False
    cuda_graph: bool = False

    def __post_init__(self) -> None:
        _least("`max_batch_size`", self.max_batch_size or 0, 0)
        _least("`instances`", self.instances, 1)
        _least("`max_queue_delay_us`", self.max_queue_delay_us, 0)
        for gpu in self.gpus:
            _least("`gpus`", gpu, 0)
        for size in self.preferred_batch:
            _least("`preferred_batch`", size, 1)
        if self.kind not in _KINDS:
            raise InvalidOption(f"`kind` {self.kind!r}: gpu or cpu is required", option="kind")
        if len(set(self.gpus)) < len(self.gpus):
            raise InvalidOption("`gpus`: a GPU is given twice", option="gpus")
        if self.kind == "cpu" and self.gpus:
            raise InvalidOption("`gpus`: belongs to `kind` gpu; `kind` cpu is given", option="gpus")
        if not self.dynamic_batching and (self.preferred_batch or self.max_queue_delay_us):
            raise InvalidOption(
                "`preferred_batch`, `max_queue_delay_us`: `dynamic_batching` is off, which excludes them"
            )
        if self.warm_up is False and self.warm_up_shapes:
            raise InvalidOption(
                "`warm_up_shapes`: `warm_up` is off, which excludes them", option="warm_up_shapes"
            )
        _ = self.policy  # refuses what it cannot read

    @property
    def policy(self) -> Message:
        """The version policy as Triton's message; empty for Triton's own."""
        match = re.fullmatch(r"(latest)(?::(\d+))?|(all)|(specific):(\d+(?:,\d+)*)", self.version_policy)
        if not self.version_policy:
            return {}
        if not match or match[2] == "0":
            raise InvalidOption(
                f"`version_policy` {self.version_policy!r}: latest[:N], all or specific:N,N is required",
                option="version_policy",
            )
        if match[1]:
            return {"latest": {"num_versions": int(match[2] or 1)}}
        return {"all": {}} if match[3] else {"specific": {"versions": list(self.specific_versions)}}

    @property
    def specific_versions(self) -> tuple[int, ...]:
        """The versions of "specific:1,3"; empty for other policies."""
        kind, _, numbers = self.version_policy.partition(":")
        return tuple(sorted(map(int, numbers.split(",")))) if kind == "specific" and numbers else ()


def _least(option: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidOption(f"{option} {value}: {least} or more is required", option=option)
