"""A deserialized engine, and its properties that all execution contexts share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import ArtifactError
from ..adapter import Adapter
from ..log import last_error, make_log
from .cuda_context import PrimaryContext
from .io_tensors import IOTensor, read_tensors
from .profile_choice import Profile, read_profiles


@dataclass
class LoadedEngine:
    """An engine in the memory of its device.

    Attributes:
        adapter: The TensorRT that loaded it.
        context: The device's primary context.
        path: Its file.
        log: What TensorRT says, see `make_log`.
        runtime: What deserialized it; must live longer.
        engine: The `ICudaEngine`.
        tensors: Its inputs and outputs.
        profiles: Its optimization profiles.
    """

    adapter: Adapter
    context: PrimaryContext
    path: Path
    log: Any
    runtime: Any
    engine: Any
    tensors: tuple[IOTensor, ...]
    profiles: tuple[Profile, ...]

    @property
    def inputs(self) -> tuple[IOTensor, ...]:
        """Those that are read."""
        return tuple(tensor for tensor in self.tensors if tensor.is_input)

    @property
    def outputs(self) -> tuple[IOTensor, ...]:
        """Those that are written."""
        return tuple(tensor for tensor in self.tensors if not tensor.is_input)

    @property
    def contexts_share_profiles(self) -> bool:
        """Whether execution contexts need no profile of their own: TensorRT shares, or nothing is dynamic."""
        ranges = [*self.profiles[0].shapes, *self.profiles[0].values] if self.profiles else []
        return not ranges or self.adapter.shares_profiles()

    def release(self) -> None:
        """Let go of engine and runtime, whoever still holds this; the context must be active."""
        self.engine = None
        self.runtime = None

    def said(self) -> str:
        """Return TensorRT's last error."""
        return last_error(self.log, "no reason given")


def load_engine(adapter: Adapter, context: PrimaryContext, path: Path) -> LoadedEngine:
    """Deserialize an engine; the context must be active.

    Raises:
        ArtifactError: If TensorRT cannot: other version, other GPU, damaged.
        ModelError: If a tensor is of a type or in a format that arrays cannot have.
    """
    log = make_log(adapter.module)
    runtime = adapter.module.Runtime(log)
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise ArtifactError(
            f"{path}: {adapter.module.__name__} {adapter.version} cannot load it: "
            f"{last_error(log, 'no reason given')}",
            hint="build it again with this version, for this GPU",
            file=path,
        )
    tensors = read_tensors(adapter, engine, path)
    profiles = read_profiles(adapter, engine, [tensor for tensor in tensors if tensor.is_input])
    return LoadedEngine(adapter, context, path, log, runtime, engine, tensors, profiles)
