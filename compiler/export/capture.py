"""Capture a PyTorch model as a graph: `torch.export`, with the axes dynamic that were asked for."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from ...errors import ExportError
from ...model.example import Example
from ...model.input_notes import AxisRange
from ...model.pytorch import import_torch
from .axes import Axes, read_axes


@dataclass(frozen=True)
class Captured:
    """A model as a graph.

    Attributes:
        program: A `torch.export.ExportedProgram`.
        axes: Its dynamic axes: their names in the graph, the limits that PyTorch found.
    """

    program: Any
    axes: Axes


def capture(module: Any, example: Example) -> Captured:
    """Capture a module; its gradients are off, as they are at inference.

    An axis is a plain `Dim` at first: PyTorch then proves that the graph holds for every extent. Where it
    refuses, the axis is `Dim.DYNAMIC`, for which PyTorch notes the limits that it met (`read_axes`). Both of
    PyTorch's tracers are tried.

    Raises:
        ExportError: If an axis was made static although it was to be dynamic.
        Exception: What PyTorch raised first.
    """
    torch = import_torch()
    arguments, keywords = example.arguments(example.feeds)
    kinds = (True, False) if any(tensor.dynamic_axes for tensor in example.inputs) else (True,)
    first: Exception | None = None
    for strict in (False, True):
        for proven in kinds:
            try:
                shapes = dynamic_shapes(module, example, proven=proven)
                with torch.no_grad():
                    program = torch.export.export(
                        module, arguments, keywords, dynamic_shapes=shapes, strict=strict
                    )
            except Exception as error:  # whatever PyTorch raises, the next way may do
                first = first or error
                if "your code specialized it to be a constant" in str(error) and not proven:
                    raise first from None  # the other tracer runs the same operators
                continue
            try:
                return Captured(program, read_axes(program, example, proven=proven))
            except ExportError as error:
                first = first or error
    assert first is not None
    raise first


def dynamic_shapes(module: Any, example: Example, *, proven: bool) -> Any:
    """Return the `dynamic_shapes` of `torch.export`; None where nothing is dynamic.

    Args:
        module: The model.
        example: Its inputs.
        proven: Whether each axis is a `Dim`, which PyTorch must prove, else `Dim.DYNAMIC`.
    """
    torch = import_torch()
    dims: dict[str, Any] = {}
    shapes: list[dict[int, Any]] = []
    for tensor in example.inputs:
        for name in tensor.dynamic_axes.values():
            asked = example.ranges.get(name, AxisRange())
            limits = {"min": asked.minimum if asked.minimum > 1 else None, "max": asked.maximum}
            spelled = name if name.isidentifier() else f"axis_{len(dims)}"
            if name not in dims:
                dims[name] = torch.export.Dim(spelled, **limits) if proven else _hinted(torch, limits)
        shapes.append({axis: dims[name] for axis, name in tensor.dynamic_axes.items()})
    if not any(shapes):
        return None
    if example.by_name:
        return {tensor.name: axes for tensor, axes in zip(example.inputs, shapes, strict=True)}
    named = _named_parameters(module)
    return tuple(shapes) if named is None else (*shapes[:named], tuple(shapes[named:]))


def _hinted(torch: Any, limits: dict[str, int | None]) -> Any:
    given = {word: limit for word, limit in limits.items() if limit is not None}
    return torch.export.Dim.DYNAMIC(**given) if given else torch.export.Dim.DYNAMIC


def _named_parameters(module: Any) -> int | None:
    """How many parameters stand before `*args` in `forward`; None where there is no such thing."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return None
    return kinds.index(inspect.Parameter.VAR_POSITIONAL)


def require_axes(example: Example, written: Any, label: str) -> None:
    """Refuse a file in which an axis is static that was to be dynamic.

    Args:
        example: What was asked for.
        written: The inputs of the file.
        label: The model's spelling.

    Raises:
        ExportError: Naming the axis.
    """
    by_name = {tensor.name: tensor for tensor in written}
    for tensor in example.inputs:
        for axis, name in tensor.dynamic_axes.items():
            if tensor.name in by_name and axis not in by_name[tensor.name].dynamic_axes:
                raise ExportError(
                    f"{label}: axis {axis} ({name}) of input {tensor.name!r} cannot be dynamic: the exporter "
                    f"wrote {by_name[tensor.name]}",
                    hint="the model fixes that axis; leave it out",
                )
