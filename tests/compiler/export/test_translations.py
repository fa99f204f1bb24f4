"""What PyTorch's exporter lacks, or writes wrongly, against PyTorch."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from exported_models import export_alike
from torch import Tensor, nn
from written_models import normal, run_file

import qcompile
from qcompile.compiler.export import export
from qcompile.compiler.export.captured_forms import inverse_form


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
    export_alike(kind(), tmp_path, [spelled], {"x": normal(3, 64)}, rtol=1e-4)


class Mixed(nn.Module):
    """Operands of several types, and a table of columns of them."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        counts = torch.arange(x.shape[1])
        outer = torch.einsum("i,j->ij", counts, x[0])
        columns = torch.column_stack([x[:, 0], torch.ones_like(x).int(), x[:, :2].double()])
        return outer, columns, torch.eye(x.shape[1], dtype=torch.bool) | (outer > 1)


class Apart(nn.Module):
    """Sums of what all others are like, in TorchScript, which PyTorch's older exporter takes."""

    def forward(self, x: Tensor) -> Tensor:
        alike = torch.matmul(x, x.t())
        return x + alike.masked_fill(torch.eye(x.shape[0], dtype=torch.bool), 0.0).sum(1, keepdim=True)


def test_an_identity_of_bools_by_the_older_exporter(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch takes leave of TorchScript
        scripted = torch.jit.script(Apart())
    export_alike(scripted, tmp_path, ["x:[rows,4]"], {"x": normal(5, 4)}, exporter="torchscript", atol=1e-5)


class Squeezed(nn.Module):
    """A score for each pixel, as measures of images squeeze axes that no kernel has."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for axis in (3, 2, 1):
            x = x.squeeze(axis)
        return x, x.unsqueeze(1).squeeze((0, 1))


class LogGamma(nn.Module):
    """As priors of counts have it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.lgamma(x)


@pytest.mark.parametrize(
    ("kind", "spelled", "shape"),
    [(Mixed, "x:[rows,n=6]", (4, 9)), (Squeezed, "x:[batch,1,height=5,width=6]", (3, 1, 7, 4))],
)
def test_types_and_ranks_are_those_of_pytorch(
    kind: type[nn.Module], spelled: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    export_alike(kind(), tmp_path, [spelled], {"x": normal(*shape)}, rtol=1e-6, atol=0)


def test_the_logarithm_of_gamma_is_that_of_pytorch_in_double_precision(tmp_path: Path) -> None:
    artifact = export(LogGamma(), tmp_path / "m.onnx", inputs=["x:[n=6]"])
    assert artifact.manifest.options["exporter"] == "dynamo"
    x = np.concatenate([np.linspace(-5.37, 3, 500), np.logspace(-3, 5, 100)]).astype(np.float32)
    expected = torch.lgamma(torch.from_numpy(x).double()).numpy()
    (found,) = run_file(artifact.path, x=x).values()
    np.testing.assert_allclose(found, expected, rtol=5e-6, atol=5e-6)


def test_a_sound_of_any_length_is_enhanced_on_every_runtime(tmp_path: Path) -> None:
    artifact = export_alike(Enhanced(), tmp_path, ["x:[batch,time=64]"], {"x": normal(3, 90)}, rtol=1e-4)
    assert len(onnx.load(artifact.path).graph.node) < 100  # PyTorch's form has some for each point of a frame
    shapes = {kind: {"x": extents} for kind, extents in
              {"min_shapes": (1, 32), "opt_shapes": (2, 64), "max_shapes": (4, 128)}.items()}  # fmt: skip
    for target, package, options in (
        ("openvino", "openvino", {}), ("tensorrt-rtx", "tensorrt_rtx", {"gpus": ["sm86"], **shapes}),
    ):  # fmt: skip
        pytest.importorskip(package)
        built = qcompile.build(artifact.path, tmp_path / target, target=target, **options)
        assert all(check.passed for check in built.manifest.checks)


@pytest.mark.parametrize("shape", [(100,), (3, 100)])
@pytest.mark.parametrize("length", [None, 100, 70, 150])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize(("n_fft", "hop", "width"), [(16, None, None), (15, 4, 12), (64, 7, 40)])
def test_the_inverse_of_spectra_is_that_of_pytorch(
    n_fft: int, hop: int | None, width: int | None, center: bool, normalized: bool, length: int | None,
    shape: tuple[int, ...],
) -> None:  # fmt: skip
    window, x = torch.hamming_window(width or n_fft), torch.from_numpy(normal(*shape))
    spectra = torch.stft(x, n_fft, hop, width, window, center, normalized=normalized, return_complex=True)
    options = n_fft, hop, width, window, center, normalized, None, length
    if width and (not center or length == 150):  # the first or last points have no weight
        with pytest.raises(RuntimeError, match="window overlap add min"):
            torch.istft(spectra, *options)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the length is more than there is
        expected = torch.istft(spectra, *options)
    found = inverse_form(torch, torch.istft)(spectra, *options)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_spectra_of_complex_signals_are_left_to_pytorch() -> None:
    window = torch.ones(16)
    spectra = torch.stft(
        torch.from_numpy(normal(100)), 16, window=window, onesided=False, return_complex=True
    )
    calls: list[tuple[object, ...]] = []
    inverse_form(torch, lambda *given: calls.append(given))(spectra, 16, return_complex=True)
    assert calls
    assert calls[0][1:] == (16, None, None, None, True, False, None, None, True)


class Neighbours(nn.Module):
    """The mean of what the neighbours of each node hold, without it and with it, in place and not."""

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        index, messages = edges[1].unsqueeze(1).expand(-1, 8), x[edges[0]]
        alone = torch.zeros_like(x).scatter_reduce_(0, index, messages, "mean", include_self=False)
        counts = (x * 9).int().scatter_reduce(0, index, (messages * 9).int(), "mean")
        return alone, x.scatter_reduce(0, index, messages, "mean"), counts


def test_a_mean_over_edges_is_that_of_pytorch(tmp_path: Path) -> None:
    feeds = {"x": normal(7, 8), "edges": np.random.default_rng(0).integers(0, 7, (2, 20))}
    export_alike(Neighbours(), tmp_path, ["x:[nodes=6,8]", "edges:[2,edges=9]:int64"], feeds)
