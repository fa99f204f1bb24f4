from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qcompile.data.batches import located, seen_from
from qcompile.data.spelling import FUNCTION, KEYS, Spelling, parse_spelling, read_query
from qcompile.errors import InvalidOption

TEXT = st.text(st.characters(exclude_characters="\0\n", exclude_categories=("Cs",)), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("spec", "kind", "path", "query"),
    [
        ("photos", "", "photos", {}),
        ("images:photos", "images", "photos", {}),
        ("images:a:b/c", "images", "a:b/c", {}),
        ("./images:old", "", "./images:old", {}),
        ("/data/set:2/x", "", "/data/set:2/x", {}),
        ("images:photos?masks=m&samples=5", "images", "photos", {"masks": "m", "samples": "5"}),
        ("photos?preprocessing=timm:resnet18", "", "photos", {"preprocessing": "timm:resnet18"}),
        ("what%3F/100%25?seed=1", "", "what?/100%", {"seed": "1"}),
        ("100%/a%41", "", "100%/a%41", {}),
        ("text:a.txt?column=a%26b", "text", "a.txt", {"column": "a&b"}),
        ("data.py:samples", FUNCTION, "data.py:samples", {}),
        ("package.module:samples", FUNCTION, "package.module:samples", {}),
    ],
)
def test_a_spelling_is_kind_path_and_query(spec: str, kind: str, path: str, query: dict[str, str]) -> None:
    parsed = parse_spelling(spec)
    assert (parsed.kind, parsed.path, parsed.query) == (kind, path, query)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("image:photos/cats", "unknown kind 'image'; images, text.*did you mean images"),
        ("image:photos", "unknown kind 'image'.*did you mean images"),
        ("C:/photos", "unknown kind 'C'"),
        ("photos?sample=3", "sample= is no key of data;.*did you mean samples"),
        ("audio:x?masks=y", "masks= is no key of data of kind audio"),
        ("cifar10:x", r"cifar10: went with 0\.3\.0: read parquet"),
        ("x?labels=y.csv", r"labels went with 0\.3\.0: put metadata\.csv"),
        ("photos?samples", r"'samples' after the `\?`; key=value is required"),
        ("photos?", "key=value is required.*%3F"),
        ("photos?seed=", "seed has no value"),
        ("photos?seed=1&seed=2", "seed= is given twice"),
        ("data.py:samples?seed=1", "a function takes no keys; seed= was given"),
        ("images:", "a path is required after images:"),
        ("?seed=1", "a path is required"),
        ("npz:data.npz?split=x", "split= is no key of data of kind npz"),
        ("photos?samples=0", "samples=0; a whole number of at least 1"),
        ("photos?samples=-1", "samples=-1"),
        ("photos?samples=ten", "samples=ten"),
        ("photos?seed=1.5", "seed=1.5; a whole number of at least 0"),
        ("photos?balanced=yes", "balanced=yes; true or false is required"),
        (
            "photos?part=calib",
            "part=calib; calibration or evaluation is required\n.*did you mean part=calibration",
        ),
    ],
)
def test_what_is_misspelled_is_named_with_the_nearest(spec: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=f"(?s){message}"):
        read_query(parse_spelling(spec).query, spec)


@given(st.sampled_from(["", *KEYS]), TEXT, st.lists(TEXT, max_size=3))
@example("", "images:x", [])
def test_what_is_printed_is_read_back(kind: str, path: str, values: list[str]) -> None:
    keys = KEYS[kind or "images"][: len(values)]
    made = Spelling("", kind, path, dict(zip(keys, values, strict=False)))
    parsed = parse_spelling(str(made))
    assert (parsed.kind, parsed.query) == (made.kind, made.query)
    assert Path(parsed.path) == Path(path)


def test_a_located_spelling_does_not_depend_on_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "in.csv").write_text("")
    (tmp_path / "beside.csv").write_text("")
    photos = tmp_path / "photos"
    assert located("photos", tmp_path) == str(photos)
    assert located("images:photos?masks=in.csv", tmp_path) == f"images:{photos}?masks={photos}/in.csv"
    assert located("images:photos?masks=beside.csv&seed=2", tmp_path) == (
        f"images:{photos}?masks={tmp_path}/beside.csv&seed=2"
    )
    assert located("photos?preprocessing=timm:x", tmp_path) == f"{photos}?preprocessing=timm:x"
    (tmp_path / "data.py").write_text("")
    there = f"images:{photos}?masks=in.csv&preprocessing=timm:x"
    assert seen_from(there, tmp_path / "a") == "images:../photos?masks=../photos/in.csv&preprocessing=timm:x"
    assert seen_from(f"{tmp_path}/data.py:f", tmp_path / "a") == "../data.py:f"
    assert seen_from("numpy.random:rand", tmp_path) == "numpy.random:rand"
    assert located("data.py:f", tmp_path) == f"{tmp_path}/data.py:f"
    assert located("numpy.random:rand", tmp_path) == "numpy.random:rand"
