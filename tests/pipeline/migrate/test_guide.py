"""What docs/migrate.md shows is what happens."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import onnx
import pytest
from issue_models import issue_model, write_cache

from qcompile.cli import main

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/migrate.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_writes_the_recipe_that_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = issue_model({"images": ("batch", 3, 32, 32)})
    onnx.save(model, "model.onnx")
    write_cache(model, tmp_path / "model.cache")
    typed, run = block("").strip().rsplit("\n", 1)
    words = shlex.split(typed.replace("\\\n", ""))
    assert words[:2] == ["qcompile", "migrate"]
    with pytest.raises(SystemExit) as done:
        main(words[1:])
    assert done.value.code == 0
    assert (tmp_path / "recipe.toml").read_text() == block("toml")
    assert run == "qcompile run recipe.toml"


@pytest.mark.parametrize("name", ["trtexec", "polygraphy"])
def test_the_reference_is_linked_and_lists_both_tools(name: str) -> None:
    assert "(reference/migrate.md)" in GUIDE
    assert f"## {name}\n" in (ROOT / "docs/reference/migrate.md").read_text(encoding="utf-8")
