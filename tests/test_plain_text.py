"""What a terminal would obey is shown as its escape."""

from __future__ import annotations

import json
import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.plain_text import plain, plain_json, plain_lines, plain_toml

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


def test_a_line_end_in_a_name_begins_no_line_that_looks_like_another_message() -> None:
    assert plain_lines("tensor 'a\nwarning: b'\n    said") == "tensor 'a\n    warning: b'\n    said"
