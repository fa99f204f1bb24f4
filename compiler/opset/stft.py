"""Rewrite a short-time Fourier transform as a convolution with a windowed table of cosines and sines.

    x [B, L, 1] ─ Transpose [B, 1, L] ─ Conv(table [2 M, 1, N], strides = hop) [B, 2 M, T]
                ─ Reshape [B, M, 2, T] ─ Transpose [B, T, M, 2]

N is the frame length, M = N // 2 + 1 if onesided, else N (ONNX, STFT). For a signal of dynamic length,
OpenVINO 2026.4 returns an unknown rank from STFT. TensorRT's parser reads no STFT before TensorRT 10.5.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from ...model.graph.graph import attribute
from .dft import dft_table
from .passes import form_pass
from .scope import Chain, Scope, rewriting_each

_LARGEST_TABLE = 1 << 25  # values (128 MB), which suffice for frames of more than 4096 points


@rewriting_each("STFT")
def stft_to_convolutions(node: onnx.NodeProto, scope: Scope) -> list[onnx.NodeProto] | None:
    """Return the nodes for an STFT of real signals with stored hop, window and frame length; else None."""
    signal, hop, *rest = node.input
    window, length = (*rest, "", "")[:2]
    shape, step = scope.shape(signal), scope.constant(hop)
    taper, points = (scope.constant(name) if name else None for name in (window, length))
    real = shape is not None and (len(shape) == 2 or (len(shape) == 3 and shape[2] == 1))
    if not real or step is None or (window and taper is None) or (taper is None and points is None):
        return None
    count = int(points.reshape(-1)[0]) if points is not None else int(taper.size)  # type: ignore[union-attr]
    table = dft_table(count, 1, count, onesided=bool(attribute(node, "onesided", 1)))
    if table.size > _LARGEST_TABLE or (taper is not None and taper.size != count):
        return None
    if taper is not None:
        table = table * taper.astype(np.float64)[:, None]
    dtype = helper.tensor_dtype_to_np_dtype(scope.elem_type(node, signal))
    chain = Chain(node, scope)
    add, ints = chain.add, chain.ints
    weights = scope.store(np.ascontiguousarray(table.T[:, None], dtype), f"{chain.output}/table")
    if len(shape or ()) == 3:
        channels_first = add("Transpose", [signal], perm=[0, 2, 1])
    else:
        channels_first = chain.over_axes("Unsqueeze", signal, [1])
    stride = [int(step.reshape(-1)[0])]
    frames = add("Conv", [channels_first, weights], kernel_shape=[count], strides=stride)
    pairs = add("Reshape", [frames, ints([0, table.shape[1] // 2, 2, -1])])
    return chain.result(add("Transpose", [pairs], perm=[0, 3, 1, 2]))


PASS = form_pass("STFT", stft_to_convolutions)
