"""The map of DESIGN: arrows run one way, only cli/ prints, nothing is unpickled or run by a shell."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = (
    "bench", "calibration", "cli", "comparison", "compiler", "data", "deploy", "engines", "model", "pipeline",
    "reporting", "spec", "tuning",
)  # fmt: skip
SOURCES = sorted(
    path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] in ROOMS or path.parent == ROOT
)

# A room may import itself and those listed; modules at the root are named by their own name.
GROUND = {"errors", "tensors", "artifact", "progress", "version", "figures", "spec"}
ONNX = GROUND | {"model", "data"}
BUILT = ONNX | {"calibration", "compiler", "engines"}
ALLOWED = {
    "version": set[str](),
    "telemetry": set[str](),
    "errors": set[str](),
    "tensors": {"errors"},
    "progress": set[str](),
    "figures": set[str](),
    "spec": {"errors", "tensors"},
    "artifact": {"errors", "tensors", "version"},
    "model": GROUND,
    "data": GROUND | {"model"},
    "calibration": ONNX,
    "compiler": ONNX | {"calibration"},
    "engines": ONNX | {"calibration"},
    "bench": ONNX | {"calibration", "engines"},
    "comparison": ONNX | {"calibration", "engines", "bench"},
    "reporting": ONNX | {"calibration", "engines", "bench", "comparison"},
    "deploy": GROUND | {"model"},
    "lowering": BUILT,
    "building": BUILT | {"lowering"},
    "tuning": BUILT | {"bench", "lowering", "building"},
    "pipeline": BUILT | {"bench", "reporting", "lowering", "building"},
    "cli": BUILT
    | {
        "bench",
        "comparison",
        "reporting",
        "tuning",
        "deploy",
        "pipeline",
        "building",
    },
}


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else path.stem


def imported_rooms(path: Path) -> set[str]:
    depth = len(path.relative_to(ROOT).parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
            found.update(names)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_run_one_way(path: Path) -> None:
    name = room(path)
    if name in ("__init__", "__main__"):
        return
    extra = imported_rooms(path) - ALLOWED[name] - {name}
    assert not extra, f"{path.name} imports {extra}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_command_line_prints_or_exits(path: Path) -> None:
    if room(path) == "cli":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("print", "exit", "input", "eval", "exec"), f"line {node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert ast.unparse(node.func) not in ("sys.exit", "os.system", "pickle.load")
            if ast.unparse(node.func) == "torch.load":
                assert "weights_only=True" in map(ast.unparse, node.keywords)
        if isinstance(node, ast.keyword) and node.arg == "shell":
            pytest.fail(f"line {node.lineno}: a shell string")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_fit_the_eye_and_say_what_they_are_for(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400
    assert ast.get_docstring(ast.parse(text)), "a docstring says what the file is for"


def test_the_packages_of_setup_cfg_are_the_rooms() -> None:
    import configparser

    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = {name for name in config["options"]["packages"].split() if name}
    found = {"qcompile"} | {
        ".".join(("qcompile", *path.parent.relative_to(ROOT).parts))
        for path in SOURCES
        if path.name == "__init__.py" and path.parent != ROOT
    }
    assert listed == found


def test_the_public_names_are_pinned() -> None:
    import qcompile

    assert sorted(qcompile.__all__) == [
        "Artifact", "Manifest", "QCompileError", "Ranges", "Recipe", "TritonOptions", "__version__",
        "balance", "benchmark", "build", "calibrate", "diff", "doctor", "export", "inspect", "load",
        "load_artifact", "package_triton", "quantize", "read_recipe", "refit", "report", "run",
        "simplify", "tune",
    ]  # fmt: skip
    for name in qcompile.__all__:
        assert getattr(qcompile, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        qcompile.nothing  # noqa: B018
