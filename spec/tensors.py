"""Read and print the spelling of shapes, inputs and dynamic axes.

`x:1x3x224x224`, `x:[1,3,224,224]` and `x:1,3,224,224` are the same shape; the first is printed. A dynamic
axis has a name in place of a number, between commas or brackets (`x:[batch,3,224,224]`), because
`x:batchx3x224x224` is ambiguous. In declarations of a model's inputs (`--input`, `inputs` of a recipe),
extents may follow the name of an axis:

| spelling             | meaning                                                                  |
|----------------------|--------------------------------------------------------------------------|
| `height`             | dynamic                                                                  |
| `height=64`          | dynamic, and traced with 64                                              |
| `height=32..512`     | dynamic from 32 to 512; either end may be left out (`32..`, `..512`)     |
| `height=32..64..512` | both                                                                     |

`TensorInfo.shape` holds only the names; `TensorInfo.extents` holds the extents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ..errors import DataError, InvalidOption

Dim = int | str
"""A fixed extent, or the name of a dynamic axis ("?" if unnamed)."""

Feeds = dict[str, Any]
"""Input name to numpy array. Not typed as `NDArray`: reading shapes must not load numpy."""


class Rows(Protocol):
    """Samples by number, as in a `Dataset` of PyTorch."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


Dataset = str | Path | Mapping[str, Any] | Iterable[Any] | Callable[[], Any] | Rows
"""DATA in Python: a spelling, arrays, samples, a generator function, a loader, or a data set."""

_DTYPES = (
    "float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32",
    "int64", "uint64", "bool", "string",
)  # fmt: skip

_AXIS = r"[A-Za-z_?][\w.+*/ -]*"
_NUMBER = "[0-9]{1,18}"
"""An extent that fits into int64; `\\d` would match the digits of every script."""
_EXTENTS = re.compile(
    rf"({_AXIS}?)\s*=\s*(?:((?:{_NUMBER})?)\.\.(?:({_NUMBER})\.\.)?((?:{_NUMBER})?)|({_NUMBER}))"
)


@dataclass(frozen=True)
class AxisExtents:
    """Declared extents of a dynamic axis: `maximum` None means no limit; `traced` is the one to trace with,
    None lets the exporter choose."""

    axis: int
    minimum: int = 1
    maximum: int | None = None
    traced: int | None = None


@dataclass(frozen=True)
class TensorInfo:
    """One input or output of a model.

    Attributes:
        dtype: numpy's name of the element type, such as "float32".
        shape: Extents; a dynamic axis is a string.
        extents: Declared extents of dynamic axes; ignored by ==.
        preprocessing: Steps from a sample to this input, as in manifests, or None; ignored by ==.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    extents: tuple[AxisExtents, ...] = field(default=(), compare=False)
    preprocessing: Mapping[str, Any] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.name}:{format_shape(self.shape)}:{self.dtype}"

    @property
    def dynamic_axes(self) -> dict[int, str]:
        """Index to name of the dynamic axes."""
        return {axis: dim for axis, dim in enumerate(self.shape) if isinstance(dim, str)}

    def accepts(self, shape: Sequence[int]) -> bool:
        """Return whether a concrete shape fits this (possibly dynamic) one."""
        return len(shape) == len(self.shape) and all(
            isinstance(dim, str) or dim == extent for dim, extent in zip(self.shape, shape, strict=True)
        )

    def as_json(self) -> dict[str, object]:
        """Return the form used in manifests and results."""
        preprocessing = {"preprocessing": dict(self.preprocessing)} if self.preprocessing is not None else {}
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), **preprocessing}


@dataclass(frozen=True)
class ModelIO:
    """The inputs and outputs of a model, in order."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    def as_json(self) -> dict[str, object]:
        """Return the form used in manifests and results."""
        return {name: [tensor.as_json() for tensor in tensors] for name, tensors in vars(self).items()}

    @staticmethod
    def from_json(value: object) -> ModelIO:
        """Read the form written by `as_json`."""
        return msgspec.convert(value, ModelIO)


def format_shape(shape: Sequence[Dim]) -> str:
    """Return the printed form: `1x3x224x224`; with dynamic axes `[batch,3,224,224]`; `scalar`."""
    if not shape:
        return "scalar"
    if any(isinstance(dim, str) for dim in shape):
        return "[" + ",".join(str(dim) for dim in shape) + "]"
    return "x".join(str(dim) for dim in shape)


def parse_shape(text: str, *, option: str = "shape") -> tuple[Dim, ...]:
    """Read `1x3x224x224`, `[1,3,224,224]` or `1,3,224,224`; names stand for dynamic axes."""
    body = text.strip()
    if body in ("", "[]", "scalar"):
        return ()
    listed = _split_commas(body)
    if listed is not None:
        parts = listed
    elif re.fullmatch(r"[0-9]+(x[0-9]+)*", body):
        parts = body.split("x")
    elif re.fullmatch(_AXIS, body):
        # Otherwise `batchx3x224` is one axis of that name, and a misspelled dtype is a shape.
        problem = f"{option}: {text!r} is neither 1x3x224x224 nor between brackets, as names of axes are"
        raise InvalidOption(problem, hint="write for instance [batch,3,224,224]", option=option)
    else:
        parts = [body]
    return tuple(_parse_dim(part.strip(), text, option) for part in parts)


def parse_named_shape(text: str, *, option: str = "shape") -> tuple[str, tuple[Dim, ...]]:
    """Read `NAME:SHAPE`. The last colon divides, because names may contain colons (`serving_default:0`)."""
    name, colon, shape = text.rpartition(":")
    if not colon or not name:
        hint = "write NAME:SHAPE, such as x:1x3x224x224"
        raise InvalidOption(f"{option}: {text!r} has no input name", hint=hint, option=option)
    return name, parse_shape(shape, option=option)


def parse_input(text: str, *, option: str = "`inputs`") -> TensorInfo:
    """Read `NAME:SHAPE[:DTYPE]`, by default of float32; axes may have extents (`height=32..512`)."""
    head, _, last = text.rpartition(":")
    dtype = "float32"
    if head and last in _DTYPES:
        text, dtype = head, last
    head, colon, shape = text.rpartition(":")
    extents: list[AxisExtents] = []
    parts = _split_commas(shape.strip())
    for axis, part in enumerate(parts or ()):
        match = _EXTENTS.fullmatch(part.strip())
        if match and parts:
            parts[axis] = match.group(1)
            extents.append(_axis_extents(axis, match, f"{option} {text}"))
    if extents and parts:
        text = f"{head}{colon}[{','.join(parts)}]"
    name, axes = parse_named_shape(text, option=option)
    return TensorInfo(name, dtype, axes, tuple(extents))


def _split_commas(body: str) -> list[str] | None:
    """Return the parts of `[a,b]` or `a,b`; None for a text without brackets and commas."""
    if body.startswith("[") and body.endswith("]"):
        return body[1:-1].split(",")
    return body.split(",") if "," in body else None


def _axis_extents(axis: int, match: re.Match[str], subject: str) -> AxisExtents:
    name, least, middle, most, only = match.groups()
    minimum, maximum = int(least or 1), int(most) if most else None
    traced = int(only or middle) if only or middle else None
    if minimum < 1 or (maximum is not None and maximum < max(minimum, 2)):
        problem = f"{subject}: axis {name!r} from {minimum} to {maximum} is no range"
        raise InvalidOption(problem, hint=f"give the least extent first, for instance {name}=32..512")
    if traced is not None and not max(minimum, 2) <= traced <= (maximum or traced):
        problem = f"{subject}: axis {name!r} cannot be traced with {traced}; an extent of the range,"
        hint = "PyTorch treats an axis of extent 1 as fixed" if traced < 2 else ""
        raise InvalidOption(f"{problem} at least 2, is required", hint=hint)
    return AxisExtents(axis, minimum, maximum, traced)


def parse_shapes(texts: Iterable[str], *, option: str) -> dict[str, tuple[int, ...]]:
    """Read several concrete `NAME:SHAPE`, as for `--min-shapes`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, shape = parse_named_shape(text, option=option)
        if name in shapes:
            raise InvalidOption(f"{option}: input {name!r} is given twice", option=option)
        shapes[name] = concrete(shape, f"{option} {text}")
    return shapes


def parse_dynamic_axis(text: str, *, option: str = "`dynamic`") -> tuple[str, int, str]:
    """Read `INPUT:AXIS[=NAME]`, such as `x:0=batch`; the name defaults to `INPUT_AXIS`."""
    match = re.fullmatch(r"(.+):([0-9]{1,3})(?:=([A-Za-z_]\w*))?", text.strip())
    if not match:
        problem = f"{option}: {text!r} is not INPUT:AXIS=NAME"
        raise InvalidOption(problem, hint="write for instance x:0=batch", option=option)
    name, axis, label = match.groups()
    return name, int(axis), label or f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{int(axis)}"


def concrete(shape: Sequence[Dim], subject: str) -> tuple[int, ...]:
    """Return the shape as integers; refuse dynamic axes."""
    extents: list[int] = []
    for axis, dim in enumerate(shape):
        if isinstance(dim, str):
            problem = f"{subject}: axis {axis} is dynamic ({dim}); a number is required here"
            raise InvalidOption(problem, hint="give every extent as a number")
        extents.append(dim)
    return tuple(extents)


def fill_dynamic(tensor: TensorInfo, extent: int = 1) -> tuple[int, ...]:
    """Return a concrete shape with every dynamic axis set to `extent`."""
    return tuple(dim if isinstance(dim, int) else extent for dim in tensor.shape)


def named_extents(inputs: Sequence[TensorInfo], shapes: Mapping[str, Sequence[int]]) -> dict[str, set[int]]:
    """Return name to extents of each dynamic axis but unnamed ones ("?"); `shapes` may lack inputs."""
    extents: dict[str, set[int]] = {}
    for tensor in inputs:
        for axis, name in tensor.dynamic_axes.items():
            if name != "?" and len(shapes.get(tensor.name, ())) == len(tensor.shape):
                extents.setdefault(name, set()).add(int(shapes[tensor.name][axis]))
    return extents


def samples_in(feeds: Feeds) -> int:
    """Return the extent of the first axis of the first input; 1 for a scalar."""
    first = next(iter(feeds.values()))
    return int(first.shape[0]) if first.ndim else 1


def first_axes_differ(inputs: Sequence[TensorInfo]) -> bool:
    """Return whether some first axes are fixed, others dynamic: a state's counts layers, not samples."""
    return len({isinstance(tensor.shape[0], int) for tensor in inputs if tensor.shape}) > 1


