"""Recipes of tests: the TOML of an artifact, and a recipe that no file holds."""

from __future__ import annotations

from pathlib import Path

from qcompile.core.plain_text import toml_value
from qcompile.pipeline.recipe.recipe import Recipe, make_recipe


def artifact(name: str, target: str = "onnxruntime", precision: str = "fp32", **options: object) -> str:
    """Return the `[[artifact]]` of these options."""
    said = {"name": name, "target": target, "precision": precision, **options}
    return "".join(["[[artifact]]\n", *(f"{key} = {toml_value(value)}\n" for key, value in said.items())])


def recipe_of(*artifacts: dict[str, object], folder: Path = Path(), **sections: object) -> Recipe:
    """Return a recipe of `net.onnx`, unless `model` says otherwise."""
    values = {"version": 1, "name": "net", "model": {"source": "net.onnx"}, "artifact": list(artifacts)}
    return make_recipe({**values, **sections}, folder / "recipe.toml")
