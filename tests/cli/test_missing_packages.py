"""A failed import of an extra's package is told as what to install, wherever it happens."""

from __future__ import annotations

import pytest

from qcompile.cli.missing_packages import missing_package


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("onnxruntime.quantization", "cpu"),
        ("torch", "torch"),
        ("PIL.Image", "models"),
        ("tensorrt_rtx", "tensorrt-rtx"),
        ("pynvml", "cpu"),
        ("distributed", "cluster"),
        ("tritonclient.grpc", "triton"),
    ],
)
def test_a_package_of_an_extra_names_the_extra(module: str, extra: str) -> None:
    error = missing_package(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert error is not None
    assert error.hint == f"pip install 'qcompile[{extra}]'"
    assert error.exit_code == 1


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'mine'", name="mine"),
        ModuleNotFoundError("no name"),
        ImportError("cannot import name 'x' from 'torch'", name="torch"),
        ValueError("torch"),
    ],
)
def test_other_errors_are_left_as_they_are(error: Exception) -> None:
    assert missing_package(error) is None