def check_feeds(inputs: Sequence[TensorInfo], feeds: Mapping[str, Any], subject: str) -> None:
    """Raise DataError if the feeds do not match the inputs exactly; the message begins with `subject`."""
    names = [tensor.name for tensor in inputs]
    if unknown := [name for name in feeds if name not in names]:
        problem = f"{subject}: no input {unknown[0]!r} in the model; it takes {', '.join(names)}"
        hint = "key the arrays by the model's input names, and labels by 'labels'"
        raise DataError(problem, hint=hint, tensor=unknown[0])
    for tensor in inputs:
        array, problem, hint = feeds.get(tensor.name), "", ""
        if array is None:
            problem = "is missing"
        elif (dtype := _dtype_of(array)) != tensor.dtype != "undefined":
            problem = f"is {dtype}; {tensor.dtype} is required"
            hint = f"give array.astype({tensor.dtype!r}); nothing is converted silently"
        elif not tensor.accepts(array.shape):
            problem = f"has shape {format_shape(array.shape)}; {format_shape(tensor.shape)} is required"
            hint = _shape_hint(tensor, array.shape)
        if problem:
            raise DataError(f"{subject}: input {tensor.name!r} {problem}", hint=hint, tensor=tensor.name)


def _shape_hint(tensor: TensorInfo, shape: Sequence[int]) -> str:
    missing = len(tensor.shape) - len(shape)
    if missing == 1:
        return "the first axis counts samples: give one sample as array[None]"
    if missing == -1:
        if isinstance(tensor.shape[0], str):
            return "samples have one axis too many: leave it out"
        return "the model has no batch axis: yield samples one by one, or give a folder with a file for each"
    return "" if missing else "the extent is fixed: export the model with a dynamic axis"


def _dtype_of(array: Any) -> str:
    return "string" if array.dtype.kind in "OUS" else str(array.dtype)


def _parse_dim(part: str, text: str, option: str) -> Dim:
    if re.fullmatch(_NUMBER, part):
        return int(part)
    if re.fullmatch(_AXIS, part):
        return part
    problem = f"{option}: {part!r} in {text!r} is neither an extent nor a name of an axis"
    if re.fullmatch(r"[0-9]+", part):
        problem = f"{option}: an extent of {len(part)} digits; at most 18 are required"
    raise InvalidOption(problem, hint="write for instance 1x3x224x224 or [batch,3,224,224]", option=option)


def mismatch(expected: Any, actual: Any, precision: str = "fp32") -> tuple[str, str] | None:
    """Return the expected and the actual form of an output if elements cannot be compared, else None.

    Shapes and types must agree. Below fp32, floats may differ in width; int32 may replace int64, which
    TensorRT lacks before version 10. `None` is an output that one side lacks.
    """
    if expected is None or actual is None:
        forms = [
            f"{format_shape(a.shape)} {a.dtype.name}" if a is not None else "no output"
            for a in (expected, actual)
        ]
        return forms[0], forms[1]
    if expected.shape != actual.shape:
        return format_shape(expected.shape), format_shape(actual.shape)
    names = expected.dtype.name, actual.dtype.name
    are_texts = expected.dtype.kind in "OUS" and actual.dtype.kind in "OUS"
    are_floats = all("float" in name for name in names) and precision not in ("fp32", "tf32")
    if names[0] == names[1] or are_texts or are_floats or names == ("int64", "int32"):
        return None
    return names
