"""Generate valid random input for a model, for checks and benchmarks without user data.

The consumers of an input determine its values; `input_notes` from the file determine its extents.

| domain     | condition                                                                                     |
|------------|-----------------------------------------------------------------------------------------------|
| `index`    | values select rows: of a table of embeddings, of the nodes of a graph, of classes             |
| `mask`     | named like a mask, boolean, or an integer that is compared, cast to bool or multiplied        |
| `position` | named like a position: 0, 1, 2, … along its last axis                                         |
| `boxes`    | last axis holds corners: named like boxes, or an input of `RoiAlign`                          |
| `length`   | named like a length, or sequence lengths of an RNN: the filled extent of an axis              |
| `image`    | bytes with three axes or more                                                                 |
| `normal`   | all else: standard normal floats, integers of 0 and 1                                         |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import BuildError, DataError, EngineUnavailable, QCompileError
from ...spec.tensors import Dim, Feeds, TensorInfo, format_shape, named_extents
from .. import onnx
from ..graph.graph import (
    attribute,
    consumers,
    infer_shapes,
    model_io,
    stored_tensors,
    tensor_values,
)
from ..graph.input_notes import read_notes

Kind = Literal["index", "mask", "position", "boxes", "length", "image", "normal"]

_KEEP_VALUE = frozenset(
    """
    Cast CastLike Identity Reshape Flatten Squeeze Unsqueeze Transpose Expand Tile Slice Split Concat
    Gather GatherElements GatherND Clip Min Max Where Pad Trilu Dropout
    """.split()
)
"""Operators that output values of their first input (`Concat`, `Min`, `Max`: any; `Where`: both cases)."""

_AS_MASK = frozenset(
    ["Mul", "Not", "And", "Or", "Xor", "Equal", "Greater", "Less", "Sub", "ReduceSum", "CumSum"]
)
_SELECTING = {
    "Gather": 1, "GatherElements": 1, "ScatterElements": 1, "GatherND": 1, "ScatterND": 1, "RoiAlign": 2,
    "OneHot": 0,
}  # fmt: skip
"""Operator to the position of the operand that holds indices."""
_NAMED_MASK = re.compile(r"mask|(?<![a-z])pad(?![a-z])", re.I)
_NAMED_POSITION = re.compile(r"position|(?<![a-z])pos(?![a-z])", re.I)
_NAMED_BOXES = re.compile(r"box|(?<![a-z])rois?(?![a-z])", re.I)
_NAMED_LENGTH = re.compile(r"length|(?<![a-z])lens?(?![a-z])", re.I)


@dataclass(frozen=True)
class Domain:
    """Valid values of one input.

    Attributes:
        kind: See the table above.
        bounds: Exclusive upper bounds of indices, inclusive ones of lengths. A text stands for the extent of
            the dynamic axis of this name.
        excluded: Indices that are never drawn, e.g. of padding and of the end of a text.
        seen: Arrays of real samples; values are drawn from them, or from their range.
    """

    kind: Kind = "normal"
    bounds: tuple[Dim, ...] = ()
    excluded: tuple[int, ...] = ()
    seen: tuple[NDArray[Any], ...] = field(default=(), compare=False)


def read_domains(model: onnx.ModelProto, samples: Sequence[Feeds] = ()) -> dict[str, Domain]:
    """Return input name to domain; the values of large weights are not needed.

    With real `samples`, values resemble those of the samples.
    """
    trace, domains = _Trace(model), {}
    for tensor in model_io(model).inputs:
        seen = tuple(feeds[tensor.name] for feeds in samples if tensor.name in feeds)
        domains[tensor.name] = replace(
            trace.domain(tensor), seen=tuple(array for array in seen if array.size)
        )
    return domains


def named_domain(tensor: TensorInfo) -> Domain:
    """Return the domain by the input's name and type alone, for a model without a graph."""
    whole = tensor.dtype.startswith(("int", "uint"))
    if tensor.dtype == "bool" or (_NAMED_MASK.search(tensor.name) and len(tensor.shape) > 1):
        return Domain("mask")
    if whole and _NAMED_POSITION.search(tensor.name):
        return Domain("position")
    if whole and _NAMED_LENGTH.search(tensor.name) and len(tensor.shape) < 2:
        return Domain("length")
    if "float" in tensor.dtype and tensor.shape[-1:] == (4,) and _NAMED_BOXES.search(tensor.name):
        return Domain("boxes")
    if tensor.dtype == "uint8" and len(tensor.shape) > 2:
        return Domain("image")
    return Domain()


