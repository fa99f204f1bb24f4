"""The programs of the deployment pages: every name of TensorRT that they use exists in every version."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("deploy*.md")), ROOT / "docs/tensorrt.md"]
GUIDE = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
RECORDED = sorted((ROOT / "tests/support/trt_api").glob("*.json"))

# What the program calls the objects of these classes.
CLASSES = {"engine": "ICudaEngine", "context": "IExecutionContext", "runtime": "Runtime"}


def program(name: str, language: str) -> str:
    match = re.search(rf"<!-- {re.escape(name)} -->\n```{language}\n(.*?)```", GUIDE, re.S)
    assert match, f"the guide has no program {name}"
    return match.group(1)


def attributes(source: str) -> set[tuple[str, ...]]:
    """Every dotted name that is not part of a longer one, as its parts."""
    tree = ast.parse(source)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {
        tuple(ast.unparse(node).split("."))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and id(node) not in inner
        and re.fullmatch(r"[\w.]+", ast.unparse(node))
    }


def test_the_python_program_compiles() -> None:
    compile(program("run_engine.py", "python"), "run_engine.py", "exec")


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
def test_every_name_of_tensorrt_exists(recorded: Path) -> None:
    names = json.loads(recorded.read_text(encoding="utf-8"))["names"]
    used = attributes(program("run_engine.py", "python"))
    of_module = {parts[1:] for parts in used if parts[0] == "trt"}
    assert len(of_module) >= 4
    for name, *rest in of_module:
        assert name in names, name
        for member in rest:
            assert member in names[name].get("enum", []) + names[name].get("members", []), f"{name}.{member}"
    for variable, kind in CLASSES.items():
        members = {parts[1] for parts in used if parts[0] == variable}
        assert members
        assert members <= set(names[kind]["members"]), f"{kind}: {members - set(names[kind]['members'])}"


def test_all_recorded_versions_were_looked_at() -> None:
    assert len(RECORDED) >= 4


def test_the_configuration_that_the_guide_shows_is_what_is_written(tmp_path: Path) -> None:
    from packaging_engines import make_engine

    from qcompile.deploy import package_triton

    image = {"image": ((1, 3, 224, 224), (8, 3, 224, 224), (16, 3, 224, 224))}
    engine = make_engine(
        tmp_path / "model.engine",
        inputs={"image": ("batch", 3, 224, 224)},
        outputs={"logits": ("batch", 1000)},
        profiles=[image],
    )
    packaged = package_triton(engine, tmp_path / "models", name="resnet")
    shown = re.search(r"```\n(name: \"resnet\".*?)```", GUIDE, re.S)
    assert shown
    assert packaged.config.split("\n", 1)[1] == shown.group(1)


def test_every_option_that_the_guide_names_exists() -> None:
    from click.testing import CliRunner

    from qcompile.cli.main import group

    said = CliRunner().invoke(group, ["package", "triton", "--help"]).output
    table = GUIDE.partition("## Options")[2].partition("**The batch.**")[0]
    named = set(re.findall(r"--[a-z][a-z-]+", table)) - {"--disable-auto-complete-config"}
    assert len(named) > 8
    assert {option for option in named if option not in said} == set()


def test_the_commands_for_onnx_runtime_write_what_the_guide_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_file: Callable[..., Path]
) -> None:
    from qcompile.cli import main

    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    section = GUIDE.partition("## ONNX Runtime and Windows ML")[2].partition("\n## ")[0]
    shown = re.search(r"```console\n(.*?)```", section, re.S)
    assert shown
    tiny_file("residual", file="model.onnx", batch=2)
    monkeypatch.chdir(tmp_path)
    for line in shown.group(1).splitlines():
        with pytest.raises(SystemExit) as done:
            main(shlex.split(line)[1:])
        assert not done.value.code, line
    files = {f"model_ctx.onnx{ending}" for ending in ("", ".data", ".json")}
    assert files == {path.name for path in tmp_path.glob("model_ctx*")}
    assert "model_ctx.onnx.data" in section


def test_the_program_for_onnx_runtime_uses_names_that_it_has() -> None:
    import onnxruntime

    source = program("run_ep_context.py", "python")
    compile(source, "run_ep_context.py", "exec")
    used = {parts[1] for parts in attributes(source) if parts[0] == "ort"}
    assert len(used) >= 4
    assert {name for name in used if not hasattr(onnxruntime, name)} == set()
    assert hasattr(onnxruntime.SessionOptions, "add_provider_for_devices")
    (device, *_) = onnxruntime.get_ep_devices()
    assert device.ep_name
