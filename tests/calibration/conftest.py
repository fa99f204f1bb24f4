"""A network, its samples and its ranges, shared by the tests of calibration."""

from __future__ import annotations

from pathlib import Path

import pytest
from calibrated import SAMPLES, normal, npz, observed, save

from qcompile.calibration import Ranges


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolutions, a product and a softmax: kernels that add in an order of their own."""
    body = """
        a = Conv <pads = [1, 1, 1, 1]> (x, w1)
        b = Relu (a)
        c = Conv <pads = [1, 1, 1, 1]> (b, w2)
        d = Add (c, b)
        e = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
        f = Flatten (e)
        g = MatMul (f, w3)
        y = Softmax (g)
    """
    return save(
        tmp_path_factory.mktemp("network") / "network.onnx",
        body,
        "(float[n, 3, 6, 6] x) => (float[n, 5] y)",
        w1=normal(16, 3, 3, 3),
        w2=normal(16, 16, 3, 3),
        w3=normal(144, 5),
    )


@pytest.fixture(scope="session")
def data(network: Path) -> str:
    """Samples for it in one file."""
    return npz(network.parent / "data.npz", x=SAMPLES)


@pytest.fixture(scope="session")
def whole(network: Path, data: str) -> Ranges:
    """Its ranges, of one run that nothing disturbed."""
    return observed(network, data, threads=1)
