"""A matrix becomes cells: the product of its lists, by another way of counting."""

from __future__ import annotations

import fnmatch
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.errors import RecipeError
from qcompile.pipeline.matrix import members
from qcompile.pipeline.portable import recipe_text
from qcompile.pipeline.recipe import Recipe, make_recipe, parse_recipe
from qcompile.spec.words import TARGETS, TENSORRT_TARGETS

PATH = Path("recipe.toml")


def recipe(sweep: dict[str, Any], **tables: Any) -> Recipe:
    """A recipe with a matrix of models that are files."""
    return make_recipe({"version": 1, "name": "tiny", "sweep": sweep, **tables}, PATH)


def some(values: list[str], least: int = 0) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), unique=True, min_size=least)


@given(
    models=some(["a=a.py:build", "b=b.onnx", "long-name=torchvision:resnet18"], 1),
    targets=some(list(TARGETS), 1),
    precisions=some(["fp32", "fp16", "int8", "int4", "best"], 1),
    shapes=some(["1", "8", "wide=16", "x:4x3", "y=x:1x3..2x3..4x3"]),
    gpus=some(["sm86", "sm90", "each"]),
    there=some(["sm75", "sm90"]),
    exclude=some(["*-int8", "a-*", "*-sm90", "*-b8-*", "nothing"]),
    calibrated=st.booleans(),
)
def test_the_cells_are_the_product_of_the_lists(calibrated: bool, there: list[str], **lists: Any) -> None:
    data = {"calibration": "c.npz"} if calibrated else {}
    made = recipe(lists, data=data)
    labels = {"1": "b1", "8": "b8", "wide=16": "wide", "x:4x3": "x-4x3", "y=x:1x3..2x3..4x3": "y"}
    kinds: list[str] = []
    for gpu in lists["gpus"]:
        kinds += [one for one in (there if gpu == "each" else [gpu]) if one not in kinds]
    expected = []
    for model, shape, target, precision in itertools.product(
        lists["models"], lists["shapes"] or [""], lists["targets"], lists["precisions"]
    ):
        for gpu in (kinds or [""]) if target in TENSORRT_TARGETS else [""]:
            parts = (model.split("=")[0], labels.get(shape, ""), target, precision, gpu)
            expected.append("-".join(part for part in parts if part))
    expected = [name for name in expected if not any(fnmatch.fnmatchcase(name, g) for g in lists["exclude"])]
    every = members(made, kinds=there)
    cells = [cell for member in every for cell in member.cells]
    assert [cell.name for cell in cells] == expected
    assert len({cell.name.casefold() for cell in cells}) == len(cells)
    for member in every:
        possible = [cell.artifact for cell in member.cells if not cell.why_not]
        assert [one.name for one in member.recipe.artifact] == possible if member.recipe else not possible
        if member.recipe:
            assert parse_recipe(recipe_text(member.recipe).encode(), PATH) == member.recipe
            assert member.recipe.sweep is None
    lacking = {cell.name for cell in cells if "data.calibration is missing" in cell.why_not}
    static = {cell.name for cell in cells if cell.precision in ("int8", "best")}
    if calibrated:
        assert not lacking
    elif not lists["gpus"] or kinds:
        assert lacking == {name for name in static if not name.startswith("b-")}  # .onnx may hold its scales


def test_only_keeps_the_cells_that_match() -> None:
    made = recipe(
        {"models": ["a=a.onnx", "b=b.onnx"], "targets": ["onnxruntime"], "precisions": ["fp32", "fp16"]}
    )
    kept = members(made, only=["b-*-fp16"])
    assert [cell.name for member in kept for cell in member.cells] == ["b-onnxruntime-fp16"]


def test_artifacts_of_the_recipe_stand_beside_those_of_the_matrix() -> None:
    own = {"name": "dynamic", "target": "onnxruntime", "precision": "int8", "mode": "dynamic"}
    made = recipe({"shapes": ["1", "2"]}, model={"source": "m.onnx"}, artifact=[own])
    assert [cell.name for m in members(made) for cell in m.cells] == ["tiny-b1-dynamic", "tiny-b2-dynamic"]


