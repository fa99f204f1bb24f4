"""Prepare `build/arm64`: Python, NumPy and ONNX Runtime for 64-bit ARM, which `emulated.py` runs with QEMU.

`python tests/support/arm64_root.py` takes Debian's packages of Python from the sources of the host's apt, and
the wheels of constraints.txt through pip. It installs nothing on the host and needs no root: the lists, cache
and status of apt are in the folder. It does nothing where the folder has the versions of constraints.txt, and
exits with 0 and a message where there is no apt.

    build/arm64/root     Debian's packages, unpacked
    build/arm64/site     the wheels
    build/arm64/ready    what was prepared; written last
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
FOLDER = CHECKOUT / "build/arm64"
ROOT, SITE, READY = FOLDER / "root", FOLDER / "site", FOLDER / "ready"
PACKAGES = ("python3", "libstdc++6")
WHEELS = ("numpy", "onnxruntime")
PLATFORMS = (
    "manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64",
)  # fmt: skip

# QEMU passes the host's /proc/cpuinfo on. The cpuinfo library finds no ARM processor there and crashes at the
# import of ONNX Runtime. It takes the features from the emulated HWCAP, and adds some by the part: dot
# products, and kernels for in-order cores. The part of a Cortex-A57, 0xd07, adds nothing.
CPUINFO = """processor\t: 0
BogoMIPS\t: 100.00
Features\t: fp asimd
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd07
CPU revision\t: 0
"""
HOST_FILES = {
    "proc/cpuinfo": CPUINFO,
    "sys/devices/system/cpu/possible": "0\n",
    "sys/devices/system/cpu/present": "0\n",
}
"""Files that QEMU shows in place of the host's."""


def requirements() -> list[str]:
    """Return the lines of constraints.txt for the wheels."""
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line.split("==")[0] in WHEELS]


def contents() -> str:
    """Return what a prepared folder holds, as `ready` says it."""
    return "\n".join([*requirements(), *PACKAGES, *(f"{name}\n{text}" for name, text in HOST_FILES.items())])


def is_ready() -> bool:
    """Whether the folder is prepared for the versions of constraints.txt."""
    return READY.is_file() and READY.read_text() == contents()


def unpack_packages() -> None:
    """Download Debian's packages with all that they depend on, and unpack them."""
    apt = FOLDER / "apt"
    for part in ("lists/partial", "cache/archives/partial", "state"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State": apt / "state",
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*command, "update"], check=True)
    install = ["install", "--download-only", "--yes", "--no-install-recommends", *PACKAGES]
    subprocess.run([*command, *install], check=True, stdout=subprocess.DEVNULL)
    for archive in sorted((apt / "cache/archives").glob("*.deb")):
        subprocess.run(["dpkg", "-x", archive, ROOT], check=True)
    shutil.rmtree(apt)
    if not (ROOT / "lib").exists():
        (ROOT / "lib").symlink_to("usr/lib")
    for name, text in HOST_FILES.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text)


def install_wheels() -> None:
    """Install the wheels for the Python that was unpacked."""
    version = (ROOT / "usr/bin/python3").readlink().name.removeprefix("python")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(SITE)]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
    command += [f"--abi=cp{version.replace('.', '')}", *(f"--platform={name}" for name in PLATFORMS)]
    subprocess.run([*command, *requirements()], check=True)


def prepare() -> None:
    """Prepare the folder from nothing."""
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    FOLDER.mkdir(parents=True)
    unpack_packages()
    install_wheels()
    READY.write_text(contents())


def main() -> None:
    """Prepare the folder where that is not done, or say why it cannot be."""
    if is_ready():
        print("build/arm64 is prepared")
    elif not (shutil.which("apt-get") and shutil.which("dpkg")):
        print(f"build/arm64 is not prepared: {platform.platform()} has no apt-get")
    else:
        start = time.monotonic()
        prepare()
        print(f"build/arm64 is prepared in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
