"""ONNX Runtime on other processors, which QEMU emulates in user mode.

`run_emulated("haswell", [(model, feeds)], folder)` runs models as that processor does: ONNX Runtime asks the
emulated CPUID or HWCAP which kernels it may use. A start takes 2 s, so one child process runs many models.

- x86-64 runs the Python of the tests, so it needs an x86-64 host and `qemu-x86_64` (Debian: qemu-user).
- ARM runs the Python in `build/arm64`, which `arm64_root.py` prepares, on any host with `qemu-aarch64`.

QEMU 7.2 knows AVX2 and no AVX-512. Its ARM processor `max` has SVE, SME and products of int8 matrices (i8mm).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arm64_root
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
_CHILD = Path(__file__).with_name("emulated_child.py")


@dataclass(frozen=True)
class Processor:
    """A processor that QEMU emulates.

    Attributes:
        emulator: The program.
        cpu: The processor's name there.
    """

    emulator: str
    cpu: str


PROCESSORS = {
    "haswell": Processor("qemu-x86_64", "Haswell"),  # AVX2, no VNNI
    "cortex-a57": Processor("qemu-aarch64", "cortex-a57"),  # no dot product
    "neoverse-n1": Processor("qemu-aarch64", "neoverse-n1"),  # dot product
    "arm-max": Processor("qemu-aarch64", "max,sme=off"),
}


class EmulationError(Exception):
    """The child process failed or ran out of time."""


def why_not_emulated(name: str) -> str | None:
    """Return why a processor cannot be emulated here; None where it can."""
    emulator = PROCESSORS[name].emulator
    if shutil.which(emulator) is None:
        return f"no {emulator} here: apt-get install qemu-user"
    if emulator == "qemu-aarch64" and not arm64_root.is_ready():
        return "build/arm64 is not prepared: python tests/support/arm64_root.py"
    return None


def require_emulated(name: str) -> None:
    """Skip a test where a processor cannot be emulated; with CI=true, fail it."""
    if PROCESSORS[name].emulator == "qemu-x86_64" and platform.machine() != "x86_64":
        pytest.skip(f"{name} runs the Python of the tests, which is of {platform.machine()} here")
    if reason := why_not_emulated(name):
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI: {reason}")
        pytest.skip(reason)


def run_emulated(
    name: str,
    cases: Sequence[tuple[onnx.ModelProto | Path, Arrays]],
    folder: Path,
    *,
    config: dict[str, str] | None = None,
    timeout_s: float = 120.0,
) -> list[Arrays]:
    """Run models on an emulated processor, all in one child process.

    Args:
        name: Key of `PROCESSORS`.
        cases: Models, or paths of ONNX files, each with its inputs.
        folder: Gets the files of the run.
        config: Entries of the sessions' configuration.
        timeout_s: Time for all of them together.

    Returns:
        Output name to array for each case.

    Raises:
        EmulationError: If a model fails, or the time is up. It quotes what the child wrote to stderr.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arguments: list[str | Path] = [json.dumps(config or {})]
    for index, (model, feeds) in enumerate(cases):
        stem = folder.resolve() / f"{name}-{index}"
        path = model if isinstance(model, Path) else stem.with_suffix(".onnx")
        if not isinstance(model, Path):
            onnx.save(model, path)
        np.savez(f"{stem}-feeds.npz", **feeds)  # type: ignore[arg-type]
        arguments += [path.resolve(), f"{stem}-feeds.npz", f"{stem}-outputs.npz"]
    _run(_command(name, arguments), name, folder, timeout_s)
    outputs = []
    for index in range(len(cases)):
        with np.load(folder / f"{name}-{index}-outputs.npz") as arrays:
            outputs.append(dict(arrays))
    return outputs


def _command(name: str, arguments: Sequence[str | Path]) -> list[str | Path]:
    """Return the command line that runs the child on a processor."""
    processor = PROCESSORS[name]
    start: list[str | Path] = [processor.emulator, "-cpu", processor.cpu]
    if processor.emulator == "qemu-aarch64":
        root = arm64_root.ROOT
        return [*start, "-L", root, root / "usr/bin/python3", "-I", _CHILD, arm64_root.SITE, *arguments]
    return [*start, sys.executable, "-I", _CHILD, "", *arguments]


def _run(command: Sequence[str | Path], name: str, folder: Path, timeout_s: float) -> None:
    # After a crash QEMU may leave a core file in the current folder.
    environment = {"PATH": os.defpath, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        subprocess.run(
            command, cwd=folder, env=environment, check=True, timeout=timeout_s, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )  # fmt: skip
    except subprocess.TimeoutExpired as exc:
        raise EmulationError(f"{name}: no end after {timeout_s:g} s\n{_text(exc.stderr)}") from exc
    except subprocess.CalledProcessError as exc:
        raise EmulationError(f"{name}: exit status {exc.returncode}\n{_text(exc.stderr)}") from exc


def _text(stderr: bytes | None) -> str:
    lines = (stderr or b"").decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if "TCG doesn't support" not in line)
