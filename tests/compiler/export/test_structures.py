"""Inputs and outputs inside structures, caches, training mode and random models.

A failed export says which operator, in which module, at which line of the user's own file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from written_models import run_file

from qcompile.compiler.export import export
from qcompile.compiler.export.write import explain_export_failure
from qcompile.compiler.simplify.simplify import simplify
from qcompile.errors import ExportError, InvalidOption, ModelError
from qcompile.model.sources.load import load_torch
from qcompile.model.sources.source import parse_source

SOURCE = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Batch:
    image: torch.Tensor
    sizes: tuple

class Mixed(nn.Module):
    def forward(self, batch, scale, flip=True):
        total = batch.image * scale["factor"] + batch.sizes[0] - batch.sizes[1]
        return {"total": total if flip else -total, "inner": {"first": total.sum(-1)}, "absent": None}

def mixed():
    batch = Batch(torch.rand(2, 3), (torch.rand(2, 1), torch.rand(2, 1)))
    return Mixed(), (batch, {"factor": torch.full((2, 1), 2.0)}, False)

class OfDict(nn.Module):
    def forward(self, batch):
        return batch["image"] + batch["meta"]["age"]

def of_dict():
    return OfDict(), {"image": torch.rand(2, 3), "meta": {"age": torch.rand(2, 1)}}

class Left(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.9)

    def forward(self, x):
        return self.drop(x)

def left_in_training():
    return Left(), torch.rand(2, 3)

def odd():
    return Left().eval(), {"x": object()}
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A file of models with examples."""
    path = tmp_path / "models.py"
    path.write_text(SOURCE)
    return str(path)


def test_inputs_and_outputs_in_structures_are_named_by_path(source: str, tmp_path: Path) -> None:
    artifact = export(f"{source}:mixed", tmp_path / "m.onnx")
    assert artifact.manifest.io is not None
    names = ["batch.image", "batch.sizes_0", "batch.sizes_1", "scale.factor"]
    assert [tensor.name for tensor in artifact.manifest.io.inputs] == names
    ones = np.ones((2, 1), np.float32)
    feeds = dict(zip(names, (np.ones((2, 3), np.float32), ones, 3 * ones, 5 * ones), strict=True))
    outputs = run_file(artifact.path, **feeds)
    assert list(outputs) == ["total", "inner.first"]
    np.testing.assert_array_equal(outputs["total"], np.full((2, 3), -(5 + 1 - 3), np.float32))


def test_an_axis_of_an_input_in_a_structure_is_made_dynamic_by_its_path(source: str, tmp_path: Path) -> None:
    artifact = export(
        f"{source}:of_dict", tmp_path / "m.onnx", inputs=["batch.image:[n,3]", "batch.meta.age:[n,1]"]
    )
    image, age = np.ones((5, 3), np.float32), np.ones((5, 1), np.float32)
    np.testing.assert_array_equal(
        run_file(artifact.path, **{"batch.image": image, "batch.meta.age": age})["output"], image + 1
    )


class Named(nn.Module):
    """Returns what it takes, under the names of its inputs, and one tensor twice."""

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        y = torch.relu(x) * mask
        return {"x": x, "mask": y, "mask_out": y}


