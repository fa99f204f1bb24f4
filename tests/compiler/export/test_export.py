"""Every MODEL becomes an ONNX file that computes what PyTorch computes, or nothing appears at all.

TorchScript archives as MODEL: traced, scripted and frozen, with branches, loops, defaults and dicts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torchscript_models import Branching, Convolutions, TwoNamed
from written_models import normal, run_file

from qcompile.compiler.export import export
from qcompile.errors import ExportError, InvalidOption, ModelError
from qcompile.progress import quiet


class Pair(nn.Module):
    """A dict of two outputs from two inputs, of which the second is a keyword."""

    def forward(self, left: Tensor, *, right: Tensor) -> dict[str, Tensor]:
        return {"total": left + right, "ratio": left / (right * right + 1)}


class Nested(nn.Module):
    """Outputs inside a structure without names."""

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        return x + 1, [x * 2]


class Random(nn.Module):
    """Computes something else each time."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Fixed(nn.Module):
    """Takes two rows and two columns, no other number."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.ones(2, 2)


def test_a_dynamic_batch_is_named_and_equal_to_pytorch_at_extents_it_was_not_traced_with(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5)).eval()
    artifact = export(module, tmp_path / "m.onnx", inputs=["x:[batch,3,4,4]"], outputs=["scores"])
    assert artifact.manifest.io is not None
    assert artifact.manifest.io.inputs[0].shape == ("batch", 3, 4, 4)
    assert artifact.manifest.io.outputs[0].shape == ("batch", 5)
    assert [check.name for check in artifact.manifest.checks][1:] == [
        "same outputs as PyTorch at batch 1",
        "same outputs as PyTorch at batch 3",
    ]
    for batch in (1, 2, 7):
        x = normal(batch, 3, 4, 4)
        expected = module(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(run_file(artifact.path, x=x)["scores"], expected, rtol=1e-4, atol=1e-5)


def test_two_inputs_keyword_arguments_and_a_dict_keep_their_names(tmp_path: Path) -> None:
    artifact = export(Pair(), tmp_path / "m.onnx", inputs=["right:[n,3]", "left:[n,3]"])
    left, right = normal(4, 3, seed=1), normal(4, 3, seed=2)
    outputs = run_file(artifact.path, left=left, right=right)
    assert list(outputs) == ["total", "ratio"]
    np.testing.assert_allclose(outputs["total"], left + right, rtol=1e-6)
    np.testing.assert_allclose(outputs["ratio"], left / (right * right + 1), rtol=1e-5)


def test_outputs_without_names_are_numbered(tmp_path: Path) -> None:
    artifact = export(Nested(), tmp_path / "m.onnx", inputs=["x:2x3"])
    assert list(run_file(artifact.path, x=normal(2, 3))) == ["output_0", "output_1"]


def test_given_output_names_must_be_as_many_as_the_outputs(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="1 output names for 2 outputs"):
        export(Nested(), tmp_path / "m.onnx", inputs=["x:2x3"], outputs=["only"])


def test_a_program_saved_by_torch_export_is_taken(tmp_path: Path) -> None:
    module = nn.Linear(4, 3).eval()
    torch.export.save(torch.export.export(module, (torch.ones(2, 4),)), tmp_path / "m.pt2")
    artifact = export(str(tmp_path / "m.pt2"), tmp_path / "m.onnx", inputs=["x:2x4"])
    x = normal(2, 4)
    expected = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(run_file(artifact.path, x=x)["output"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("suffix", [".pt2", ".pt"])
def test_inputs_given_in_another_order_than_forward_has_keep_their_meaning(
    suffix: str, tmp_path: Path
) -> None:
    class Difference(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return left - right

    program, example = str(tmp_path / f"m{suffix}"), (torch.ones(2, 3), torch.ones(2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if suffix == ".pt2":
            torch.export.save(torch.export.export(Difference(), example), program)
        else:
            torch.jit.save(torch.jit.trace(Difference(), example), program)
    artifact = export(program, tmp_path / "m.onnx", inputs=["right:2x3", "left:2x3"])
    left, right = normal(2, 3, seed=1), normal(2, 3, seed=2)
    np.testing.assert_array_equal(run_file(artifact.path, left=left, right=right)["output"], left - right)


def test_an_onnx_file_is_taken_as_it_is(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    model = tiny_file("residual", opset=15)
    artifact = export(str(model), tmp_path / "copy.onnx")
    assert artifact.path.read_bytes() == model.read_bytes()
    assert artifact.manifest.options["opset"] == 15


@pytest.mark.parametrize("opset", [13, 17, 23])
def test_the_opset_asked_for_is_the_opset_written(opset: int, tmp_path: Path) -> None:
    artifact = export(nn.Linear(4, 3), tmp_path / "m.onnx", inputs=["x:2x4"], opset_version=opset)
    imports = {item.domain: item.version for item in onnx.load(artifact.path).opset_import}
    assert imports[""] == opset == artifact.manifest.options["opset"]


def test_an_opset_that_the_exporter_does_not_reach_is_an_error_with_the_one_it_does(tmp_path: Path) -> None:
    class Sampled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.grid_sample(x, torch.zeros(1, 4, 4, 2), align_corners=False)

    with pytest.raises(ExportError, match=r"opset 14 was asked for; .* reached 18") as caught:
        export(Sampled(), tmp_path / "m.onnx", inputs=["x:1x2x4x4"], opset_version=14)
    assert "`opset` 18" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_an_opset_out_of_range_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"opset 12: 13 to 23"):
        export("nowhere.py:build", tmp_path / "m.onnx", opset_version=12)


def test_a_random_model_fails_the_comparison_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="same outputs as PyTorch") as caught:
        export(Random(), tmp_path / "m.onnx", inputs=["x:2x3"])
    assert "randomness" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", ["[n,2]", "[2,n]"])
def test_an_axis_that_the_model_fixes_is_an_error_and_not_a_static_file(shape: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="dynamic"):
        export(Fixed(), tmp_path / "m.onnx", inputs=[f"x:{shape}"])
    assert list(tmp_path.iterdir()) == []


def test_unknown_inputs_are_asked_for_with_an_example(torch_model: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="inputs are not known") as caught:
        export(torch_model, tmp_path / "m.onnx")
    assert "`inputs` NAME:SHAPE, such as x:1x3x224x224" in caught.value.hint
    assert caught.value.data["option"] == "inputs"


def test_the_data_is_compared_too(torch_model: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=normal(4, 3, 8, 8))
    artifact = export(
        torch_model, tmp_path / "m.onnx", inputs=["x:[n,3,8,8]"], data=str(tmp_path / "data.npz")
    )
    assert artifact.manifest.checks[-1].name == "same outputs as PyTorch on the data"


def save(path: Path, module: Any, make: str, *arguments: torch.Tensor) -> Path:
    """Write an archive as its users do: "trace", "script", or either frozen."""
    module = module.eval()
    with quiet():
        made = (
            torch.jit.trace(module, arguments, strict=False) if "trace" in make else torch.jit.script(module)
        )
        torch.jit.save(torch.jit.freeze(made) if "freeze" in make else made, str(path))
    return path


@pytest.mark.parametrize(
    ("module", "make", "shape", "x"),
    [
        *((Convolutions(), make, "3,8,8", torch.randn(5, 3, 8, 8))
          for make in ("trace", "script", "trace freeze", "script freeze")),
        *((Branching(), "script", "4", sign * torch.rand(3, 4) + sign) for sign in (1, -1)),
    ],
)  # fmt: skip
def test_an_archive_becomes_onnx_with_its_branches_loops_and_defaults(
    module: nn.Module, make: str, shape: str, x: Tensor, tmp_path: Path
) -> None:
    path = save(tmp_path / "m.pt", module, make, torch.zeros_like(x[:2]))
    export(str(path), tmp_path / "m.onnx", inputs=[f"x:[batch,{shape}]"])
    [actual] = run_file(tmp_path / "m.onnx", x=x.numpy()).values()
    with torch.no_grad():
        np.testing.assert_allclose(actual, module.eval()(x).numpy(), atol=1e-5)


def test_a_dict_of_outputs_keeps_its_names(tmp_path: Path) -> None:
    ids = torch.ones(2, 5, dtype=torch.int64)
    path = save(tmp_path / "m.pt", TwoNamed(), "trace", ids, ids)
    inputs = ["ids:[batch,length]:int64", "mask:[batch,length]:int64"]
    artifact = export(str(path), tmp_path / "m.onnx", inputs=inputs)
    assert artifact.manifest.io is not None
    assert [str(one) for one in artifact.manifest.io.outputs] == [
        "hidden:[batch,length,4]:float32", "pooled:[batch,4]:float32",
    ]  # fmt: skip


def test_pickled_weights_are_no_archive(tmp_path: Path) -> None:
    torch.save(Convolutions().state_dict(), tmp_path / "m.pt")
    with pytest.raises(ModelError, match="not a TorchScript archive") as caught:
        export(str(tmp_path / "m.pt"), tmp_path / "m.onnx", inputs=["x:[1,3,8,8]"])
    assert "model.py:build" in caught.value.hint
