"""Optimization profiles: the shapes a dynamic input may have, checked before the build starts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from ....errors import InvalidOption
from ....model.input_notes import AxisRange, InputNote
from ....spec.artifacts import BuildSpec
from ....tensors import TensorInfo, fill_dynamic, format_shape, parse_shape
from ..runner.io_tensors import InputRange

_DEFAULT_OPT, _DEFAULT_MAX = 8, 16

Shapes = Mapping[str, tuple[int, ...]]


def make_profiles(
    inputs: Sequence[TensorInfo],
    spec: BuildSpec,
    shape_tensors: Collection[str] = (),
    notes: Mapping[str, InputNote] | None = None,
) -> list[list[InputRange]]:
    """Return a range for every dynamic input, for each profile; no profile where nothing is dynamic.

    Args:
        inputs: The model's.
        spec: Its profiles, one text each: `NAME:MIN..OPT..MAX`, inputs divided by commas; where it has none,
            its shapes make the one profile.
        shape_tensors: Inputs whose values are shapes: their ranges are of these values.
        notes: What the file says of its inputs (`model.input_notes`).
    """
    texts, notes, kinds = spec.tensorrt.profiles, notes or {}, ("min", "opt", "max")
    if texts and (spec.min_shapes or spec.opt_shapes or spec.max_shapes):
        raise InvalidOption("`profiles`: excludes `min_shapes`, `opt_shapes` and `max_shapes`")
    dynamic = [tensor for tensor in inputs if tensor.dynamic_axes or tensor.name in shape_tensors]
    profiles = []
    for index, text in enumerate(texts or [""], 1):
        option = f"`profiles` {index}" if texts else ""
        shapes = _parsed(text, option) if texts else {kind: spec.shapes(f"{kind}_shapes") for kind in kinds}
        missing = [tensor.name for tensor in dynamic if texts and tensor.name not in shapes["opt"]]
        if missing:
            raise InvalidOption(f"{option}: gives no shapes for {', '.join(missing)}", option="profiles")
        _check_shapes(inputs, shapes, shape_tensors, option)
        ranges = [_range(one, shapes, one.name in shape_tensors, notes.get(one.name)) for one in dynamic]
        _check_shared_axes(inputs, ranges)
        profiles.append(ranges)
    return [ranges for ranges in profiles if ranges]


def _parsed(text: str, option: str) -> dict[str, Shapes]:
    """The shapes of a profile, by kind and input."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {"min": {}, "opt": {}, "max": {}}
    for part in re.split(r",(?=[^,\[\]]*:)", text):
        name, colon, spelled = part.strip().rpartition(":")
        spellings = spelled.split("..")
        if not (name and colon) or len(spellings) != len(shapes):
            raise InvalidOption(
                f"{option}: {part!r} is not NAME:MIN..OPT..MAX",
                hint="for instance image:1x3x224x224..8x3x224x224..32x3x224x224",
                option="profiles",
            )
        for of_kind, shape in zip(shapes.values(), spellings, strict=True):
            extents = parse_shape(shape, option=option)
            if any(isinstance(extent, str) for extent in extents):
                raise InvalidOption(
                    f"{option}: input {name!r}: {format_shape(extents)} is not made of numbers"
                )
            of_kind[name] = tuple(int(extent) for extent in extents)
    return {**shapes}


def _check_shared_axes(inputs: Sequence[TensorInfo], ranges: Sequence[InputRange]) -> None:
    """One axis name, one range: TensorRT finds out only when an inference fails."""
    tensors = {tensor.name: tensor for tensor in inputs}
    first: dict[str, tuple[str, tuple[int, int, int]]] = {}
    for item in ranges:
        for axis, name in () if item.of_values else tensors[item.name].dynamic_axes.items():
            limits = item.min[axis], item.opt[axis], item.max[axis]
            where, known = first.setdefault(name, (item.name, limits))
            if known != limits and name != "?":
                raise InvalidOption(
                    f"axis {name!r}: {'/'.join(map(str, known))} (min/opt/max) in input {where!r}, "
                    f"{'/'.join(map(str, limits))} in input {item.name!r}; one axis has one range",
                    hint="give both inputs the same extents there",
                )


