"""`qcompile migrate` and `qcompile package triton` as a user types them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from commands import MakePath, Qc
from issue_models import issue_model, write_cache
from packaging_engines import make_engine

from qcompile.pipeline.migrate.intent import tomllib

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
    target = ("--target", "tensorrt-rtx", "--gpu", "sm86")
    found = done("migrate", COMMAND, "--json", "-o", "one.toml", *target).json
    facts = [found[key] for key in ("recipe", "ranges", "tool", "kept")]
    assert facts == ["one.toml", None, "trtexec", True]
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["@nothing.sh"], "nothing.sh does not exist"),
        (["ls"], "trtexec"),
        (["trtexec --onnx=m.onnx --pf16"], "did you mean --fp16?"),
        (
            ["trtexec --onnx=m.onnx --int8"],
            "--data is missing: int8 needs real samples",
        ),
        ([COMMAND, "--target", "tensorrt", "--gpu", "sm86"], "--gpu: is for tensorrt-rtx"),
        (
            ["trtexec", "--onnx=m.onnx", "--int8"],
            "trtexec and its options are one text: qcompile migrate 'trtexec ...', or @FILE",
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_wrong_command_is_a_usage_error(qc: Qc, arguments: list[str], said: str) -> None:
    code, _, err = qc("migrate", *arguments)
    assert (code, said in err) == (2, True), err
    assert not Path("recipe.toml").exists()


@pytest.mark.usefixtures("folder")
def test_a_recipe_that_migrate_did_not_write_is_never_overwritten(qc: Qc) -> None:
    mine = "# mine\nversion = 1\n"
    Path("recipe.toml").write_text(mine)
    for wrong in (f"{COMMAND} --minShapes=imge:1x3", COMMAND):
        said = qc("migrate", wrong)
        assert said.code == 2
        assert Path("recipe.toml").read_text() == mine
    assert "--output recipe.toml: exists already, and `qcompile migrate` did not write it" in said.err
    for _ in range(2):  # what it wrote itself, it writes again
        assert qc("migrate", COMMAND, "-o", "other.toml").code == 0


@pytest.fixture
def package(qc: Qc, tmp_path: Path) -> Qc:
    """`package("m.onnx", ...)` packages for Triton into `models`."""
    return lambda *arguments: qc("package", "triton", *arguments, "-o", tmp_path / "models")


def test_it_says_what_was_written_checked_and_how_to_serve(package: Qc, tmp_path: Path) -> None:
    said = package(make_engine(tmp_path / "m.engine"), "--name", "net", "--gpus", "0,1", "--instances", 2)
    assert said.code == 0
    for words in (
        "version 1, tensorrt, batches up to 16",
        "config.pbtxt",
        "1/model.plan.json",
        "checked: the file is what its manifest says",
        f"serve: tritonserver --model-repository={tmp_path / 'models'}",
    ):
        assert words in said.out
    assert "warning: built by TensorRT 10.16.1.11 on gpu sm86" in said.err
    assert "gpus: [0, 1]" in (tmp_path / "models/net/config.pbtxt").read_text()


def test_json_has_everything_and_nothing_else_is_printed(package: Qc, tiny_file: MakePath) -> None:
    said = package(
        tiny_file("residual"), "--name", "net", "--max-batch-size", 8, "--preferred-batch", "4,8",
        "--max-queue-delay-us", 100, "--version", 3, "--version-policy", "latest:2", "--response-cache",
        "--kind", "cpu", "--no-warm-up", "--json",
    )  # fmt: skip
    found = said.json
    assert (found["version"], found["versions"], found["max_batch_size"]) == (3, [3], 8)
    assert (found["backend"], found["files"]) == ("onnxruntime", ["model.onnx"])
    for line in (
        "preferred_batch_size: [4, 8]", "max_queue_delay_microseconds: 100", "num_versions: 2",
        "kind: KIND_CPU", "enable: true",
    ):  # fmt: skip
        assert line in found["config"]
    assert "model_warmup" not in found["config"]
    assert "--cache-config=local" in found["server"]
    assert {check["passed"] for check in found["checks"]} == {True}
    assert any("has no manifest" in warning for warning in found["warnings"])
