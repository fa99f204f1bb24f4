"""Code outside of a recipe's folder needs trust."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qcompile.bench.results.results import load_results
from qcompile.errors import ModelError, QCompileError, RecipeError
from qcompile.pipeline.plan import plan
from qcompile.pipeline.recipe.recipe import make_recipe, read_recipe
from qcompile.pipeline.recipe.trust import check_trust, interpreters, places_outside
from qcompile.pipeline.run import run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and executables of POSIX")


@pytest.fixture
def places(tmp_path: Path, tiny_file: Callable[..., Path]) -> tuple[Path, Path]:
    """The folder of a stranger's recipe with a model in it, and one beside it whose code leaves a mark."""
    inside, outside = tmp_path / "recipe", tmp_path / "home"
    for folder in (inside, outside):
        folder.mkdir()
        marked = f"open({str(tmp_path / folder.name)!r} + '.ran', 'w').close()\n"
        functions = "def build(): ...\ndef data(): return iter(())\ndef metric(*_): return 0.0\n"
        (folder / "code.py").write_text(marked + functions)
        (folder / "python").write_text("#!/bin/sh\nexit 1\n")
        (folder / "python").chmod(0o755)
        (folder / "plugin.so").write_bytes(b"no library")
    tiny_file("residual", file="recipe/model.onnx")
    return inside, outside


def recipe_text(**keys: str) -> str:
    """A recipe of one FP32 artifact; a key is written with `__` for its dot."""
    values = {"output": '"out"', "model__source": '"model.onnx"', **keys}
    if "artifact__target" not in keys:
        values["artifact__target"] = '"onnxruntime"'
    lines = ["version = 1", 'name = "m"', *(f"{k} = {v}" for k, v in values.items() if "__" not in k)]
    for table in ("model", "data", "bench", "artifact", "artifact__tensorrt"):
        found = {k.rpartition("__")[2]: v for k, v in values.items() if k.rpartition("__")[0] == table}
        header = "[[artifact]]\nname = 'a'" if table == "artifact" else f"[{table.replace('__', '.')}]"
        lines += [header, *(f"{key} = {value}" for key, value in found.items())] if found else []
    return "\n".join(lines) + "\n"


def ran(places: tuple[Path, Path]) -> list[str]:
    return sorted(path.name for path in places[0].parent.glob("*.ran"))


RTX = {"artifact__target": '"tensorrt-rtx"', "artifact__gpus": '["sm86"]'}
OUTSIDE = {
    "model.source": {"model__source": '"../home/code.py:build"'},
    "data.calibration": {"data__calibration": '"../home/code.py:data"'},
    "data.evaluation": {"data__evaluation": '"../home/code.py:data"'},
    "bench.metric": {"bench__metric": '"../home/code.py:metric"'},
    "bench.models": {"bench__models": '["other=../home/code.py:build"]'},
    "bench.python": {"bench__python": '["onnxruntime=../home/python"]'},
    "model.python": {"model__python": '["tensorflow=../home/python"]'},
    "artifact[0].tensorrt.plugins": {**RTX, "artifact__tensorrt__plugins": '["../home/plugin.so"]'},
    "artifact[0].tensorrt.timing_cache": {**RTX, "artifact__tensorrt__timing_cache": '"../home/t.cache"'},
    "output": {"output": '"../home/out"'},
}


