"""The ranges file: what is written is read, equal ranges are equal bytes, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file
from written_ranges import NONE, full, make, saved, tensors

from qcompile.artifact import Artifact, commit, load_artifact
from qcompile.calibration import Method, Ranges, load_ranges, save_ranges
from qcompile.calibration.histogram import BINS
from qcompile.calibration.ranges import Portion
from qcompile.calibration.ranges_file import FORMAT_VERSION, merge_files, ranges_manifest
from qcompile.calibration.thresholds import METHODS
from qcompile.errors import CalibrationError, InvalidOption, MissingFile
from qcompile.files import writing


@settings(deadline=None, max_examples=30)
@given(
    st.dictionaries(
        st.text(max_size=12).filter(lambda name: name != "__metadata__"),  # safetensors keeps it for itself
        st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=9),
        max_size=4,
    ),
    st.builds(Method, st.sampled_from(METHODS), st.floats(0, 100, exclude_min=True)),
)
def test_any_ranges_read_back(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, list[float]], method: Method
) -> None:
    ranges = make({name: np.array(v, np.float32) for name, v in values.items()}, method=method)
    folder = tmp_path_factory.mktemp("any")
    found = load_ranges(saved(ranges, folder / "a.ranges"))
    assert found.method == method
    assert found.histograms.keys() == values.keys()
    for name, array in values.items():
        if array:
            assert (found.histograms[name].min, found.histograms[name].max) == (min(array), max(array))
        assert found.histograms[name].total == len(array)
        np.testing.assert_array_equal(found.histograms[name].counts, ranges.histograms[name].counts)
    assert saved(found, folder / "b.ranges").read_bytes() == (folder / "a.ranges").read_bytes()


def test_equal_ranges_give_equal_bytes(tmp_path: Path) -> None:
    values = tensors() | {"empty": NONE}
    one = make(
        values,
        portions={"a": Portion(1), "b": Portion(2)},
        shared={"s": ("x",), "t": ("x",)},
        skipped={"a": "1", "b": "2"},
    )
    two = make(
        {name: values[name][::-1] for name in reversed(values)},
        portions={"b": Portion(2), "a": Portion(1)},
        shared={"t": ("x",), "s": ("x",)},
        skipped={"b": "2", "a": "1"},
    )
    assert saved(one, tmp_path / "1").read_bytes() == saved(two, tmp_path / "2").read_bytes()


def test_the_header_holds_what_other_tools_may_read(tmp_path: Path) -> None:
    path = saved(full(), tmp_path / "a.ranges")
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["qcompile"])
    assert (header["version"], header["bins"], header["method"]) == (FORMAT_VERSION, BINS, "percentile")
    assert header["data"]["sha256:dd"] == {"samples": 5, "shards": 4, "parts": [1, 3]}
    assert list(header["tensors"]) == ["conv1/out:0", "x", "ënde"]
    assert (header["empty"], header["shared"]["concat"]) == (["empty"], ["x", "empty"])
    assert set(header["tensors"]["x"]) == {"exponent", "min", "max", "amax"}
    amax = header["tensors"]["x"]["amax"]
    assert set(amax) == set(METHODS)
    assert amax["minmax"] == float(np.abs(tensors()["x"]).max())
    assert amax["percentile"] == full().amax("x", Method("percentile", 99.5))
    counts = load_file(path)
    assert set(counts) == {"conv1/out:0", "x", "ënde"}
    assert (counts["x"].shape, counts["x"].dtype, counts["x"].sum()) == ((2 * BINS,), np.int64, 800)


# Files of shards become the file of the whole.


def artifact(ranges: Ranges, path: Path) -> Artifact:
    """A ranges file with its manifest."""
    with writing(path) as temporary:
        save_ranges(ranges, temporary)
        manifest = commit(temporary, ranges_manifest(ranges, "calibrate"))
    return Artifact(path, manifest)


def test_the_artifact_of_merged_files_says_what_is_in_it(tmp_path: Path) -> None:
    files = []
    for part in (1, 2):
        files.append(tmp_path / f"{part}.ranges")
        artifact(make(tensors(part), portions={"d": Portion(part, 3, (part,))}), files[-1])
    said: list[tuple[str, int, int | None]] = []

    def progress(text: str, done: int = 0, total: int | None = None, /) -> None:
        said.append((text, done, total))

    merged = merge_files(files, tmp_path / "merged.ranges", progress=progress)
    assert load_artifact(merged.path) == merged
    assert merged.manifest.stage == "merge"
    assert merged.manifest.sources == {"model": "sha256:aa", "data": "d (1, 2 of 3 parts)"}
    assert merged.manifest.proof["samples"] == 3
    assert said == [("merge", 1, 2), ("merge", 2, 2)]
    assert merge_files(files, files[0]).path.read_bytes() == merged.path.read_bytes()  # one of them
    assert load_artifact(files[0]).manifest == merged.manifest


def test_what_cannot_be_merged_is_named_by_its_file(tmp_path: Path) -> None:
    one, two = saved(make(tensors()), tmp_path / "1.ranges"), tmp_path / "2.ranges"
    output = tmp_path / "merged.ranges"
    for other, words in (
        (make(tensors(), model="sha256:bb"), "different models"),
        (make(tensors()), "the same data is in both"),
        (make({"x": tensors()["x"]}, portions={"e": Portion(1)}), "'conv1/out:0' is in one ranges file only"),
    ):
        with pytest.raises(CalibrationError, match=words) as caught:
            merge_files([one, saved(other, two)], output)
        assert caught.value.message.startswith(f"{two}: ")
        assert not output.exists()
    two.write_bytes(two.read_bytes()[:-1])
    with pytest.raises(CalibrationError, match=r"2\.ranges: not a ranges file"):
        merge_files([one, two], output)
    with pytest.raises(MissingFile):
        merge_files([one, tmp_path / "3.ranges"], output)
    with pytest.raises(InvalidOption, match="at least one"):
        merge_files([], output)
    assert not output.exists()
