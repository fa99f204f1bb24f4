"""Dynamic axes: their ranges as PyTorch finds them, checked at other extents, and kept in the file.

Extents for which PyTorch's guards hold.

Bags of one length are exported without a loop, so that every runtime takes them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from exported_models import export_alike
from torch import Tensor, nn
from written_models import normal

import qcompile
from qcompile.compiler.export import export
from qcompile.compiler.export.captured_forms import captured_forms
from qcompile.core.artifact import Artifact
from qcompile.errors import ExportError, InvalidOption, ModelError
from qcompile.model.graph.input_notes import AxisRange, InputNote, read_notes
from qcompile.model.sources.example import make_example
from qcompile.model.sources.pytorch import LoadedModel


class Halves(nn.Module):
    """Halves and doubles an image, as a U-Net does: takes even extents alone."""

    def forward(self, x: Tensor) -> Tensor:
        small = nn.functional.max_pool2d(x, 2)
        return torch.cat([nn.functional.interpolate(small, scale_factor=2.0), x], 1)


class Windows(nn.Module):
    """Sums windows of 8 steps."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1] // 8, 8).sum(2)


class Positions(nn.Module):
    """Adds one of 16 stored places to each step of a sequence: raises on 17."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, 16, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.places[:, : x.shape[1]]


class OtherWhenLarge(nn.Module):
    """Computes something else from the fifth sample on."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] < 5 else x * 3


