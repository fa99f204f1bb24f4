"""Capture a PyTorch model as a graph: its dynamic axes, and the extents that PyTorch's guards allow.

A guard is a condition on the symbols of axes, for example `Eq(s53, 2*(s53//2))`.
"""

from __future__ import annotations

import builtins
import inspect
import math
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

from ...errors import ExportError
from ...model.graph.input_notes import AxisRange
from ...model.sources.example import Example
from ...model.sources.pytorch import import_torch


@dataclass(frozen=True)
class Axes:
    """The dynamic axes of a captured graph.

    Attributes:
        names: Symbol of the graph, for example "s77", to the user's name of the axis.
        ranges: Axis name to the extents for which the graph holds; axes without limits are absent.
        equal: Sets of names that belong to one axis of the graph; each name is in exactly one set.
        may_be_one: Axes that may be 1, although PyTorch assumes 2 or more for every axis.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, AxisRange] = field(default_factory=dict)
    equal: Sequence[frozenset[str]] = ()
    may_be_one: frozenset[str] = frozenset()


def read_axes(program: Any, example: Example, *, proven: bool) -> Axes:
    """Return a captured graph's dynamic axes, with the requested ranges if `proven`, else those of guards."""
    expressions: dict[str, list[Any]] = {}
    traced: dict[str, int] = {}
    environment: Any = None
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    uses = [
        (tensor.name, axis, name, values[placeholder].shape[axis])
        for tensor, placeholder in zip(example.inputs, program.graph_signature.user_inputs, strict=False)
        for axis, name in tensor.dynamic_axes.items()
    ]
    for tensor, axis, name, extent in uses:
        if isinstance(extent, int):
            raise _static_error(f"axis {axis} ({name}) of input {tensor!r}", f"PyTorch made it {extent}")
        expression = extent.node.expr
        expressions.setdefault(name, []).append(expression)
        environment = extent.node.shape_env
        factor = _factor(expression)
        if factor is not None:
            traced[str(next(iter(expression.free_symbols)))] = example.extents[name] // factor
    guards = [] if proven else read_guards((guard.expr for guard in environment.guards), traced)
    names: dict[str, str] = {}
    ranges: dict[str, AxisRange] = dict(example.ranges) if proven else {}
    for name, alternatives in expressions.items():
        for expression in dict.fromkeys(alternatives):
            factor = _factor(expression)
            if factor is None:
                continue
            (symbol,) = expression.free_symbols
            names.setdefault(str(symbol), name if factor == 1 else f"({name}//{factor})")
            if not proven:
                limits = _symbol_range(symbol, traced, guards, program.range_constraints.get(symbol))
                largest = None if limits.maximum is None else limits.maximum * factor
                scaled = AxisRange(limits.minimum * factor, largest, limits.multiple * factor)
                ranges[name] = _both(ranges.get(name, example.ranges.get(name, AxisRange())), scaled, name)
                if ranges[name].minimum == ranges[name].maximum:
                    raise _static_error(f"axis {name!r}", f"the model takes only {ranges[name].minimum}")
    everything = AxisRange()
    assumed = {name for name in expressions if ranges.get(name, everything).minimum == 1}
    limited = {name: limits for name, limits in ranges.items() if limits != everything}
    return Axes(names, limited, _equal_axes(expressions), frozenset(assumed))


def _static_error(axis: str, why: str) -> ExportError:
    hint = "give that axis a number in `inputs`, or leave it out of `dynamic`"
    return ExportError(f"{axis} cannot be dynamic: {why}", hint=hint, reason="axis")


def rename_axes(model: Any, axes: Axes, example: Example) -> None:
    """Give input axes of an ONNX model their names in the example; other axes become expressions in these."""
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


def _factor(expression: Any) -> int | None:
    """Return `a` of the expression `a*s`, 1 for `s`, or None for any other expression."""
    if len(expression.free_symbols) != 1:
        return None
    (symbol,) = expression.free_symbols
    factor = expression / symbol
    return int(factor) if factor.is_Integer and factor > 0 else None


def _equal_axes(expressions: Mapping[str, list[Any]]) -> list[frozenset[str]]:
    sets: list[set[str]] = []
    for name, alternatives in expressions.items():
        joined = {name, *(axis for axis, values in expressions.items() if set(values) & set(alternatives))}
        for overlapping in [names for names in sets if names & joined]:
            sets.remove(overlapping)
            joined |= overlapping
        sets.append(joined)
    return [frozenset(names) for names in sets]


def _symbol_range(symbol: Any, traced: Mapping[str, int], guards: Sequence[Guard], limits: Any) -> AxisRange:
    """Return the extents of one symbol that both PyTorch's range and the guards allow."""
    lowest, highest = 1, None
    if limits is not None:
        lowest = int(limits.lower) if limits.lower > 2 else 1  # PyTorch assumes 2 or more for every axis
        highest = int(limits.upper) if limits.upper.is_Integer else None
    return allowed_extents(str(symbol), traced, guards, lowest, highest)


def _both(first: AxisRange, second: AxisRange, name: str) -> AxisRange:
    """Return the intersection of two ranges; raise ExportError if it is empty."""
    lowest, multiple = max(first.minimum, second.minimum), math.lcm(first.multiple, second.multiple)
    highest = min((limit for limit in (first.maximum, second.maximum) if limit is not None), default=None)
    if highest is not None and highest < lowest:
        raise ExportError(f"axis {name!r} cannot be dynamic: no extent suits all inputs that share it")
    return AxisRange(lowest, highest, multiple)


_WINDOW = 512  # extents above the traced one that are tested to detect a multiple
_FAR = 64  # times the traced extent: guards that hold there are taken to hold for every extent


@dataclass(frozen=True)
class Guard:
    """A guard with its symbols by name."""

    symbols: Mapping[str, Any]
    expression: Any

    def holds(self, symbol: str, extent: int, traced: Mapping[str, int]) -> bool:
        """Return whether the guard is true at an extent of `symbol`, for some extents of its other symbols.

        Another symbol traced at n is tried at n, n + 1 and 2 n; its range is found separately.
        """
        alternatives = [
            [extent] if name == symbol else [traced[name], traced[name] + 1, traced[name] * 2]
            for name in self.symbols
        ]
        return any(self.value(extents) for extents in product(*alternatives))

    def value(self, extents: Iterable[int]) -> bool:
        """Return whether the guard is true for the extents of its symbols."""
        from torch.utils._sympy.interp import sympy_interp

        environment = dict(zip(self.symbols.values(), extents, strict=True))
        try:
            return bool(sympy_interp(_expression_evaluator(), environment, self.expression))
        except (ArithmeticError, ValueError):  # for example, a division by 0 windows
            return False


@cache
def _expression_evaluator() -> Any:
    """Return PyTorch's evaluator of expressions; its `maximum` and `minimum` reject sympy integers (2.13)."""
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    return type("Analysis", (PythonReferenceAnalysis,), {"maximum": max, "minimum": min})


def read_guards(expressions: Iterable[Any], traced: Mapping[str, int]) -> list[Guard]:
    """Return the guards on symbols of input axes; guards with functions that PyTorch lacks are left out."""
    guards = []
    for expression in dict.fromkeys(expressions):
        symbols = {str(symbol): symbol for symbol in getattr(expression, "free_symbols", ())}
        if symbols and symbols.keys() <= traced.keys():
            guard = Guard(symbols, expression)
            with suppress(AttributeError, KeyError, NotImplementedError):
                guard.value(traced[name] for name in symbols)
                guards.append(guard)
    return guards


