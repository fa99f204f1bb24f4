"""Note in an exported file how samples become its inputs, as `preprocessing` of the user says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...model.input_notes import InputNote, read_notes, write_notes
from ...model.onnx_file import model_io
from ...model.preprocessing import Preprocessing, as_json
from ...model.preprocessing_fit import fit_preprocessing
from ...tensors import Feeds, TensorInfo
from .write import edit_in_place


def with_preprocessing(inputs: Sequence[TensorInfo], said: Preprocessing | None) -> tuple[TensorInfo, ...]:
    """Return inputs with how samples become them; as they are where nothing is said.

    Raises:
        InvalidOption: If the model has no such input.
    """
    made = fit_preprocessing(said, inputs) if said is not None else {}
    return tuple(
        replace(one, preprocessing=as_json(made[one.name])) if one.name in made else one for one in inputs
    )


def note_preprocessing(path: Path, said: Preprocessing | None, feeds: Feeds) -> None:
    """Note in an ONNX file how samples become its inputs; nothing changes where nothing is said.

    Args:
        path: The file; weights beside it stay where they are.
        said: The preprocessing.
        feeds: Input that suits the model, whose extents are noted where the file notes none.

    Raises:
        InvalidOption: If the model has no such input.
    """
    if said is not None:
        edit_in_place(path, lambda proto: write_notes(proto, _noted(proto, said, feeds)))


def _noted(proto: Any, said: Preprocessing, feeds: Feeds) -> Mapping[str, InputNote]:
    notes = read_notes(proto)
    for one in with_preprocessing(model_io(proto).inputs, said):
        note = notes.get(one.name) or InputNote(tuple(int(extent) for extent in feeds[one.name].shape))
        notes[one.name] = replace(note, preprocessing=one.preprocessing)
    return notes
