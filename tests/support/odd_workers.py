"""Workers that lack room, or have another version of something: real ones, in a changed environment."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import qcompile

_LIMITED = """
import os, resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
os.execv(sys.argv[2], sys.argv[2:])
"""
_LEFT_OUT = {
    ".git",
    ".venv",
    ".venv-ci",
    "build",
    "dist",
    "tests",
    "benchmarks",
    "docs",
    "examples",
}


def with_small_files(most_bytes: int) -> list[str]:
    """Return words before a command that have it write no file of more bytes, as on a disk that is full."""
    return [sys.executable, "-c", _LIMITED, str(most_bytes)]


def another_version(folder: Path, package: str, version: str) -> dict[str, str]:
    """Return variables under which a package says that it has another version; its code is the same.

    Args:
        folder: For the metadata, which come first on the path.
        package: An installed package, such as "onnxruntime".
        version: What it says.
    """
    place = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return _first(folder)


def another_qcompile(folder: Path, version: str) -> dict[str, str]:
    """Return variables under which a copy of this package with another version is imported."""
    source = Path(qcompile.__file__).resolve().parent

    def left_out(here: str, names: list[str]) -> set[str]:
        root = Path(here) == source
        return {name for name in names if name == "__pycache__" or (root and name in _LEFT_OUT)}

    shutil.copytree(source, folder / "qcompile", ignore=left_out)
    (folder / "qcompile/version.py").write_text(f'"""The version."""\n\n__version__ = "{version}"\n')
    return _first(folder)


def _first(folder: Path) -> dict[str, str]:
    """The path that Python looks in, with a folder in front."""
    others = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), others]))}
