"""Arrays in files with keys that choose among their samples; `.npy`; Polygraphy's own inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches_to_read import labels_of, rows, samples_of

from qcompile.data.batches import Data
from qcompile.errors import DataError
from qcompile.tensors import TensorInfo

X = TensorInfo("x", "float32", ("batch", 3))


def test_an_npy_is_read_by_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", rows(7))
    data = Data(str(tmp_path / "a.npy"), [X], batch_size=3)
    assert [one.samples for one in data] == [3, 3, 1]
    assert samples_of(list(data)) == list(range(7))
    assert data.total == 7
    assert samples_of(list(Data(str(tmp_path / "a.npy"), [X], limit=4))) == [0, 1, 2, 3]
    with pytest.raises(DataError, match="has no input names, and the model takes 2 inputs"):
        list(Data(str(tmp_path / "a.npy"), [X, TensorInfo("y", "float32", ("batch",))]))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:100])
    with pytest.raises(DataError, match=r"a\.npy: cannot be read as numpy data"):
        list(Data(str(tmp_path / "a.npy"), [X]))
    np.save(tmp_path / "a.npy", np.float32(1))
    with pytest.raises(DataError, match="is a scalar; a first axis of samples is required"):
        list(Data(str(tmp_path / "a.npy"), [X]))


@pytest.mark.parametrize("form", ["npz", "folder", "npy"])
def test_keys_choose_among_the_rows(tmp_path: Path, form: str) -> None:
    labels = np.arange(40) // 30
    if form == "npz":
        np.savez(tmp_path / "a.npz", x=rows(40), labels=labels)
    elif form == "npy":
        np.save(tmp_path / "a.npy", rows(40))
    else:
        (tmp_path / "a.folder").mkdir()
        for start in range(0, 40, 16):
            part = slice(start, start + 16)
            np.savez(tmp_path / "a.folder" / f"{start}.npz", x=rows(40)[part], labels=labels[part])
    spec = str(tmp_path / f"a.{form}")
    halves = [Data(f"{spec}?part={part}", [X], batch_size=4) for part in ("calibration", "evaluation")]
    both = [samples_of(list(one)) for one in halves]
    assert sorted(both[0] + both[1]) == list(range(40))
    assert [one.total for one in halves] == [len(half) for half in both]
    drawn = list(Data(f"{spec}?samples=10", [X], batch_size=4))
    assert [one.samples for one in drawn] == [4, 4, 2]
    assert samples_of(drawn) == sorted(samples_of(drawn))
    if form != "npy":
        assert labels_of(drawn) == [0] * 5 + [1] * 5
    few = list(Data(f"{spec}?samples=10", [X], limit=3))
    assert set(samples_of(few)) < set(samples_of(drawn))
    assert len(samples_of(few)) == 3
    digests = {Data(f"{spec}{query}", ()).digest() for query in ("", "?samples=10", "?samples=10&seed=1")}
    assert len(digests) == 3


def save_with_polygraphy(path: Path, feeds: list[dict[str, object]]) -> str:
    from polygraphy.json import save_json

    save_json(feeds, str(path))
    return str(path)


def test_what_polygraphy_saves_is_read(tmp_path: Path) -> None:
    import torch

    mask = TensorInfo("mask", "bool", ("batch",))
    given = [{"x": rows(2), "mask": np.array([True, False])}, {"x": rows(5)[2:], "mask": np.ones(3, bool)}]
    spec = save_with_polygraphy(tmp_path / "inputs.json", given)
    data = Data(spec, [X, mask])
    batches = list(data)
    assert samples_of(batches) == list(range(5))
    assert [one.feeds["mask"].tolist() for one in batches] == [[True, False], [True] * 3]
    assert [one.where for one in batches] == ["inputs.json[0]", "inputs.json[1]"]
    assert data.total == 5
    assert samples_of(list(Data(spec, [X, mask], limit=3))) == [0, 1, 2]
    halves = [
        samples_of(list(Data(f"{spec}?part={part}", [X, mask]))) for part in ("calibration", "evaluation")
    ]
    assert sorted(halves[0] + halves[1]) == list(range(5))
    spec = save_with_polygraphy(tmp_path / "torch.json", [{"x": torch.from_numpy(rows(2))}])
    assert samples_of(list(Data(spec, [X]))) == [0, 1]


def test_polygraphys_own_loader_reads_the_same(tmp_path: Path) -> None:
    from polygraphy.json import load_json

    spec = save_with_polygraphy(tmp_path / "inputs.json", [{"x": rows(3)}])
    [theirs], [ours] = load_json(spec), Data(spec, [X])
    np.testing.assert_array_equal(theirs["x"], ours.feeds["x"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ('{"x": 1}', "is no file of Polygraphy's inputs; a list of dicts.*\n  hint: save it"),
        ('[{"x": 1}]', r"inputs\.json\[0\] 'x': is no array"),
        ('[{"x": {"array": "%%%"}}]', "cannot be read as an array"),
        (
            '[{"x": {"array": "gANOLg=="}}]',
            "cannot be read as an array .*\n  hint: pickled objects are not read",
        ),
        ('[{"x": {"tensor": "gANOLg=="}}]', "cannot be read as an array"),
        ("[]", "holds no samples"),
    ],
)
def test_other_json_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "inputs.json").write_text(content)
    with pytest.raises(DataError, match=message):
        list(Data(str(tmp_path / "inputs.json"), [X]))