@pytest.mark.parametrize("dynamic", [(), ("x:0=batch", "mask:0=batch")])
def test_an_output_that_has_the_name_of_an_input_or_is_one_gets_another_name(
    dynamic: tuple[str, ...], tmp_path: Path
) -> None:
    inputs = ["x:2x3", "mask:2x3"]
    artifact = export(Named(), tmp_path / "m.onnx", inputs=inputs, dynamic=dynamic)
    simple = simplify(artifact.path, tmp_path / "s.onnx").path
    x, mask = np.float32([[1, -2, 3], [4, 5, -6]]), np.float32([[1, 1, 0], [0, 1, 1]])
    for path in (artifact.path, simple):
        outputs = run_file(path, x=x, mask=mask)
        assert list(outputs) == ["x_out", "mask_out_out", "mask_out"]
        np.testing.assert_array_equal(outputs["x_out"], x)
        for name in ("mask_out_out", "mask_out"):
            np.testing.assert_array_equal(outputs[name], np.maximum(x, 0) * mask)
    assert [text for text in artifact.manifest.warnings if "is written as" in text] == [
        f"output {name!r} is written as {unique!r}: an input has its name; `outputs` gives another"
        for name, unique in (("x", "x_out"), ("mask", "mask_out_out"))
    ]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [(["a", "x", "b"], "'x': an input has that name"), (["a", "b", "a"], "'a': another output has")],
)
def test_a_spelled_name_that_an_input_or_another_output_has_is_refused_before_the_export(
    outputs: list[str], message: str, tmp_path: Path
) -> None:
    steps: list[str] = []
    with pytest.raises(InvalidOption, match=message):
        export(
            Named(), tmp_path / "m.onnx", inputs=["x:2x3", "mask:2x3"], outputs=outputs,
            progress=steps.append,
        )  # fmt: skip
    assert steps == ["load the model"]


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [("of_dict", ["image:[n,3]"], r"inputs are batch\.image, batch\.meta\.age"),
     ("odd", [], "example: x is object")],
)  # fmt: skip
def test_a_place_that_is_not_there_and_a_foreign_object_are_named(
    model: str, inputs: list[str], message: str, source: str, tmp_path: Path
) -> None:
    with pytest.raises((ExportError, InvalidOption), match=message):
        export(f"{source}:{model}", tmp_path / "m.onnx", inputs=inputs)


def test_a_model_in_training_mode_is_exported_in_evaluation_mode_with_a_word(
    source: str, tmp_path: Path
) -> None:
    artifact = export(f"{source}:left_in_training", tmp_path / "m.onnx")
    assert any("training mode" in text for text in artifact.manifest.warnings)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(run_file(artifact.path, x=x)["output"], x)


class Memory:
    """A cache, as text models return it: no tensor."""


class Cached(nn.Module):
    """Returns a cache beside its output, unless its configuration says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": x * 2, "cache": Memory()} if self.config.use_cache else {"logits": x * 2}


def test_a_cache_is_left_out_where_the_configuration_allows_it_and_comes_back(tmp_path: Path) -> None:
    model = Cached()
    artifact = export(model, tmp_path / "m.onnx", inputs=["x:[n,3]"])
    assert artifact.manifest.io is not None
    assert [tensor.name for tensor in artifact.manifest.io.outputs] == ["logits"]
    assert any("use_cache=False" in text for text in artifact.manifest.warnings)
    assert model.config.use_cache


def test_any_other_object_among_the_outputs_is_named_with_its_place(tmp_path: Path) -> None:
    model = Cached()
    del model.config.use_cache
    model.forward = lambda x: {"logits": x, "state": {"inner": Memory()}}  # type: ignore[method-assign]
    with pytest.raises(ExportError, match=r"returned Memory \(output state\.inner\)") as caught:
        export(model, tmp_path / "m.onnx", inputs=["x:2x3"])
    assert "wrap the model" in caught.value.hint


@dataclass
class Found:
    """What a detector returns."""

    boxes: Tensor
    scores: list[Tensor]


def test_a_dataclass_that_pytorch_does_not_know_is_taken_apart(tmp_path: Path) -> None:
    class Detector(nn.Module):
        def forward(self, x: Tensor) -> Found:
            return Found(x * 4, [x.sum(1), x.mean(1)])

    artifact = export(Detector(), tmp_path / "m.onnx", inputs=["x:[n,3]"])
    assert list(run_file(artifact.path, x=np.ones((2, 3), np.float32))) == ["boxes", "scores_0", "scores_1"]


def test_a_wrong_export_of_a_steady_model_names_the_random_input(tmp_path: Path) -> None:
    class Frozen(nn.Module):
        """A branch on a value, which a trace freezes."""

        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if torch.compiler.is_exporting() else x * 3

    with pytest.raises(ModelError, match="failed 'same outputs as PyTorch'") as caught:
        export(Frozen(), tmp_path / "m.onnx", inputs=["x:2x3"])
    assert "random" not in caught.value.message
    assert "x is made up" in caught.value.hint


INEXPRESSIBLE = """
import torch
from torch import nn

class Eigen(nn.Module):
    def forward(self, x):
        return torch.linalg.eigvals(x).real  # no ONNX form

class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # depends on data
            return x * 2
        return x - 1

class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.body = nn.Sequential(nn.ReLU(), inner)

    def forward(self, x):
        return self.body(self.head(x))

def eigen():
    return Outer(Eigen())

