"""`inspect`: a file that it does not describe is named for what it is, with what shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from qcompile.errors import InvalidOption
from qcompile.reporting.inspection import inspect

FORMATS = Path(__file__).parents[1] / "samples" / "formats"


@pytest.mark.parametrize(
    ("file", "what", "hint"),
    [
        ("130136f/int8.onnx.json", "is a manifest", f"inspect {FORMATS / '130136f' / 'int8.onnx'}"),
        ("508773a/layers.json", "holds layers that `qcompile diff` compared", "qcompile report"),
        ("19f5535/sweep.json", "holds results of a sweep", "run the sweep again"),
        ("130136f/small.cache", "is a calibration cache of TensorRT", "`ranges`"),
        ("bb9deac/interrupted.checkpoint", "unknown file type", ""),
    ],
)
def test_a_file_that_is_no_artifact_is_named_with_what_shows_it(file: str, what: str, hint: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        inspect(FORMATS / file)
    assert what in caught.value.message
    assert hint in caught.value.hint
