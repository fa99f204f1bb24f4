"""No two stages of a recipe publish one file, and none overwrites what it reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipes import artifact, recipe_of

from qcompile.errors import InvalidOption, RecipeError
from qcompile.pipeline.plan import plan
from qcompile.pipeline.recipe.published import published
from qcompile.pipeline.recipe.recipe import Recipe, parse_recipe
from qcompile.pipeline.run import run


def recipe_text(
    *artifacts: tuple[str, ...], output: str = "out", source: str = "m.py:build", simplify: str = "true"
) -> str:
    """A recipe of artifacts (name, target, precision)."""
    model = f"[model]\nsource = '{source}'\nsimplify = {simplify}\n[data]\ncalibration = 'x.npz'\n"
    head = f"version = 1\nname = 'net'\noutput = '{output}'\n"
    return head + model + "".join(artifact(*one) for one in artifacts)


def parsed_text(text: str) -> Recipe:
    return parse_recipe(text.encode(), Path("recipe.toml"))


ORT, RTX = "onnxruntime", "tensorrt-rtx"


@pytest.mark.parametrize(
    "text",
    [
        recipe_text(("a", ORT, "fp32"), ("a.graph", ORT, "fp32")),  # of float32 no graph is made
        recipe_text(("a", "torchscript", "fp32"), ("a.graph", ORT, "fp32")),
        recipe_text(("a", RTX, "fp32"), ("a.onnx", RTX, "fp32")),
        recipe_text(("net.simplified", ORT, "fp32"), simplify="false"),
        recipe_text(("net.simplified", RTX, "fp32")),
        recipe_text(("a", RTX, "fp16"), ("a.engine", ORT, "fp16"), ("a.json", ORT, "fp32")),
        recipe_text(("results.json", ORT, "fp32"), ("report.html", RTX, "fp32")),
        recipe_text(("ü" * 100, ORT, "fp32")),
    ],
)
def test_names_that_are_no_collision_stay_as_they_are(text: str) -> None:
    files = [file for file, _, _ in published(parsed_text(text))]
    assert len(files) == len(set(files))


def test_a_name_that_leaves_no_room_for_its_endings_is_refused() -> None:
    with pytest.raises(RecipeError, match="at most 200 bytes"):
        parsed_text(recipe_text(("ü" * 101, ORT, "fp32")))


@pytest.mark.parametrize("how", ["output", "option"])
def test_what_the_recipe_reads_is_not_overwritten(tmp_path: Path, how: str) -> None:
    source, path = tmp_path / "net.onnx", tmp_path / "recipe.toml"
    source.write_bytes(b"weights")
    output = "." if how == "output" else "out"
    path.write_text(recipe_text(("a", ORT, "fp32"), source="net.onnx", output=output))
    for verb in (plan, run):
        with pytest.raises(InvalidOption, match=r"the exported model would overwrite .*net\.onnx") as caught:
            verb(path, output=tmp_path if how == "option" else None)
        assert "another `name`" in caught.value.hint
    assert source.read_bytes() == b"weights"
    assert {one.name for one in tmp_path.iterdir()} == {"net.onnx", "recipe.toml"}


def test_a_recipe_in_memory_is_checked_too() -> None:
    section = {"target": ORT, "precision": "fp16"}
    with pytest.raises(RecipeError, match=r"a\.graph\.onnx"):
        recipe_of({"name": "a", **section}, {"name": "a.graph", **section})
