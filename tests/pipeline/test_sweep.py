"""A sweep does what runs of its recipes do, once; its cells are the product of the matrix's lists."""

from __future__ import annotations

import fnmatch
import itertools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweeps import CELLS, MODELS, RECIPE, Asked, write_sweep

from qcompile.bench.report.source import read_source
from qcompile.bench.report.summary import summarize
from qcompile.bench.results.results import load_results
from qcompile.core.files import digest_files
from qcompile.core.progress import Progress
from qcompile.errors import ClusterError, InvalidOption, RecipeError
from qcompile.pipeline.plan import plan
from qcompile.pipeline.recipe.recipe import Recipe, make_recipe, parse_recipe, read_recipe
from qcompile.pipeline.recipe.write import recipe_text
from qcompile.pipeline.run import run
from qcompile.pipeline.stages.stage import FinishedStage, Stage
from qcompile.pipeline.stages.store import Store
from qcompile.pipeline.sweep import members, plan_sweep, sweep
from qcompile.spec.words import TARGETS, TENSORRT_TARGETS

MakePath = Callable[..., Path]
GUIDE = (Path(__file__).parents[2] / "docs" / "recipe.md").read_text(encoding="utf-8")


@pytest.fixture
def recipe(tiny_file: MakePath, tmp_path: Path) -> Path:
    return write_sweep(tmp_path, tiny_file)


def test_cells_are_what_single_runs_make_and_are_made_once(recipe: Path, tmp_path: Path) -> None:
    """Three models by three artifacts, two at a time, against one run after the other."""
    executor, over = Asked(parallel=2), []
    report = sweep(recipe, executor=executor, listener=lambda *stage: over.append(stage[:2]))
    assert list(report.artifacts) == CELLS
    assert not report.failures
    assert sorted(over) == sorted(report.stages.items())
    assert len(executor.done) == len(set(executor.done))
    own = RECIPE[RECIPE.index("[[artifact]]") : RECIPE.index("[sweep]")]
    for model, data in MODELS.items():
        single = tmp_path / f"{model}.toml"
        tables = "".join(
            f'[[artifact]]\nname = "openvino-{precision}"\ntarget = "openvino"\nprecision = "{precision}"\n'
            for precision in ("fp32", "int8")
        )
        head = f'version = 1\nname = "{model}"\n[model]\nsource = "{model}.onnx"\n'
        single.write_text(f'{head}[data]\ncalibration = "{data}.npz"\n{own}{tables}')
        for name, path in run(single, output=tmp_path / "single" / model).artifacts.items():
            cell = f"{model}-{name}"
            assert digest_files([report.artifacts[cell]]) == digest_files([path]) == report.digests[cell]
    executor = Asked()
    again = sweep(recipe, executor=executor)
    assert executor.done == []
    assert (again.artifacts, again.digests) == (report.artifacts, report.digests)
    assert plan_sweep(read_recipe(recipe)).pending == []


def test_shapes_of_a_model_share_its_stages(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("[sweep]", '[sweep]\nshapes = ["1", "2", "4"]\nexclude = ["[mo]*"]'))
    planned = plan_sweep(read_recipe(recipe))
    executor = Asked(parallel=3)
    assert len(sweep(recipe, executor=executor).artifacts) == 9
    assert len(executor.done) == len(set(executor.done)) == len(planned.stages) == len(planned.pending)


def test_a_cell_that_fails_says_why_and_the_rest_goes_on(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "mlp.npz").rename(tmp_path / "moved.npz")
    shutil.copy(tmp_path / "residual.npz", tmp_path / "mlp.npz")
    (tmp_path / "other.onnx").write_bytes(b"no model")
    report = sweep(recipe)
    assert list(report.artifacts) == [*CELLS[:3], "mlp-plain", "mlp-openvino-fp32"]
    assert list(report.failures) == ["mlp-openvino-int8", *CELLS[6:]]
    assert "mlp.npz" in report.failures["mlp-openvino-int8"].message
    assert "other.onnx" in report.failures["other-plain"].message
    (tmp_path / "moved.npz").replace(tmp_path / "mlp.npz")
    executor = Asked()
    assert len(sweep(recipe, executor=executor).artifacts) == 6
    assert executor.done == [
        ("mlp", stage) for stage in ("calibrate", "quantize-openvino-int8", "build-openvino-int8")
    ]


