"""What PyTorch's exporter lacks, or writes wrongly, against PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from written_models import normal, run_file

from qcompile.compiler.export import export


class Rendered(nn.Module):
    """What light passes each of n places, as radiance fields are rendered."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cumprod(torch.sigmoid(x), 1), x.prod(1, keepdim=True)


class Enhanced(nn.Module):
    """A sound with its spectrum masked."""

    def forward(self, x: Tensor) -> Tensor:
        window = torch.hann_window(16)
        spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
        mask = torch.sigmoid(spectrum.abs() - 1)
        return torch.istft(spectrum * mask, 16, 4, window=window, length=x.shape[-1])


@pytest.mark.parametrize(("kind", "spelled"), [(Rendered, "x:[rays,n=6]"), (Enhanced, "x:[batch,64]")])
def test_what_pytorchs_exporter_lacks_or_writes_wrongly_is_exported(
    tmp_path: Path, kind: type[nn.Module], spelled: str
) -> None:
    artifact = export(kind(), tmp_path / "m.onnx", inputs=[spelled])
    assert artifact.manifest.options["exporter"] == "dynamo"
    x = normal(3, 64)
    expected = kind()(torch.from_numpy(x))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for array, other in zip(run_file(artifact.path, x=x).values(), expected, strict=True):
        np.testing.assert_allclose(array, other.numpy(), rtol=1e-4, atol=1e-6)


class Neighbours(nn.Module):
    """The mean of what the neighbours of each node hold, without it and with it, in place and not."""

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        index, messages = edges[1].unsqueeze(1).expand(-1, 8), x[edges[0]]
        alone = torch.zeros_like(x).scatter_reduce_(0, index, messages, "mean", include_self=False)
        counts = (x * 9).int().scatter_reduce(0, index, (messages * 9).int(), "mean")
        return alone, x.scatter_reduce(0, index, messages, "mean"), counts


def test_a_mean_over_edges_is_that_of_pytorch(tmp_path: Path) -> None:
    artifact = export(Neighbours(), tmp_path / "m.onnx", inputs=["x:[nodes=6,8]", "edges:[2,edges=9]:int64"])
    x, edges = normal(7, 8), np.random.default_rng(0).integers(0, 7, (2, 20))
    expected = Neighbours()(torch.from_numpy(x), torch.from_numpy(edges))
    for array, other in zip(run_file(artifact.path, x=x, edges=edges).values(), expected, strict=True):
        np.testing.assert_allclose(array, other.numpy(), rtol=1e-5, atol=1e-6)
