"""ONNX Runtime on other processors, which QEMU emulates in user mode.

`run_emulated("haswell", [(model, feeds)], folder)` runs models as that processor does: ONNX Runtime asks the
emulated CPUID or HWCAP which kernels it may use. A start takes 2 s, so one child process runs many models.

- x86-64 runs the Python of the tests, so it needs an x86-64 host and `qemu-x86_64` (Debian: qemu-user).
- ARM runs the Python in `build/arm64`, which `arm64_root.py` prepares, on any host with `qemu-aarch64`.

QEMU 7.2 knows AVX2 and no AVX-512. Its ARM processor `max` has SVE, SME and products of int8 matrices (i8mm).
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import arm64_root
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
_CHILD = Path(__file__).with_name("emulated_child.py")


PROCESSORS = {
    "haswell": ("qemu-x86_64", "Haswell"),  # AVX2, no VNNI
    "cortex-a57": ("qemu-aarch64", "cortex-a57"),  # no dot product
    "neoverse-n1": ("qemu-aarch64", "neoverse-n1"),  # dot product
    "arm-max": ("qemu-aarch64", "max,sme=off"),
}
"""Name to QEMU's program, and to its name there."""


def why_not_emulated(name: str) -> str | None:
    """Return why a processor cannot be emulated here; None where it can."""
    emulator, _ = PROCESSORS[name]
    if shutil.which(emulator) is None:
        return f"no {emulator} here: apt-get install qemu-user"
    if emulator == "qemu-aarch64" and not arm64_root.is_ready():
        return "build/arm64 is not prepared: python tests/support/arm64_root.py"
    return None


def require_emulated(name: str) -> None:
    """Skip a test where a processor cannot be emulated; with CI=true, fail it."""
    if PROCESSORS[name][0] == "qemu-x86_64" and platform.machine() != "x86_64":
        pytest.skip(f"{name} runs the Python of the tests, which is of {platform.machine()} here")
    if reason := why_not_emulated(name):
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI: {reason}")
        pytest.skip(reason)


def run_emulated(
    name: str, cases: Sequence[tuple[onnx.ModelProto | Path, Arrays]], folder: Path
) -> list[Arrays]:
    """Run models on an emulated processor, all in one child process; return output name to array for each."""
    folder.mkdir(parents=True, exist_ok=True)
    emulator, processor = PROCESSORS[name]
    command: list[str | Path] = [emulator, "-cpu", processor]
    if emulator == "qemu-aarch64":
        root = arm64_root.ROOT
        command += ["-L", root, root / "usr/bin/python3", "-I", _CHILD, arm64_root.SITE]
    else:
        command += [sys.executable, "-I", _CHILD, ""]
    stems = [folder.resolve() / f"{name}-{index}" for index in range(len(cases))]
    for stem, (model, feeds) in zip(stems, cases, strict=True):
        path = model if isinstance(model, Path) else stem.with_suffix(".onnx")
        if not isinstance(model, Path):
            onnx.save(model, path)
        np.savez(f"{stem}-feeds.npz", **feeds)  # type: ignore[arg-type]
        command += [path.resolve(), f"{stem}-feeds.npz", f"{stem}-outputs.npz"]
    # After a crash QEMU may leave a core file in the current folder.
    environment = {"PATH": os.defpath, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{name}: exit status {done.returncode}\n{done.stderr}"
    outputs = []
    for stem in stems:
        with np.load(f"{stem}-outputs.npz") as arrays:
            outputs.append(dict(arrays))
    return outputs