def branch():
    return Outer(Branch())

class Neither(nn.Module):
    def forward(self, x):
        if x.abs().sum() > 0:
            return torch.linalg.eigvals(x).real
        return x

def neither():
    return Neither()

def either():
    return Branch()
"""


@pytest.fixture
def inexpressible(tmp_path: Path) -> Path:
    """A file with models that cannot become ONNX."""
    path = tmp_path / "models.py"
    path.write_text(INEXPRESSIBLE)
    return path


def line_of(comment: str) -> int:
    """The line of INEXPRESSIBLE that ends with a comment."""
    return next(n for n, line in enumerate(INEXPRESSIBLE.splitlines(), 1) if line.endswith(comment))


@pytest.mark.parametrize(
    ("function", "message", "comment", "hints", "data"),
    [
        ("eigen", "operator aten.linalg_eig in module body.1 (Eigen) has no ONNX form", "# no ONNX form",
         ("replace the operator",), {"operator": "aten.linalg_eig", "module": "body.1 (Eigen)"}),
        ("branch", "branches on a value of its input", "# depends on data",
         ("torch.where", "`freeze_branches`"), {"reason": "values"}),
    ],
)  # fmt: skip
def test_what_cannot_be_expressed_is_named_with_its_module_and_line(
    function: str, message: str, comment: str, hints: tuple[str, ...], data: dict[str, str],
    inexpressible: Path, tmp_path: Path,
) -> None:  # fmt: skip
    output = tmp_path / "out" / "m.onnx"
    with pytest.raises(ExportError) as caught:
        export(f"{inexpressible}:{function}", output, inputs=["x:4x4"])
    assert list(output.parent.iterdir()) == []
    assert message in caught.value.message
    assert f"(models.py, line {line_of(comment)}, in forward)" in caught.value.message
    assert all(hint in caught.value.hint for hint in hints)
    assert data.items() <= caught.value.data.items()


def test_a_branch_that_the_user_freezes_is_exported_and_its_place_is_said(
    inexpressible: Path, tmp_path: Path
) -> None:
    output = tmp_path / "m.onnx"
    module = load_torch(parse_source(f"{inexpressible}:branch")).module
    made = export(module, output, inputs=["x:4x4"], freeze_branches=True)
    assert made.manifest.options["exporter"] == "torchscript"
    place = f"models.py:{line_of('# depends on data')}"
    assert [text for text in made.manifest.warnings if text.startswith("frozen as") and place in text]
    x = np.random.default_rng(3).normal(size=(4, 4)).astype(np.float32)
    (found,) = onnxruntime.InferenceSession(output).run(None, {"x": x})
    with torch.no_grad():
        np.testing.assert_allclose(found, module(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_where_neither_exporter_can_both_reasons_are_said_and_no_graph_is_printed(
    inexpressible: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExportError, match=r"branches on a value .*; PyTorch's TorchScript-based exporter: "):
        export(f"{inexpressible}:neither", tmp_path / "m.onnx", inputs=["x:4x4"], freeze_branches=True)
    assert "graph" not in capfd.readouterr().out


def test_a_frozen_branch_that_a_sample_does_not_take_is_refused(inexpressible: Path, tmp_path: Path) -> None:
    x = np.ones((2, 4, 4), np.float32)
    x[1] = -3.0  # takes the other way: -4 in place of -6
    np.savez(tmp_path / "both.npz", x=x.reshape(8, 4))
    with pytest.raises(ModelError, match=r"output '.*' differs"):
        export(
            f"{inexpressible}:either", tmp_path / "m.onnx", inputs=["x:4x4"], freeze_branches=True,
            data=str(tmp_path / "both.npz"),
        )  # fmt: skip
    assert not (tmp_path / "m.onnx").exists()


def test_an_error_of_ours_passes_through_unchanged() -> None:
    error = InvalidOption("as it was")
    assert explain_export_failure(error, "model") is error


def test_an_error_that_nobody_knows_keeps_its_type_and_first_line() -> None:
    try:
        try:
            raise KeyError("deep down")
        except KeyError as deep:
            raise RuntimeError("the outer words") from deep
    except RuntimeError as error:
        explained = explain_export_failure(error, "net.py:build")
    assert explained.message.startswith("net.py:build: the exporter failed with KeyError: 'deep down' (test_")