class Sum(nn.Module):
    """Adds two inputs of one shape."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Strided(nn.Module):
    """An RNN over frames of windows: PyTorch's exporter allows the extents with as many frames as traced."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Conv1d(1, 4, 8, stride=4)
        self.rnn = nn.RNN(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.rnn(self.frames(x[:, None]).transpose(1, 2))[0]
        return states


class Recurrent(nn.Module):
    """PyTorch's exporter makes the length of an RNN static."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.RNN(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]  # type: ignore[no-any-return]


class NeverOne(nn.Module):
    """Two steps at least: raises on one."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == 1:
            raise ValueError("one step is no sequence")
        return x[:, 1:] - x[:, :-1]


def axes_of(artifact: Artifact) -> dict[str, dict[str, object]]:
    axes = artifact.manifest.options["axes"]
    assert isinstance(axes, dict)
    return axes


def test_an_image_model_takes_the_extents_that_pytorch_found_and_says_so(tmp_path: Path) -> None:
    artifact = export(Halves(), tmp_path / "m.onnx", inputs=["x:[batch,1,height=16,8]"])
    assert artifact.manifest.io is not None
    assert str(artifact.manifest.io.inputs[0]) == "x:[batch,1,height,8]:float32"
    axes = axes_of(artifact)
    assert axes["batch"] == {"min": 1, "max": None, "multiple": 1, "traced": 2}
    assert axes["height"] == {"min": 2, "max": None, "multiple": 2, "traced": 16}
    assert any("'height' takes" in text and "multiples of 2" in text for text in artifact.manifest.warnings)
    names = [check.name for check in artifact.manifest.checks]
    assert "same outputs as PyTorch at height 24" in names
    assert artifact.manifest.options["exporter"] == "dynamo"


def test_the_file_keeps_what_is_known_of_its_inputs(tmp_path: Path) -> None:
    export(Windows(), tmp_path / "m.onnx", inputs=["x:[n,steps=24..96]"])
    note = read_notes(onnx.load(tmp_path / "m.onnx"))["x"]
    assert note == InputNote((2, 24), {1: AxisRange(24, 96, 8)})


def test_a_branch_on_an_extent_is_exported_for_the_range_that_the_refusal_names(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="branches on its extent") as caught:
        export(OtherWhenLarge(), tmp_path / "m.onnx", inputs=["x:[n,2]"])
    assert "n=1..4" in caught.value.hint
    artifact = export(OtherWhenLarge(), tmp_path / "m.onnx", inputs=["x:[n=2..4,2]"])
    assert axes_of(artifact)["n"] == {"min": 2, "max": 4, "multiple": 1, "traced": 2}
    assert not artifact.manifest.warnings


def test_axes_that_the_model_adds_are_one_axis_and_move_together(tmp_path: Path) -> None:
    artifact = export(Sum(), tmp_path / "m.onnx", inputs=["a:[n,3]", "b:[m,3]"])
    assert "same outputs as PyTorch at m = n 3" in [check.name for check in artifact.manifest.checks]
    assert artifact.manifest.io is not None
    assert [tensor.shape for tensor in artifact.manifest.io.inputs] == [("n", 3), ("m", 3)]


def test_an_axis_twice_as_long_as_another_takes_multiples_of_two(tmp_path: Path) -> None:
    class Doubled(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.cat([a, a]) + b

    artifact = export(Doubled(), tmp_path / "m.onnx", inputs=["a:[n=3,3]", "b:[m=6,3]"])
    assert axes_of(artifact)["m"] == {"min": 2, "max": None, "multiple": 2, "traced": 6}
    assert axes_of(artifact)["n"]["multiple"] == 1


def test_what_the_new_exporter_makes_static_is_exported_by_the_older_one_and_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    artifact = export(Recurrent(), tmp_path / "m.onnx", inputs=["x:[batch,length=6,3]"])
    manifest = artifact.manifest
    assert manifest.options["exporter"] == "torchscript"
    assert "TorchScript-based exporter" in manifest.warnings[0]
    assert "length" in manifest.warnings[0]
    assert manifest.io is not None
    assert manifest.io.inputs[0].shape == ("batch", "length", 3)
    checked = [check.name for check in manifest.checks]
    assert {"same outputs as PyTorch at batch 1", "same outputs as PyTorch at length 9"} <= set(checked)
    assert "same outputs as PyTorch on other values" in checked


def test_a_graph_for_fewer_extents_than_were_asked_for_is_not_taken(tmp_path: Path) -> None:
    torch.manual_seed(0)
    artifact = export(Strided(), tmp_path / "m.onnx", inputs=["x:[batch,samples=40..400]"], outputs=["y"])
    assert artifact.manifest.options["exporter"] == "torchscript"
    assert "the model takes 400" in artifact.manifest.warnings[0]
    assert axes_of(artifact)["samples"]["max"] == 400
    with qcompile.load(tmp_path / "m.onnx", threads=1) as runner:
        assert runner.infer({"x": np.ones((1, 400), np.float32)})["y"].shape == (1, 99, 4)


class Reader(nn.Module):
    """Reads columns of an image with a recurrent layer, as text recognition does."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.columns = nn.Conv2d(1, 4, (6, 3), stride=2)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        columns = self.columns(x).squeeze(2)
        columns = columns.transpose(1, 2) if self.layer.batch_first else columns.permute(2, 0, 1)
        output: Tensor = self.layer(columns)[0]
        return output


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    ("kind", "options"), [(nn.LSTM, {"num_layers": 2}), (nn.GRU, {"bidirectional": True})]
)
def test_recurrent_layers_take_any_number_of_steps(
    tmp_path: Path, kind: type[nn.Module], options: dict[str, int], *, batch_first: bool
) -> None:
    torch.manual_seed(0)
    model = Reader(kind(4, 3, batch_first=batch_first, **options)).eval()
    samples = [{"x": normal(batch, 1, 6, width)} for batch, width in ((1, 5), (3, 20), (2, 61))]
    artifact = export_alike(model, tmp_path, ["x:[batch,1,6,width=20]"], *samples, rtol=1e-7, atol=1e-5)
    assert axes_of(artifact)["width"]["max"] is None
    shapes = torch.zeros(2, 5, 4)  # PyTorch's own kernels are back
    assert torch.isfinite(kind(4, 3)(shapes)[0]).all()


def test_an_lstm_that_projects_its_state_is_refused(tmp_path: Path) -> None:
    model = Reader(nn.LSTM(4, 3, proj_size=2, batch_first=True))
    with pytest.raises(ExportError, match="proj_size has no ONNX form"):
        export(model, tmp_path / "m.onnx", inputs=["x:[batch,1,6,20]"])


def test_a_limit_of_the_model_itself_is_below_what_was_asked_for(tmp_path: Path) -> None:
    model = Positions()
    artifact = export(model, tmp_path / "m.onnx", inputs=["x:[n,length=8..64,2]"])
    assert axes_of(artifact)["length"]["max"] == 16
    assert artifact.manifest.options["exporter"] == "dynamo"
    samples = [{"x": normal(3, length, 2)} for length in (1, 7, 16)]
    export_alike(model, tmp_path, ["x:[n,length,2]"], *samples, rtol=1e-7)


def test_an_extent_that_the_model_itself_refuses_is_no_failure_of_the_export(tmp_path: Path) -> None:
    artifact = export(NeverOne(), tmp_path / "m.onnx", inputs=["x:[4,steps=6]"])
    assert axes_of(artifact)["steps"]["min"] != 1
    assert "same outputs as PyTorch at steps 9" in [check.name for check in artifact.manifest.checks]


def test_extents_that_are_not_given_are_tried_until_the_model_takes_them(tmp_path: Path) -> None:
    artifact = export(nn.Conv1d(1, 1, 40), tmp_path / "m.onnx", inputs=["input:[batch,1,time]"])
    assert axes_of(artifact)["time"] == {"min": 40, "max": None, "multiple": 1, "traced": 64}


def test_one_axis_is_traced_with_one_extent_of_two_or_more() -> None:
    sum_of_two = LoadedModel(Sum(), None)
    example = make_example(sum_of_two, ["a:1x3", "b:1x3"], ["a:0=n", "b:0=n"])
    assert example.extents == {"n": 2}, "PyTorch specializes 1"
    assert make_example(sum_of_two, ["a:[n=1..8,3]", "b:[n=5..9,3]"], []).extents == {"n": 5}
    for inputs, message in (
        (["a:[n=4,3]", "b:[n=6,3]"], "axis 'n': traced with 4 in one input, 6 in another"),
        (["a:[n=1..4,3]", "b:[n=5..9,3]"], "axis 'n': minimum 5 in one input, maximum 4 in another"),
    ):
        with pytest.raises(InvalidOption, match=message):
            make_example(sum_of_two, inputs, [])


def test_offsets_stay_in_order_at_other_extents() -> None:
    offsets = torch.tensor([[0, 2, 7], [0, 0, 9]])
    example = make_example(LoadedModel(Sum(), (offsets, offsets.flip(1))), [], ["a:1=n", "b:1=m"])
    feeds = example.at({"n": 5, "m": 5})
    np.testing.assert_array_equal(feeds["a"], [[0, 0, 2, 2, 7], [0, 0, 0, 0, 9]])
    np.testing.assert_array_equal(feeds["b"], [[7, 2, 0, 7, 2], [9, 0, 0, 9, 0]])


def test_data_is_what_is_traced_and_compared_in_place_of_random_input(tmp_path: Path) -> None:
    class Logarithm(nn.Module):
        """Raises on what data never holds."""

        def forward(self, x: Tensor) -> Tensor:
            if not torch.compiler.is_exporting() and bool((x <= 0).any()):
                raise ValueError("no logarithm")
            return x.log()

    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).uniform(1, 2, (5, 7)).astype(np.float32))
    with pytest.raises(ModelError, match=r"on random input x \(2x16\)") as caught:
        export(Logarithm(), tmp_path / "m.onnx", inputs=["x:[batch,steps]"])
    assert "`data`" in caught.value.hint
    artifact = export(
        Logarithm(), tmp_path / "m.onnx", inputs=["x:[batch,steps]"], data=str(tmp_path / "data.npz")
    )
    assert axes_of(artifact)["steps"]["traced"] == 7
    assert artifact.manifest.checks[-1].name == "same outputs as PyTorch on the data"


def test_a_made_up_length_that_leaves_one_frame_is_made_larger(tmp_path: Path) -> None:
    class Frames(nn.Module):
        """Has one frame up to 99 steps, which it treats otherwise than several."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv1d(1, 1, 50, 50)

        def forward(self, x: Tensor) -> Tensor:
            frames = self.inner(x)
            return frames if frames.shape[2] == 1 else frames - frames.mean(2, keepdim=True)

    artifact = export(Frames(), tmp_path / "m.onnx", inputs=["x:[batch,1,time]"])
    assert axes_of(artifact)["time"] == {"min": 100, "max": None, "multiple": 1, "traced": 128}
    assert any("below 100" in text for text in artifact.manifest.warnings)


@pytest.mark.parametrize(("mode", "reduction"), [("mean", "ReduceMean"), ("sum", "ReduceSum")])
def test_bags_of_one_length_are_a_lookup_and_a_reduction(mode: str, reduction: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.EmbeddingBag(50, 16, mode=mode), nn.Linear(16, 4))
    artifact = export(model, tmp_path / "m.onnx", inputs=["x:[batch,7]:int64"])  # compared at several batches
    operators = [node.op_type for node in onnx.load(artifact.path).graph.node]
    assert reduction in operators
    assert not {"Loop", "SequenceEmpty"} & set(operators)
    shapes = {"min_shapes": {"x": (1, 7)}, "opt_shapes": {"x": (2, 7)}, "max_shapes": {"x": (4, 7)}}
    built = qcompile.build(
        artifact.path, tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"], **shapes
    )
    assert built.manifest.proof["layers_by_precision"] == {"fp32": {"MATRIX_MULTIPLY": 1}}


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
@pytest.mark.parametrize("padding", [None, 3, -1])
def test_bags_are_what_pytorch_computes(mode: str, padding: int | None) -> None:
    bag, indices = nn.EmbeddingBag(21, 16, mode=mode, padding_idx=padding), torch.arange(21).reshape(3, 7)
    to_the_end = nn.EmbeddingBag(21, 16, mode=mode, padding_idx=padding, include_last_offset=True)
    weights = torch.rand(3, 7) if mode == "sum" else None
    offsets = torch.tensor([0, 3, 3, 4, 20, 21])  # the second is empty, the third has the padding alone
    original = nn.functional.embedding_bag

    def computed() -> list[Tensor]:
        flat = None if weights is None else weights.flatten()
        several = [layer(indices.flatten(), offsets, per_sample_weights=flat) for layer in (bag, to_the_end)]
        return [bag(indices, per_sample_weights=weights), *several]

    expected = computed()
    with captured_forms():
        torch.testing.assert_close(computed(), expected)
    assert nn.functional.embedding_bag is original


class Clicks(nn.Module):
    """Dense features beside bags of several lengths, as recommenders read them."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(50, 16, mode="sum")
        self.dense, self.top = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, dense: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        return torch.as_tensor(self.top(torch.relu(self.dense(dense)) * self.bags(indices, offsets)))


def test_bags_of_several_lengths_have_no_loop_and_every_target_reads_them(tmp_path: Path) -> None:
    inputs = ["dense:[batch,8]", "indices:[n=9]:int64", "offsets:[batch]:int64"]
    generator = np.random.default_rng(0)
    lengths = [4, 0, 5]
    samples = {
        "dense": generator.standard_normal((3, 8), np.float32),
        "indices": generator.integers(0, 50, sum(lengths)),
        "offsets": np.cumsum([0, *lengths[:-1]]),
    }
    (tmp_path / "data.py").write_text(f"from numpy import *\ndef data(): yield {samples!r}\n")
    data = f"{tmp_path / 'data.py'}:data"
    artifact = export(Clicks(), tmp_path / "m.onnx", inputs=inputs, data=data)
    assert not {"Loop", "SequenceEmpty"} & {node.op_type for node in onnx.load(artifact.path).graph.node}
    qcompile.build(artifact.path, tmp_path / "o.onnx", target="openvino", data=data)
    shapes = {name: values.shape for name, values in samples.items()}
    built = qcompile.build(
        artifact.path, tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"],
        min_shapes=shapes, opt_shapes=shapes, max_shapes=shapes, precision="fp16", data=data,
    )  # fmt: skip
    assert built.path.stat().st_size
