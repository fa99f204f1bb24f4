"""What the README promises is run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(marker: str, language: str) -> str:
    match = re.search(rf"<!-- {marker}.*?-->\n```{language}\n(.*?)```", README, re.S)
    assert match, f"the README has no block marked {marker!r}"
    return match.group(1)


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with a copy of the example."""
    shutil.copytree(
        ROOT / "examples/digits", tmp_path / "examples/digits", ignore=shutil.ignore_patterns("out", "__*")
    )
    return tmp_path


def test_the_walk_of_the_readme_works_line_by_line(workplace: Path) -> None:
    lines = block("walk", "console").strip().splitlines()
    verbs = [shlex.split(line)[1] for line in lines]
    assert {"export", "simplify", "calibrate", "quantize", "build", "diff", "bench", "inspect"} <= set(verbs)
    for line in lines:
        command, *arguments = shlex.split(line)
        assert command == "qcompile"
        done = subprocess.run(
            [sys.executable, "-m", "qcompile", *arguments], cwd=workplace, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    for name in ("m.onnx", "s.onnx", "m.ranges", "int8.onnx", "cpu.onnx", "fp16.engine", "int8.engine"):
        assert (workplace / name).is_file()
        assert (workplace / f"{name}.json").is_file()


def test_the_python_of_the_readme_works(workplace: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block("python", "python")], cwd=workplace, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "'int8': {'Conv': 21, 'Gemm': 1}" in done.stdout


def test_the_readme_names_the_commands_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_recipe_of_the_guide_is_read(tmp_path: Path) -> None:
    from qcompile.pipeline.recipe import read_recipe

    text = (ROOT / "docs/recipe.md").read_text(encoding="utf-8")
    shown = re.search(r"```toml\n(.*?)```", text, re.S)
    assert shown
    (tmp_path / "recipe.toml").write_text(shown[1])
    assert [one.name for one in read_recipe(tmp_path / "recipe.toml").artifact] == ["cpu-int8", "gpu-int8"]
