"""`qcompile migrate` as a user types it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from commands import Qc
from issue_models import issue_model, write_cache

from qcompile.pipeline.migrate.flags import tomllib

COMMAND = "trtexec --onnx=m.onnx --fp16 --saveEngine=net.engine --skipInference"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with `m.onnx`."""
    monkeypatch.chdir(tmp_path)
    onnx.save(issue_model({"image": (1, 3, 8, 8)}), "m.onnx")
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_table_shows_what_becomes_of_each_option(done: Qc) -> None:
    said = done("migrate", f"{COMMAND} --verbose")
    for words in (
        ("--onnx=m.onnx", "becomes", "model.source"),
        ("--fp16", "becomes", "artifact.precision"),
        ("--saveEngine=net.engine", "becomes", "artifact.name", "the engine is out/net.engine"),
        ("--skipInference", "becomes", "bench"),
        ("--verbose", "not needed", "`verbose` of `run` shows every step"),
    ):
        (line,) = [line for line in said.out.splitlines() if words[0] in line]
        assert all(word in line for word in words), line
    assert said.out.endswith("recipe: recipe.toml\n  qcompile run recipe.toml\n")
    assert said.err == ""


@pytest.mark.usefixtures("folder")
def test_the_json_form(done: Qc) -> None:
    found = done(
        "migrate", COMMAND, "--json", "-o", "one.toml", "--target", "tensorrt-rtx", "--gpu", "sm86"
    ).json
    assert (found["recipe"], found["ranges"], found["tool"], found["kept"]) == (
        "one.toml",
        None,
        "trtexec",
        True,
    )
    assert found["then"] == ["qcompile run one.toml"]
    assert found["options"][1] == {"flag": "--fp16", "fate": "kept", "to": "artifact.precision", "note": ""}
    recipe = tomllib.loads(Path("one.toml").read_text())
    assert (recipe["artifact"][0]["target"], recipe["artifact"][0]["gpus"]) == ("tensorrt-rtx", ["sm86"])


@pytest.mark.usefixtures("folder")
def test_an_option_without_an_equal_is_named_and_the_exit_code_is_1(qc: Qc) -> None:
    said = qc("migrate", f"{COMMAND} --buildDLAStandalone")
    assert said.code == 1
    assert (
        "warning: --buildDLAStandalone: no equal: a loadable for the DLA alone is not built; build"
        in said.err
    )
    assert "NO EQUAL" in said.out
    assert "# Not kept: --buildDLAStandalone" in Path("recipe.toml").read_text()
    allowed = qc("migrate", f"{COMMAND} --buildDLAStandalone", "--allow-missing", "-q")
    assert (allowed.code, allowed.out, "no equal" in allowed.err) == (0, "", True)


@pytest.mark.usefixtures("folder")
def test_int8_without_data_says_what_the_tool_would_do(qc: Qc) -> None:
    said = qc("migrate", "trtexec --onnx=m.onnx --int8")
    assert said.code == 2
    assert "--data is missing: int8 needs real samples. m.onnx holds no Q/DQ" in said.err
    assert "placeholder ranges" in said.err
    assert not Path("recipe.toml").exists()


@pytest.mark.usefixtures("folder")
def test_an_unknown_option_is_an_error(qc: Qc) -> None:
    said = qc("migrate", "trtexec --onnx=m.onnx --pf16")
    assert (said.code, "did you mean --fp16?" in said.err) == (2, True)


def test_a_command_in_a_file(done: Qc, folder: Path) -> None:
    (folder / "build.sh").write_text(
        "#!/bin/bash\nset -e\ndocker run -v $PWD:/w -w /w trt \\\n"
        "  trtexec --onnx=/w/m.onnx \\\n  --int8 --calib=m.cache\n"
    )
    write_cache(onnx.load("m.onnx"), folder / "m.cache")
    said = done("migrate", "@build.sh", "-o", "sub/r.toml")
    assert "ranges of the calibration cache: sub/r.ranges" in said.out
    shown = done("ranges", "show", "sub/r.ranges")
    assert "image: amax 3.969, of TensorRT's cache" in shown.out
    assert done("inspect", "sub/r.ranges", "--json").json["tensors"] == 6


@pytest.mark.usefixtures("folder")
def test_gpus_are_for_tensorrt_rtx(qc: Qc) -> None:
    said = qc("migrate", COMMAND, "--target", "tensorrt", "--gpu", "sm86")
    assert (said.code, "--gpu: is for tensorrt-rtx" in said.err) == (2, True)


@pytest.mark.parametrize("arguments", [[], ["@nothing.sh"], ["ls"]])
@pytest.mark.usefixtures("folder")
def test_a_command_is_required(qc: Qc, arguments: list[str]) -> None:
    assert qc("migrate", *arguments).code == 2


def test_what_was_there_is_kept_when_the_command_is_wrong(qc: Qc, folder: Path) -> None:
    (folder / "recipe.toml").write_text("mine")
    assert qc("migrate", "trtexec --onnx=m.onnx --minShapes=imge:1x3").code == 2
    assert (folder / "recipe.toml").read_text() == "mine"
    assert sorted(path.name for path in folder.iterdir()) == ["m.onnx", "recipe.toml"]


@pytest.mark.usefixtures("folder")
def test_a_command_that_came_apart_is_told_to_be_one_text(qc: Qc) -> None:
    said = qc("migrate", "trtexec", "--onnx=m.onnx", "--int8")
    assert said.code == 2
    assert "trtexec and its options are one text: qcompile migrate 'trtexec ...', or @FILE" in said.err


@pytest.mark.usefixtures("folder")
def test_a_recipe_that_migrate_did_not_write_is_never_overwritten(qc: Qc) -> None:
    mine = "# mine\nversion = 1\n"
    Path("recipe.toml").write_text(mine)
    said = qc("migrate", COMMAND)
    assert said.code == 2
    assert "--output recipe.toml: exists already, and `qcompile migrate` did not write it" in said.err
    assert Path("recipe.toml").read_text() == mine
    for _ in range(2):  # what it wrote itself, it writes again
        assert qc("migrate", COMMAND, "-o", "other.toml").code == 0
