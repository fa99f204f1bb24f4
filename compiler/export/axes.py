"""Capture a PyTorch model as a graph: its dynamic axes, and the extents that PyTorch's guards allow.

A guard is an expression over the symbols of axes that must be true, such as `Eq(s53, 2*(s53//2))`.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Any

from ...errors import ExportError
from ...model.example import Example
from ...model.input_notes import AxisRange
from ...model.pytorch import import_torch


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
        proven: Whether PyTorch proved all extents that were asked for.
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
    """Give the axes of an ONNX model the names of the example's; other axes are told by them."""
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


_WINDOW = 512  # extents beyond the traced one among which a multiple shows
_FAR = 64  # times the traced extent: what holds there holds for all

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: math.prod(factors),
    "Pow": pow,
    "Max": max,
    "Min": min,
    "Abs": abs,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": lambda *parts: all(parts),
    "Or": lambda *parts: any(parts),
    "Not": operator.not_,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ModularIndexing": lambda a, b, modulus: a // b % modulus,
    "PowByNatural": pow,
    "ToFloat": float,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "TruncToInt": math.trunc,
}
"""What the symbolic functions of sympy and PyTorch compute (torch/utils/_sympy/functions.py), by class."""


@dataclass(frozen=True)
class Guard:
    """One guard: its symbols by name and in order, and its value, given the extents of these."""

    symbols: tuple[str, ...]
    value: Callable[[Sequence[int]], Any]

    def holds(self, symbol: str, extent: int, traced: Mapping[str, int]) -> bool:
        """Return whether it is true for an extent, at some extents of the other symbols in it.

        Others are traced with 2 or more, and so is what they stand for: their own guards are judged apart.
        """
        others = [
            [extent] if name == symbol else [traced[name], traced[name] + 1, traced[name] * 2]
            for name in self.symbols
        ]
        return any(self._is_true(chosen) for chosen in product(*others))

    def _is_true(self, extents: Sequence[int]) -> bool:
        try:
            return bool(self.value(extents))
        except (ArithmeticError, ValueError):  # such as a division by a number of windows that is 0
            return False


def read_guards(expressions: Iterable[Any], symbols: Iterable[str]) -> list[Guard]:
    """Return the expressions of sympy that are about the symbols of input axes, and of known functions."""
    known = set(symbols)
    guards = []
    for expression in dict.fromkeys(expressions):
        names = sorted(str(symbol) for symbol in getattr(expression, "free_symbols", ()))
        if names and set(names) <= known:
            value = _compiled(expression, names)
            guards += [Guard(tuple(names), value)] if value is not None else []
    return guards


def _compiled(expression: Any, names: Sequence[str]) -> Callable[[Sequence[int]], Any] | None:
    """The function that an expression is of the extents of its symbols; None where a part is not known."""
    if getattr(expression, "is_Symbol", False):
        index = names.index(str(expression))
        return lambda extents: extents[index]
    if not expression.args:
        number = _number(expression)
        return None if number is None else lambda _: number
    function = _FUNCTIONS.get(type(expression).__name__)
    parts = [_compiled(part, names) for part in expression.args]
    if function is None or None in parts:
        return None
    known = [part for part in parts if part is not None]
    return lambda extents: function(*(part(extents) for part in known))


def _number(expression: Any) -> int | float | None:
    if getattr(expression, "is_Integer", False):
        return int(expression)
    return float(expression) if getattr(expression, "is_Rational", False) else None


def allowed_extents(
    symbol: str, traced: Mapping[str, int], guards: Sequence[Guard], lowest: int, highest: int | None
) -> AxisRange:
    """Return the extents of a symbol for which all guards hold; the traced one is among them.

    PyTorch knows `lowest` and `highest`, which is None where it knows none.
    """
    own = [guard for guard in guards if symbol in guard.symbols]
    start = traced[symbol]

    def holds(extent: int) -> bool:
        return all(guard.holds(symbol, extent, traced) for guard in own)

    step = _step(start, highest, holds)
    first = _last_that_holds(start // step, -(-lowest // step), lambda count: holds(count * step)) * step
    if highest is not None:
        end = highest
    elif holds(start * _FAR):
        return AxisRange(first, None, step)
    else:
        end = start * _FAR
    return AxisRange(
        first, _last_that_holds(start // step, end // step, lambda n: holds(n * step)) * step, step
    )


def _step(traced: int, highest: int | None, holds: Callable[[int], bool]) -> int:
    """The greatest number of which all allowed extents near the traced one are multiples."""
    end = traced + _WINDOW if highest is None else min(highest, traced + _WINDOW)
    if end == traced or holds(traced + 1):
        return 1
    others = [extent for extent in range(traced + 2, end + 1) if holds(extent)]
    return reduce(math.gcd, others, traced) if others else 1


def _last_that_holds(inside: int, end: int, holds: Callable[[int], bool]) -> int:
    """The last of the numbers from `inside` to `end` up to which `holds` is true, by bisection."""
    if inside == end or holds(end):
        return end
    outside = end
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside


def capture(module: Any, example: Example) -> tuple[Any, Axes]:
    """Capture a module as an `ExportedProgram`; its gradients are off, as they are at inference.

    An axis is a plain `Dim` at first: PyTorch then proves that the graph holds for every extent. Where it
    refuses, the axis is `Dim.DYNAMIC`, for which PyTorch notes the limits that it met (`read_axes`). Both of
    PyTorch's tracers are tried.
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
                return program, read_axes(program, example, proven=proven)
            except ExportError as error:
                first = first or error
    assert first is not None
    raise first


def dynamic_shapes(module: Any, example: Example, *, proven: bool) -> Any:
    """Return the `dynamic_shapes` of `torch.export`: of each axis a `Dim`, or without `proven` `Dim.DYNAMIC`.

    None where nothing is dynamic.
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
                hint = {word: limit for word, limit in limits.items() if limit is not None}
                dynamic = torch.export.Dim.DYNAMIC(**hint) if hint else torch.export.Dim.DYNAMIC
                dims[name] = torch.export.Dim(spelled, **limits) if proven else dynamic
        shapes.append({axis: dims[name] for axis, name in tensor.dynamic_axes.items()})
    if not any(shapes):
        return None
    if example.by_name:
        return {tensor.name: axes for tensor, axes in zip(example.inputs, shapes, strict=True)}
    named = _named_parameters(module)
    return tuple(shapes) if named is None else (*shapes[:named], tuple(shapes[named:]))


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
    """Refuse a file, with the inputs `written`, in which an axis is static that was to be dynamic."""
    by_name = {tensor.name: tensor for tensor in written}
    for tensor in example.inputs:
        for axis, name in tensor.dynamic_axes.items():
            if tensor.name in by_name and axis not in by_name[tensor.name].dynamic_axes:
                raise ExportError(
                    f"{label}: axis {axis} ({name}) of input {tensor.name!r} cannot be dynamic: the exporter "
                    f"wrote {by_name[tensor.name]}",
                    hint="the model fixes that axis; leave it out",
                )
