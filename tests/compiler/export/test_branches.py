"""Branches on values that make no difference are gone one way; those that do are refused.

Branches on extents hold for the samples; `len` makes no number of an extent.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from written_models import normal, run_file

from qcompile.compiler.export import export
from qcompile.errors import ExportError


class Shortcut(nn.Module):
    """As protein language models do: no padding, no mask."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if not mask.any():
            return x * 2
        return (x * 2).masked_fill(mask, 0.0)


class Checked(nn.Module):
    """As Gaussian processes and solvers do."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if torch.isnan(x).any().item():
            raise ValueError("not a number")
        assert not torch.equal(x, torch.zeros_like(x))
        normal = torch.distributions.Normal(x, mask + 1.0)  # which checks its parameters
        return normal.log_prob(x + 1)


class Counted(nn.Module):
    """As early encoders warn of a first token, and bound the extents that they take."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if mask[:, 0].sum().item() != 0:
            print("the first is masked")
        if mask.sum().item() > 100:
            raise ValueError("too many")
        return x * 2


class Both(nn.Module):
    """Values decide."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * 2 if mask.any() else x


class OfAnotherShape(nn.Module):
    """What one way computes, the other cannot of these samples: an error, but no check."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if mask.any():
            return x.reshape(-1, 5)
        return x * 2


class Loop(nn.Module):
    """Values decide how often."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        while mask.any():
            x = x / 2
        return x


def batch(masked: float, seed: int) -> dict[str, Any]:
    mask = np.random.default_rng(seed).random((3, 4)) < masked
    return {"x": normal(3, 4), "mask": mask}


def padded() -> Iterator[dict[str, Any]]:
    return (batch(masked, seed) for seed, masked in enumerate((0.0, 0.5, 0.0, 0.5)))


def whole() -> Iterator[dict[str, Any]]:
    return (batch(0.0, seed) for seed in range(3))


def exported(kind: type[nn.Module], data: str, path: Path) -> Any:
    inputs = ["x:[batch,4]", "mask:[batch,4]:bool"]
    return export(kind(), path / "m.onnx", inputs=inputs, data=f"{__file__}:{data}")


@pytest.mark.parametrize("data", ["padded", "whole"])
def test_a_shortcut_is_not_taken_in_the_graph(data: str, tmp_path: Path) -> None:
    """Also where every sample takes it: the long way is then the other one, and right by itself."""
    artifact = exported(Shortcut, data, tmp_path)
    assert artifact.manifest.options["exporter"] == "dynamo"
    assert any("a shortcut that changes no output is not taken: test_branches.py:" in text
               for text in artifact.manifest.warnings)  # fmt: skip
    for feeds in (*padded(), *whole()):
        (found,) = run_file(artifact.path, **feeds).values()
        expected = Shortcut()(torch.from_numpy(feeds["x"]), torch.from_numpy(feeds["mask"]))
        np.testing.assert_array_equal(found, expected.numpy())


def test_checks_of_values_are_left_out(tmp_path: Path) -> None:
    artifact = exported(Checked, "padded", tmp_path)
    assert artifact.manifest.options["exporter"] == "dynamo"
    (said,) = [text for text in artifact.manifest.warnings if "a check of values is left out" in text]
    assert said.count("test_branches.py:") == 2


def test_comparisons_of_numbers_of_tensors_are_branches_too(tmp_path: Path) -> None:
    artifact = exported(Counted, "padded", tmp_path)
    assert artifact.manifest.options["exporter"] == "dynamo"
    (said,) = [text for text in artifact.manifest.warnings if "a check of values is left out" in text]
    assert "a shortcut" in said
    feeds = batch(0.5, 7)
    np.testing.assert_array_equal(*run_file(artifact.path, **feeds).values(), feeds["x"] * 2)


@pytest.mark.parametrize(
    ("kind", "data"), [(Both, "padded"), (Both, "whole"), (OfAnotherShape, "whole"), (Loop, "whole")]
)
def test_a_branch_that_matters_is_refused(kind: type[nn.Module], data: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="branches on a value of its input") as refused:
        exported(kind, data, tmp_path)
    assert "freeze_branches" in refused.value.hint


class Rows(nn.Module):
    """The batch as Python counts it, which makes a number of it."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.zeros(len(x), x.shape[1])


def test_len_leaves_the_batch_dynamic(tmp_path: Path) -> None:
    artifact = export(Rows(), tmp_path / "m.onnx", inputs=["x:[batch,4]"])
    assert artifact.manifest.options["exporter"] == "dynamo"
    assert artifact.manifest.options["axes"]["batch"]["max"] is None
    assert builtins.len([1, 2]) == 2
    assert builtins.len.__class__.__name__ == "builtin_function_or_method"


class Cut(nn.Module):
    """Of long series the first 40 points alone."""

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :40] if x.shape[1] > 40 else x).cumsum(1)


def short() -> Iterator[Tensor]:
    return (torch.rand(2, length) for length in (16, 24, 40))


def long() -> Iterator[Tensor]:
    return (torch.rand(2, length) for length in (16, 48))


def test_samples_declare_the_range_of_an_axis_on_which_the_model_branches(tmp_path: Path) -> None:
    options: dict[str, Any] = {"inputs": ["x:[2,length=16]"]}
    artifact = export(Cut(), tmp_path / "m.onnx", data=f"{__file__}:short", **options)
    assert artifact.manifest.options["axes"]["length"]["max"] == 40
    assert any("where all samples lie" in text for text in artifact.manifest.warnings)
    for data in (f"{__file__}:long", None):
        with pytest.raises(ExportError, match="cannot be dynamic without a range"):
            export(Cut(), tmp_path / "m.onnx", data=data, **options)
