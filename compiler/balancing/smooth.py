"""SmoothQuant: outlier channels of a LayerNormalization move into the weights behind it.

    LayerNormalization(gain, bias) ─ MatMul(w)      becomes      (gain/s, bias/s) ─ MatMul(s·w)

A Transformer's normalized activations have a few channels that are far larger than the rest, always the
same ones. They take the one scale of the tensor for themselves; weights, with a scale per output channel,
have room to spare (Xiao et al. 2022, arXiv 2211.10438). Factors are powers of two, so that the float model
computes the very same numbers as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidOption, ModelError
from ...model.graph import captured_names, consumers, int_attribute, set_values
from ..prepare import store_constants

if TYPE_CHECKING:
    import onnx


_LARGEST_FACTOR = 2.0**12

Amax = Mapping[str, NDArray[Any]]


def smooth(model: onnx.ModelProto, channel_amax: Amax, alpha: float = 0.5) -> dict[str, int]:
    """Smooth in place every LayerNormalization that MatMul and Gemm alone read.

    `s_j = max|X_j|^alpha / max|W_j|^(1-alpha)` (equation 4 of the paper), X the normalized activations and
    W_j all weights that read channel j. Where anything else reads the tensor, as the residual Add of BERT,
    the factor has nowhere to go without a pass over the activations, and it is left alone.

    Args:
        model: The float model; its function is kept to the last bit, but for subnormal numbers.
        channel_amax: Name of the normalized tensor to the largest magnitude of each channel, [channels].
        alpha: How much of the difficulty moves from activations to weights, 0 to 1.

    Returns:
        "smoothed" and "left alone", the numbers of LayerNormalizations in front of products.

    Raises:
        InvalidOption: If alpha is not between 0 and 1.
        ModelError: If a tensor has another number of channels than was observed.
    """
    if not 0.0 <= alpha <= 1.0:
        raise InvalidOption(f"alpha {alpha}: 0 to 1 is required")
    store_constants(model.graph)
    groups, elsewhere = _groups(model.graph)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    done = 0
    for norm, readers in groups:
        if norm.output[0] in channel_amax:
            _smooth_group(norm, readers, stored, channel_amax[norm.output[0]], alpha)
            done += 1
    return {"smoothed": done, "left alone": elsewhere}


def smoothable(model: onnx.ModelProto) -> set[str]:
    """Return the names of the normalized tensors that `smooth` takes."""
    store_constants(model.graph)
    return {norm.output[0] for norm, _ in _groups(model.graph)[0]}


_Groups = list[tuple["onnx.NodeProto", list["onnx.NodeProto"]]]


def _groups(graph: onnx.GraphProto) -> tuple[_Groups, int]:
    """LayerNormalizations with the products behind them, and how many more are in front of products."""
    readers_of = consumers(graph)
    inputs = {value.name for value in graph.input}
    stored = {t.name: t for t in graph.initializer if t.name not in inputs and t.data_type in (1, 11)}
    kept = {value.name for value in graph.output}
    kept |= {name for node in graph.node for name in captured_names(node)}
    reads = Counter(name for node in graph.node for name in node.input)
    found: _Groups = []
    elsewhere = 0
    for norm in graph.node:
        if norm.op_type != "LayerNormalization" or int_attribute(norm, "axis", -1) != -1:
            continue
        name, parameters = norm.output[0], [parameter for parameter in norm.input[1:] if parameter]
        own = all(p in stored and reads[p] == 1 and p not in kept for p in parameters)
        channels = stored[parameters[0]].dims[0] if own else 0
        taken, others = _products(name, readers_of, kept)
        fit = [_takes(product, channels, stored, reads, kept) for product in taken]
        if fit and all(fit) and own and not others and len(norm.output) == 1:
            found.append((norm, taken))
        elif fit:
            elsewhere += 1
    return found, elsewhere


def _products(
    name: str, readers_of: Mapping[str, list[onnx.NodeProto]], kept: set[str]
) -> tuple[list[onnx.NodeProto], bool]:
    """The products that a tensor is the left operand of, and whether anything else reads it.

    A Reshape in between lets rows be rows: a product behind it that reads as many channels reads the same.
    """
    found: list[onnx.NodeProto] = []
    others = name in kept
    for reader in readers_of.get(name, ()):
        if reader.op_type in ("MatMul", "Gemm") and list(reader.input).index(name) == 0:
            found.append(reader)
        elif reader.op_type == "Reshape" and reader.input[0] == name:
            inner, more = _products(reader.output[0], readers_of, kept)
            found += inner
            others = others or more
        else:
            others = True
    return found, others


def _takes(
    node: onnx.NodeProto, channels: int, stored: Mapping[str, Any], reads: Mapping[str, int], kept: set[str]
) -> bool:
    """Whether a node multiplies so many channels by a stored matrix that it alone reads."""
    weight = node.input[1]
    own = weight in stored and reads[weight] == 1 and weight not in kept
    if not own or len(stored[weight].dims) != 2 or int_attribute(node, "transA", 0):
        return False
    return bool(stored[weight].dims[int_attribute(node, "transB", 0)] == channels)


def _smooth_group(
    norm: onnx.NodeProto,
    readers: list[onnx.NodeProto],
    stored: Mapping[str, onnx.TensorProto],
    amax: NDArray[Any],
    alpha: float,
) -> None:
    from onnx import numpy_helper

    weights = {reader.input[1]: 1 if int_attribute(reader, "transB", 0) else 0 for reader in readers}
    values = {name: numpy_helper.to_array(stored[name]) for name in weights}
    channels = next(values[name].shape[axis] for name, axis in weights.items())
    if amax.shape != (channels,):
        raise ModelError(
            f"tensor {norm.output[0]!r}: {amax.shape} channels observed; {channels} are read",
            hint="observe the model that is smoothed",
            tensor=norm.output[0],
        )
    peaks = [np.abs(values[name]).max(axis=1 - axis, initial=0.0) for name, axis in weights.items()]
    factors = _factors(amax.astype(np.float64), np.max(peaks, axis=0).astype(np.float64), alpha)
    for name, axis in weights.items():
        grid = factors[:, None] if axis == 0 else factors[None, :]
        set_values(stored[name], values[name] * grid)
    for name in filter(None, norm.input[1:]):
        set_values(stored[name], numpy_helper.to_array(stored[name]) / factors)


def _factors(amax: NDArray[np.float64], peaks: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """The powers of two next to `s`; 1 where a channel, or what reads it, is all zeros."""
    live = (amax > 0) & (peaks > 0)
    logs = np.zeros_like(amax)
    logs[live] = alpha * np.log2(amax[live]) - (1 - alpha) * np.log2(peaks[live])
    return np.clip(np.exp2(np.round(logs)), 1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
