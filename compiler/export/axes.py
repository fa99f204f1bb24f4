"""The dynamic axes of a captured graph: their names, and the extents for which PyTorch found it to hold."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ExportError
from ...model.example import Example
from ...model.input_notes import AxisRange
from .guards import Guard, allowed_extents, read_guards


@dataclass(frozen=True)
class Axes:
    """The dynamic axes of a captured graph.

    Attributes:
        names: Symbol of the graph, such as "s77", to how the user calls it.
        ranges: Axis name to the extents that the graph holds for; only axes that have limits.
        equal: Sets of axis names that are one axis of the graph; each name stands in one set.
        assumed: Axes that may be 1, which PyTorch assumes of none.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, AxisRange] = field(default_factory=dict)
    equal: Sequence[frozenset[str]] = ()
    assumed: frozenset[str] = frozenset()


def plain_axes(example: Example) -> Axes:
    """Return the axes of a file of which nothing is known but what was asked for."""
    return Axes(ranges=dict(example.ranges), equal=[frozenset([name]) for name in sorted(example.extents)])


def read_axes(program: Any, example: Example, *, proven: bool) -> Axes:
    """Read the dynamic axes of a captured graph.

    An extent is allowed where all guards on its axis hold (`guards`).

    Args:
        program: The `ExportedProgram`.
        example: What it was captured with.
        proven: Whether PyTorch proved all extents that were asked for.

    Raises:
        ExportError: If an axis became static, or holds for the traced extent alone.
    """
    expressions: dict[str, list[Any]] = {}
    traced: dict[str, int] = {}
    environment: Any = None
    for tensor, axis, name, extent in _dynamic_extents(program, example):
        if isinstance(extent, int):
            raise ExportError(
                f"axis {axis} ({name}) of input {tensor!r} cannot be dynamic: PyTorch made it {extent}",
                hint="give that axis a number in `inputs`, or leave it out of `dynamic`",
                reason="axis",
            )
        expression = extent.node.expr
        expressions.setdefault(name, []).append(expression)
        environment = extent.node.shape_env
        factor = _factor(expression)
        if factor is not None:
            traced[str(next(iter(expression.free_symbols)))] = example.extents[name] // factor
    guards = [] if proven else read_guards((guard.expr for guard in environment.guards), traced)
    names: dict[str, str] = {}
    ranges: dict[str, AxisRange] = dict(example.ranges) if proven else {}
    for name, uses in expressions.items():
        for expression in dict.fromkeys(uses):
            factor = _factor(expression)
            if factor is None:
                continue
            (symbol,) = expression.free_symbols
            names.setdefault(str(symbol), name if factor == 1 else f"({name}//{factor})")
            if not proven:
                limits = _limits(symbol, traced, guards, program.range_constraints.get(symbol))
                scaled = AxisRange(
                    limits.minimum * factor,
                    None if limits.maximum is None else limits.maximum * factor,
                    limits.multiple * factor,
                )
                ranges[name] = _both(ranges.get(name, example.ranges.get(name, AxisRange())), scaled, name)
                if ranges[name].minimum == ranges[name].maximum:
                    raise ExportError(
                        f"axis {name!r} cannot be dynamic: the model takes {ranges[name].minimum} alone",
                        hint="give that axis a number in `inputs`, or leave it out of `dynamic`",
                        reason="axis",
                    )
    everything = AxisRange()
    assumed = {name for name in expressions if ranges.get(name, everything).minimum == 1}
    limited = {name: limits for name, limits in ranges.items() if limits != everything}
    return Axes(names, limited, _equal(expressions), frozenset(assumed))


def rename_axes(model: Any, axes: Axes, example: Example) -> None:
    """Give the axes of an ONNX model the user's names; other axes are told by them.

    Args:
        model: The `ModelProto`.
        axes: What its symbols stand for.
        example: How the axes of its inputs are called.
    """
    symbols = re.compile(r"\b(" + "|".join(map(re.escape, axes.names)) + r")\b") if axes.names else None
    inputs = {tensor.name: tensor for tensor in example.inputs}
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if symbols and dim.HasField("dim_param"):
                dim.dim_param = symbols.sub(lambda match: axes.names[match.group()], dim.dim_param)
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis, name in inputs[value.name].dynamic_axes.items() if value.name in inputs else ():
            if axis < len(dims) and not dims[axis].HasField("dim_value"):
                dims[axis].dim_param = name


def _dynamic_extents(program: Any, example: Example) -> Iterable[tuple[str, int, str, Any]]:
    """(input, axis, name, extent) of every dynamic axis; an extent is a number where it became static."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for tensor, placeholder in zip(example.inputs, program.graph_signature.user_inputs, strict=False):
        shape = placeholders[placeholder].meta["val"].shape
        for axis, name in tensor.dynamic_axes.items():
            yield tensor.name, axis, name, shape[axis]


def _factor(expression: Any) -> int | None:
    """`a` of `a*s`, 1 of `s`; None of any other expression."""
    if len(expression.free_symbols) != 1:
        return None
    (symbol,) = expression.free_symbols
    factor = expression / symbol
    return int(factor) if factor.is_Integer and factor > 0 else None


def _equal(expressions: Mapping[str, list[Any]]) -> list[frozenset[str]]:
    sets: list[set[str]] = []
    for name, own in expressions.items():
        joined = {name, *(other for other, theirs in expressions.items() if set(theirs) & set(own))}
        for known in [known for known in sets if known & joined]:
            sets.remove(known)
            joined |= known
        sets.append(joined)
    return [frozenset(names) for names in sets]


def _limits(symbol: Any, traced: Mapping[str, int], guards: Sequence[Guard], known: Any) -> AxisRange:
    """The extents of one symbol: by its range, which PyTorch knows, and by the guards."""
    lowest, highest = 1, None
    if known is not None:
        lowest = int(known.lower)
        lowest = 1 if lowest <= 2 else lowest  # 2 is what PyTorch assumes of every axis
        highest = int(known.upper) if known.upper.is_Integer else None
    return allowed_extents(str(symbol), traced, guards, lowest, highest)


def _both(first: AxisRange, second: AxisRange, name: str) -> AxisRange:
    """The extents that lie in both ranges."""
    limits = [limit for limit in (first.maximum, second.maximum) if limit is not None]
    common = AxisRange(
        max(first.minimum, second.minimum),
        min(limits, default=None),
        math.lcm(first.multiple, second.multiple),
    )
    if common.maximum is not None and common.maximum < common.minimum:
        raise ExportError(f"axis {name!r} cannot be dynamic: no extent suits all inputs that share it")
    return common
