"""Notes in an ONNX file about its inputs beyond their types: suitable extents, and their ranges.

ONNX has a name for a dynamic axis and nothing else. `export` knows more: the extents that the model was
traced with, and the limits that PyTorch found (`32 <= height <= 512`, a multiple of 8). Both are kept in the
file's `metadata_props` under `qcompile.inputs`, as JSON, and every later stage makes input that fits:

    {"image": {"example": [2, 3, 64, 64], "axes": {"2": {"min": 32, "max": 512, "multiple": 8}}}}

`"preprocessing"` beside them says how a sample becomes the input (`model.preprocessing`), where it is known.

Files from elsewhere have no such entry, and a damaged one is taken for none: random input is all it decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

KEY = "qcompile.inputs"


@dataclass(frozen=True)
class AxisRange:
    """The extents that an axis takes: `minimum` to `maximum` (None: no limit) in steps of `multiple`."""

    minimum: int = 1
    maximum: int | None = None
    multiple: int = 1

    def nearest(self, extent: int) -> int:
        """Return the allowed extent that is nearest to `extent`, the larger of two."""
        step = self.multiple
        lowest = -(-self.minimum // step) * step
        highest = None if self.maximum is None else self.maximum // step * step
        suitable = max(-(-extent // step) * step, lowest)
        return suitable if highest is None else max(min(suitable, highest), lowest)

    def as_json(self) -> dict[str, int | None]:
        """Return the form used in files and manifests."""
        return {"min": self.minimum, "max": self.maximum, "multiple": self.multiple}


@dataclass(frozen=True)
class InputNote:
    """What is known of one input.

    Attributes:
        example: Extents that suit the model, of the example that it was traced with.
        axes: Axis to the range of its extents, for dynamic axes that have one.
        preprocessing: How a sample becomes the input, as `model.preprocessing` writes it; None where unknown.
    """

    example: tuple[int, ...]
    axes: Mapping[int, AxisRange] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, object]:
        """Return the form used in files and manifests."""
        axes = {str(axis): limits.as_json() for axis, limits in self.axes.items()}
        said = {"preprocessing": dict(self.preprocessing)} if self.preprocessing is not None else {}
        return {"example": list(self.example), "axes": axes, **said}


def write_notes(model: onnx.ModelProto, notes: Mapping[str, InputNote]) -> None:
    """Keep notes in a model, in place of those it has."""
    kept = [entry for entry in model.metadata_props if entry.key != KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    if notes:
        entry = model.metadata_props.add()
        entry.key = KEY
        entry.value = json.dumps({name: note.as_json() for name, note in notes.items()}, sort_keys=True)


def read_notes(model: onnx.ModelProto) -> dict[str, InputNote]:
    """Return input name to what the file says of it; empty where it says nothing that can be read."""
    text = next((entry.value for entry in model.metadata_props if entry.key == KEY), "")
    try:
        value: Any = json.loads(text) if text else {}
        return {str(name): _note(item) for name, item in value.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _note(item: Mapping[str, Any]) -> InputNote:
    example = tuple(_extent(extent) for extent in item["example"])
    said = item.get("preprocessing")
    return InputNote(
        example,
        {int(axis): _range(limits) for axis, limits in item["axes"].items()},
        said if isinstance(said, dict) else None,
    )


def _range(limits: Mapping[str, Any]) -> AxisRange:
    highest = limits["max"]
    return AxisRange(
        _extent(limits["min"]),
        None if highest is None else _extent(highest),
        max(_extent(limits["multiple"]), 1),
    )


def _extent(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is no extent")
    return value
