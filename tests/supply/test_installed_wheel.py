"""The wheel, installed in environments from which the repository cannot be seen."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from packaged import ROOT, bare, build, copy_source, environment, packaged, share_required
from readme_walk import README, check_python, check_walk, copy_example

import qcompile

MODULE = """\
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
"""
EACH = """\
import contextlib, io, json, sys
from qcompile.cli import main
answers = []
for words in json.load(sys.stdin):
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = end.code
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""
"""Many commands in one process, which the command line allows."""
WHERE = "import qcompile, qcompile.version; print(qcompile.__file__, qcompile.version.__file__)"


def run(words: Sequence[object], folder: Path, *, stdin: str = "", timeout: float = 300) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder, env=bare(), input=stdin, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the files as they are now."""
    folder = tmp_path_factory.mktemp("wheel")
    return build(copy_source(folder / "source"), folder / "dist")


@pytest.fixture(scope="module")
def required_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it requires, without an extra."""
    programs = environment(tmp_path_factory.mktemp("required"), wheel)
    share_required(programs)
    return programs


def test_the_wheel_holds_the_package_its_licence_and_its_command(wheel: Path) -> None:
    assert wheel.name == f"qcompile_onnx-{qcompile.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        read = {Path(name).name: archive.read(name).decode() for name in names if ".dist-info/" in name}
    assert {name for name in names if ".dist-info/" not in name} == packaged()
    assert read.keys() == {"LICENSE", "METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"}
    assert "License-Expression: Apache-2.0" in read["METADATA"]
    assert "Requires-Python: >=3.10" in read["METADATA"]
    assert "qcompile = qcompile.cli:main" in read["entry_points.txt"]


@pytest.mark.slow
def test_the_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build(copy_source(tmp_path / "source"), tmp_path / "sdist", kind="sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(build(folder, tmp_path / "wheel")) as second:
        assert {one.filename: one.CRC for one in first.infolist() if "/RECORD" not in one.filename} == {
            one.filename: one.CRC for one in second.infolist() if "/RECORD" not in one.filename
        }


def test_without_extras_the_wheel_alone_is_imported_and_reads_its_files(
    required_only: Path, tmp_path: Path
) -> None:
    """The files that the code opens, and that are no Python: schemas, templates."""
    opened = (
        "from qcompile.pipeline.propose.init import SCHEMA as recipe\n"
        "from qcompile.bench.results.results import SCHEMA as results\n"
        "from qcompile.bench.report import page\n"
        "recipe.read_bytes(), results.read_bytes(), page.file_text('style.css')\n"
    )
    said = run([required_only / "python", "-P", "-c", f"{opened}\n{WHERE}"], tmp_path)
    assert all(path.startswith(str(required_only.parent)) for path in said.split())
    assert run([required_only / "qcompile", "--version"], tmp_path).split()[-1] == qcompile.__version__
    assert "doctor" in run([required_only / "qcompile", "--help"], tmp_path)


def test_without_extras_every_command_names_the_packages_that_it_needs(
    required_only: Path, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    model = str(tiny_file("mlp"))
    (tmp_path / "model.py").write_text(MODULE)
    (tmp_path / "results.json").write_text("{}")
    of_torch = "'torch>=2.6' 'onnxscript>=0.3'"
    of_cpu = "'onnxruntime>=1.21' 'onnxsim>=0.4.36' 'polygraphy>=0.53' 'nvidia-ml-py>=12' 'numba>=0.60'"
    of_models = f"{of_torch} 'pillow>=10.1' 'timm>=1' 'torchvision>=0.20' 'transformers>=4.50'"
    asked = [
        (of_torch, ["export", "model.py:build", "-o", "m.onnx", "--input", "x:[batch,4]"]),
        (of_cpu, ["simplify", model, "-o", "s.onnx"]),
        (of_cpu, ["quantize", model, "-o", "q.onnx", "--precision", "int8", "--mode", "dynamic"]),
        (of_cpu, ["bench", model, "--baseline", model]),
        ("'openvino>=2024.4'", ["build", model, "--target", "openvino", "-o", "o.onnx"]),
        (
            "'tensorrt-rtx>=1.4'",
            ["build", model, "--target", "tensorrt-rtx", "--gpu", "sm86", "-o", "e.engine"],
        ),
        ("'tensorrt>=10'", ["build", model, "--target", "tensorrt", "-o", "e.engine"]),
        ("'jinja2>=3.1'", ["report", "results.json", "-o", "r.html"]),
        (of_models, ["init", "timm:resnet18", "--data", str(tmp_path), "-o", "r.toml"]),
        ("'distributed>=2025.1'", ["worker", "tcp://127.0.0.1:8786"]),
    ]
    words = [*(command for _, command in asked), ["doctor", "--json"], ["inspect", model]]
    answers = json.loads(run([required_only / "python", "-P", "-c", EACH], tmp_path, stdin=json.dumps(words)))
    *refused, doctor, inspect = answers
    for (packages, command), (code, _, said) in zip(asked, refused, strict=True):
        assert code == 1, f"{command}: {said}"
        assert re.search(rf"hint: pip install {re.escape(packages)}( on a|$)", said, re.M), (
            f"{command}: {said}"
        )
        assert "unexpected" not in said
    states = {one["extra"]: one["state"] for one in json.loads(doctor[1])["extras"]}
    assert doctor[0] == 0
    assert set(states.values()) == {"missing"}, states
    assert inspect[0] == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_walk_of_the_readme_works_from_the_wheel_in_an_empty_environment(
    wheel: Path, tmp_path: Path
) -> None:
    """pip installs what the README says, from an index: minutes, and some gigabytes."""
    line = re.search(r"^pip install (?:-c constraints.txt )?-e '\.\[(.*?)\]' (.*?)(?:\s+#.*)?$", README, re.M)
    assert line
    run([sys.executable, "-m", "venv", tmp_path / "empty"], tmp_path)
    programs = tmp_path / "empty/bin"
    pip = [programs / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    done = subprocess.run(
        [*map(str, pip), "torch"], cwd=tmp_path, env=bare(), capture_output=True, text=True, timeout=1800
    )
    if done.returncode:
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
    run([*pip, f"{wheel}[{line[1]}]", *shlex.split(line[2])], tmp_path, timeout=1800)
    check_walk(programs, copy_example(tmp_path / "work"))
    check_python(programs, tmp_path / "work")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_uvx_and_pipx_take_the_wheel_with_an_extra(wheel: Path, tmp_path: Path) -> None:
    """The lines of docs/install.md, each where its program is; needs a package index."""
    uvx, pipx = shutil.which("uvx"), shutil.which("pipx")
    if not uvx and not pipx:
        pytest.skip("neither uvx nor pipx is installed")
    places = [f"PIPX_{name}={tmp_path / name}" for name in ("HOME", "BIN_DIR", "MAN_DIR")]
    said = []
    if uvx:
        cache = str(tmp_path / "cache")
        words = [uvx, "--cache-dir", cache, "--from", f"{wheel}[report]", "qcompile", "--version"]
        said.append(run(words, tmp_path))
    if pipx:
        run(["env", *places, pipx, "install", f"{wheel}[report]"], tmp_path)
        said.append(run([tmp_path / "BIN_DIR/qcompile", "--version"], tmp_path))
    assert {text.split()[-1] for text in said} == {qcompile.__version__}
