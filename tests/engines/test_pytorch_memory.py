"""Modules that return the same memory from each call, and change their inputs in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qcompile.engines.pytorch import PyTorchRunner
from qcompile.engines.pytorch import runner as home
from qcompile.errors import ModelError


class OneBuffer(nn.Module):
    """Returns the same memory from each call, and changes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = torch.empty(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.memory.copy_(x.mul_(2))


def test_a_module_may_return_the_same_memory_and_change_its_input() -> None:
    feeds = [{"x": np.full((2, 3), value, np.float32)} for value in (1, 2)]
    with PyTorchRunner(OneBuffer(), None) as runner:
        outputs = [runner.infer(batch)["output"] for batch in feeds for _ in range(2)]
    assert [float(array[0, 0]) for array in outputs] == [2, 2, 4, 4]
    assert [float(batch["x"][0, 0]) for batch in feeds] == [1, 2]


def test_a_mode_is_compared_with_eager_where_both_return_the_same_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = OneBuffer()

    def wrong(*_: Any, **__: Any) -> Any:
        return lambda x: module.memory.copy_(x + 100)

    monkeypatch.setattr(home, "trace", wrong)
    runner = PyTorchRunner(module, None, mode="trace")
    with pytest.raises(ModelError, match="computes something else than eager does"), runner:
        runner.infer({"x": np.ones((2, 3), np.float32)})
