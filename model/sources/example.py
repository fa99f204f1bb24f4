"""Inputs for the export and checks of a PyTorch model: names, types, shapes, dynamic axes, values."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ExportError, InvalidOption
from ...spec.tensors import AxisExtents, Dim, Feeds, TensorInfo, parse_dynamic_axis, parse_input
from ..graph.input_notes import AxisRange
from ..sessions.random_input import LENGTH, random_feeds, usual_extent
from .pytorch import LoadedModel, import_torch
from .pytorch import flat_outputs as flat_outputs
from .pytorch import name_outputs as name_outputs

BATCH = 2  # 0 and 1 are specialized by torch.export: a dynamic axis must be traced with 2 or more


def _axis_ranges(inputs: Sequence[TensorInfo]) -> dict[str, AxisRange]:
    """Return axis name to the range required by the declared inputs."""
    ranges: dict[str, AxisRange] = {}
    for name, extents in _declared_extents(inputs):
        before = ranges.get(name, AxisRange())
        limits = [limit for limit in (before.maximum, extents.maximum) if limit is not None]
        ranges[name] = AxisRange(max(before.minimum, extents.minimum), min(limits, default=None))
    for name, required in ranges.items():
        if required.maximum is not None and required.maximum < required.minimum:
            raise InvalidOption(
                f"axis {name!r}: minimum {required.minimum} in one input, maximum {required.maximum} in "
                "another; the ranges must overlap"
            )
    return {name: required for name, required in ranges.items() if required != AxisRange()}


def _declared_extents(inputs: Sequence[TensorInfo]) -> Iterator[tuple[str, AxisExtents]]:
    """Yield the name and declared extents of each dynamic axis; axes that are fixed by now are omitted."""
    for tensor in inputs:
        for extents in tensor.extents:
            name = tensor.shape[extents.axis]
            if isinstance(name, str):
                yield name, extents


def traced_extents(
    inputs: Sequence[TensorInfo], shapes: Sequence[Mapping[str, Sequence[Dim]]] = (), rung: int = 0
) -> tuple[dict[str, int], frozenset[str]]:
    """Return axis name to the extent to trace with, and the names of axes with guessed extents.

    Extents are at least 2 and within the ranges of the declared inputs. `shapes` (input name to shape) supply
    extents, in order of priority. `rung` selects an entry of `EXTENTS` for axes without a known extent.
    """
    traced: dict[str, int] = {}
    for name, extents in _declared_extents(inputs):
        if extents.traced is not None and traced.setdefault(name, extents.traced) != extents.traced:
            raise InvalidOption(
                f"axis {name!r}: traced with {traced[name]} in one input, {extents.traced} in another; "
                "one axis has one extent"
            )
    for by_input in shapes:
        for tensor in inputs:
            shape = by_input.get(tensor.name, ())
            for axis, name in tensor.dynamic_axes.items() if len(shape) == len(tensor.shape) else ():
                extent = shape[axis]
                if not isinstance(extent, str):
                    traced.setdefault(name, extent)
    ranges = _axis_ranges(inputs)
    guessed: set[str] = set()
    for tensor in inputs:
        for axis, name in tensor.dynamic_axes.items():
            if name not in traced:
                is_batch = axis == 0 and not LENGTH.fullmatch(name)
                traced[name] = BATCH if is_batch else usual_extent(tensor, axis, rung)
                if traced[name] != BATCH:
                    guessed.add(name)
            traced[name] = max(ranges.get(name, AxisRange()).round_up(traced[name]), BATCH)
    return traced, frozenset(guessed)


def shapes_at(inputs: Sequence[TensorInfo], extents: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return input name to shape with these extents of the dynamic axes."""
    return {t.name: tuple(d if isinstance(d, int) else extents[d] for d in t.shape) for t in inputs}


CHECK_EXTENTS = (1, 3)


