"""`export --data` needs no shapes: samples tell the inputs that nobody spelled, and the axes that vary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from qcompile.compiler.export import export
from qcompile.compiler.export.data_axes import varying_axes
from qcompile.core.artifact import Artifact
from qcompile.engines.tensorrt.builder.configure import make_profiles
from qcompile.errors import DataError, ExportError, InvalidOption
from qcompile.model.graph.input_notes import InputNote, read_notes, with_samples
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensors import TensorInfo


class Reader(nn.Module):
    """Tokens with a mask and features, and a context of another length."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(50, 4), nn.Linear(6, 8)

    def forward(
        self, ids: Tensor, mask: Tensor, features: Tensor, context: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        hidden = self.mix(torch.cat([self.embed(ids) * mask[..., None], features], -1))
        scores = hidden @ context.transpose(1, 2)
        return (scores if bias is None else scores + bias).softmax(-1) @ context


class Pooled(nn.Module):
    """Images of any size to five classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))


class Positions(nn.Module):
    """A length that the weights fix."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.ones(1, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.positions


def texts() -> Iterator[dict[str, Any]]:
    for index in range(3):
        batch, length, words = 2 + index, 5 + index, 9 - index
        yield {
            "ids": torch.arange(batch * length).reshape(batch, length) % 50,
            "mask": np.ones((batch, length), np.float32),
            "features": torch.rand(batch, length, 2),
            "context": torch.rand(batch, words, 8),
        }


def tuples() -> Iterator[tuple[Any, ...]]:
    return (tuple(sample.values()) for sample in texts())


def labelled() -> Any:
    images, labels = torch.rand(20, 3, 16, 16), torch.arange(20) % 5
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=8)


def sizes() -> Iterator[tuple[Tensor, Tensor]]:
    return ((torch.rand(2, 3, height, height + 8), torch.zeros(2)) for height in (16, 24, 40))


def too_short() -> Iterator[Tensor]:
    return (torch.rand(2, length, 8) for length in (16, 12))


def nothing() -> Iterator[Tensor]:
    return iter(())


def exported(module: nn.Module, samples: str, path: Path, **options: Any) -> Artifact:
    return export(module, path / "model.onnx", data=f"{__file__}:{samples}", **options)


def shapes(artifact: Artifact) -> dict[str, list[Any]]:
    return {tensor.name: list(tensor.shape) for tensor in artifact.manifest.io.inputs}


@pytest.mark.parametrize("samples", ["texts", "tuples"])
def test_four_inputs_need_no_option_but_the_data(samples: str, tmp_path: Path) -> None:
    module = Reader().eval()
    artifact = exported(module, samples, tmp_path)
    assert shapes(artifact) == {
        "ids": ["batch", "ids_1"],
        "mask": ["batch", "ids_1"],
        "features": ["batch", "ids_1", 2],
        "context": ["batch", "context_1", 8],
    }
    for feeds in texts():
        tensors = {name: torch.as_tensor(value) for name, value in feeds.items()}
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        (found,) = onnxruntime.InferenceSession(str(artifact.path)).run(None, arrays)
        np.testing.assert_allclose(found, module(**tensors).detach(), rtol=1e-5, atol=1e-6)
    (told,) = [check.detail for check in artifact.manifest.checks if "vary" in check.name]
    assert told == "ids_1 (ids:1, mask:1, features:1) 5 to 7; context_1 (context:1) 7 to 9"


@pytest.mark.parametrize(
    ("samples", "expected"),
    [("labelled", ["batch", 3, 16, 16]), ("sizes", ["batch", 3, "x_2", "x_3"])],
)
@pytest.mark.parametrize("spelled", [(), ["x:1x3x16x16"]])
def test_images_with_labels(samples: str, expected: list[Any], spelled: Any, tmp_path: Path) -> None:
    """What is spelled is what the user wants, and is not loosened."""
    if spelled:
        with pytest.raises(DataError, match="1x3x16x16 is required"):
            exported(Pooled(), samples, tmp_path, inputs=spelled)
    else:
        assert shapes(exported(Pooled(), samples, tmp_path)) == {"x": expected}


def test_an_axis_that_the_model_fixes_is_refused_with_what_the_data_has(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="x_1 cannot be dynamic") as caught:
        exported(Positions(), "too_short", tmp_path)
    assert "give that axis a number" in caught.value.hint
    assert caught.value.hint.endswith("data varies in x_1 (x:1) 12 to 16")