def allowed_extents(
    symbol: str, traced: Mapping[str, int], guards: Sequence[Guard], lowest: int, highest: int | None
) -> AxisRange:
    """Return the extents, within PyTorch's limits, for which all guards hold; they include the traced one."""
    guards = [guard for guard in guards if symbol in guard.symbols]
    start = traced[symbol]

    def holds(extent: int) -> bool:
        return all(guard.holds(symbol, extent, traced) for guard in guards)

    end = start + _WINDOW
    near = range(start + 1, (end if highest is None else min(highest, end)) + 1)
    larger = [] if not near or holds(near[0]) else [extent for extent in near if holds(extent)]
    step = math.gcd(start, *larger) if larger else 1

    def last(end: int) -> int:
        return _last_that_holds(start // step, end, lambda count: holds(count * step)) * step

    first = last(-(-lowest // step))
    if highest is None and holds(start * _FAR):
        return AxisRange(first, None, step)
    return AxisRange(first, last((highest or start * _FAR) // step), step)


def _last_that_holds(inside: int, end: int, holds: Callable[[int], bool]) -> int:
    """Return the last number from `inside` to `end` up to which `holds` is true, by bisection."""
    if inside == end or holds(end):
        return end
    numbers = range(inside, end, 1 if end > inside else -1)
    return numbers[bisect(numbers, False, key=lambda number: not holds(number)) - 1]


_LEN = len


def _symbolic_len(torch: Any) -> Callable[[Any], Any]:
    """Return a `len` that returns a symbol for a dynamic first axis; Python's `len` makes it a number."""
    return lambda values, /: (
        values.shape[0] if isinstance(values, torch.Tensor) and values.dim() else _LEN(values)
    )


def capture(module: Any, example: Example) -> tuple[Any, Axes]:
    """Capture a module, without gradients, as an `ExportedProgram`; return it and its dynamic axes.

    Each axis is a plain `Dim` at first: PyTorch then proves that the graph holds for every extent. If PyTorch
    refuses, the axis becomes `Dim.DYNAMIC`, and PyTorch records its limits as guards (`read_axes`). If the
    model converts an extent to a number, a symbolic `len` replaces Python's. Both of PyTorch's tracers run.
    """
    torch = import_torch()
    arguments, keywords = example.arguments(example.feeds)
    kinds = (True, False) if any(tensor.dynamic_axes for tensor in example.inputs) else (True,)
    first_error: Exception | None = None
    with ExitStack() as stack:
        attempts = [(strict, proven) for strict in (False, True) for proven in kinds]
        while attempts:
            strict, proven = attempts.pop(0)
            try:
                shapes = dynamic_shapes(module, example, proven=proven)
                with torch.no_grad():
                    program = torch.export.export(
                        module, arguments, keywords, dynamic_shapes=shapes, strict=strict
                    )
            except Exception as error:  # PyTorch raises any type; try the next way
                first_error = first_error or error
                if "your code specialized it to be a constant" in str(error) and not proven:
                    if builtins.len is not _LEN:
                        raise first_error from None  # the other tracer runs the same operators
                    stack.callback(setattr, builtins, "len", _LEN)
                    builtins.len = _symbolic_len(torch)
                    attempts = [(False, False)]
                continue
            try:
                return program, read_axes(program, example, proven=proven)
            except ExportError as error:
                first_error = first_error or error
    assert first_error is not None
    raise first_error


def dynamic_shapes(module: Any, example: Example, *, proven: bool) -> Any:
    """Return the `dynamic_shapes` of `torch.export`: each axis is a `Dim` if `proven`, else `Dim.DYNAMIC`."""
    torch = import_torch()
    dims: dict[str, Any] = {}
    shapes: list[dict[int, Any]] = []
    for tensor in example.inputs:
        for name in tensor.dynamic_axes.values():
            required = example.ranges.get(name, AxisRange())
            limits = {"min": required.minimum if required.minimum > 1 else None, "max": required.maximum}
            hint = {word: limit for word, limit in limits.items() if limit is not None}
            if name not in dims and proven:
                dims[name] = torch.export.Dim(name if name.isidentifier() else f"axis_{len(dims)}", **limits)
            elif name not in dims:
                dims[name] = torch.export.Dim.DYNAMIC(**hint) if hint else torch.export.Dim.DYNAMIC
        shapes.append({axis: dims[name] for axis, name in tensor.dynamic_axes.items()})
    if not any(shapes):
        return None
    if example.by_name:
        return {tensor.name: axes for tensor, axes in zip(example.inputs, shapes, strict=True)}
    try:
        kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
        named_count = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    except (TypeError, ValueError):  # `forward` has no signature, or no `*args`
        return tuple(shapes)
    return (*shapes[:named_count], tuple(shapes[named_count:]))


def require_axes(example: Example, written: Any, label: str) -> None:
    """Raise ExportError if an axis that must be dynamic is static in `written`, the inputs of the file."""
    by_name = {tensor.name: tensor for tensor in written}
    for tensor in example.inputs:
        for axis, name in tensor.dynamic_axes.items():
            if tensor.name in by_name and axis not in by_name[tensor.name].dynamic_axes:
                raise ExportError(
                    f"{label}: axis {axis} ({name}) of input {tensor.name!r} cannot be dynamic: the exporter "
                    f"wrote {by_name[tensor.name]}",
                    hint="the model fixes that axis; leave it out",
                )
