"""The inputs a PyTorch model is exported and checked with: names, types, shapes, dynamic axes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ExportError, InvalidOption
from ..shapes import Feeds, TensorInfo, parse_dynamic_axis, parse_input
from .made_input import made_feeds
from .pytorch import LoadedModel, import_torch

EXPORT_EXTENT = 2  # 0 and 1 are specialized by torch.export: a dynamic axis must be traced at 2 or more
CHECK_EXTENTS = (1, 3)


@dataclass(frozen=True)
class Example:
    """What the exporter is given.

    Attributes:
        inputs: The model's inputs; dynamic axes by name.
        feeds: Arrays to trace with.
        by_name: Whether the inputs are keyword arguments of `forward`, else positional.
    """

    inputs: tuple[TensorInfo, ...]
    feeds: Feeds
    by_name: bool

    def call(self, module: Any, feeds: Feeds) -> Any:
        """Run the module on feeds, without gradients."""
        torch = import_torch()
        arguments, keywords = self.arguments(feeds)
        with torch.no_grad():
            return module(*arguments, **keywords)

    def arguments(self, feeds: Feeds) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments as tensors."""
        torch = import_torch()
        tensors = {
            tensor.name: torch.from_numpy(np.ascontiguousarray(feeds[tensor.name])) for tensor in self.inputs
        }
        return ((), tensors) if self.by_name else (tuple(tensors.values()), {})

    @property
    def has_dynamic_batch(self) -> bool:
        """Whether the first axis of every input that has one is dynamic."""
        return bool(self.inputs) and all(0 in tensor.dynamic_axes for tensor in self.inputs)

    def resized(self, extent: int) -> Feeds:
        """Return made feeds with another extent on the first axis, other axes as traced."""
        shapes = {tensor.name: (extent, *self.feeds[tensor.name].shape[1:]) for tensor in self.inputs}
        return made_feeds(self.inputs, seed=extent, shapes=shapes)


def make_example(loaded: LoadedModel, inputs: Sequence[str | TensorInfo], dynamic: Sequence[str]) -> Example:
    """Decide on inputs: as given, else the example that came with the model.

    Raises:
        InvalidOption: If there is neither, or a dynamic axis does not exist.
        ExportError: If a given name is no parameter of `forward`.
    """
    given = tuple(parse_input(item) if isinstance(item, str) else item for item in inputs)
    if given:
        feeds: Feeds = {}
    else:
        given, feeds = _from_model(loaded)
    given = in_order(loaded.module, given)
    tensors = _with_dynamic_axes(given, dynamic)
    traced = made_feeds(tensors, extent=EXPORT_EXTENT, shapes=_trace_shapes(given, tensors))
    for name, array in feeds.items():
        if array.shape == traced[name].shape:
            traced[name] = array  # the user's own values, where no axis had to be widened
    return Example(tensors, traced, takes_keywords(loaded.module, tensors))


def flat_outputs(outputs: Any) -> tuple[list[str], list[NDArray[Any]]]:
    """Return names (empty where the structure has none) and arrays of what `forward` returned."""
    torch = import_torch()
    if isinstance(outputs, torch.Tensor):
        return [""], [outputs.detach().cpu().numpy()]
    items = (
        outputs.items()
        if isinstance(outputs, Mapping)
        else [("", item) for item in outputs]
        if isinstance(outputs, tuple | list)
        else []
    )
    names, arrays = [], []
    for name, item in items:
        inner, values = flat_outputs(item)
        names += [str(name) if len(inner) == 1 else "" for _ in inner]
        arrays += values
    return names, arrays


def name_outputs(given: Sequence[str], reference: Any) -> list[str]:
    """Return a name for every output: as given, as the structure says, or `output`, `output_0`, ...

    Raises:
        InvalidOption: If the given names are not as many as the outputs.
        ExportError: If there is no tensor among them.
    """
    names, arrays = flat_outputs(reference)
    if not arrays:
        raise ExportError(
            f"forward returned {type(reference).__name__}; tensors, or a tuple or dict of them, are required"
        )
    if given:
        if len(given) != len(arrays):
            raise InvalidOption(f"{len(given)} output names for {len(arrays)} outputs")
        return list(given)
    if all(names) and len(set(names)) == len(names):
        return names
    return ["output"] if len(arrays) == 1 else [f"output_{i}" for i in range(len(arrays))]


def in_order(module: Any, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
    """Return inputs in the order of `forward`'s parameters, where it has one for each."""
    order = [name for name, _ in _parameters(module)]
    if all(tensor.name in order for tensor in tensors):
        return tuple(sorted(tensors, key=lambda tensor: order.index(tensor.name)))
    return tuple(tensors)


def _from_model(loaded: LoadedModel) -> tuple[tuple[TensorInfo, ...], Feeds]:
    if loaded.example is None:
        raise InvalidOption(
            "export: the model's inputs are not known",
            hint="give --input NAME:SHAPE, such as --input x:1x3x224x224, "
            "or return (module, example) from the function",
            option="--input",
        )
    if isinstance(loaded.example, dict):
        values = dict(loaded.example)
    else:
        names = [name for name, _ in _parameters(loaded.module)]
        names += [f"input_{index}" for index in range(len(names), len(loaded.example))]
        values = dict(zip(names, loaded.example, strict=False))
    feeds = {name: value.detach().cpu().numpy() for name, value in values.items()}
    tensors = tuple(TensorInfo(name, str(array.dtype), tuple(array.shape)) for name, array in feeds.items())
    return tensors, feeds


def _with_dynamic_axes(tensors: Sequence[TensorInfo], dynamic: Sequence[str]) -> tuple[TensorInfo, ...]:
    by_name = {tensor.name: tensor for tensor in tensors}
    for text in dynamic:
        name, axis, label = parse_dynamic_axis(text)
        if name not in by_name:
            raise InvalidOption(f"--dynamic {text}: no input {name!r}; the inputs are {', '.join(by_name)}")
        shape = list(by_name[name].shape)
        if axis >= len(shape):
            raise InvalidOption(f"--dynamic {text}: input {name!r} has {len(shape)} axes")
        shape[axis] = label
        by_name[name] = replace(by_name[name], shape=tuple(shape))
    return tuple(by_name.values())


def _trace_shapes(given: Sequence[TensorInfo], tensors: Sequence[TensorInfo]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for before, after in zip(given, tensors, strict=True):
        shapes[after.name] = tuple(
            int(dim)
            if isinstance(after.shape[axis], int)
            else max(dim if isinstance(dim, int) else EXPORT_EXTENT, EXPORT_EXTENT)
            for axis, dim in enumerate(before.shape)
        )
    return shapes


def _parameters(module: Any) -> list[tuple[str, inspect.Parameter]]:
    schema = getattr(getattr(module, "forward", None), "schema", None)
    if schema is not None:  # TorchScript has no Python signature, and takes its inputs by position
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
    """Return whether the inputs go to `forward` by name: it has a parameter for each.

    Raises:
        ExportError: If it requires more inputs than there are.
    """
    captured = getattr(module, "_in_spec", None)
    if captured is not None:  # a .pt2 program takes its inputs as it was captured with them
        return bool(captured.child(1).num_leaves)
    parameters = dict(_parameters(module))
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
            hint="give one --input for each",
        )
    return False