@dataclass(frozen=True)
class Example:
    """The inputs of an export and arrays to trace with, passed by keyword if `by_name`.

    Neither the example nor the data has values for the `made_up` inputs, or extents for the `guessed` axes.
    """

    inputs: tuple[TensorInfo, ...]
    feeds: Feeds
    by_name: bool
    made_up: frozenset[str] = frozenset()
    guessed: frozenset[str] = frozenset()
    ranges: Mapping[str, AxisRange] = field(default_factory=dict)

    def call(self, module: Any, feeds: Feeds) -> Any:
        """Return the module's outputs for `feeds`, computed without gradients."""
        torch = import_torch()
        arguments, keywords = self.arguments(feeds)
        with torch.no_grad():
            return module(*arguments, **keywords)

    def arguments(self, feeds: Feeds) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments as copies, since `forward` may change them in place."""
        torch = import_torch()
        tensors = {
            tensor.name: torch.from_numpy(np.array(feeds[tensor.name], order="C")) for tensor in self.inputs
        }
        return ((), tensors) if self.by_name else (tuple(tensors.values()), {})

    @property
    def has_dynamic_batch(self) -> bool:
        """Whether the first axis of every input is dynamic."""
        return bool(self.inputs) and all(0 in tensor.dynamic_axes for tensor in self.inputs)

    @property
    def extents(self) -> dict[str, int]:
        """Dynamic axis name to its traced extent."""
        return {
            name: int(self.feeds[tensor.name].shape[axis])
            for tensor in self.inputs
            for axis, name in tensor.dynamic_axes.items()
        }

    def resize_batch(self, extent: int) -> Feeds:
        """Return feeds with another extent of the first axis; other axes are as traced."""
        return self.at({t.shape[0]: extent for t in self.inputs if t.shape and isinstance(t.shape[0], str)})

    def at(self, extents: Mapping[str, int], *, seed: int | None = None) -> Feeds:
        """Return feeds with other extents of some axes: real values are repeated or cut, others redrawn."""
        shapes = {
            tensor.name: tuple(
                extents.get(tensor.dynamic_axes.get(axis, ""), extent)
                for axis, extent in enumerate(self.feeds[tensor.name].shape)
            )
            for tensor in self.inputs
        }
        real = {name: array for name, array in self.feeds.items() if name not in self.made_up}
        return _make_feeds(self.inputs, shapes, [real], sum(extents.values()) if seed is None else seed)


def make_example(
    loaded: LoadedModel,
    inputs: Sequence[str | TensorInfo],
    dynamic: Sequence[str],
    *,
    data: Feeds | None = None,
    rung: int = 0,
) -> Example:
    """Return the example for an export, with values of the model's example, of the data, or at random.

    `inputs` are `NAME:SHAPE[:DTYPE]`, by default of the model's example; `dynamic` is `INPUT:AXIS=NAME`.
    """
    values, ordered = _example_arrays(loaded), declared_inputs(loaded, inputs)
    if not ordered:
        raise InvalidOption(
            "export: the model's inputs are not known",
            hint="give `inputs` NAME:SHAPE, such as x:1x3x224x224, or `data` to read them from, "
            "or return (module, example) from the function",
            option="inputs",
        )
    tensors = _with_dynamic_axes(ordered, dynamic)
    sources = [values, data or {}]
    # The declared extents come first, including those that `dynamic` replaces by a name.
    shapes: list[Mapping[str, Sequence[Dim]]] = [{tensor.name: tensor.shape for tensor in ordered}]
    shapes += [{name: array.shape for name, array in source.items()} for source in sources]
    extents, guessed = traced_extents(tensors, shapes, rung)
    return Example(
        tensors,
        _make_feeds(tensors, shapes_at(tensors, extents), sources, 0),
        takes_keywords(loaded.module, tensors),
        frozenset(t.name for t in tensors if all(_lacks_array(t, source) for source in sources)),
        guessed,
        _axis_ranges(tensors),
    )


def declared_inputs(loaded: LoadedModel, inputs: Sequence[str | TensorInfo]) -> tuple[TensorInfo, ...]:
    """Return the declared inputs, completed from the model's example; empty if there is neither."""
    # A model by name also has the preprocessing for declared inputs.
    preprocessing = {tensor.name: tensor.preprocessing for tensor in loaded.inputs}
    parsed = (parse_input(item) if isinstance(item, str) else item for item in inputs)
    spelled = [
        replace(tensor, preprocessing=tensor.preprocessing or preprocessing.get(tensor.name))
        for tensor in parsed
    ]
    return in_order(loaded.module, _merge(loaded, spelled or loaded.inputs, _example_arrays(loaded)))


def in_order(module: Any, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
    """Return inputs in the order of `forward`'s parameters; unchanged unless each input has a parameter."""
    order = _nested_names(module) or [name for name, _ in forward_parameters(module)]
    if all(tensor.name in order for tensor in tensors):
        return tuple(sorted(tensors, key=lambda tensor: order.index(tensor.name)))
    return tuple(tensors)


def _make_feeds(
    tensors: Sequence[TensorInfo], shapes: Mapping[str, tuple[int, ...]], sources: Sequence[Feeds], seed: int
) -> Feeds:
    """Return arrays of these shapes, repeated or cut from the first fitting source, else random."""
    feeds: Feeds = {}
    missing = [t for t in tensors if all(_lacks_array(t, source) for source in sources)]
    if missing:
        feeds = random_feeds(tensors, seed=seed, shapes=shapes)
    for tensor in tensors:
        for source in reversed(sources):
            if not _lacks_array(tensor, source):
                feeds[tensor.name] = _fit_array(source[tensor.name], shapes[tensor.name])
    return {tensor.name: feeds[tensor.name] for tensor in tensors}


def _lacks_array(tensor: TensorInfo, source: Feeds) -> bool:
    array = source.get(tensor.name)
    if array is None or str(array.dtype) != tensor.dtype or not tensor.accepts(array.shape):
        return True
    return array.size == 0 and 0 not in tensor.shape


def _fit_array(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the array repeated or cut to a shape; sorted integers, such as offsets, remain sorted."""
    for axis, extent in enumerate(shape):
        if array.shape[axis] != extent:
            ordered = array.dtype.kind in "iu" and np.array_equal(array, np.sort(array, axis))
            array = np.take(array, np.arange(extent), axis=axis, mode="wrap")
            array = np.sort(array, axis) if ordered else array
    return array


def _example_arrays(loaded: LoadedModel) -> Feeds:
    """Return the model's example as arrays by input name."""
    if loaded.example is None:
        return {}
    if isinstance(loaded.example, dict):
        values = dict(loaded.example)
    else:
        names = [name for name, _ in forward_parameters(loaded.module)]
        names += [f"input_{index}" for index in range(len(names), len(loaded.example))]
        values = dict(zip(names, loaded.example, strict=False))
    return {name: value.detach().cpu().numpy() for name, value in values.items()}


def _merge(loaded: LoadedModel, spelled: Sequence[TensorInfo], values: Feeds) -> tuple[TensorInfo, ...]:
    """Return the declared inputs with types of the example, and the other inputs of a nested example."""
    of_example = [TensorInfo(name, str(array.dtype), tuple(array.shape)) for name, array in values.items()]
    if not spelled:
        return tuple(of_example)
    nested = _nested_names(loaded.module)
    merged = []
    for tensor in spelled:
        if nested and tensor.name not in nested:
            raise InvalidOption(
                f"`inputs` {tensor.name}: no such input in the example; its inputs are {', '.join(nested)}",
                option="inputs",
            )
        if tensor.dtype == "float32" and tensor.name in values:  # the default: the example decides
            tensor = replace(tensor, dtype=str(values[tensor.name].dtype))
        merged.append(tensor)
    names = {tensor.name for tensor in merged}
    return (*merged, *(tensor for tensor in of_example if nested and tensor.name not in names))


def _nested_names(module: Any) -> list[str]:
    """Return the input names of a module with flattened nested inputs; empty for any other."""
    from .nested import NestedInputs

    return list(module.input_names) if isinstance(module, NestedInputs) else []


def _with_dynamic_axes(tensors: Sequence[TensorInfo], dynamic: Sequence[str]) -> tuple[TensorInfo, ...]:
    by_name = {}
    for tensor in tensors:  # replace "?" by default names
        names = (parse_dynamic_axis(f"{tensor.name}:{axis}")[2] for axis in range(len(tensor.shape)))
        named = (name if dim == "?" else dim for dim, name in zip(tensor.shape, names, strict=True))
        by_name[tensor.name] = replace(tensor, shape=tuple(named))
    for text in dynamic:
        name, axis, label = parse_dynamic_axis(text)
        if name not in by_name:
            raise InvalidOption(f"`dynamic` {text}: no input {name!r}; the inputs are {', '.join(by_name)}")
        shape = list(by_name[name].shape)
        if axis >= len(shape):
            raise InvalidOption(f"`dynamic` {text}: input {name!r} has {len(shape)} axes")
        shape[axis] = label
        by_name[name] = replace(by_name[name], shape=tuple(shape))
    return tuple(by_name.values())


def forward_parameters(module: Any) -> list[tuple[str, inspect.Parameter]]:
    """Return the parameters of `forward` that accept an input, by name; empty without a signature."""
    schema = getattr(getattr(module, "forward", None), "schema", None)
    if schema is not None:  # TorchScript has no Python signature and takes inputs by position
        kind = inspect.Parameter.POSITIONAL_ONLY
        names = [argument.name for argument in schema.arguments if argument.name != "self"]
        return [(name, inspect.Parameter(name, kind)) for name in names if name.isidentifier()]
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError, AttributeError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [(n, p) for n, p in signature.parameters.items() if p.kind in kinds]


def takes_keywords(module: Any, tensors: Sequence[TensorInfo]) -> bool:
    """Return whether the inputs go to `forward` by name, which requires a parameter for each."""
    if _nested_names(module):
        return False
    captured = getattr(module, "_in_spec", None)
    if captured is not None:  # a .pt2 program takes its inputs as at capture
        return bool(captured.child(1).num_leaves)
    parameters = dict(forward_parameters(module))
    if any(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in parameters.values()):
        return False
    names = [tensor.name for tensor in tensors]
    if parameters and all(name in parameters for name in names):
        return True
    required = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty]
    if parameters and len(required) > len(names):
        raise ExportError(
            f"forward needs {len(required)} inputs ({', '.join(required)}); "
            f"{len(names)} given ({', '.join(names)})",
            hint="give `inputs` NAME:SHAPE for each",
        )
    return False
