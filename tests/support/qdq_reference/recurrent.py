"""LSTM and GRU, step by step. Source: onnx/docs/Operators.md, sections LSTM-14 and GRU-14, their equations.

Gates are in ONNX's order: input, output, forget, cell; and update, reset, hidden. Activations are the default
ones; sequence lengths, peepholes and clipping are not here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import bounded
from .bounded import Bounded
from .operators import OPERATORS, Attributes, sigmoid


def _at(x: Bounded, index: Any) -> Bounded:
    return bounded.moved(lambda array: array[index], x)


def _times(x: Bounded, w: Bounded) -> Bounded:
    return bounded.product(x, w, lambda a, b: a @ b.T, x.value.shape[-1])


def _complement(x: Bounded) -> Bounded:
    return bounded.added(Bounded(np.ones_like(x.value)), bounded.negated(x))


def _tanh(x: Bounded) -> Bounded:
    return bounded.smooth(np.tanh, x)


def _lstm_step(
    x: Bounded, state: list[Bounded], w: Bounded, r: Bounded, b: Bounded, _: Attributes
) -> list[Bounded]:
    hidden, cell = state
    size = hidden.value.shape[-1]
    gates = bounded.added(
        _times(x, w), _times(hidden, r), _at(b, slice(0, 4 * size)), _at(b, slice(4 * size, None))
    )
    i, o, f, c = (_at(gates, (slice(None), slice(k * size, (k + 1) * size))) for k in range(4))
    kept = bounded.multiplied(sigmoid(f), cell)
    cell = bounded.added(kept, bounded.multiplied(sigmoid(i), _tanh(c)))
    return [bounded.multiplied(sigmoid(o), _tanh(cell)), cell]


def _gru_step(
    x: Bounded, state: list[Bounded], w: Bounded, r: Bounded, b: Bounded, how: Attributes
) -> list[Bounded]:
    (hidden,) = state
    size = hidden.value.shape[-1]
    parts = [slice(k * size, (k + 1) * size) for k in range(6)]
    wz, wr, wh = (_times(x, _at(w, part)) for part in parts[:3])
    z = sigmoid(bounded.added(wz, _times(hidden, _at(r, parts[0])), _at(b, parts[0]), _at(b, parts[3])))
    reset = sigmoid(bounded.added(wr, _times(hidden, _at(r, parts[1])), _at(b, parts[1]), _at(b, parts[4])))
    if how.get("linear_before_reset"):
        inner = bounded.multiplied(reset, bounded.added(_times(hidden, _at(r, parts[2])), _at(b, parts[5])))
        h = _tanh(bounded.added(wh, inner, _at(b, parts[2])))
    else:
        inner = _times(bounded.multiplied(reset, hidden), _at(r, parts[2]))
        h = _tanh(bounded.added(wh, inner, _at(b, parts[2]), _at(b, parts[5])))
    return [bounded.added(bounded.multiplied(_complement(z), h), bounded.multiplied(z, hidden))]


def _recurrent(xs: list[Any], how: Attributes, gates: int) -> list[Bounded]:
    """Y [steps, directions, n, hidden] and the last states [directions, n, hidden]."""
    x, w, r = xs[:3]
    size, states = how["hidden_size"], 2 if gates == 4 else 1
    step = _lstm_step if gates == 4 else _gru_step
    directions, batch = w.value.shape[0], x.value.shape[1]
    made: list[list[Bounded]] = []
    last: list[list[Bounded]] = []
    for direction in range(directions):
        b = (
            _at(xs[3], direction)
            if len(xs) > 3 and xs[3] is not None
            else Bounded(np.zeros(2 * gates * size))
        )
        given = [xs[k] if len(xs) > k else None for k in (5, 6)][:states]
        state = [Bounded(np.zeros((batch, size))) if one is None else _at(one, direction) for one in given]
        order = list(range(x.value.shape[0]))
        backward = how.get("direction") == "reverse" or direction == 1
        hidden: dict[int, Bounded] = {}
        for t in reversed(order) if backward else order:
            state = step(_at(x, t), state, _at(w, direction), _at(r, direction), b, how)
            hidden[t] = state[0]
        made.append([hidden[t] for t in order])
        last.append(state)

    def stacked(rows: list[Bounded], axis: int = 0) -> Bounded:
        return Bounded(np.stack([one.value for one in rows], axis), np.stack([one.off for one in rows], axis))

    y = stacked([stacked(rows) for rows in made], 1)
    return [y, *(stacked([state[k] for state in last]) for k in range(states))]


OPERATORS["LSTM"] = lambda xs, how, _: _recurrent(xs, how, 4)
OPERATORS["GRU"] = lambda xs, how, _: _recurrent(xs, how, 3)
