"""The marked blocks of the README, and a run of their commands."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from packaged import ROOT, bare

README = (ROOT / "README.md").read_text(encoding="utf-8")
MADE = ("m.onnx", "s.onnx", "m.ranges", "i.onnx", "int8.onnx", "cpu.onnx", "fp16.engine", "int8.engine")
"""What the example and the walk leave, each with a manifest beside it."""


def block(marker: str, language: str) -> str:
    """Return the block of a language below a marker."""
    match = re.search(rf"<!-- {marker}.*?-->\n```{language}\n(.*?)```", README, re.S)
    assert match, f"the README has no block marked {marker!r}"
    return match.group(1)


def copy_example(folder: Path) -> Path:
    """Copy the example that the README uses, without what earlier runs left."""
    ignored = shutil.ignore_patterns("out", "__*")
    shutil.copytree(ROOT / "examples/digits", folder / "examples/digits", ignore=ignored)
    return folder


def check_walk(programs: Path, folder: Path) -> str:
    """Run the example and the walk by the qcompile in `programs`; return what the example prints."""
    where = "import qcompile, qcompile.version; print(qcompile.__file__, qcompile.version.__file__)"
    said = _run([programs / "python", "-P", "-c", where], folder)
    assert all(path.startswith(str(programs.parent)) for path in said.split()), said
    printed = ""
    for marker in ("example", "walk"):
        for line in block(marker, "console").strip().splitlines():
            command, *words = shlex.split(line)
            assert command == "qcompile"
            said = _run([programs / "qcompile", *words], folder)
            printed += said if marker == "example" else ""
    for name in MADE:
        assert (folder / name).is_file(), name
        assert (folder / f"{name}.json").is_file(), name
    return printed


def check_python(programs: Path, folder: Path) -> None:
    """Run the README's lines of Python by an installed qcompile."""
    said = _run([programs / "python", "-P", "-c", block("python", "python")], folder)
    assert "'int8': {'Conv': 21, 'Gemm': 1}" in said


def _run(words: Sequence[object], folder: Path) -> str:
    command = [str(word) for word in words]
    # On one core, the other of which runs other tests: threads that wait for a core spin.
    variables = bare() | {"QCOMPILE_CORES": "1"}
    done = subprocess.run(
        command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout
