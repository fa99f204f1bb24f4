"""A program of `torch.export.save`: its inputs, its free axes, and the scales that it holds."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from written_models import normal, run_file

from qcompile.compiler.export import export
from qcompile.core.artifact import load_artifact
from qcompile.errors import InvalidOption
from qcompile.model.graph.input_notes import read_notes
from qcompile.model.graph.onnx_file import read_graph


def saved_program(path: Path, module: nn.Module, example: Any, **options: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module.eval(), *example, **options), path)
    return str(path)


def test_a_program_has_the_inputs_and_the_free_axes_that_it_was_captured_with(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, factor: Tensor) -> Tensor:
            return x * factor

    shapes = {"x": {0: torch.export.Dim("rows", min=1, max=32)}, "factor": None}
    example: Any = ((), {"x": torch.ones(4, 3), "factor": torch.ones(3)})
    program = saved_program(tmp_path / "m.pt2", Scaled(), example, dynamic_shapes=shapes)
    artifact = export(program, tmp_path / "m.onnx", trust=True)
    assert [str(tensor) for tensor in artifact.manifest.io.inputs] == [
        "x:[batch,3]:float32", "factor:3:float32",
    ]  # fmt: skip
    assert artifact.manifest.options["axes"]["batch"]["max"] == 32
    x, factor = normal(5, 3, seed=1), normal(3, seed=2)
    np.testing.assert_allclose(run_file(artifact.path, x=x, factor=factor)["output"], x * factor)


def test_a_program_of_a_nested_input_asks_for_its_inputs(tmp_path: Path) -> None:
    class Nest(nn.Module):
        def forward(self, x: dict[str, Tensor]) -> Tensor:
            return x["a"] + 1

    program = saved_program(tmp_path / "m.pt2", Nest(), (({"a": torch.ones(2)},),))
    with pytest.raises(InvalidOption, match="the model's inputs are not known"):
        export(program, tmp_path / "m.onnx", trust=True)


@pytest.mark.parametrize("opset", [14, 18])
@pytest.mark.parametrize("largest", [1000, 1 << 30])
def test_weights_lie_beside_the_file_where_they_are_too_large_for_it(
    largest: int, opset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("qcompile.compiler.export.write", "qcompile.model.graph.onnx_file"):
        monkeypatch.setattr(f"{module}.EXTERNAL_DATA_BYTES", largest)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).eval()
    artifact = export(model, tmp_path / "m.onnx", inputs=["x:[batch,64]"], opset=opset)
    graph = read_graph(artifact.path)
    assert graph.opset == opset
    assert [file.name for file in graph.beside] == (["m.onnx.data"] if largest == 1000 else [])
    assert read_notes(graph.model)["x"].example[1] == 64
    assert load_artifact(artifact.path).manifest == artifact.manifest
    x = normal(5, 64, seed=1)
    with torch.no_grad():
        expected = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(next(iter(run_file(artifact.path, x=x).values())), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_what_torchao_quantized_after_training_keeps_its_scales(tmp_path: Path) -> None:
    """The lines of docs/other_tools.md."""
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    model, example = (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)),
        torch.ones(2, 3, 8, 8),
    )
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model.eval(), (example,)).module(), quantizer)
    for seed in range(4):
        prepared(torch.from_numpy(normal(2, 3, 8, 8, seed=seed)))
    quantized = convert_pt2e(prepared)
    path = tmp_path / "int8.pt2"
    torch.export.save(torch.export.export(quantized, (example,)), path)
    artifact = export(str(path), tmp_path / "m.onnx", trust=True)
    assert artifact.manifest.precision == "int8"
    x = normal(2, 3, 8, 8, seed=9)
    expected = quantized(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(run_file(artifact.path, input=x)["output"], expected, atol=2e-3)
