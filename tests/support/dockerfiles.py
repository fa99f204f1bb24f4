"""Dockerfiles of this repository: instructions, the context that is sent, the steps without Docker."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from packaged import ROOT, bare

PLACES = ("/source", "/build", "/opt/qcompile", "/var/cache/pip")
"""The folders of the image that the steps name."""


def instructions(name: str) -> list[tuple[str, str]]:
    """Return each instruction's word and its arguments, on one line."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / name).read_text(), flags=re.M).replace("\\\n", " ")
    lines = (" ".join(line.split()).partition(" ") for line in text.splitlines() if line.strip())
    return [(word, rest) for word, _, rest in lines]


def stages(name: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return each stage's base and instructions."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for word, rest in instructions(name):
        if word == "FROM":
            found.append((rest.split()[0], []))
        elif found:
            found[-1][1].append((word, rest))
    return found


def context() -> set[str]:
    """Return the files that `docker build .` sends, by the patterns of .dockerignore.

    Of its rules those that the file uses: `*` and `?` within a name, and `**/` before a name.
    """
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    anywhere = [line.removeprefix("**/") for line in patterns if line.startswith("**/")]
    at_root = [line for line in patterns if not line.startswith("**/")]
    assert not any("/" in line or line.startswith("!") for line in at_root + anywhere)

    def ignored(name: str, folder: str) -> bool:
        used = anywhere if folder else anywhere + at_root
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in used)

    found = set()
    for place, folders, files in os.walk(ROOT):
        folder = os.path.relpath(place, ROOT).removeprefix(".")
        folders[:] = [name for name in folders if not ignored(name, folder)]
        found |= {os.path.join(folder, name) for name in files if not ignored(name, folder)}
    return found


def replay(name: str, root: Path) -> Path:
    """Carry out the steps of a Dockerfile's stages below a folder, without Docker; return its environment.

    PyTorch comes from the indexes that pip has here. Bases, users and caches are left out.
    """
    for path in sorted(context()):
        (root / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, root / "source" / path)
    (root / "build").mkdir()
    (root / "bin").mkdir()
    (root / "bin/python").symlink_to(sys.executable)
    for _, steps in stages(name)[:-1]:
        arguments = dict(rest.split("=", 1) for word, rest in steps if word == "ARG")
        for word, rest in steps:
            if word == "COPY" and not rest.startswith(("--from", ".")):
                source, target = rest.split()
                shutil.copyfile(ROOT / source, root / target.lstrip("/"))
            elif word == "RUN":
                _run(re.sub(r"--mount=\S+|--index-url \S+", "", rest), root, arguments)
    return root / "opt/qcompile/bin"


def _run(command: str, root: Path, arguments: dict[str, str]) -> None:
    for place in PLACES:
        command = re.sub(rf"(?<![\w/.]){re.escape(place)}\b", f"{root}{place}", command)
    path = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-euc", command],
        cwd=root / "source",
        env=bare() | arguments | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