class _Trace:
    """Traces the values of inputs through one graph."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.readers = consumers(model.graph)
        self.shapes: dict[str, tuple[Dim, ...]] = dict(infer_shapes(model))
        self.shapes.update({tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer})
        self.stored = stored_tensors(model.graph)

    def domain(self, tensor: TensorInfo) -> Domain:
        named = named_domain(tensor)
        uses = list(self._uses(tensor.name))
        if tensor.dtype.startswith(("int", "uint")):
            filled = (self._filled_extent(node, name) for node, name in uses)
            if longest := tuple(dict.fromkeys(bound for bound in filled if bound not in ("", 0, "?"))):
                return Domain("length", longest)
            bounds = (bound for node, name in uses for bound in self._bounds(node, name))
            if limits := tuple(dict.fromkeys(bound for bound in bounds if bound not in ("", 0, "?"))):
                return Domain("position" if named.kind == "position" else "index", limits)
            is_mask = any(
                node.op_type in _AS_MASK
                or (node.op_type == "Cast" and attribute(node, "to", 0) == 9)  # TensorProto.BOOL
                or (node.op_type == "Where" and node.input[0] == name)
                for node, name in uses
            )
            if named.kind == "normal" and len(tensor.shape) > 1 and is_mask:
                return Domain("mask")
        is_corners = any(node.op_type == "RoiAlign" and node.input[1] == name for node, name in uses)
        return Domain("boxes") if is_corners and "float" in tensor.dtype else named

    def _uses(self, name: str) -> Iterator[tuple[onnx.NodeProto, str]]:
        """Yield each node that a value reaches unchanged (`_KEEP_VALUE`), and the value's name there."""
        pending, seen = [name], {name}
        while pending:
            current = pending.pop()
            for node in self.readers.get(current, ()):
                yield node, current
                keeps = node.op_type in _KEEP_VALUE and (
                    node.op_type in ("Concat", "Min", "Max")
                    or current in (node.input[1:] if node.op_type == "Where" else node.input[:1])
                )
                if keeps:
                    outputs = [output for output in node.output if output and output not in seen]
                    seen.update(outputs)
                    pending += outputs

    def _bounds(self, node: onnx.NodeProto, name: str) -> tuple[Dim, ...]:
        """Return the extents that bound this value if it holds indices for the node."""
        if node.op_type == "Equal":  # with 0, 1, 2, …: `one_hot` of JAX and TensorFlow
            rows = self._values(next((other for other in node.input if other != name), ""))
            return (rows.size,) if rows.size > 2 and np.array_equal(rows, np.arange(rows.size)) else ()
        place = _SELECTING.get(node.op_type, len(node.input))
        if len(node.input) <= place or node.input[place] != name:
            return ()
        if node.op_type == "OneHot":
            depth = self._values(node.input[1])
            return (int(depth.item()),) if depth.size == 1 and np.isfinite(depth).all() else ()
        shape = self.shapes.get(node.input[0], ())
        if node.op_type == "RoiAlign":
            return shape[:1]
        if node.op_type in ("GatherND", "ScatterND"):  # one leading axis for each element of an index tuple
            indices = self.shapes.get(name, ())
            length = indices[-1] if indices and isinstance(indices[-1], int) else 1
            first = attribute(node, "batch_dims", 0)
            return shape[first : first + length]
        axis = attribute(node, "axis", 0)
        return (shape[axis],) if -len(shape) <= axis < len(shape) else ()

    def _filled_extent(self, node: onnx.NodeProto, name: str) -> Dim:
        """Return the extent of the axis that this value holds filled lengths of, or "" for other values."""
        place = {"GRU": 4, "LSTM": 4, "RNN": 4, "ReverseSequence": 1}.get(node.op_type, len(node.input))
        if len(node.input) <= place or node.input[place] != name:
            return ""
        shape = self.shapes.get(node.input[0], ())
        axis = attribute(node, "time_axis" if node.op_type == "ReverseSequence" else "layout", 0)
        return shape[axis] if axis < len(shape) else ""

    def _values(self, name: str) -> NDArray[Any]:
        """Return the flat values of a stored tensor; empty if it is not stored, or in another file."""
        tensor = self.stored.get(name)
        return np.empty(0) if tensor is None or tensor.external_data else tensor_values(tensor).ravel()


