"""The wheel of this tree, and environments that hold the wheel in place of the repository."""

from __future__ import annotations

import configparser
import os
import shutil
import site
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
TO_BUILD = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
"""What setuptools reads beside the package's files."""


def packaged() -> set[str]:
    """Return the files that setup.cfg puts into the package, as they are named in the wheel."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    data = config["options.package_data"]["qcompile"].split()
    folders = [name.split(".")[1:] for name in config["options"]["packages"].split()]
    sources = (path for parts in folders for path in ROOT.joinpath(*parts).glob("*.py"))
    return {f"qcompile/{name}" for name in data} | {f"qcompile/{path.relative_to(ROOT)}" for path in sources}


def copy_source(folder: Path) -> Path:
    """Copy what a wheel is built from, and nothing else."""
    for name in [*TO_BUILD, *(one.removeprefix("qcompile/") for one in packaged())]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def build(source: Path, output: Path, *, kind: str = "wheel") -> Path:
    """Build a wheel or an sdist by the setuptools that is installed here."""
    output.mkdir(parents=True, exist_ok=True)
    call = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv.pop())"
    done = subprocess.run(
        [sys.executable, "-c", call, str(output)], cwd=source, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (built,) = output.iterdir()
    return built


def environment(folder: Path, wheel: Path) -> Path:
    """Install a wheel alone, without what it needs, into a new environment; return its `bin` folder."""
    venv.create(folder, symlinks=True)
    programs = folder / "bin"
    pip = ["-m", "pip", "--quiet", "--python", str(programs / "python"), "--disable-pip-version-check"]
    words = ["install", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    done = subprocess.run([sys.executable, *pip, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return programs


def share_all(programs: Path) -> None:
    """Let an environment import every package that is installed here.

    Their `.pth` files are not obeyed, so the editable installation of this repository is not among them.
    """
    (_packages(programs) / "shared.pth").write_text("\n".join(site.getsitepackages()) + "\n")


def share_required(programs: Path) -> None:
    """Let an environment import what the wheel requires, and nothing else."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    left = [Requirement(line) for line in config["options"]["install_requires"].split("\n") if line]
    seen: set[str] = set()
    while left:
        one = left.pop()
        if one.name in seen or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        seen.add(one.name)
        found = distribution(one.name)
        left += map(Requirement, found.requires or ())
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link = _packages(programs) / name
            if not link.is_symlink():
                link.symlink_to(str(found.locate_file(name)))


def bare() -> dict[str, str]:
    """Return the environment variables without those by which Python would find the repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _packages(programs: Path) -> Path:
    (found,) = programs.parent.glob("lib/python*/site-packages")
    return found
