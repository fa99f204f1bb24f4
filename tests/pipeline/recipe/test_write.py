"""A recipe that is written is read as it was, and its paths mean the same in another folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recipes import recipe_of

from qcompile.pipeline.recipe.recipe import parse_recipe, read_recipe
from qcompile.pipeline.recipe.write import portable, portable_text, relative

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*/recipe.toml"))
ARTIFACT: dict[str, object] = {"name": "a", "target": "onnxruntime"}
BASE = Path("/base/recipes")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_what_is_written_is_read_as_it_was(path: Path) -> None:
    found = read_recipe(path)
    assert portable_text(found) == path.read_bytes()  # it names nothing absolute: its comments stay
    changed = replace(found, name="another")
    assert parse_recipe(portable_text(changed), found.path) == changed


def test_texts_with_any_characters_are_written(tmp_path: Path) -> None:
    odd = 'a "b" \\ c\t\'é\n[x] # = {} \x7f \u2028'
    found = recipe_of(
        ARTIFACT, folder=tmp_path, model={"source": odd, "dynamic": []}, data={"calibration": odd}
    )
    assert parse_recipe(portable_text(found), found.path) == found


MOVED_MODELS = [
    ("/base/net.onnx", "../net.onnx"),
    ("/base/recipes/net.onnx", "./net.onnx"),
    ("/base/code/model.py:build", "../code/model.py:build"),
    ("/base/code/m.py:build?weights=/base/my%20w.pt", "../code/m.py:build?weights=../my%20w.pt"),
    ("hf:/base/hub/net?task=text-classification", "hf:../hub/net?task=text-classification"),
    ("timm:resnet18?weights=/base/w.pt&classes=3", "timm:resnet18?weights=../w.pt&classes=3"),
    ("timm:resnet18?weights=random", "timm:resnet18?weights=random"),
    ("torchvision:resnet18", "torchvision:resnet18"),
    ("hf:org/name", "hf:org/name"),
    ("package.module:function", "package.module:function"),
    ("saved:serving", "saved:serving"),
    ("../net.onnx", "../net.onnx"),
    ("/base/a/../net.onnx", "../net.onnx"),
]  # fmt: skip
MOVED_DATA = [
    ("/base/images", "../images"),
    ("images:/base/images?masks=/base/m&seed=3", "images:../images?masks=../m&seed=3"),
    ("/base/images?masks=m", "../images?masks=m"),
    ("/base/odd%3Fname?masks=/base/m%26m", "../odd%3Fname?masks=../m%26m"),
    ("/base/texts.txt?preprocessing=hf:/base/net", "../texts.txt?preprocessing=hf:../net"),
    ("/base/x?preprocessing=/base/p.json", "../x?preprocessing=../p.json"),
    ("/base/data.py:samples", "../data.py:samples"),
    ("data.npz", "data.npz"),
]


@pytest.mark.parametrize(("text", "moved"), MOVED_MODELS)
def test_models_are_named_from_the_recipes_folder(text: str, moved: str) -> None:
    tables: dict[str, Any] = {"model": {"source": text}, "bench": {"models": [f"other={text}"]}}
    changed = portable(recipe_of(ARTIFACT, folder=BASE, **tables))
    assert changed.bench is not None
    assert (changed.model.source, changed.bench.models) == (moved, (f"other={moved}",))


@pytest.mark.parametrize(("text", "moved"), MOVED_DATA)
def test_data_is_named_from_the_recipes_folder(text: str, moved: str) -> None:
    data = {"calibration": text, "evaluation": text}
    changed = portable(recipe_of(ARTIFACT, folder=BASE, data=data)).data
    assert (changed.calibration, changed.evaluation) == (moved, moved)


def test_every_other_path_is_named_from_the_recipes_folder() -> None:
    artifact = {
        "name": "a", "target": "tensorrt-rtx",
        "tensorrt": {"plugins": ["/base/p.so", "q.so"], "timing_cache": "/base/t.cache"},
    }  # fmt: skip
    found = recipe_of(
        artifact,
        folder=BASE,
        model={
            "source": "timm:x", "weights": "/base/w.pt", "depends": ["/base/d"], "simplify": False,
            "preprocessing": "/base/p.json",
        },
        data={"depends": ["/base/e"]},
        calibrate={"ranges": "/base/r.ranges"},
        bench={"metric": "/base/metric.py:score"},
    )  # fmt: skip
    assert b"/base" not in portable_text(found)
    assert portable(portable(found)) == portable(found) != found


def test_a_path_from_the_home_is_one_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert relative("~/net.onnx", tmp_path / "recipes") == "../net.onnx"