def test_a_lost_cluster_ends_the_sweep_and_what_was_done_is_kept(recipe: Path) -> None:
    lost = {"other": ClusterError("no worker is left")}
    with pytest.raises(ClusterError):
        sweep(recipe, executor=Asked(fails=lost))
    executor = Asked()
    sweep(recipe, executor=executor)
    assert {name for name, _ in executor.done} == {"other"}


def test_threads_end_with_a_lost_cluster(recipe: Path) -> None:
    class Lost(Asked):
        def do(
            self, recipe: Recipe, stage: Stage, store: Store, *, again: bool, progress: Progress
        ) -> FinishedStage | None:
            if recipe.name != "other":
                assert self.cancelled.wait(60), "nobody ends what waits"
            raise ClusterError("no worker is left")

    before = threading.active_count()
    with pytest.raises(ClusterError):
        sweep(recipe, executor=Lost(parallel=3))
    assert threading.active_count() == before


def test_static_int8_of_a_float_file_without_data_is_impossible(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace('calibration = "mlp.npz"\n', ""))
    report = sweep(recipe, only=["mlp-*"])
    assert list(report.artifacts) == ["mlp-plain", "mlp-openvino-fp32"]
    assert list(report.impossible) == ["mlp-openvino-int8"]
    assert "mlp.onnx holds no Q/DQ" in report.impossible["mlp-openvino-int8"]
    assert not report.failures


@pytest.mark.usefixtures("short_blocks")
def test_a_measured_sweep_is_one_results_file_and_one_report(recipe: Path, tmp_path: Path) -> None:
    """The figures of a model stand beside those of another; each is compared with its own baseline."""
    bench = '[bench]\nbaseline = "plain"\nmax_time_s = 0.2\nthreads = 1\n'
    matrix = '[sweep]\nexclude = ["*-int8", "other-openvino-fp32"]'
    recipe.write_text(RECIPE.replace("[sweep]", matrix) + bench)
    (tmp_path / "other.onnx").write_bytes(b"no model")
    report = sweep(recipe)
    assert report.results.as_json() == load_results(report.output / "results.json").as_json()
    assert report.page == report.output / "report.html"
    assert "Recommendations" in report.page.read_text(encoding="utf-8")
    rows = {row.name: row for row in report.results.rows}
    assert {name: row.status for name, row in rows.items()} == {
        **{
            f"{model}-{name}": "measured"
            for model in ("residual", "mlp")
            for name in ("plain", "original", "openvino-fp32")
        },
        "other-plain": "failed",
    }
    for model in ("residual", "mlp"):
        row = rows[f"{model}-openvino-fp32"]
        assert (row.machine, report.results.baseline_of(row)) == (model, f"{model}-plain")
    settings = report.results.settings
    assert settings["command"] == ["qcompile", "sweep", str(recipe)]
    assert "inputs" not in settings  # the models have others
    reasons = summarize(read_source(report.output / "results.json")).reasons
    assert [reason.split(":")[0] for reason in reasons] == ["residual", "mlp"]
    assert not list(report.output.glob("*/report.html"))


