"""Notes in an ONNX file about its inputs: suitable extents, their ranges, and the preprocessing of samples.

`export` writes the extents of the traced example, and the limits that PyTorch found (`32 <= height <= 512`, a
multiple of 8). The notes are JSON in the file's `metadata_props`, under `qcompile.inputs`. They include the
preprocessing (`model.sources.preprocessing`), if known:

    {"image": {"example": [2, 3, 64, 64], "axes": {"2": {"min": 32, "max": 512, "multiple": 8}}}}

The entry is optional; a damaged entry is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...spec.tensors import Feeds, TensorInfo
from .. import onnx

KEY = "qcompile.inputs"
_Extent = Annotated[int, Meta(ge=0, lt=1 << 31)]


class AxisRange(msgspec.Struct, frozen=True, rename={"minimum": "min", "maximum": "max"}):
    """The allowed extents of an axis: `minimum` to `maximum` (None: no limit) in steps of `multiple`."""

    minimum: _Extent = 1
    maximum: _Extent | None = None
    multiple: Annotated[int, Meta(ge=1, lt=1 << 31)] = 1

    def round_up(self, extent: int) -> int:
        """Return `extent` rounded up to an allowed extent, or the largest allowed extent below it."""
        step = self.multiple
        lowest = -(-self.minimum // step) * step
        highest = None if self.maximum is None else self.maximum // step * step
        suitable = max(-(-extent // step) * step, lowest)
        return suitable if highest is None else max(min(suitable, highest), lowest)

    def as_json(self) -> dict[str, int | None]:
        """Return the form used in files and manifests."""
        limits: dict[str, int | None] = msgspec.to_builtins(self)
        return limits


@dataclass(frozen=True)
class InputNote:
    """The notes on one input.

    Attributes:
        example: Extents of the example that the model was traced with.
        axes: Axis to its range of extents, for dynamic axes with a range.
        seen: Axis to the least, the median and the largest extent in batches of data, for dynamic axes.
        preprocessing: How a sample becomes the input (see `model.sources.preprocessing`); None if unknown.
    """

    example: tuple[_Extent, ...]
    axes: Mapping[int, AxisRange] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] | None = None
    seen: Mapping[int, tuple[_Extent, _Extent, _Extent]] | None = None

    def as_json(self) -> dict[str, object]:
        """Return the form used in files and manifests."""
        fields = msgspec.to_builtins(self, str_keys=True)
        return {name: value for name, value in fields.items() if value is not None}


def seen_extents(
    shapes: Sequence[Sequence[int]], axes: Collection[int]
) -> dict[int, tuple[int, int, int]] | None:
    """Return `InputNote.seen` for the shapes of an input in batches, or None without shapes or axes."""
    columns = {axis: sorted(shape[axis] for shape in shapes) for axis in axes if shapes}
    return {axis: (dims[0], dims[len(dims) // 2], dims[-1]) for axis, dims in columns.items()} or None


def with_samples(
    notes: Mapping[str, InputNote], inputs: Sequence[TensorInfo], samples: Sequence[Feeds]
) -> dict[str, InputNote]:
    """Return the notes with the extents of samples merged into `seen`, for dynamic inputs."""
    merged = dict(notes)
    for tensor in inputs:
        shapes = [feeds[tensor.name].shape for feeds in samples if tensor.name in feeds]
        seen = seen_extents(shapes, tensor.dynamic_axes)
        if seen is None:
            continue
        note = merged.get(tensor.name) or InputNote(shapes[0])
        for axis, before in (note.seen or {}).items():
            if axis in seen:
                seen[axis] = min(before[0], seen[axis][0]), before[1], max(before[2], seen[axis][2])
        merged[tensor.name] = replace(note, seen=seen)
    return merged


def write_notes(model: onnx.ModelProto, notes: Mapping[str, InputNote]) -> None:
    """Replace the notes in a model."""
    entries = [entry for entry in model.metadata_props if entry.key != KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(entries)
    if notes:
        value = {name: note.as_json() for name, note in notes.items()}
        model.metadata_props.add(key=KEY, value=json.dumps(value, sort_keys=True))


def read_notes(model: onnx.ModelProto) -> dict[str, InputNote]:
    """Return input name to its note in the file; empty without readable notes."""
    text = next((entry.value for entry in model.metadata_props if entry.key == KEY), "")
    try:
        return msgspec.json.decode(text, type=dict[str, InputNote])
    except (ValueError, RecursionError):
        return {}