def test_data_without_samples_tells_no_inputs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no samples"):
        exported(Pooled(), "nothing", tmp_path)
    with pytest.raises(InvalidOption, match="inputs are not known") as caught:
        export(Pooled(), tmp_path / "model.onnx")
    assert "`data`" in caught.value.hint


@pytest.mark.parametrize(
    ("inputs", "seen", "dynamic", "expected"),
    [
        # What the user named takes the others with it.
        ({"x": (2, 5), "mask": (2, 5)}, {"x": [(2, 5), (3, 5)], "mask": [(2, 5), (3, 5)]}, ["x:0=rows"],
         {("mask", 0): "rows"}),
        # A square: both axes of one input stay apart, PyTorch finds what is equal.
        ({"a": (4, 4)}, {"a": [(4, 4), (6, 6)]}, [], {("a", 0): "batch", ("a", 1): "a_1"}),
        # The same axis of another input comes before an earlier one.
        ({"a": (1, 3, 3), "b": (1, 3, 3)}, {"a": [(1, 3, 3), (1, 5, 5)], "b": [(1, 3, 3), (1, 5, 5)]}, [],
         {("a", 1): "a_1", ("a", 2): "a_2", ("b", 1): "a_1", ("b", 2): "a_2"}),
        # A first axis differs from the example's; another that does, without varying, does not fit.
        ({"x": (1, 7)}, {"x": [(4, 7), (4, 7)]}, [], {("x", 0): "batch"}),
        ({"x": (4, 7)}, {"x": [(4, 7), (4, 7)]}, [], {}),
        ({"x": (4, 7), "y": ()}, {"x": [(4, 7), (4, 8)]}, [], {("x", 1): "x_1"}),
    ],
)  # fmt: skip
def test_axes_and_their_names(
    inputs: dict[str, Any], seen: dict[str, Any], dynamic: list[str], expected: dict[tuple[str, int], str]
) -> None:
    tensors = [TensorInfo(name, "float32", shape) for name, shape in inputs.items()]
    assert varying_axes(tensors, seen, dynamic) == expected


@given(
    st.integers(1, 3).flatmap(
        lambda rank: st.lists(st.tuples(*[st.integers(1, 4)] * rank), min_size=1, max_size=5)
    )
)
def test_just_the_axes_that_vary_are_found(rows: list[tuple[int, ...]]) -> None:
    found = varying_axes([TensorInfo("x", "float32", rows[0])], {"x": rows}, [])
    assert {axis for _, axis in found} == {
        axis for axis in range(len(rows[0])) if len({row[axis] for row in rows}) > 1
    }


def test_a_profile_holds_the_extents_of_the_data(tmp_path: Path) -> None:
    artifact = exported(Reader(), "texts", tmp_path)
    notes = read_notes(onnx.load(artifact.path))
    (ranges,) = make_profiles(artifact.manifest.io.inputs, BuildSpec(target="tensorrt"), notes=notes)
    found = {item.name: (item.min, item.opt, item.max) for item in ranges}
    assert found["ids"] == ((1, 1), (8, 6), (16, 7))
    assert found["context"] == ((1, 1, 8), (8, 8, 8), (16, 9, 8))


def test_samples_of_the_build_widen_a_profile() -> None:
    """A file from elsewhere has no notes: without samples its shapes must be given."""
    tensor = TensorInfo("x", "float32", ("batch", "length"))
    samples = [{"x": np.zeros((32, length), np.float32)} for length in (5, 90, 7)]
    with pytest.raises(InvalidOption, match="no shapes are given"):
        make_profiles([tensor], BuildSpec(target="tensorrt"))
    ((found,),) = make_profiles(
        [tensor], BuildSpec(target="tensorrt"), notes=with_samples({}, [tensor], samples)
    )
    assert (found.min, found.opt, found.max) == ((1, 1), (32, 7), (64, 90))
    before = {"x": InputNote((2, 6), seen={0: (2, 2, 2), 1: (3, 6, 120)})}
    ((found,),) = make_profiles(
        [tensor], BuildSpec(target="tensorrt"), notes=with_samples(before, [tensor], samples)
    )
    assert (found.min, found.opt, found.max) == ((1, 1), (8, 6), (32, 120))