def test_what_is_no_sweep_of_its_own_is_refused(recipe: Path) -> None:
    with Store(recipe.parent / "out").locked(), pytest.raises(InvalidOption, match="another run is using it"):
        sweep(recipe)
    for verb in (run, plan):
        with pytest.raises(RecipeError, match="key 'sweep' is a matrix of recipes") as refused:
            verb(recipe)
        assert refused.value.hint == f"qcompile sweep {recipe}"
    recipe.write_text(
        'version = 1\nname = "m"\n[model]\nsource = "mlp.onnx"\n'
        '[[artifact]]\nname = "a"\ntarget = "openvino"\n'
    )
    with pytest.raises(RecipeError, match="key 'sweep' is missing"):
        sweep(recipe)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("sweep.models", '[sweep]\nmodels = ["a=../home/code.py:build"]'),
        ("sweep.model.source", '[[sweep.model]]\nname = "a"\nsource = "../home/code.py:build"\n[sweep]'),
        ("sweep.model.evaluation",
         '[[sweep.model]]\nname = "a"\nsource = "m.onnx"\nevaluation = "../home/code.py:data"\n[sweep]'),
    ],
)  # fmt: skip
def test_code_of_a_matrix_outside_of_the_folder_is_refused(tmp_path: Path, key: str, text: str) -> None:
    for name, content in (("home/code.py", "raise SystemExit('it ran')\n"), ("inside/recipe.toml", "")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    path = tmp_path / "inside/recipe.toml"
    path.write_text(f'version = 1\nname = "m"\n{text}\ntargets = ["openvino"]\nprecisions = ["fp32"]\n')
    for verb in (sweep, lambda path: plan_sweep(read_recipe(path))):
        with pytest.raises(RecipeError, match="outside of the recipe's folder") as refused:
            verb(path)
        assert refused.value.data["key"] == key
    assert not (path.parent / "out").exists()


def test_the_recipe_of_the_guide_is_a_sweep_of_fourteen_cells(tmp_path: Path) -> None:
    text = GUIDE.split("<!-- sweep -->\n```toml\n")[1].split("```")[0]
    every = members(parse_recipe(text.encode(), tmp_path / "recipe.toml"))
    assert (len(every), sum(len(member.cells) for member in every)) == (4, 14)
    assert not [cell for member in every for cell in member.cells if cell.why_not]


PATH = Path("recipe.toml")


def matrix_of(sweep: dict[str, Any], **tables: Any) -> Recipe:
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
    made = matrix_of(lists, data=data)
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


def test_a_shape_says_what_is_measured_and_what_engines_take() -> None:
    made = matrix_of(
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
    found = {}
    for member in members(made):
        assert member.recipe is not None
        assert member.recipe.bench is not None
        assert member.recipe.bench.baseline == "onnxruntime-fp32"
        cpu, rtx = member.recipe.artifact
        assert cpu.min_shapes == ()
        shapes = (rtx.min_shapes, rtx.opt_shapes, rtx.max_shapes)
        found[member.name] = member.recipe.bench.batch_size, *member.recipe.model.inputs, *shapes
    fixed = ("x:2x3x16x16",)
    assert found == {
        "m-b4": (4, "x:[batch,3,height,width]", (), (), ()),
        "m-x-2x3x16x16": (2, "x:[batch,3,16,16]:float32", fixed, fixed, fixed),
        "m-wide": (2, "x:[batch,3,height,width]:float32", ("x:1x3x8x8",), fixed, ("x:8x3x32x32",)),
    }


def test_a_model_may_have_data_of_its_own() -> None:
    made = matrix_of(
        {
            "models": ["a=a.onnx"],
            "model": [{"name": "b", "source": "b.py:build", "inputs": ["x:[n,4]"], "calibration": "b.npz"}],
            "targets": ["openvino"],
            "precisions": ["int8"],
        },
        data={"calibration": "a.npz", "evaluation": "e.npz"},
    )
    recipes = [member.recipe for member in members(made) if member.recipe]
    rows = [(r.data.calibration, r.data.evaluation, r.model.source, r.model.inputs) for r in recipes]
    assert rows == [
        ("a.npz", "e.npz", "a.onnx", ()), ("b.npz", "e.npz", "b.py:build", ("x:[n,4]",)),
    ]  # fmt: skip


def test_a_batch_that_the_model_does_not_take_is_a_cell_that_says_so() -> None:
    made = matrix_of(
        {"shapes": ["1", "2"], "targets": ["openvino"], "precisions": ["fp32"]},
        model={"source": "m.py:build", "inputs": ["x:1x4"]},
        bench={},
    )
    first, second = (member.cells[0] for member in members(made))
    assert first.why_not == ""
    assert second.why_not == "bench.batch_size is 2; model.inputs fixes the first axis of 'x' at 1"


FINE = {"models": ["a=a.onnx"], "targets": ["openvino"], "precisions": ["fp32"]}


@pytest.mark.parametrize(
    ("matrix", "tables", "says"),
    [
        (FINE, {"model": {"source": "m.onnx"}}, "is given, and models of `sweep` too"),
        ({"models": ["a=a.onnx"]}, {}, "'artifact' is missing"),
        ({**FINE, "models": ["a=a.onnx", "a-b1=b.onnx"], "shapes": ["1", "b1-b1=1"]}, {},
         "gives 'a-b1-b1' twice"),
        (FINE, {"bench": {"baseline": "openvino-int8"}}, "one of pytorch, openvino-fp32 is required"),
    ],
)  # fmt: skip
def test_a_matrix_that_makes_no_recipes_is_refused(
    matrix: dict[str, Any], tables: dict[str, Any], says: str
) -> None:
    with pytest.raises(RecipeError, match=says):
        members(matrix_of(matrix, **tables))
