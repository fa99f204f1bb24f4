"""Sums of products of bytes whose products a processor adds in pairs, in int16.

x86 without VNNI: `vpmaddubsw` multiplies uint8 by int8 and adds two neighbours, saturated to int16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Pairs = list[tuple[int, int]]


def saturate16(values: Array) -> Array:
    """Return values limited to int16."""
    return np.clip(values, -(2**15), 2**15 - 1)


def neighbours(depth: int) -> Pairs:
    """Return (0, 1), (2, 3), ...: what `vpmaddubsw` adds."""
    return [(k, k + 1) for k in range(0, depth - 1, 2)]


def pairwise_sums(rows: Array, columns: Array, pairs: Pairs, narrow: Callable[[Array], Array]) -> Array:
    """Return `rows @ columns` with the sums of some pairs of products narrowed.

    Args:
        rows: [..., m, depth].
        columns: [..., depth, n].
        pairs: Indices of depth whose products are added first; the products of the other indices are not
            narrowed.
        narrow: What becomes of a pair's sum.
    """
    products = rows[..., None] * columns[..., None, :, :]
    first, second = np.array(pairs).T
    single = np.setdiff1d(np.arange(rows.shape[-1]), [first, second])
    sums = narrow(products[..., first, :] + products[..., second, :]).sum(-2)
    return np.asarray(sums + products[..., single, :].sum(-2))


def windows(x: Array, kernel: tuple[int, ...], strides: list[int], pads: list[int], fill: int) -> Array:
    """Return [n, c, *outputs, *kernel]: what each place of a filter reads."""
    count = len(kernel)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:count], pads[count:], strict=True)], constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=tuple(range(2, 2 + count)))
    return view[(slice(None), slice(None), *(slice(None, None, step) for step in strides))]


def convolution_operands(
    x: Array,
    w: Array,
    fill: int,
    *,
    strides: list[int],
    pads: list[int],
    group: int,
) -> tuple[Array, Array]:
    """Return the operands of a convolution as a product of matrices.

    Args:
        x: [n, c, *size].
        w: [m, c / group, *kernel].
        fill: What stands in the padding.
        strides, pads, group: Attributes of Conv.

    Returns:
        Rows [n, group, places, depth] and columns [group, depth, m / group], int64.
    """
    axes = w.ndim - 2
    read = windows(x.astype(np.int64), w.shape[2:], strides, pads, fill)
    places = int(np.prod(read.shape[2 : 2 + axes]))
    rows = read.reshape(len(x), group, w.shape[1], places, -1).transpose(0, 1, 3, 2, 4)
    columns = (
        w.astype(np.int64).reshape(group, -1, w.shape[1], int(np.prod(w.shape[2:]))).transpose(0, 2, 3, 1)
    )
    rows, columns = rows.swapaxes(3, 4), columns.swapaxes(1, 2)  # the depth is the kernel, then the channels
    return rows.reshape(*rows.shape[:3], -1), columns.reshape(group, -1, columns.shape[-1])
