"""Broken states of an installation, found among the names and versions of its distributions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """A broken state of the installation and its fix."""

    problem: str
    fix: str


def find_problems(installed: set[str], version_of: Callable[[str], str]) -> list[Problem]:
    """Return the known broken states among installed distributions (names in lower case)."""
    problems = []
    runtimes = sorted(
        name
        for name in installed
        if name in ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")
    )
    if len(runtimes) > 1:
        problems.append(
            Problem(
                f"{' and '.join(runtimes)} are installed together: they own the same files, and "
                "which one is imported is chance",
                f"pip uninstall -y {' '.join(runtimes)} && pip install {runtimes[-1]}",
            )
        )
    if "torch" in installed and "onnxscript" not in installed:
        problems.append(
            Problem(
                "torch is installed without onnxscript, which its ONNX exporter needs",
                "pip install onnxscript",
            )
        )
    if runtimes and "numba" not in installed:
        problems.append(
            Problem(
                "numba is missing: calibration counts with numpy, eight times as slowly",
                "pip install numba",
            )
        )
    if "onnx-simplifier" in installed:
        problems.append(
            Problem(
                "onnx-simplifier is installed: an old name of onnxsim that owns the same module",
                "pip uninstall -y onnx-simplifier && pip install --force-reinstall onnxsim",
            )
        )
    return problems + _numpy_problems(installed, version_of)


def _numpy_problems(installed: set[str], version_of: Callable[[str], str]) -> list[Problem]:
    """TensorRT 8 is built with a pybind11 before 2.12, which first knew numpy 2; all else wants numpy 2."""
    if "numpy" not in installed:
        return []
    numpy, tensorrt = version_of("numpy"), version_of("tensorrt") if "tensorrt" in installed else ""
    if tensorrt.startswith("8.") and not numpy.startswith("1."):
        found = f"tensorrt {tensorrt} and numpy {numpy} are installed: TensorRT 8 is built for numpy 1"
        return [Problem(found, "pip install 'numpy<2'")]
    if numpy.startswith("1.") and not tensorrt.startswith("8."):
        found = f"numpy {numpy} is installed; qcompile is tested with numpy 2"
        return [Problem(found, "pip install 'numpy>=2'")]
    return []
