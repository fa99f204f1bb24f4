"""What the recipe that `migrate` writes says beside its keys."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from issue_models import issue_model

import qcompile
from qcompile.pipeline.migrate import Migration
from qcompile.pipeline.recipe import Recipe, read_recipe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a model."""
    monkeypatch.chdir(tmp_path)
    onnx.save(issue_model({"image": ("batch", 3, "h", "w")}, layers=["/a/Conv"]), "m.onnx")
    return tmp_path


def migrated(options: str) -> tuple[Recipe, Migration]:
    done = qcompile.migrate(f"trtexec --onnx=m.onnx {options}", target="tensorrt")
    return read_recipe(done.recipe), done


@pytest.mark.usefixtures("folder")
def test_the_recipe_says_where_each_key_comes_from_and_what_is_not_kept() -> None:
    _, done = migrated("--fp16 --saveEngine=build/net.plan --avgTiming=4")
    text = done.recipe.read_text()
    assert 'name = "net"  # --saveEngine=build/net.plan\n' in text
    assert 'precision = "fp16"  # --fp16\n' in text
    assert "# Not kept: --avgTiming=4\n" in text
    assert "#   trtexec --onnx=m.onnx --fp16 --saveEngine=build/net.plan --avgTiming=4\n" in text
    assert done.then == ["qcompile run recipe.toml"]


@pytest.mark.usefixtures("folder")
def test_what_a_terminal_or_toml_would_not_take_is_escaped_in_the_recipe() -> None:
    """A command comes from a script of somebody else, and comments hold it."""
    recipe, done = migrated("--fp16 --plugins=x\x1b[2J\u202e.so")
    text = done.recipe.read_text(encoding="utf-8")
    assert r"x\x1b[2J\u202e.so" in text.splitlines()[1]
    assert not {"\x1b", "\u202e"} & set(text)
    assert recipe.artifact[0].tensorrt.plugins == ("x\x1b[2J\u202e.so",)
