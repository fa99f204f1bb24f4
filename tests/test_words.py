"""Errors, figures, names of strangers and progress, as people read them."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
import unicodedata
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qcompile import errors
from qcompile.core.figures import bytes_text, clean, figure, interval, number, shortened, times, value_text
from qcompile.core.plain_text import plain, plain_json, plain_lines, plain_toml, toml_table
from qcompile.core.progress import quiet
from qcompile.errors import InvalidOption, ModelError, first_line


def drawn() -> dict[str, str]:
    """Error to its base, as the top of the file draws them."""
    bases, found = ["Exception"], {}
    for branches, name in re.findall(r"^    ((?:[│├└─ ]{4})*)(\w+)", errors.__doc__ or "", re.M):
        depth = len(branches) // 4
        bases[depth + 1 :] = [name]
        found[name] = bases[depth]
    return found


def test_the_tree_is_the_one_that_is_drawn_and_only_a_wrong_request_is_a_usage_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) == 19
    assert {kind.__name__: kind.__base__.__name__ for kind in kinds if kind.__base__} == drawn()
    assert {kind.__name__ for kind in kinds if kind("x").exit_code == 2} == {
        "UsageError", "InvalidOption", "MissingFile", "RecipeError",
    }  # fmt: skip


def test_the_hint_follows_the_message() -> None:
    error = InvalidOption("input 'x': found 8; at most 4 is required", hint="raise --max-shapes")
    assert str(error) == "input 'x': found 8; at most 4 is required\n  hint: raise --max-shapes"
    assert str(InvalidOption("no hint")) == "no hint"


def test_the_json_form_holds_plain_values() -> None:
    error = ModelError(
        "message", hint="hint", file=Path("/a/model.onnx"), nodes=("conv1", "conv2"), shapes={"x": (1, 3)},
        kinds={"int8"}, ratio=0.5, reached=False, nothing=None,
    )  # fmt: skip
    data = {
        "file": "/a/model.onnx", "nodes": ["conv1", "conv2"], "shapes": {"x": [1, 3]}, "kinds": ["int8"],
        "ratio": 0.5, "reached": False, "nothing": None,
    }  # fmt: skip
    expected = {"error": "ModelError", "message": "message", "hint": "hint", "data": data}
    assert json.loads(json.dumps(error.as_json())) == expected


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\n  first\nsecond"), "first"),
        (KeyError(), "KeyError"),
        (RuntimeError("   \n"), "RuntimeError"),
    ],
)
def test_the_first_line_of_an_error_says_something(error: BaseException, line: str) -> None:
    assert first_line(error) == line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0.0, "0"), (1234.4, "1,234"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"),
        (0.1234, "0.123"), (0.01234, "0.0123"), (-2.5, "\N{MINUS SIGN}2.50"),
        (1e-7, "1.00e-07"), (1e12, "1.00e+12"), (0.9996, "1.00"), (99.96, "100"),
    ],
)  # fmt: skip
def test_three_digits_count(value: float | None, text: str) -> None:
    assert figure(value) == text


@given(st.floats(min_value=1e-4, max_value=9.99e8))
def test_a_figure_is_within_half_of_its_last_digit(value: float) -> None:
    assert float(figure(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize("value", [None, True, "1", [], {}, math.nan, math.inf, -math.inf, 10**400])
def test_what_is_no_finite_number_is_none(value: object) -> None:
    assert number(value) is None


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "–"), (0, "0 B"), (999, "999 B"), (999_600, "1.00 MB"), (1_103_223, "1.10 MB"),
        (5e12, "5,000 GB"),
    ],
)  # fmt: skip
def test_bytes_are_decimal(size: float | None, text: str) -> None:
    assert bytes_text(size) == text


def test_intervals_have_both_ends_or_are_empty() -> None:
    assert interval(-0.001, 0.4) == "[0.00, 0.40]"
    assert interval(-0.5, 0.4) == "[\N{MINUS SIGN}0.50, 0.40]"
    assert interval(None, 0.4) == interval(1.0, None) == ""
    assert times(3.594) == "3.59×"


@given(st.text(max_size=300), st.integers(min_value=4, max_value=60))
def test_a_shortened_name_fits_and_keeps_its_end(name: str, length: int) -> None:
    line = " ".join(name.split())
    found = shortened(name, length)
    assert len(found) <= length
    if found != line:
        before, after = found.split("…", 1) if "…" not in line else (found[: found.index("…")], "")
        assert line.startswith(before)
        assert line.endswith(after)


def test_a_path_keeps_only_its_end() -> None:
    assert shortened("/backbone/layer3/block.2/conv2/Conv_output_0", 20) == "…conv2/Conv_output_0"
    assert shortened("openvino-int4-weights-per-block", 20) == "openvino…s-per-block"


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8,
))  # fmt: skip
def test_clean_texts_can_be_encoded_and_shown(value: object) -> None:
    text = value_text(clean(value))
    text.encode()
    assert all(letter.isprintable() or letter in "\n\t" for letter in text)
    json.dumps(clean(value)).encode()


def test_words_of_nested_values_are_one_line() -> None:
    assert value_text({"a": 1, "b": [0.01, True, None]}) == "a 1, b 0.01, yes, –"
    assert value_text({}) == value_text([]) == value_text("") == value_text(math.nan) == "–"


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv1", "conv1"),
        ("Größe · 2 µm → 𝛼 图", "Größe · 2 µm → 𝛼 图"),
        ("a\u00a0b\u202fc", "a\u00a0b\u202fc"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b31m", r"\x9b31m"),
        ("x\ny\tz\r", r"x\ny\tz\r"),
        ("gnp.\u202eexe", r"gnp.\u202eexe"),
        ("\U000e0041", r"\U000e0041"),
        ("\udcff", r"\udcff"),
        ("\u2028", r"\u2028"),
    ],
)
def test_what_is_not_printed_is_shown_as_python_spells_it(text: str, shown: str) -> None:
    assert plain(text) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_no_character_that_is_obeyed_is_left(text: str) -> None:
    assert not OBEYED.search(plain(text))
    assert not OBEYED.search(plain_lines(text))
    assert "\n" not in plain(text)
    plain_lines(text).encode()  # lone surrogates are escaped too


@example("\x7f\U000e0041")
@given(st.text(st.characters(exclude_categories=())))
def test_json_says_the_same_after_it(text: str) -> None:
    dumped = plain_json(json.dumps({"a": text}, ensure_ascii=False, indent=2))
    assert json.loads(dumped) == {"a": text}
    assert not OBEYED.search(dumped)
    assert all(unicodedata.category(one) not in ("Cf", "Cs", "Cc") for one in dumped.replace("\n", ""))


@given(st.text())
def test_toml_says_the_same_after_it(text: str) -> None:
    written = f"a = {plain_toml(text)}"
    assert tomllib.loads(written) == {"a": text}
    assert not OBEYED.search(written)
    assert "\n" not in written


@given(st.lists(st.text(), max_size=9), st.booleans(), st.text())
def test_a_table_of_toml_holds_its_values(texts: list[str], flag: bool, why: str) -> None:
    written = "\n".join(toml_table("[a]", [("texts", texts, why), ("flag", flag, ""), ("count", 3, "")]))
    assert tomllib.loads(written) == {"a": {"texts": texts, "flag": flag, "count": 3}}


def test_a_line_end_in_a_name_begins_no_line_that_looks_like_another_message() -> None:
    assert plain_lines("tensor 'a\nwarning: b'\n    said") == "tensor 'a\n    warning: b'\n    said"


def test_what_libraries_say_is_dropped_and_heard_again(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for silent in (True, False):
        if silent:
            with quiet(), quiet():
                print("dropped")
                warnings.warn("dropped", stacklevel=1)
                logging.error("dropped")
        else:
            print("heard")
            logging.error("logged")
    assert capsys.readouterr().out == "heard\n"
    assert caplog.messages == ["logged"]


def test_threads_that_overlap_leave_all_as_it_was() -> None:
    before = (sys.stdout, sys.stderr, logging.root.manager.disable, list(warnings.filters))
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))

    def first() -> None:
        with quiet():
            first_is_in.set()
            second_is_in.wait(10)
        first_is_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert first_is_in.wait(10)
    with quiet():
        second_is_in.set()
        assert first_is_out.wait(10)
        assert sys.stdout is not before[0]
    thread.join(10)
    assert (sys.stdout, sys.stderr, logging.root.manager.disable, list(warnings.filters)) == before