Result = TypeVar("Result")

EXTENTS = (
    (64, 16), (224, 64), (32, 8), (128, 128), (48, 1024), (256, 512), (64, 2048), (384, 16000), (1, 1),
)  # fmt: skip
"""Extents to try for unknown axes: (of image axes, of other axes), cheap ones first."""
_MOST_TRIED = 1 << 26
"""Most values of a guessed input: a batch mistaken for a length, and a real length, multiply to gigabytes."""
_IMAGE = re.compile(r"(?i)(.*_)?(h|w|height|width|rows|columns)")
_BATCH = re.compile(r"(?i)b|n|bs|(.*_)?batch(_size)?")
LENGTH = re.compile(r"(?i)(.*_)?(t|time|l|len|length|seq|sequence|seq_len|tokens|frames|samples)")

_PADDED = 4  # 1/4 of a row of a mask is padding
_WAYS_OUT = (
    "give real samples with `data`, or export with extents that suit: `inputs` 'x:[batch,3,height=64,...]'"
)


def random_feeds(
    inputs: Sequence[TensorInfo],
    *,
    seed: int = 0,
    extent: int = 1,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    domains: Mapping[str, Domain] | None = None,
) -> Feeds:
    """Return random input. Dynamic axes have `extent`, except in `shapes` and in axes named in `shapes`.

    `domains` determine the values, else names and types of the inputs.
    """
    generator = np.random.default_rng(seed)
    named = {name: min(sizes) for name, sizes in named_extents(inputs, shapes or {}).items()}
    shapes = {
        t.name: (shapes or {}).get(t.name)
        or tuple(dim if isinstance(dim, int) else named.get(dim, extent) for dim in t.shape)
        for t in inputs
    }
    extents = {
        name: shapes[tensor.name][axis] for tensor in inputs for axis, name in tensor.dynamic_axes.items()
    }
    feeds: Feeds = {}
    for tensor in inputs:
        if tensor.dtype in ("string", "undefined"):
            raise DataError(
                f"input {tensor.name!r} is of {tensor.dtype}; no input can be made for it",
                hint="give `data`",
                tensor=tensor.name,
            )
        if tensor.dtype == "bfloat16":
            import ml_dtypes  # noqa: F401 - registers the name in NumPy
        domain = (domains or {}).get(tensor.name) or named_domain(tensor)
        values = _values(domain, tensor, shapes[tensor.name], extents, generator)
        feeds[tensor.name] = np.asarray(values, tensor.dtype)
    return feeds


def run_on(
    model: onnx.ModelProto,
    sample: Feeds | None,
    run: Callable[[Feeds], Result],
    *,
    inputs: Sequence[TensorInfo] | None = None,
) -> tuple[Feeds, Result]:
    """Run a model on a real sample, or else on random input; return the input and the result.

    `inputs` are the inputs of `run` if they differ from the graph's.
    """
    return RandomInput(model, inputs).run(run) if sample is None else (sample, run(sample))


