"""Build the wheel twice from the committed files; equal bytes, or an error.

    make wheel    # dist/qcompile-VERSION-py3-none-any.whl

What is not committed is not in it: the files come from `git archive HEAD`. The time in the archive is that
of the commit. setuptools is the one that constraints.txt pins, so another machine makes the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(output: Path) -> int:
    """Build twice in different folders, compare, and keep one."""
    with tempfile.TemporaryDirectory() as text:
        wheels = [build(Path(text) / name) for name in ("first", "a-folder-of-another-name")]
        digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
        if digests[0] != digests[1]:
            print(f"{wheels[0].name}: two builds differ, {digests[0]} and {digests[1]}")
            return 1
        output.mkdir(parents=True, exist_ok=True)
        (output / wheels[0].name).write_bytes(wheels[0].read_bytes())
    print(f"{output / wheels[0].name}  sha256:{digests[0]}")
    return 0


def build(folder: Path) -> Path:
    """Build the wheel of HEAD in a fresh folder."""
    source, made = folder / "source", folder / "dist"
    source.mkdir(parents=True)
    # The mode of a file is in the wheel: neither git's nor this process's umask may decide it.
    packed = _git("-c", "tar.umask=0022", "archive", "--format=tar", "HEAD")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(source, filter="data")
    environment = os.environ | {"SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct").decode().strip()}
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            made,
            source,
        ],
        check=True,
        env=environment,
        umask=0o022,
    )
    (wheel,) = made.glob("*.whl")
    return wheel


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
