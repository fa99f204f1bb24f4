"""Inputs, outputs and optimization profiles of a deserialized engine, and conversion of 64-bit integers.

TensorRT 8 narrows a model's int64 to int32. Feeds of the model's type are narrowed if every value fits.
Outputs that are int64 in the model are widened again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import DataError, ModelError
from ....spec.tensors import ModelIO, TensorInfo, format_shape
from ..adapter import Adapter, member_name

# NumPy types by name, because nptype() of TensorRT 8.5 uses NumPy names that NumPy 2 removed.
_NUMPY = {
    "FLOAT": "float32", "HALF": "float16", "INT8": "int8", "INT32": "int32", "INT64": "int64",
    "BOOL": "bool", "UINT8": "uint8", "BF16": "bfloat16", "FP8": "float8_e4m3fn",
}  # fmt: skip
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class IOTensor:
    """An input or output; an extent of -1 is dynamic. Shapes depend on the values of `on_host` inputs."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_input: bool
    on_host: bool

    @property
    def info(self) -> TensorInfo:
        """Dynamic axes are "?": an engine does not name axes."""
        shape = tuple(extent if extent >= 0 else "?" for extent in self.shape)
        return TensorInfo(self.name, str(self.dtype), shape)


def read_tensors(adapter: Adapter, engine: Any, path: Path) -> tuple[IOTensor, ...]:
    module = adapter.module
    tensors = []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        if (kind := member_name(engine.get_tensor_format(name))) != "LINEAR":
            problem = f"{path}: tensor {name!r} is in format {kind}; row-major (LINEAR) is required"
            raise ModelError(problem, hint="build it without `io_formats`", tensor=name)
        tensors.append(
            IOTensor(
                name,
                numpy_dtype(engine.get_tensor_dtype(name), name, f"{path}: "),
                tuple(int(extent) for extent in engine.get_tensor_shape(name)),
                engine.get_tensor_mode(name) == module.TensorIOMode.INPUT,
                engine.get_tensor_location(name) == module.TensorLocation.HOST,
            )
        )
    return tuple(tensors)


def model_io(tensors: Sequence[IOTensor]) -> ModelIO:
    return ModelIO(
        tuple(tensor.info for tensor in tensors if tensor.is_input),
        tuple(tensor.info for tensor in tensors if not tensor.is_input),
    )


def numpy_dtype(member: Any, name: str, where: str = "") -> np.dtype[Any]:
    import ml_dtypes

    kind = member_name(member)
    if kind not in _NUMPY:
        problem = f"{where}tensor {name!r} is {kind}, a type that numpy arrays do not have"
        hint = "build a model whose inputs and outputs are of another type"
        raise ModelError(problem, hint=hint, tensor=name)
    return np.dtype(getattr(ml_dtypes, _NUMPY[kind], _NUMPY[kind]))


def refused_input(name: str, problem: str, hint: str = "") -> DataError:
    return DataError(f"feeds: input {name!r} {problem}", hint=hint, tensor=name)


class WideIntegers:
    """Converts the model's int64 inputs and outputs that the engine has as int32. `io` describes the engine's
    inputs and outputs, with int64 for those that are int64 in the manifest."""

    def __init__(self, engine: ModelIO, model: ModelIO | None) -> None:
        declared = {tensor.name: tensor.dtype for tensor in (*model.inputs, *model.outputs)} if model else {}
        self._wide = {
            tensor.name
            for tensor in (*engine.inputs, *engine.outputs)
            if (tensor.dtype, declared.get(tensor.name)) == ("int32", "int64")
        }
        self.io = ModelIO(tuple(map(self._widened, engine.inputs)), tuple(map(self._widened, engine.outputs)))

    def narrow(self, values: Mapping[str, Any]) -> dict[str, Any]:
        narrow = dict(values)
        for name in (name for name in values if name in self._wide):
            value = values[name]
            if not isinstance(value, np.ndarray):
                hint = "give a numpy array, or convert it to int32 and build from a model that declares it"
                raise refused_input(name, "is int64 on the device, and int32 in this engine", hint)
            if value.size and (value.min() < _INT32.min or value.max() > _INT32.max):
                problem = f"holds {value.min()} to {value.max()}; the engine has 32 bits"
                raise refused_input(name, problem, "TensorRT 10 has 64-bit integers")
            narrow[name] = value.astype(np.int32)
        return narrow

    def widen(self, outputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {
            name: value.astype(np.int64) if name in self._wide else value for name, value in outputs.items()
        }

    def _widened(self, tensor: TensorInfo) -> TensorInfo:
        return replace(tensor, dtype="int64") if tensor.name in self._wide else tensor


DeclaredProfiles = Sequence[Mapping[str, Mapping[str, Sequence[int]]]]
"""A manifest's profiles. Each maps inputs to "min", "opt" and "max" of their shapes or values."""


@dataclass(frozen=True)
class FeedShapes:
    """`shapes` of inputs, and `values` of shape inputs (which hold a shape); both determine the profile."""

    shapes: Mapping[str, tuple[int, ...]]
    values: Mapping[str, tuple[float, ...]]

    @property
    def key(self) -> tuple[object, ...]:
        return tuple(sorted(self.shapes.items())), tuple(sorted(self.values.items()))


@dataclass(frozen=True)
class InputRange:
    """Smallest, optimal and largest shape of a dynamic input, or values of a shape input."""

    name: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]
    of_values: bool = False

    def as_json(self) -> dict[str, list[int]]:
        return {"min": list(self.min), "opt": list(self.opt), "max": list(self.max)}

    def holds(self, feed_shapes: FeedShapes) -> bool:
        feed = (feed_shapes.values if self.of_values else feed_shapes.shapes)[self.name]
        return len(feed) == len(self.min) and all(
            low <= value <= high for low, value, high in zip(self.min, feed, self.max, strict=True)
        )

    def __str__(self) -> str:
        low, high = format_shape(self.min), format_shape(self.max)
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Profile:
    """An optimization profile: ranges of dynamic inputs and of shape inputs' values."""

    index: int
    ranges: tuple[InputRange, ...]

    def slack(self, feed_shapes: FeedShapes) -> tuple[int, int, int]:
        """Return a sort key, lower if tighter: elements at MAX, distance from OPT in elements, index."""
        shapes = [item for item in self.ranges if not item.of_values]
        allowed = sum(math.prod(item.max) for item in shapes)
        off = sum(abs(math.prod(item.opt) - math.prod(feed_shapes.shapes[item.name])) for item in shapes)
        return allowed, off, self.index


def read_profiles(
    adapter: Adapter, engine: Any, inputs: Sequence[IOTensor], declared: DeclaredProfiles
) -> tuple[Profile, ...]:
    """Return the optimization profiles of an engine; without dynamic inputs, the profile accepts all feeds.
    Ranges of shape inputs come from `declared` if TensorRT does not report them (8.x)."""
    count, profiles = engine.num_optimization_profiles, []
    for index in range(count):
        ranges = []
        for tensor in inputs:
            if -1 in tensor.shape:
                extents = engine.get_tensor_profile_shape(tensor.name, index)
                ranges.append(_read_range(tensor.name, extents, of_values=False))
            if not tensor.on_host:
                continue
            values = adapter.profile_values(engine, tensor.name, index)
            declared_range = declared[index].get(tensor.name) if len(declared) == count else None
            if not values and declared_range and -1 not in tensor.shape:
                values = [declared_range[kind] for kind in ("min", "opt", "max")]
            if values:
                ranges.append(_read_range(tensor.name, values, of_values=True))
        profiles.append(Profile(index, tuple(ranges)))
    return tuple(profiles)


def fitting_profiles(profiles: Sequence[Profile], feed_shapes: FeedShapes) -> list[Profile]:
    """Return the profiles that accept these shapes, the tightest first; raise DataError if none fits."""
    fitting = [item for item in profiles if all(extents.holds(feed_shapes) for extents in item.ranges)]
    if fitting:
        return sorted(fitting, key=lambda profile: profile.slack(feed_shapes))
    feeds = [(name, False, f"has shape {format_shape(shape)}") for name, shape in feed_shapes.shapes.items()]
    feeds += [
        (name, True, f"holds {', '.join(map(str, values))}") for name, values in feed_shapes.values.items()
    ]
    for name, of_values, feed in feeds:
        ranges_of_input = [item for profile in profiles for item in profile.ranges if item.name == name]
        ranges = [item for item in ranges_of_input if item.of_values == of_values]
        if ranges and not any(item.holds(feed_shapes) for item in ranges):
            required = f"required: {' or '.join(dict.fromkeys(map(str, ranges)))}"
            problem = f"feeds: input {name!r} {feed}, outside the engine's optimization profiles; {required}"
            raise DataError(problem, hint="build with wider `min_shapes` and `max_shapes`", tensor=name)
    shapes = ", ".join(f"{name}:{format_shape(shape)}" for name, shape in feed_shapes.shapes.items())
    each = [", ".join(f"{item.name} {item}" for item in profile.ranges) for profile in profiles]
    problem = f"feeds: each input fits an optimization profile, but no profile fits all of {shapes}"
    hint = "build with a profile for these shapes together"
    raise DataError(f"{problem}; required: {'; or '.join(each)}", hint=hint)


def _read_range(name: str, extents: Sequence[Any], *, of_values: bool) -> InputRange:
    low, opt, high = (tuple(int(extent) for extent in shape) for shape in extents)
    return InputRange(name, low, opt, high, of_values)