@pytest.mark.parametrize("key", OUTSIDE)
def test_code_and_places_outside_of_the_folder_are_refused_and_nothing_has_run(
    key: str, places: tuple[Path, Path]
) -> None:
    path, before = places[0] / "recipe.toml", sorted(places[1].rglob("*"))
    path.write_text(recipe_text(**OUTSIDE[key]))
    for verb in (run, plan):
        with pytest.raises(RecipeError, match="outside of the recipe's folder") as refused:
            verb(path)
        assert refused.value.data["key"] == key
        assert "`trust`" in refused.value.hint
    assert (ran(places), sorted(places[1].rglob("*"))) == ([], before)
    assert not (places[0] / "out").exists()
    assert places_outside(read_recipe(path))
    check_trust(read_recipe(path), trust=True, output=None)
    path.write_text(path.read_text().replace("../home/", "./"))  # what lies in the folder needs no trust
    check_trust(read_recipe(path), trust=False, output=None)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"model__source": '"{outside}/code.py:build"'}, r"key 'model.source' names code outside"),
        ({"model__source": '"linked.py:build"'}, "names code outside"),
        ({"model__source": '"linked/code.py:build"'}, "names code outside"),
        ({"model__source": '"./../recipe/../home/code.py:build"'}, "names code outside"),
        ({"output": '"linked"'}, "a place to write to"),
        ({"bench__python": '["onnxruntime=venv/python"]'}, "an interpreter"),  # of a virtual environment
        ({"model__source": '"http.server:test"'}, "in an installed package"),
        ({"model__source": '"os:getcwd"'}, "in an installed package"),
        ({"model__source": '"code:build"'}, "in an installed package"),  # where a `code.py` lies, too
        ({"model__source": '"__main__:main"'}, "in an installed package"),
    ],
)
def test_links_and_packages_do_not_hide_where_code_lies(
    keys: dict[str, str], says: str, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = places
    links = {"linked.py": outside / "code.py", "linked": outside, "venv": os.path.dirname(sys.executable)}
    for name, target in links.items():
        (inside / name).symlink_to(target)
    monkeypatch.chdir(inside)
    path, before = inside / "recipe.toml", sorted(outside.rglob("*"))
    path.write_text(recipe_text(**keys).replace("{outside}", str(outside)))
    with pytest.raises(RecipeError, match=says):
        run(path)
    assert (ran(places), sorted(outside.rglob("*"))) == ([], before)


def test_the_output_that_the_user_gives_may_lie_anywhere(places: tuple[Path, Path]) -> None:
    inside, outside = places
    (inside / "recipe.toml").write_text(recipe_text(output='"/nowhere/out"'))
    report = run(inside / "recipe.toml", output=outside / "mine")
    assert report.artifacts["a"].parent == outside / "mine"


def test_a_module_whose_package_lies_in_the_folder_needs_no_trust(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (places[0] / "strangers_package").mkdir()
    (places[0] / "strangers_package" / "__init__.py").write_text("raise SystemExit(9)\n")
    monkeypatch.syspath_prepend(str(places[0]))
    path = places[0] / "recipe.toml"
    path.write_text(recipe_text(model__source='"strangers_package.models:build"'))
    check_trust(read_recipe(path), trust=False, output=None)  # and nothing of it is imported to know


@pytest.mark.parametrize("file", ["m.pt2", "m.pt", "m.keras"])
@pytest.mark.parametrize("place", ["", "../home/"])
def test_a_recipe_grants_trust_to_files_of_its_own_folder_alone(
    place: str, file: str, places: tuple[Path, Path]
) -> None:
    (places[0] / place / file).write_bytes(b"nothing")
    values = {"version": 1, "name": "m", "artifact": [{"name": "a", "target": "onnxruntime"}]}
    said = values | {"model": {"source": f"{place}{file}", "trust": True}}
    recipe = make_recipe(said, places[0] / "recipe.toml")
    refused = pytest.raises(RecipeError, match="a file that may hold code")
    with refused if place else contextlib.nullcontext():
        check_trust(recipe, trust=False, output=None)


def test_interpreters_are_found_from_the_recipes_folder(places: tuple[Path, Path]) -> None:
    expected = (f"a={places[0] / 'python'}", "b=/opt/python", "c=python3", "wrong")
    assert interpreters(("a=./python", *expected[1:]), places[0]) == expected


def test_code_that_the_user_typed_needs_no_more_trust(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `auto` writes it: the recipe lies in a folder of its own, the code where the user has it."""
    path = places[0] / "recipe.toml"
    path.write_text(recipe_text(**OUTSIDE["model.source"], data__evaluation='"../home/code.py:data"'))
    monkeypatch.chdir(places[1])
    typed = check_trust(read_recipe(path), trust=False, output=None, typed=("code.py:build?weights=a:b", ""))
    assert not typed.model.trust
    with pytest.raises(RecipeError):
        check_trust(read_recipe(path), trust=False, output=None, typed=("other.py:build", ""))
    with pytest.raises(QCompileError):  # of a function that yields nothing: it ran
        run(path, trust=True)
    assert ran(places) == ["home.ran"]


@pytest.mark.usefixtures("short_blocks")
def test_torchscript_that_a_recipe_builds_is_measured_without_trust_and_another_file_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text("import torch\n\n\ndef build():\n    return torch.nn.Linear(4, 2)\n")
    path = tmp_path / "recipe.toml"
    path.write_text(
        'version = 1\nname = "net"\n[model]\nsource = "net.py:build"\ninputs = ["input:[b,4]"]\n'
        '[[artifact]]\nname = "traced"\ntarget = "torchscript"\n[bench]\nmax_time_s = 0.1\nthreads = 1\n'
    )
    run(path)
    (row,) = (row for row in load_results(tmp_path / "out/results.json").rows if row.name == "traced")
    assert row.status == "measured"
    shutil.copy(tmp_path / "out/traced.pt", tmp_path / "other.pt")
    path.write_text(path.read_text() + 'models = ["other=other.pt"]\n')
    with pytest.raises(ModelError, match=r"other\.pt: .* `trust` is required"):
        run(path)


def test_each_test_that_the_threat_model_names_is_there() -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:tests|cli)/[\w/]+\.py)`", page))
    assert len(named) > 5
    assert not {name for name in named if not (root / name).is_file()}
