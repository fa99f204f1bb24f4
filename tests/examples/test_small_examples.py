"""Modules of examples have the names of others' modules; each test gets those of its own example."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from small_examples import modules


def test_a_namesake_that_was_imported_before_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data.py").write_text(f"NAME = {folder!r}\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "a"))
        patch.delitem(sys.modules, "data", raising=False)
        import data  # type: ignore[import-not-found]

        with modules(tmp_path / "b", "data") as (own,):
            assert own.NAME == "b"
        assert sys.modules["data"] is data
        del sys.modules["data"]
