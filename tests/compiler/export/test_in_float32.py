"""A model of another floating-point type is named at once, or exported in float32 and stays as it was."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from exported_models import export_alike
from torch import Tensor, nn
from written_models import normal, run_file

from qcompile.compiler.export import export
from qcompile.errors import DataError, ExportError, InvalidOption, ModelError

TYPES = [torch.float64, torch.float16, torch.bfloat16]


class Recurrent(nn.Module):
    """Tied weights, a recurrent layer, a buffer, and a tensor that is neither."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.layer = nn.LSTM(4, 5, batch_first=True)
        self.register_buffer("shift", torch.rand(5))
        self.scale = torch.rand(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.second(self.first(x)))[0] * self.scale + self.shift


def model(dtype: torch.dtype) -> Recurrent:
    module = Recurrent().to(dtype).eval()
    module.scale = module.scale.to(dtype)
    return module


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_model_is_exported_in_float32_and_stays_as_it_was(dtype: torch.dtype, tmp_path: Path) -> None:
    module = model(dtype)
    before = {name: (id(value), value.clone()) for name, value in module.state_dict(keep_vars=True).items()}
    name = str(dtype).removeprefix("torch.")
    spelled = "float64" if dtype is torch.float64 else "float32"
    artifact = export(module, tmp_path / "m.onnx", inputs=[f"x:[batch,3,4]:{spelled}"], dtype="float32")
    assert artifact.manifest.io is not None
    assert [tensor.dtype for tensor in artifact.manifest.io.inputs] == ["float32"]
    assert f"same outputs in float32 as in {name}" in [check.name for check in artifact.manifest.checks]
    after = module.state_dict(keep_vars=True)
    assert all(
        id(after[key]) == kept and torch.equal(after[key], value) for key, (kept, value) in before.items()
    )
    assert module.scale.dtype == dtype
    x = normal(7, 3, 4)
    with torch.no_grad():
        expected = module(torch.from_numpy(x).to(dtype)).float().numpy()
    tolerance = 1e-5 if dtype is torch.float64 else 8 * torch.finfo(dtype).eps
    np.testing.assert_allclose(run_file(artifact.path, x=x)["output"], expected, atol=tolerance)


def test_a_type_that_the_model_needs_is_not_taken_from_it(tmp_path: Path) -> None:
    class Fine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = nn.Parameter(torch.tensor(1e9, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return (x + self.offset) - self.offset

    with pytest.raises(
        ExportError, match="failed 'same outputs in float32 as in float64': output '0' differs"
    ):
        export(Fine(), tmp_path / "m.onnx", inputs=["x:2x3:float64"], dtype="float32")
    assert not (tmp_path / "m.onnx").exists()


def test_samples_of_float64_are_read_as_float32_and_otherwise_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=normal(6, 3, 4).astype(np.float64))
    options = {"inputs": ["x:[batch,3,4]"], "data": str(tmp_path / "x.npz")}
    done = export(model(torch.float64), tmp_path / "m.onnx", dtype="float32", **options)  # type: ignore[arg-type]
    assert "same outputs as PyTorch on the data" in [check.name for check in done.manifest.checks]
    with pytest.raises(DataError, match="is float64; float32 is required") as caught:
        export(model(torch.float32), tmp_path / "n.onnx", **options)  # type: ignore[arg-type]
    assert "astype('float32')" in caught.value.hint


def test_what_has_no_int8_is_named_with_the_way_out(tmp_path: Path) -> None:
    linear = nn.Linear(4, 2).double()
    done = export(linear, tmp_path / "m.onnx", inputs=["input:2x4:float64"])
    assert done.manifest.warnings == (
        "parameter weight is float64, which has no INT8; `dtype` float32 converts it",
    )
    with pytest.raises(ModelError) as recurrent:  # ONNX Runtime has no LSTM of float64
        export(model(torch.float64), tmp_path / "r.onnx", inputs=["x:2x3x4:float64"])
    assert "parameter first.weight is float64, which has no INT8; `dtype` float32" in recurrent.value.hint
    with pytest.raises(ExportError, match=r"Linear: parameter weight is bfloat16") as caught:
        export(nn.Linear(4, 2).bfloat16(), tmp_path / "b.onnx", inputs=["input:2x4"])
    assert "`dtype` float32" in caught.value.hint


def test_a_captured_model_and_an_onnx_file_keep_their_types(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(nn.Linear(4, 2).double(), (torch.ones(2, 4).double(),)), path)
    with pytest.raises(ExportError, match="a captured model has its types in its graph") as caught:
        export(str(path), tmp_path / "m.onnx", inputs=["input:2x4:float64"], dtype="float32", trust=True)
    assert "call .float()" in caught.value.hint
    done = export(nn.Linear(4, 2), tmp_path / "f.onnx", inputs=["input:2x4"])
    with pytest.raises(InvalidOption, match="is no PyTorch model"):
        export(str(done.path), tmp_path / "n.onnx", dtype="float32")


@pytest.mark.parametrize("verb", ["returns", "takes"])
def test_complex_inputs_and_outputs_are_named_with_module_and_line(verb: str, tmp_path: Path) -> None:
    example = "torch.ones(2, 8)" if verb == "returns" else "torch.ones(2, 8, dtype=torch.complex64)"
    (tmp_path / "model.py").write_text(f"""\
import torch


class Spectrum(torch.nn.Module):
    def forward(self, x):
        return {{"x": torch.fft.fft(x) if {verb == "returns"} else x.real}}


def build():
    return Spectrum(), ({example},)
""")
    message = f"Spectrum {verb} complex64 as x (model.py, line 5, in forward)"
    with pytest.raises(ExportError, match=re.escape(message)) as caught:
        export(f"{tmp_path}/model.py:build", tmp_path / "m.onnx")
    assert "view_as_" in caught.value.hint


def test_complex_weights_are_exported_as_pairs_of_reals(tmp_path: Path) -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8)

    export_alike(Filter(), tmp_path, ["x:[batch,8]"], {"x": normal(3, 8)}, rtol=1e-4, atol=1e-5)
