"""Pairs of tensors that can be outputs of an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...model.graph import consumers
from .forms import Form
from .pairing import Pairs, restricted

if TYPE_CHECKING:
    import onnx


def observable(pairs: Pairs, graph: onnx.ModelProto) -> Pairs:
    """Return the pairs of a graph that can be outputs of an engine: of integers, what they are scaled to."""
    readers = consumers(graph.graph)
    found, kept = list(pairs.pairs), []
    for index, pair in enumerate(pairs.pairs):
        if not pair.form.is_integer:
            kept.append(index)
            continue
        scaled = [node for node in readers.get(pair.artifact, []) if node.op_type == "DequantizeLinear"]
        if scaled:
            form = Form(channels_last=pair.form.channels_last)
            found[index] = replace(pair, artifact=str(scaled[0].output[0]), form=form)
            kept.append(index)
    return restricted(replace(pairs, pairs=tuple(found)), kept)
