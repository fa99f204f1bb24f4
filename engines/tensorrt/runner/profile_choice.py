"""Choose the optimization profile of an inference: the tightest that holds the shapes of the feeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....errors import DataError
from ....tensors import format_shape
from ..adapter import Adapter
from .io_tensors import IOTensor

Shape = tuple[int, ...]
DeclaredProfiles = Sequence[Mapping[str, Mapping[str, Sequence[int]]]]
"""As manifests have them: for each profile, input to "min", "opt" and "max" of its shape or its values."""


@dataclass(frozen=True)
class Extremes:
    """Smallest, optimal and largest shape of an input, or values of a shape input."""

    min: Shape
    opt: Shape
    max: Shape

    def holds(self, shape: Sequence[float]) -> bool:
        """Whether each extent or value is within its range."""
        return len(shape) == len(self.min) and all(
            low <= value <= high for low, value, high in zip(self.min, shape, self.max, strict=True)
        )

    def __str__(self) -> str:
        low, high = format_shape(self.min), format_shape(self.max)
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class FeedShapes:
    """Input to its shape, and shape input to its elements, in order, by which a profile is chosen."""

    shapes: Mapping[str, Shape]
    values: Mapping[str, tuple[float, ...]]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for shapes that run alike."""
        return tuple(sorted(self.shapes.items())), tuple(sorted(self.values.items()))


@dataclass(frozen=True)
class Profile:
    """An optimization profile: dynamic input to the range of its shape, shape input to that of its values."""

    index: int
    shapes: Mapping[str, Extremes]
    values: Mapping[str, Extremes]

    def holds(self, feed_shapes: FeedShapes) -> bool:
        return all(
            extremes.holds(feed_shapes.shapes[name]) for name, extremes in self.shapes.items()
        ) and all(extremes.holds(feed_shapes.values[name]) for name, extremes in self.values.items())

    def slack(self, feed_shapes: FeedShapes) -> tuple[int, int, int]:
        """Smaller is tighter: elements it allows, then elements between its optimum and the shapes."""
        allowed = sum(math.prod(extremes.max) for extremes in self.shapes.values())
        off = sum(
            abs(math.prod(extremes.opt) - math.prod(feed_shapes.shapes[name]))
            for name, extremes in self.shapes.items()
        )
        return allowed, off, self.index


def read_profiles(adapter: Adapter, engine: Any, inputs: Sequence[IOTensor]) -> tuple[Profile, ...]:
    """Return the optimization profiles of an engine; without dynamic inputs one that takes all."""
    return tuple(
        Profile(
            index,
            {
                tensor.name: _extremes(engine.get_tensor_profile_shape(tensor.name, index))
                for tensor in inputs
                if -1 in tensor.shape
            },
            {
                tensor.name: _extremes(values)
                for tensor in inputs
                if tensor.on_host and (values := adapter.profile_values(engine, tensor.name, index))
            },
        )
        for index in range(engine.num_optimization_profiles)
    )


def with_declared_values(
    profiles: Sequence[Profile], declared: DeclaredProfiles, inputs: Sequence[IOTensor]
) -> tuple[Profile, ...]:
    """Return profiles with the ranges of shape inputs that TensorRT does not tell, as 8.x does not."""
    if len(declared) != len(profiles):
        return tuple(profiles)
    on_host = [tensor.name for tensor in inputs if tensor.on_host and -1 not in tensor.shape]
    return tuple(
        replace(
            profile,
            values={
                name: _extremes([ranges[name][kind] for kind in ("min", "opt", "max")])
                for name in on_host
                if name in ranges
            }
            | dict(profile.values),
        )
        for profile, ranges in zip(profiles, declared, strict=True)
    )


def fitting_profiles(profiles: Sequence[Profile], feed_shapes: FeedShapes) -> list[Profile]:
    """Return the profiles that take these shapes, the tightest first."""
    fitting = [profile for profile in profiles if profile.holds(feed_shapes)]
    if fitting:
        return sorted(fitting, key=lambda profile: profile.slack(feed_shapes))
    for name, shape in feed_shapes.shapes.items():
        ranges = [profile.shapes[name] for profile in profiles if name in profile.shapes]
        if ranges and not any(extremes.holds(shape) for extremes in ranges):
            raise _outside(f"input {name!r} has shape {format_shape(shape)}", ranges, name)
    for name, values in feed_shapes.values.items():
        ranges = [profile.values[name] for profile in profiles if name in profile.values]
        if ranges and not any(extremes.holds(values) for extremes in ranges):
            raise _outside(f"input {name!r} holds {', '.join(map(str, values))}", ranges, name)
    given = ", ".join(f"{name}:{format_shape(shape)}" for name, shape in feed_shapes.shapes.items())
    raise DataError(
        f"feeds: each input fits an optimization profile, but no profile fits all of {given}; "
        f"required: {'; or '.join(_spelled(profile) for profile in profiles)}",
        hint="build with a profile for these shapes together",
    )


def _outside(problem: str, ranges: Sequence[Extremes], name: str) -> DataError:
    required = " or ".join(dict.fromkeys(str(extremes) for extremes in ranges))
    return DataError(
        f"feeds: {problem}, outside the engine's optimization profiles; required: {required}",
        hint="build with wider `min_shapes` and `max_shapes`",
        tensor=name,
    )


def _spelled(profile: Profile) -> str:
    ranges = [*profile.shapes.items(), *profile.values.items()]
    return ", ".join(f"{name} {extremes}" for name, extremes in ranges)


def _extremes(three: Sequence[Any]) -> Extremes:
    low, opt, high = (tuple(int(extent) for extent in shape) for shape in three)
    return Extremes(low, opt, high)
