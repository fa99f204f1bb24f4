"""What a kind of data is made of: spellings, batches, samples drawn, decoding ahead in order, digests."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from batches_to_read import image_input
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from qcompile.data.batches import Data, half_of, select
from qcompile.data.readers import AHEAD, digest_contents, in_order, threads_for_reading
from qcompile.data.spelling import FUNCTION, KEYS, PARTS, Query, Spelling, parse_spelling, read_query
from qcompile.errors import InvalidOption

MANY = st.lists(st.text(max_size=6), unique=True, min_size=14, max_size=40)
NAMES = st.lists(st.text(max_size=6), unique=True, max_size=60)


@given(NAMES, st.integers(0, 5))
def test_the_halves_are_disjoint_and_complete(names: list[str], seed: int) -> None:
    first, second = (select(names, Query(part=part, seed=seed)) for part in PARTS)
    assert sorted(first + second) == list(range(len(names)))
    assert len(names) < 2 or (first and second)


@settings(max_examples=40)
@given(MANY, NAMES, st.integers(0, 5))
def test_a_sample_stays_in_its_half_when_others_are_added(
    names: list[str], more: list[str], seed: int
) -> None:
    together = sorted({*names, *more})
    for some in (names, together):  # dealt out in turn where a half would be empty
        assume(len({half_of(name, seed) for name in some}) == 2)
    for part in PARTS:
        before = {names[index] for index in select(names, Query(part=part, seed=seed))}
        after = {together[index] for index in select(together, Query(part=part, seed=seed))}
        assert before == after & set(names)


def test_the_halves_are_about_equally_large() -> None:
    names = [f"{index}.png" for index in range(10_000)]
    assert abs(len(select(names, Query(part="calibration"))) - 5000) < 200  # four standard deviations


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 50), st.integers(0, 5))
def test_a_draw_is_balanced_seeded_and_begins_like_a_smaller_one(
    classes: list[str], count: int, seed: int
) -> None:
    names, query = [f"{index}" for index in range(len(classes))], Query(samples=count, seed=seed)
    drawn = select(names, query, classes=lambda: classes)
    assert drawn == select(names, query, classes=lambda: classes)
    assert len(drawn) == len(set(drawn)) == min(count, len(names))
    there, taken = Counter(classes), Counter(classes[index] for index in drawn)
    most = max(taken.values(), default=0)
    assert all(taken[name] >= min(most - 1, there[name]) for name in there)
    fewer = select(names, query, limit=count // 2 or None, classes=lambda: classes)
    assert drawn[: count // 2] == fewer[: count // 2]


def test_another_seed_draws_others_and_unbalanced_ignores_the_classes() -> None:
    names, classes = [str(index) for index in range(1000)], ["a"] * 990 + ["b"] * 10
    drawn = [select(names, Query(samples=20, seed=seed), classes=lambda: classes) for seed in (0, 1)]
    assert set(drawn[0]) != set(drawn[1])
    assert sum(index >= 990 for index in drawn[0]) == 10
    plain = select(names, Query(samples=20, balanced=False), classes=lambda: classes)
    assert sum(index >= 990 for index in plain) < 5
    assert select(names, Query()) == list(range(1000))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_results_come_in_order_whoever_is_first(threads: int) -> None:
    begun = [threading.Event() for _ in range(38)]

    def overtaken(number: int) -> int:
        begun[number].set()
        if threads > 1 and number % 3 == 0:
            assert begun[number + 1].wait(60)
        return number * number

    assert list(in_order(overtaken, range(38), threads=threads)) == [number**2 for number in range(38)]


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_an_exception_ends_the_threads_and_stands_where_its_item_does(stop: type[BaseException]) -> None:
    before, begun = threading.active_count(), []

    def note(number: int) -> int:
        begun.append(number)
        if stop is ValueError and number == 5:
            raise stop
        return number

    results = in_order(note, range(10_000), threads=3)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(stop):
        next(results) if stop is ValueError else results.throw(stop)  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert len(begun) < 20


def test_a_large_folder_is_not_read_further_ahead_than_the_bound(tmp_path: Path, decoded: list[str]) -> None:
    for number in range(200):
        Image.new("L", (4, 4), number).save(tmp_path / f"{number:03}.png")
    batches = iter(Data(str(tmp_path), [image_input()], batch_size=3))
    for taken in range(1, 5):
        first = np.rint(next(batches).feeds["x"][:, 0, 0, 0] * 255).tolist()
        assert first == [3 * taken - 3, 3 * taken - 2, 3 * taken - 1]
        assert len(decoded) <= 3 * taken + AHEAD * threads_for_reading()
    before = threading.active_count()
    batches.close()  # type: ignore[attr-defined]
    assert threading.active_count() < before or threads_for_reading() == 1


def test_a_file_that_is_rewritten_at_once_has_another_digest(tmp_path: Path) -> None:
    path, digests = tmp_path / "sample", set()
    for number in range(200):  # of equal size, and faster than the clock of the file system ticks
        path.write_text(f"{number:03}")
        digests.add(digest_contents([path]))
    assert len(digests) == 200


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
        ("image:photos/cats", "unknown kind 'image'; images, text.*did you mean 'images'"),
        ("image:photos", "unknown kind 'image'.*did you mean 'images'"),
        ("C:/photos", "unknown kind 'C'"),
        ("photos?sample=3", "sample= is no key of data;.*did you mean 'samples'"),
        ("audio:x?masks=y", "masks= is no key of data of kind audio"),
        ("x?labels=y.csv", "labels= is no key of data"),
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
            "part=calib; calibration or evaluation is required\n.*did you mean 'part=calibration'",
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


def located(spec: str, base: Path) -> str:
    return str(parse_spelling(spec).located(base))


def seen_from(spec: str, folder: Path) -> str:
    return str(parse_spelling(spec).relative_to(folder))


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
