"""Round a weight to integers of 4 or 8 bits, block by block: to the nearest, or by GPTQ.

A weight has a row per output channel, [N, K]. Each run of `block_size` values of a row shares one scale and
one zero point, and represents `(code - zero_point) * scale` with codes from 0 to `2**bits - 1`. The last
block of a row may be shorter. A symmetric weight has the zero point in the middle, `2**(bits - 1)`.

A range may clip the largest value of its block if the other values then have smaller errors and the sum of
squared errors falls. The search tries ranges narrower by a few percent each, and then fits the scale to the
resulting codes (least squares: `sum(w * c) / sum(c * c)`, with `c = code - zero_point`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....calibration.qparams import Scheme, scale_and_zero_point
from ....errors import QuantizationError

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]
Room = Callable[[int, Codes], tuple[NDArray[np.float64], NDArray[np.float64]]]

# Fractions of the full range that are tried. With 8 bits the steps are fine, and clipping gains little.
_SHRINKS = {4: tuple(np.linspace(0.6, 1.0, 11)), 8: (0.9, 0.95, 1.0)}
_REFITS = 2
_TINY = np.finfo(np.float32).tiny
_CHUNK_VALUES = 1 << 17  # values that are fitted at once, few enough for the processor's cache
_LAZY_COLUMNS = 128  # GPTQ applies the errors of these columns to later columns in one matrix product
_DAMPING, _DAMPING_TRIES = 0.01, 4  # fraction of the mean of the Hessian's diagonal that is added to it


@dataclass(frozen=True)
class RoundedWeight:
    """A weight rounded to integers."""

    codes: Codes  # uint8 [N, K], 0 to `2**bits - 1`
    scales: Floats  # float32 [N, ceil(K / block_size)], above 0
    zero_points: Codes  # of the shape of `scales`
    bits: int
    block_size: int  # values of a row that share a scale, 1 to K


def round_to_nearest(
    weight: Floats, *, bits: int, block_size: int, symmetric: bool, search: bool = True
) -> RoundedWeight:
    """Return the weight with every value rounded to the nearest step of its block.

    Args:
        weight: float32 [N, K], finite.
        block_size: Values of a row that share a scale; 0 gives each row one scale.
        symmetric: Whether the zero point is the middle; otherwise each block has a fitted zero point.
        search: Whether a block's range may be clipped; otherwise it spans the block's values and 0.
    """
    rows, columns = weight.shape
    size = min(block_size or columns, columns)
    count = -(-columns // size)
    padded = np.zeros((rows, count * size), np.float32)  # zeros change neither a range nor an error
    padded[:, :columns] = weight
    blocks = padded.reshape(rows * count, size)
    scales, zeros = fit_blocks(blocks, bits=bits, symmetric=symmetric, search=search)
    codes = np.empty(blocks.shape, np.uint8)
    for part in _chunks(blocks):
        codes[part] = _nearest_codes(blocks[part], scales[part, None], zeros[part, None], bits)
    shape = (rows, count)
    codes = np.ascontiguousarray(codes.reshape(rows, -1)[:, :columns])
    return RoundedWeight(codes, scales.reshape(shape), zeros.reshape(shape).astype(np.uint8), bits, size)


def gptq(
    weight: Floats,
    hessian: NDArray[Any],
    *,
    bits: int,
    block_size: int,
    symmetric: bool,
    name: str = "",
    scales: Floats | None = None,
    room: Room | None = None,
) -> RoundedWeight:
    """Return the weight rounded so that the layer's output changes least on the observed inputs.

    Frantar et al. 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"
    (arXiv 2210.17323), algorithm 1: columns are rounded one after the other, and later columns compensate for
    the error of each, by the Cholesky factor of the inverse Hessian. The scales of a block are fitted at its
    first column, to the weights as compensated by then. If the Hessian is a multiple of the identity, the
    result is that of `round_to_nearest`.

    Args:
        weight: float32 [N, K], finite.
        hessian: [K, K], `2 X Xᵀ` over the layer's inputs X [K, samples]; any factor gives the same.
        scales: float32 [N], fixed scales of a symmetric weight, one per row whatever `block_size` is.
        room: For a symmetric weight with scales: maps a column and the codes [columns before it, N] to the
            lowest and the highest step of each row.
    """
    columns = weight.shape[1]
    size = columns if scales is not None else min(block_size or columns, columns)
    middle = np.full(len(weight), 2 ** (bits - 1), np.float32)
    factor = _inverse_factor(hessian, columns, name)
    updated = np.array(weight.T, np.float32, order="C")  # a row per column of the weight
    codes = np.empty(updated.shape, np.uint8)
    fitted = []
    for start in range(0, columns, size):
        stop = min(start + size, columns)
        block = np.ascontiguousarray(updated[start:stop].T)
        block_scales, zeros = (
            (scales, middle) if scales is not None else fit_blocks(block, bits=bits, symmetric=symmetric)
        )
        fitted.append((block_scales, zeros))
        for first in range(start, stop, _LAZY_COLUMNS):
            last = min(first + _LAZY_COLUMNS, stop)
            errors = np.empty((last - first, updated.shape[1]), np.float32)
            for column in range(first, last):
                steps = _nearest_codes(updated[column], block_scales, zeros, bits)
                if room is not None:
                    lowest, highest = room(column, codes)
                    steps = np.clip(steps, lowest + middle, highest + middle)
                codes[column] = steps
                error = (updated[column] - (steps - zeros) * block_scales) / factor[column, column]
                updated[column + 1 : last] -= factor[column, column + 1 : last, None] * error
                errors[column - first] = error
            updated[last:] -= factor[first:last, last:].T @ errors
    return RoundedWeight(
        np.ascontiguousarray(codes.T),
        np.stack([block_scales for block_scales, _ in fitted], axis=1),
        np.stack([zeros for _, zeros in fitted], axis=1).astype(np.uint8),
        bits,
        size,
    )


def fit_blocks(blocks: Floats, *, bits: int, symmetric: bool, search: bool = True) -> tuple[Floats, Floats]:
    """Return scale and zero point, a whole number, of each block: float32 [blocks] from [blocks, values]."""
    scales = np.empty(len(blocks), np.float32)
    zeros = np.empty(len(blocks), np.float32)
    shift = 2 ** (bits - 1) if symmetric else 0  # codes start at 0
    scheme = Scheme(-shift, 2**bits - 1 - shift, symmetric=symmetric)
    for part in _chunks(blocks):
        low, high = blocks[part].min(axis=1), blocks[part].max(axis=1)
        scales[part], zeros[part] = scale_and_zero_point(low, high, scheme)
        zeros[part] += shift
        if search:
            scales[part] = _search_scales(blocks[part], scales[part], zeros[part], bits)
    return scales, zeros


def pack_codes(codes: Codes, bits: int) -> Codes:
    """Return codes in their stored form: with 4 bits two per byte along the last axis, the first one low.

    An odd last axis is padded with a 0. Codes of 8 bits are returned unchanged.
    """
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    pairs: Codes = codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)
    return pairs


def nbits_arrays(rounded: RoundedWeight) -> tuple[dict[str, NDArray[Any]], int]:
    """Return the arrays for ONNX Runtime's operators, and their block size.

    Returns:
        "scale" float32 [N, n] and "zero_point" uint8, packed along the last axis; "blocks" of MatMulNBits,
        uint8 [N, n, block_size * bits / 8], padded with 0; "rows" of GatherBlockQuantized, uint8
        [N, K * bits / 8].
    """
    rows, columns = rounded.codes.shape
    size, _ = nbits_block(columns, rounded.bits, rounded.block_size)
    count = -(-columns // size)
    times = count if rounded.scales.shape[1] == 1 else 1  # each block gets a copy of a row's single scale
    padded = np.zeros((rows, count * size), np.uint8)
    padded[:, :columns] = rounded.codes
    return {
        "scale": np.repeat(rounded.scales, times, axis=1),
        "zero_point": pack_codes(np.repeat(rounded.zero_points, times, axis=1), rounded.bits),
        "blocks": pack_codes(padded, rounded.bits).reshape(rows, count, -1),
        "rows": pack_codes(rounded.codes, rounded.bits),
    }, size


def qdq_arrays(rounded: RoundedWeight, axis: int) -> tuple[Codes, Floats]:
    """Return the integers and scales of a symmetric weight for DequantizeLinear.

    The integers are in two's complement, packed if they have 4 bits. The scales have one axis if each output
    channel has one scale, else two, in the weight's order. `axis` is 1 for a weight stored as [N, K], 0 for
    [K, N].
    """
    codes, scales = rounded.codes - np.uint8(2 ** (rounded.bits - 1)), rounded.scales
    codes = np.ascontiguousarray(codes if axis else codes.T)
    if rounded.bits == 4:
        codes = pack_codes(codes.reshape(-1) & np.uint8(15), 4)
    if scales.shape[1] == 1:
        return codes, scales[:, 0]
    return codes, np.ascontiguousarray(scales if axis else scales.T)


def nbits_block(columns: int, bits: int, block_size: int) -> tuple[int, int]:
    """Return the block size for MatMulNBits, and the bytes of an output channel with scales and zero points.

    If a row is one block, it is the size that wastes least.
    """
    sizes = (block_size,) if 0 < block_size < columns else (16, 32, 64, 128, 256)
    counts = {size: -(-columns // size) for size in sizes}
    taken = {size: n * (size * bits // 8 + 4) + -(-n * bits // 8) for size, n in counts.items()}
    return min(taken.items(), key=itemgetter(1))


def qdq_row_bytes(columns: int, bits: int, block_size: int) -> int:
    """Return the bytes of an output channel for a DequantizeLinear: values and scales."""
    return -(-columns * bits // 8) + 4 * (columns // (dividing_block(columns, block_size) or columns))


def dividing_block(columns: int, block_size: int) -> int:
    """Return the largest block up to `block_size` that divides a row, or 0 if it is below 16."""
    sizes = range(min(block_size, columns), 0, -1) if block_size else ()
    divisor = next((size for size in sizes if columns % size == 0), 0)
    return divisor if divisor >= 16 else 0


def _search_scales(blocks: Floats, full: Floats, zeros: Floats, bits: int) -> Floats:
    """Return the tried scale of each block with the least squared error; zero points do not change."""
    best, least = full, np.full(len(blocks), np.inf, np.float32)
    for shrink in _SHRINKS[bits]:
        best, least, _ = _better_scales(blocks, full * np.float32(shrink), zeros, bits, best, least)
    for _ in range(_REFITS):
        steps = _nearest_codes(blocks, best[:, None], zeros[:, None], bits) - zeros[:, None]
        squares = np.einsum("ij,ij->i", steps, steps)
        products = np.einsum("ij,ij->i", blocks, steps)
        fits = (squares > 0) & (products > 0)
        refit = np.where(fits, products / np.where(fits, squares, 1), best).astype(np.float32)
        refit = np.where(refit < _TINY, np.float32(1), refit)  # 1 for a block of zeros
        best, least, improved = _better_scales(blocks, refit, zeros, bits, best, least)
        if not improved:
            break
    return best


def _better_scales(
    blocks: Floats, tried: Floats, zeros: Floats, bits: int, best: Floats, least: Floats
) -> tuple[Floats, Floats, bool]:
    """Return the better of two scales for each block, its error, and whether any block improved."""
    errors = _nearest_codes(blocks, tried[:, None], zeros[:, None], bits)
    errors -= zeros[:, None]
    errors *= tried[:, None]
    errors -= blocks
    error = np.einsum("ij,ij->i", errors, errors)
    wins = error < least
    return np.where(wins, tried, best), np.where(wins, error, least), bool(wins.any())


def _nearest_codes(values: Floats, scales: Floats, zeros: Floats, bits: int) -> Floats:
    """Return the nearest codes as float32; ties go to the even number of steps from 0."""
    codes: Floats = values / scales
    np.rint(codes, out=codes)
    codes += zeros
    np.clip(codes, 0, 2**bits - 1, out=codes)
    return codes


def _chunks(blocks: Floats) -> list[slice]:
    rows = max(1, _CHUNK_VALUES // blocks.shape[1])
    return [slice(start, start + rows) for start in range(0, len(blocks), rows)]


def _inverse_factor(hessian: NDArray[Any], columns: int, name: str) -> Floats:
    """Return the upper triangular U with `Uᵀ U = H⁻¹`.

    The Cholesky factor of H with reversed rows and columns gives `H = R Rᵀ` with an upper triangular R, and
    `U = R⁻¹`: this takes one factorization, without an inverse of H.
    """
    if hessian.shape != (columns, columns) or not np.isfinite(hessian).all():
        raise QuantizationError(
            f"weight {name!r}: a Hessian of {hessian.shape}; a finite [{columns}, {columns}] is required",
            hint="collect the Hessians on this very model",
        )
    damped = hessian.astype(np.float64)[::-1, ::-1].copy()
    mean = float(damped.trace()) / columns or 1.0  # the identity if all inputs are 0
    for attempt in range(_DAMPING_TRIES):
        damped[np.diag_indices(columns)] += mean * _DAMPING * 10**attempt
        try:
            lower = np.linalg.cholesky(damped)
        except np.linalg.LinAlgError:
            continue  # indefinite from rounding: increase the damping
        return np.ascontiguousarray(_inverse_upper(lower[::-1, ::-1]), np.float32)
    raise QuantizationError(
        f"weight {name!r}: the Hessian of its {columns} inputs is not positive definite",
        hint="collect it over more samples, or round to nearest",
    )


def _inverse_upper(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inverse of an upper triangular matrix, by halves; numpy's inverse would not use the zeros.

    [A B]⁻¹   [A⁻¹  -A⁻¹ B D⁻¹]
    [0 D]   = [0     D⁻¹      ]
    """
    columns = len(matrix)
    if columns <= 64:
        return np.triu(np.linalg.inv(matrix))
    half = columns // 2
    inverse = np.zeros_like(matrix, order="C")
    inverse[:half, :half] = _inverse_upper(matrix[:half, :half])
    inverse[half:, half:] = _inverse_upper(matrix[half:, half:])
    inverse[:half, half:] = -inverse[:half, :half] @ matrix[:half, half:] @ inverse[half:, half:]
    return inverse