def _check_shapes(
    inputs: Sequence[TensorInfo], given: Mapping[str, Shapes], shape_tensors: Collection[str], option: str
) -> None:
    for kind, shapes in given.items():
        for name, shape in shapes.items():
            tensor = next((tensor for tensor in inputs if tensor.name == name), None)
            if tensor is None:
                known = ", ".join(tensor.name for tensor in inputs)
                raise InvalidOption(
                    f"{option or f'`{kind}_shapes`'}: no input {name!r}; the inputs are {known}"
                )
            count = tensor.shape[0] if tensor.shape else 1
            if name in shape_tensors and len(shape) != count:
                raise InvalidOption(
                    f"input {name!r} holds a shape of {count} values; its {kind} has {len(shape)}",
                    hint="give the least, usual and largest values it holds",
                )
            if name not in shape_tensors and not tensor.accepts(shape):
                raise InvalidOption(
                    f"input {name!r}: {kind} shape {format_shape(shape)} does not fit "
                    f"{format_shape(tensor.shape)}"
                )


def _range(
    tensor: TensorInfo, given: Mapping[str, Shapes], of_values: bool, note: InputNote | None
) -> InputRange:
    """The range of a dynamic input.

    A shape that is not given follows from those that are: min from opt, opt from max or min, max from
    opt. When nothing is given, a batch gets 1, 8 and 16; other axes get the ranges that the file's notes
    have, the example's extent as opt, and twice that as max where there is no end.
    """
    low, opt, high = (given[kind].get(tensor.name) for kind in ("min", "opt", "max"))
    if low is None and opt is None and high is None:
        if of_values:
            raise InvalidOption(
                f"input {tensor.name!r}: its values are a shape, and no ranges for them are given",
                hint="give the values with `min_shapes`, `opt_shapes` and `max_shapes`, or `profiles`",
            )
        noted = note is not None and len(note.example) == len(tensor.shape)
        if set(tensor.dynamic_axes) != {0} and not noted:
            raise InvalidOption(
                f"input {tensor.name!r}: axes {sorted(tensor.dynamic_axes)} of "
                f"{format_shape(tensor.shape)} are dynamic and no shapes are given",
                hint="give `min_shapes`, `opt_shapes` and `max_shapes`",
            )
        if noted and note is not None:
            return _from_note(tensor, note)
        low, opt, high = (fill_dynamic(tensor, n) for n in (1, _DEFAULT_OPT, _DEFAULT_MAX))
    opt = opt or high or low
    assert opt is not None
    low, high = low or opt, high or opt
    for smaller, larger, words in ((low, opt, ("min", "opt")), (opt, high, ("opt", "max"))):
        if any(a > b for a, b in zip(smaller, larger, strict=True)):
            raise InvalidOption(
                f"input {tensor.name!r}: {words[0]} shape {format_shape(smaller)} is above "
                f"{words[1]} {format_shape(larger)}",
                hint=f"raise `{words[1]}_shapes` or lower `{words[0]}_shapes`",
            )
    return InputRange(tensor.name, low, opt, high, of_values)


def _from_note(tensor: TensorInfo, note: InputNote) -> InputRange:
    """The default range of an input of which the file knows what suits the model."""
    shapes: list[tuple[int, int, int]] = []
    for axis, extent in enumerate(tensor.shape):
        limits, example = note.axes.get(axis, AxisRange()), note.example[axis]
        if isinstance(extent, int):
            shapes.append((extent, extent, extent))
            continue
        usual = (
            (_DEFAULT_OPT, _DEFAULT_MAX) if axis == 0 and example <= _DEFAULT_MAX else (example, 2 * example)
        )
        opt, high = (limits.nearest(number) for number in usual)
        if axis and limits.maximum is not None:
            high = limits.nearest(limits.maximum)
        shapes.append((limits.nearest(1), opt, high))
    low, opts, highs = zip(*shapes, strict=True)
    return InputRange(tensor.name, low, opts, highs)
