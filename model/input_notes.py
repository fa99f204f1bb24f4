"""Notes in an ONNX file about its inputs beyond their types: suitable extents, and their ranges.

`export` knows the extents that the model was traced with, and the limits that PyTorch found (`32 <= height <=
512`, a multiple of 8). Both are in the file's `metadata_props` under `qcompile.inputs`, as JSON, beside how a
sample becomes the input (`model.preprocessing`), where it is known:

    {"image": {"example": [2, 3, 64, 64], "axes": {"2": {"min": 32, "max": 512, "multiple": 8}}}}

Files from elsewhere have no such entry, and a damaged one is taken for none: random input is all it decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    import onnx

KEY = "qcompile.inputs"
_Extent = Annotated[int, Meta(ge=0, lt=1 << 31)]


class AxisRange(msgspec.Struct, frozen=True, rename={"minimum": "min", "maximum": "max"}):
    """The extents that an axis takes: `minimum` to `maximum` (None: no limit) in steps of `multiple`."""

    minimum: _Extent = 1
    maximum: _Extent | None = None
    multiple: Annotated[int, Meta(ge=1, lt=1 << 31)] = 1

    def nearest(self, extent: int) -> int:
        """Return the allowed extent that is nearest to `extent`, the larger of two."""
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
    """What is known of one input.

    Attributes:
        example: Extents that suit the model, of the example that it was traced with.
        axes: Axis to the range of its extents, for dynamic axes that have one.
        preprocessing: How a sample becomes the input, as `model.preprocessing` writes it; None where unknown.
    """

    example: tuple[_Extent, ...]
    axes: Mapping[int, AxisRange] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, object]:
        """Return the form used in files and manifests."""
        fields = msgspec.to_builtins(self, str_keys=True)
        return {name: value for name, value in fields.items() if value is not None}


def write_notes(model: onnx.ModelProto, notes: Mapping[str, InputNote]) -> None:
    """Keep notes in a model, in place of those it has."""
    entries = [entry for entry in model.metadata_props if entry.key != KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(entries)
    if notes:
        value = {name: note.as_json() for name, note in notes.items()}
        model.metadata_props.add(key=KEY, value=json.dumps(value, sort_keys=True))


def read_notes(model: onnx.ModelProto) -> dict[str, InputNote]:
    """Return input name to what the file says of it; empty where it says nothing that can be read."""
    text = next((entry.value for entry in model.metadata_props if entry.key == KEY), "")
    try:
        return msgspec.json.decode(text, type=dict[str, InputNote])
    except (ValueError, RecursionError):
        return {}