def test_a_shape_says_what_is_measured_and_what_engines_take() -> None:
    made = recipe(
        {
            "models": ["m=m.py:build"],
            "targets": ["onnxruntime", "tensorrt-rtx"],
            "precisions": ["fp32"],
            "gpus": ["sm86"],
            "shapes": ["4", "x:2x3x16x16", "wide=x:1x3x8x8..2x3x16x16..8x3x32x32"],
        },
        model={"inputs": ["x:[batch,3,height,width]"]},
        bench={"baseline": "onnxruntime-fp32"},
    )
    by_name = {member.name: member.recipe for member in members(made)}
    assert list(by_name) == ["m-b4", "m-x-2x3x16x16", "m-wide"]
    found = {}
    for name, one in by_name.items():
        assert one is not None
        assert one.bench is not None
        assert one.bench.baseline == "onnxruntime-fp32"
        rtx = one.artifact[1]
        found[name] = (one.bench.batch_size, one.model.inputs, rtx.min_shapes, rtx.opt_shapes, rtx.max_shapes)
        assert one.artifact[0].min_shapes == ()
    assert found == {
        "m-b4": (4, ("x:[batch,3,height,width]",), (), (), ()),
        "m-x-2x3x16x16": (
            2, ("x:[batch,3,16,16]:float32",), ("x:2x3x16x16",), ("x:2x3x16x16",), ("x:2x3x16x16",)
        ),
        "m-wide": (
            2, ("x:[batch,3,height,width]:float32",), ("x:1x3x8x8",), ("x:2x3x16x16",), ("x:8x3x32x32",)
        ),
    }  # fmt: skip


def test_a_model_may_have_data_of_its_own() -> None:
    made = recipe(
        {
            "models": ["a=a.onnx"],
            "model": [{"name": "b", "source": "b.py:build", "inputs": ["x:[n,4]"], "calibration": "b.npz"}],
            "targets": ["openvino"],
            "precisions": ["int8"],
        },
        data={"calibration": "a.npz", "evaluation": "e.npz"},
    )
    first, second = (member.recipe for member in members(made))
    assert first is not None
    assert second is not None
    assert (first.data.calibration, first.data.evaluation) == ("a.npz", "e.npz")
    assert (second.data.calibration, second.data.evaluation) == ("b.npz", "e.npz")
    assert (second.model.source, second.model.inputs) == ("b.py:build", ("x:[n,4]",))


def test_a_batch_that_the_model_does_not_take_is_a_cell_that_says_so() -> None:
    made = recipe(
        {"shapes": ["1", "2"], "targets": ["openvino"], "precisions": ["fp32"]},
        model={"source": "m.py:build", "inputs": ["x:1x4"]},
        bench={},
    )
    first, second = (member.cells[0] for member in members(made))
    assert first.why_not == ""
    assert second.why_not == "bench.batch_size is 2; model.inputs fixes the first axis of 'x' at 1"


FINE = {"models": ["a=a.onnx"], "targets": ["openvino"], "precisions": ["fp32"]}


def test_a_source_beside_the_models_is_refused() -> None:
    with pytest.raises(RecipeError, match="is given, and models of `sweep` too"):
        recipe(FINE, model={"source": "m.onnx"})
    with pytest.raises(RecipeError, match="'artifact' is missing"):
        recipe({"models": ["a=a.onnx"]})


def test_names_that_two_cells_would_share_are_refused() -> None:
    made = recipe({**FINE, "models": ["a=a.onnx", "a-b1=b.onnx"], "shapes": ["1", "b1-b1=1"]})
    with pytest.raises(RecipeError, match="gives two the name 'a-b1-b1'"):
        members(made)


def test_a_baseline_is_an_artifact_of_the_matrix() -> None:
    with pytest.raises(RecipeError, match="one of pytorch, openvino-fp32 is required"):
        recipe(FINE, bench={"baseline": "openvino-int8"})
