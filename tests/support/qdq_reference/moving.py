"""Operators that move values, and pools. Source: onnx/docs/Operators.md, the section of each name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .products import settings, windows

Array = NDArray[Any]
Attributes = dict[str, Any]


def reshape(x: Array, shape: Array, allowzero: int = 0) -> Array:
    """Section Reshape-14: 0 copies the extent, -1 is what is left."""
    wanted = [x.shape[i] if not n and not allowzero else int(n) for i, n in enumerate(shape)]
    return x.reshape(wanted)


def flatten(x: Array, axis: int = 1) -> Array:
    """Section Flatten-13: two axes, split in front of `axis`."""
    return x.reshape(int(np.prod(x.shape[: axis % (x.ndim + 1)])), -1)


def squeeze(x: Array, axes: Any = None) -> Array:
    """Section Squeeze-13."""
    return np.squeeze(x, None if axes is None else tuple(int(axis) for axis in axes))


def unsqueeze(x: Array, axes: Any) -> Array:
    """Section Unsqueeze-13: axes are those of the result."""
    return np.expand_dims(x, tuple(int(axis) for axis in axes))


def split(x: Array, sizes: Any, axis: int, outputs: int) -> list[Array]:
    """Section Split-18: the last part is smaller where they do not divide."""
    if sizes is None:
        part = -(-x.shape[axis] // outputs)
        sizes = [min(part, x.shape[axis] - part * i) for i in range(outputs)]
    return np.split(x, np.cumsum(sizes)[:-1].astype(int), axis)


def sliced(
    x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    """Section Slice-13; numpy clamps as it says."""
    chosen = [slice(None)] * x.ndim
    for index, axis in enumerate(range(len(starts)) if axes is None else axes):
        step = 1 if steps is None else int(steps[index])
        start, end = int(starts[index]), int(ends[index])
        chosen[int(axis)] = slice(start, None if step < 0 and end < -x.shape[int(axis)] else end, step)
    return x[tuple(chosen)]


def _pool(x: Array, how: Attributes, fill: float) -> tuple[Array, tuple[int, ...]]:
    kernel = tuple(how["kernel_shape"])
    told = settings(np.empty((1, 1, *kernel)), how, x.shape)
    pads, count = list(told["pads"]), len(kernel)
    if how.get("ceil_mode"):
        for axis, size in enumerate(x.shape[2:]):
            span = (kernel[axis] - 1) * told["dilations"][axis] + 1
            left = (size + pads[axis] + pads[axis + count] - span) % told["strides"][axis]
            pads[axis + count] += (told["strides"][axis] - left) % told["strides"][axis] if left else 0
    read = windows(x, kernel, told["strides"], pads, told["dilations"], fill)
    return read, tuple(range(-count, 0))


def max_pool(x: Array, how: Attributes) -> Array:
    """Section MaxPool-12: padding is no value."""
    low = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    read, axes = _pool(x, how, low)
    return read.max(axes)


def average_pool(x: Array, how: Attributes) -> Array:
    """Section AveragePool-11: padding counts with `count_include_pad`."""
    read, axes = _pool(x, how, 0)
    if how.get("count_include_pad"):
        return read.mean(axes)
    ones, _ = _pool(np.ones_like(x), how, 0)
    return read.sum(axes) / ones.sum(axes)


def resize(x: Array, how: Attributes, scales: Array | None, sizes: Array | None) -> Array:
    """Section Resize-13 to 19: modes nearest and linear, one axis after the other."""
    extents = [int(n) for n in sizes] if sizes is not None and len(sizes) else None
    for axis, size in enumerate(x.shape):
        scale = extents[axis] / size if extents else float(scales[axis])  # type: ignore[index]
        count = extents[axis] if extents else int(np.floor(size * scale))
        if count == size and scale == 1:
            continue
        x = np.moveaxis(np.tensordot(_weights(size, count, scale, how), x, (1, axis)), 0, axis)
    return x


def _weights(size: int, count: int, scale: float, how: Attributes) -> Array:
    """[count, size]: what each result takes of each value along one axis."""
    places = np.arange(count, dtype=np.float64)
    where = how.get("coordinate_transformation_mode", "half_pixel")
    if where == "asymmetric":
        source = places / scale
    elif where == "align_corners":
        source = places * (size - 1) / max(count - 1, 1)
    else:
        source = (places + 0.5) / scale - 0.5
        source = source * 0 if where == "pytorch_half_pixel" and count == 1 else source
    weights = np.zeros((count, size))
    rows = np.arange(count)
    if how.get("mode", "nearest") == "nearest":
        rule = how.get("nearest_mode", "round_prefer_floor")
        down = {"floor": np.floor, "ceil": np.ceil, "round_prefer_floor": lambda v: np.ceil(v - 0.5)}
        nearest = down.get(rule, lambda v: np.floor(v + 0.5))(source)
        weights[rows, np.clip(nearest, 0, size - 1).astype(int)] = 1
        return weights
    low = np.floor(source)
    for place, share in ((low, 1 - (source - low)), (low + 1, source - low)):
        np.add.at(weights, (rows, np.clip(place, 0, size - 1).astype(int)), share)
    return weights


def conv_transpose(x: Array, w: Array, how: Attributes) -> Array:
    """Section ConvTranspose-11: each value spreads its filter; what lies in `pads` is cut off."""
    told = settings(w, how, x.shape)
    count, group = w.ndim - 2, told["group"]
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], told["dilations"], strict=True)]
    more = how.get("output_padding", [0] * count)
    full = [
        (n - 1) * s + span + m
        for n, s, span, m in zip(x.shape[2:], told["strides"], spans, more, strict=True)
    ]
    result = np.zeros((x.shape[0], w.shape[1] * group, *full))
    xs, ws = np.split(x, group, 1), np.split(w, group, 0)
    for part in range(group):
        channels = slice(part * w.shape[1], (part + 1) * w.shape[1])
        for place in np.ndindex(*w.shape[2:]):
            spread = np.einsum("nc...,cm->nm...", xs[part], ws[part][(slice(None), slice(None), *place)])
            where = [
                slice(p * d, p * d + (n - 1) * s + 1, s)
                for p, d, n, s in zip(place, told["dilations"], x.shape[2:], told["strides"], strict=True)
            ]
            result[(slice(None), channels, *where)] += spread
    pads = told["pads"]
    kept = [slice(pads[i], full[i] - pads[i + count]) for i in range(count)]
    return result[(slice(None), slice(None), *kept)]
