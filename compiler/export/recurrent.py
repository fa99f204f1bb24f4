"""Capture LSTM and GRU layers for any number of steps.

PyTorch computes the output shapes of a recurrent layer by running its steps one by one
(`torch._decomp.decompositions.lstm_impl`, `gru_impl`), which fixes the number of steps even if it is dynamic.
The shapes follow from those of the operands alone:

    input [steps, batch, features], h [layers directions, batch, width]
    output [steps, batch, directions width], h of the same shape

The graph then contains the layer as one operator, which the exporter writes as ONNX's LSTM or GRU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ...errors import ExportError
from ...model.sources.pytorch import import_torch

_ANY = 1 << 40


@contextmanager
def free_steps() -> Iterator[None]:
    """Capture LSTM and GRU layers with any number of steps in the block."""
    torch = import_torch()
    from torch._decomp import decomposition_table

    keys, operators = torch._C.DispatchKey, torch.ops.aten
    with ExitStack() as stack:
        for operator, shapes in ((operators.lstm.input, _lstm), (operators.gru.input, _gru)):
            kernels = operator.py_kernels
            stack.callback(operator._dispatch_cache.clear)
            stack.callback(kernels.update, dict(kernels))
            stack.callback(kernels.clear)
            stack.callback(decomposition_table.update, {operator: decomposition_table[operator]})
            kernels.update(dict.fromkeys((*kernels, keys.Meta), shapes))
            operator._dispatch_cache.clear()
            decomposition_table[operator] = shapes
        yield


def store_weights(model: Any) -> None:
    """Store the weights of recurrent layers of an `onnx_ir.Model` in ONNX's gate order, in place.

    PyTorch's exporter reorders the gates by nodes, and folds only those of small weights.
    """
    from onnxscript import optimizer

    if {"LSTM", "GRU"} & {node.op_type for node in model.graph}:
        optimizer.fold_constants(model, input_size_limit=_ANY, output_size_limit=_ANY)
        optimizer.remove_unused_nodes(model)


def _lstm(tensor: Any, states: Any, *options: Any) -> tuple[Any, ...]:
    hidden, cell = states
    if hidden.shape[-1] != cell.shape[-1]:
        raise ExportError(
            "an LSTM with proj_size has no ONNX form",
            hint="train it without proj_size, with a Linear behind it that narrows the output",
        )
    return _output(tensor, hidden, *options), hidden.new_empty(hidden.shape), cell.new_empty(cell.shape)


def _gru(tensor: Any, hidden: Any, *options: Any) -> tuple[Any, ...]:
    return _output(tensor, hidden, *options), hidden.new_empty(hidden.shape)


def _output(tensor: Any, hidden: Any, *options: Any) -> Any:
    bidirectional = options[5]  # behind params, has_biases, num_layers, dropout, train
    return tensor.new_empty((*tensor.shape[:-1], hidden.shape[-1] * (2 if bidirectional else 1)))
