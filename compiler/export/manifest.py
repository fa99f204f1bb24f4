"""Metadata of an exported file, in its manifest and in the ONNX file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...artifact import Check, Manifest, tool_versions
from ...model.example import Example
from ...model.graph import graph_precision
from ...model.input_notes import AxisRange, InputNote
from ...model.onnx_file import count_operators, model_io


def export_manifest(
    proto: Any, options: Mapping[str, object], checks: Sequence[Check], warnings: Sequence[str] = ()
) -> Manifest:
    """Return the manifest of an exported file."""
    return Manifest(
        kind="onnx",
        stage="export",
        precision=graph_precision(proto),
        io=model_io(proto),
        tools=tool_versions("torch", "onnx", "onnxscript", "onnxruntime"),
        options=options,
        proof={"operators": count_operators(proto)},
        checks=checks,
        warnings=warnings,
    )


def axis_options(example: Example, ranges: Mapping[str, AxisRange]) -> dict[str, object]:
    """Return axis name to its range and the extent that it was traced with."""
    return {
        name: {**ranges.get(name, AxisRange()).as_json(), "traced": extent}
        for name, extent in example.extents.items()
    }


def input_notes(example: Example, ranges: Mapping[str, AxisRange]) -> dict[str, InputNote]:
    """Return what later stages should know of each input: the example's extents, the ranges of its axes."""
    return {
        tensor.name: InputNote(
            tuple(int(extent) for extent in example.feeds[tensor.name].shape),
            {axis: ranges[name] for axis, name in tensor.dynamic_axes.items() if name in ranges},
            tensor.preprocessing,
        )
        for tensor in example.inputs
    }
