"""A MODEL in PyTorch's other modes computes what eager does, or is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qcompile.engines.pytorch import MODES, PyTorch
from qcompile.errors import DataError, InvalidOption, ModelError

BAD = """
import torch

class Moody(torch.nn.Module):
    def forward(self, x):
        if torch.jit.is_scripting():
            return x * 2.0
        return x

class Unscriptable(torch.nn.Module):
    def forward(self, x):
        return x + len(str(list(globals())))

def moody():
    return Moody(), (torch.ones(2, 3),)

def unscriptable():
    return Unscriptable(), (torch.ones(2, 3),)
"""


def images(batch: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)}


@pytest.mark.parametrize(
    "mode",
    [
        *(mode for mode in MODES if mode not in ("compile", "half", "autocast")),
        pytest.param("compile", marks=pytest.mark.slow),
    ],
)
def test_every_mode_computes_what_eager_does_for_every_batch_size(torch_model: str, mode: str) -> None:
    with PyTorch().open(torch_model, threads=1) as eager:
        expected = {batch: next(iter(eager.infer(images(batch)).values())) for batch in (2, 3)}
    with PyTorch().open_in_mode(torch_model, mode, threads=1) as runner:
        for batch in (2, 3, 2):
            [found] = runner.infer(images(batch)).values()
            np.testing.assert_allclose(found, expected[batch], rtol=1e-4, atol=1e-5)
        assert (runner.contains == "host to host: one forward()") is (mode == "eager")
        assert len(runner.time(images(2), 3)) == 3


@pytest.mark.parametrize("mode", ["half", "autocast"])
def test_sixteen_bits_are_what_pytorch_makes_of_them(torch_model: str, mode: str) -> None:
    import torch

    from qcompile.model.pytorch import load_torch
    from qcompile.model.source import parse_source

    module = load_torch(parse_source(torch_model)).module
    feeds = images(2)
    with torch.inference_mode():
        if mode == "half":
            expected = module.half()(torch.from_numpy(feeds["x"]).half())
        else:
            with torch.autocast("cpu"):
                expected = module(torch.from_numpy(feeds["x"]))
    with PyTorch().open_in_mode(torch_model, mode, threads=1) as runner:
        [found] = runner.infer(feeds).values()
        assert runner.weights is not None
        assert runner.weights.precision == ("fp16" if mode == "half" else "")
    assert expected.dtype == (torch.float16 if mode == "half" else torch.bfloat16)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.float().numpy())


def test_a_mode_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    with (
        PyTorch().open_in_mode(f"{tmp_path}/bad.py:moody", "script") as runner,
        pytest.raises(ModelError, match="computes something else than eager"),
    ):
        runner.prepare({runner.io.inputs[0].name: np.ones((2, 3), np.float32)})


def test_a_mode_that_cannot_take_the_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    with PyTorch().open_in_mode(f"{tmp_path}/bad.py:unscriptable", "script") as runner:
        name = runner.io.inputs[0].name
        with pytest.raises(ModelError, match="PyTorch mode script: fails"):
            runner.infer({name: np.ones((2, 3), np.float32)})
        with pytest.raises(DataError):
            runner.infer({name: np.ones((2, 4), np.float64)})


def test_an_unknown_mode_is_refused(torch_model: str) -> None:
    with pytest.raises(InvalidOption, match="known are eager, trace, script, freeze, compile"):
        PyTorch().open_in_mode(torch_model, "fast")
