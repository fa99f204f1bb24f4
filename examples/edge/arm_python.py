"""Prepare a folder with CPython, numpy and ONNX Runtime for ARM, and the emulator that runs them on x86.

    python examples/edge/arm_python.py FOLDER        # needs Debian's apt-get and dpkg-deb, and pip; no root

Nothing is installed: packages are downloaded and unpacked into the folder. `FOLDER/arm-python` then starts
the interpreter, with `-cpu max` (dot products and i8mm) or the processor in $ARM_CPU, such as cortex-a72.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

_EMULATOR = "qemu-user-static"
_PACKAGES = (
    "libc6", "libgcc-s1", "gcc-12-base", "libstdc++6", "zlib1g", "libexpat1", "libffi8", "libbz2-1.0",
    "liblzma5", "libssl3", "libuuid1", "libpython3.11-minimal", "python3.11-minimal", "libpython3.11-stdlib",
)  # fmt: skip
_WHEELS = ("numpy", "onnxruntime")
_PLATFORMS = tuple(f"manylinux_2_{minor}_aarch64" for minor in (17, 27, 28))

_CORES = 2
# QEMU before 8.1 shows the host's /proc/cpuinfo, in which ONNX Runtime finds no ARM core and crashes.
# A file below the emulator's prefix takes its place.
_CORE = """processor\t: {number}
BogoMIPS\t: 100.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

"""
_LAUNCHER = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
export PYTHONHOME="$here/root/usr" PYTHONPATH="$here/site${PYTHONPATH:+:$PYTHONPATH}" ORT_DISABLE_TELEMETRY=1
set -- "$here/root/usr/bin/python3.11" "$@"
exec "$here/qemu/usr/bin/qemu-aarch64-static" -cpu "${ARM_CPU:-max}" -L "$here/root" "$@"
"""
_APT = """APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
Dir::State "{state}";
Dir::State::status "{state}/status";
Dir::Cache "{state}/cache";
"""


def prepare(folder: Path) -> Path:
    """Fill the folder, which takes some 650 MB, and return the path of its interpreter."""
    folder = folder.resolve()
    for name in ("apt/lists/partial", "apt/cache/archives/partial", "host", "arm", "wheels"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", _EMULATOR], folder / "host")
    (folder / "apt/status").touch()
    (folder / "apt.conf").write_text(_APT.format(state=folder / "apt"))
    foreign = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
    _run(["apt-get", "update", "-qq"], folder, foreign)
    _run(["apt-get", "download", *_PACKAGES], folder / "arm", foreign)
    for source, root in (("host", "qemu"), ("arm", "root")):
        for package in sorted((folder / source).glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(folder / root)], folder)
    platforms = [f"--platform={name}" for name in _PLATFORMS]
    versions = [f"{name}=={_version(name)}" for name in _WHEELS]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version=3.11",
    ]
    _run([*pip, *platforms, *versions], folder / "wheels")
    for wheel in sorted((folder / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "site")
    (folder / "root/proc").mkdir(exist_ok=True)
    (folder / "root/proc/cpuinfo").write_text(
        "".join(_CORE.format(number=number) for number in range(_CORES))
    )
    launcher = folder / "arm-python"
    launcher.write_text(_LAUNCHER)
    launcher.chmod(0o755)
    return launcher


def _version(name: str) -> str:
    """The version that runs here: both sides must have the same."""
    from importlib.metadata import version

    return version(name)


def _run(command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Prepare the folder that the command line names, and say what runs in it."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python examples/edge/arm_python.py FOLDER")
    launcher = prepare(Path(sys.argv[1]))
    code = "import platform, onnxruntime; print(platform.machine(), 'onnxruntime', onnxruntime.__version__)"
    subprocess.run([launcher, "-c", code], check=True)
    print(launcher)


if __name__ == "__main__":
    main()