class RandomInput:
    """Generates input for one ONNX model; the values of large weights are not needed.

    `inputs` replace the graph's; values resemble those of `samples` if present.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        inputs: Sequence[TensorInfo] | None = None,
        samples: Sequence[Feeds] = (),
    ) -> None:
        self.inputs = model_io(model).inputs if inputs is None else tuple(inputs)
        self._domains = read_domains(model, samples)
        self._notes = read_notes(model)
        self._guess = 0

    @property
    def is_guess(self) -> bool:
        """Whether the extent of an axis is a guess that only a run can confirm."""
        return any(
            tensor.name not in self._notes and not self.is_batch(axis, dim)
            for tensor in self.inputs
            for axis, dim in tensor.dynamic_axes.items()
        )

    @property
    def has_batch(self) -> bool:
        """Whether the first axis of every input with axes is dynamic, so it counts as the batch."""
        with_axes = [tensor for tensor in self.inputs if tensor.shape]
        return bool(with_axes) and all(0 in tensor.dynamic_axes for tensor in with_axes)

    def is_batch(self, axis: int, name: str) -> bool:
        """Return whether a dynamic axis is the batch: an axis with the name of a first axis. If first axes
        have a batch's name that also occurs elsewhere, only it counts, as in `[time, batch], [batch]`."""
        first = {tensor.shape[0] for tensor in self.inputs if tensor.shape}
        inner = {dim for tensor in self.inputs for dim in tensor.shape[1:]}
        batch_names = {dim for dim in first & inner if isinstance(dim, str) and _BATCH.fullmatch(dim)}
        return self.has_batch and (name in (batch_names or first - {"?"}) or (name == "?" and not axis))

    def feeds(self, batch: int = 1, *, seed: int = 0) -> Feeds:
        """Return random input with `batch` samples."""
        return random_feeds(self.inputs, seed=seed, shapes=self._shapes(batch), domains=self._domains)

    def run(self, run: Callable[[Feeds], Result], batch: int = 1, *, seed: int = 0) -> tuple[Feeds, Result]:
        """Return input that the model accepts, and the result; several extents are tried for unknown axes.

        Later calls of `feeds` use the extents that succeeded. If all fail, raise the first error of `run` and
        add the input's shapes to its message.
        """
        first_error: QCompileError | None = None
        last = len(EXTENTS) if self.is_guess else self._guess + 1
        for guess in range(self._guess, last):
            self._guess = guess
            if first_error is not None and sum(map(math.prod, self._shapes(batch).values())) > _MOST_TRIED:
                continue
            feeds = self.feeds(batch, seed=seed)
            try:
                return feeds, run(feeds)
            except EngineUnavailable:
                raise
            except QCompileError as error:
                first_error = first_error or error
        self._guess = 0
        assert first_error is not None, "there is one guess at least"
        arrays = self.feeds(batch, seed=seed).items()
        shapes = ", ".join(f"{name}:{format_shape(array.shape)}:{array.dtype}" for name, array in arrays)
        message = f"{first_error.message} (with random input: {shapes})"
        # If the graph cannot be compiled, real samples do not help.
        hint = first_error.hint if isinstance(first_error, BuildError) else _WAYS_OUT
        raise type(first_error)(message, hint=hint, **first_error.data) from first_error

    def _shapes(self, batch: int) -> dict[str, tuple[int, ...]]:
        named: dict[str, int] = {}
        return {tensor.name: self._shape(tensor, batch, named) for tensor in self.inputs}

    def _shape(self, tensor: TensorInfo, batch: int, named: dict[str, int]) -> tuple[int, ...]:
        """Return the shape of an input; `named` holds the extents by axis name, and gets new ones."""
        note = self._notes.get(tensor.name)
        noted = note.example if note and len(note.example) == len(tensor.shape) else None
        shape = []
        for axis, dim in enumerate(tensor.shape):
            if isinstance(dim, int):
                shape.append(dim)
                continue
            if self.is_batch(axis, dim):
                extent = batch
            elif axis == 0 and self._guess and not noted and _BATCH.fullmatch(dim):
                extent = 1  # beside a state of one sample
            else:
                extent = noted[axis] if noted else usual_extent(tensor, axis, self._guess)
            if note and axis in note.axes:
                extent = note.axes[axis].round_up(extent)
            shape.append(extent if dim == "?" else named.setdefault(dim, extent))
        return tuple(shape)


