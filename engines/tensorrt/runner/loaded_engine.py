"""A deserialized engine, and its properties that all execution contexts share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..adapter import Adapter
from ..plan import OpenPlan, PlanNeeds, open_plan
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
        opened: The plan with its runtime and what TensorRT says of it; None once it is released.
        tensors: Its inputs and outputs.
        profiles: Its optimization profiles.
    """

    adapter: Adapter
    context: PrimaryContext
    path: Path
    opened: OpenPlan | None
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

    @property
    def engine(self) -> Any:
        """The `ICudaEngine`; None once it is released."""
        return self.opened.engine if self.opened is not None else None

    def release(self) -> None:
        """Let go of engine and runtime, whoever still holds this; the context must be active."""
        self.opened = None

    def said(self) -> str:
        """Return TensorRT's last error."""
        return self.opened.said() if self.opened is not None else "no reason given"


def load_engine(adapter: Adapter, context: PrimaryContext, path: Path, needs: PlanNeeds) -> LoadedEngine:
    """Deserialize an engine; the context must be active.

    Args:
        adapter: The TensorRT that built it.
        context: Of the device it is to run on.
        path: Its file.
        needs: What its manifest says it needs.

    Raises:
        ArtifactError: If TensorRT cannot: other version, other GPU, damaged, a missing plugin.
        ModelError: If a tensor is of a type or in a format that arrays cannot have.
    """
    opened = open_plan(adapter, path.read_bytes(), needs, subject=str(path))
    tensors = read_tensors(adapter, opened.engine, path)
    profiles = read_profiles(adapter, opened.engine, [tensor for tensor in tensors if tensor.is_input])
    return LoadedEngine(adapter, context, path, opened, tensors, profiles)