def usual_extent(tensor: TensorInfo, axis: int, guess: int) -> int:
    """Return the extent in `EXTENTS[guess]` for an image's axis or a length, by name, else by position."""
    image, length = EXTENTS[guess]
    name = str(tensor.shape[axis])
    if _IMAGE.fullmatch(name) or LENGTH.fullmatch(name):
        return image if _IMAGE.fullmatch(name) else length
    spatial = len(tensor.shape) in (4, 5) and ("float" in tensor.dtype or tensor.dtype == "uint8")
    channels_last = spatial and isinstance(tensor.shape[-1], int) and tensor.shape[-1] <= 4
    is_image = spatial and (axis in (1, 2) if channels_last else axis >= len(tensor.shape) - 2)
    return image if is_image else length


def _values(
    domain: Domain,
    tensor: TensorInfo,
    shape: tuple[int, ...],
    extents: Mapping[str, int],
    generator: np.random.Generator,
) -> NDArray[Any]:
    if domain.seen:
        return _values_like(domain, shape, generator)
    if domain.kind == "index":
        most = max(_bound(domain, extents), 1)
        if domain.excluded:
            return generator.choice(np.setdiff1d(np.arange(most), domain.excluded), shape)
        return generator.integers(0, most, shape)
    if domain.kind == "position":
        highest = _bound(domain, extents) if domain.bounds else shape[-1] if shape else 1
        line = np.minimum(np.arange(shape[-1] if shape else 1), max(highest - 1, 0))
        return np.broadcast_to(line, shape) if shape else line[0]
    if domain.kind == "mask":
        values = np.ones(shape, np.int8)
        if shape and shape[-1] > 1:  # a padded tail; no row is empty
            values[..., shape[-1] - max(shape[-1] // _PADDED, 1) :] = 0
        return values
    if domain.kind == "length":
        extents_of_bounds = [extents.get(dim, 0) if isinstance(dim, str) else dim for dim in domain.bounds]
        other_extents = [extent for name, extent in extents.items() if name not in tensor.shape]
        most = min(filter(None, extents_of_bounds), default=max(other_extents or extents.values(), default=1))
        return np.full(shape, most)
    if domain.kind == "boxes":  # corners x1, y1, x2, y2 with x1 < x2 and y1 < y2, within 32 x 32
        corners = generator.uniform(0.0, 16.0, (*shape[:-1], 2))
        sides = generator.uniform(4.0, 16.0, (*shape[:-1], 2))
        return np.concatenate([corners, corners + sides], axis=-1)
    if domain.kind == "image":
        return generator.integers(0, 256, shape)
    if "float" in tensor.dtype:
        return generator.standard_normal(shape)
    return generator.integers(0, 2, shape)


def _values_like(domain: Domain, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
    """Return values like the samples': whole rows; floats, each from any row; integers within their range.

    With one row, or rows of other shapes, values are drawn from any position.
    """
    rows = [a if shape else a[None] for a in domain.seen if a.shape[1:] == shape[1:]]
    pool = np.concatenate(rows) if rows else np.empty(0)
    flat = np.concatenate([a.ravel() for a in domain.seen])
    kind = pool.dtype.kind if rows else flat.dtype.kind
    count = shape[:1] if shape else ()
    if rows and (kind not in "iuf" or domain.kind in ("mask", "position", "length", "boxes")):
        return np.asarray(pool[generator.integers(0, len(pool), count)])
    if kind not in "iu":
        if len(pool) < 2:
            return np.asarray(flat[generator.integers(0, flat.size, shape)])
        return np.take_along_axis(pool, generator.integers(0, len(pool), shape or (1,)), 0).reshape(shape)
    low, high = (pool.min(0), pool.max(0)) if len(pool) > 1 else (flat.min(), flat.max())
    values = generator.integers(low, high, shape, dtype=flat.dtype, endpoint=True)
    is_ordered = bool(shape) and all(np.array_equal(a, np.sort(a, -1)) for a in domain.seen)
    return np.sort(values, -1) if is_ordered else values


def _bound(domain: Domain, extents: Mapping[str, int]) -> int:
    """Return the exclusive upper bound of indices; 2 for an unknown extent, as most tables have two rows."""
    return min(dim if isinstance(dim, int) else extents.get(dim, 2) for dim in domain.bounds)
