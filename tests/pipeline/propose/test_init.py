"""`init`: what a recipe follows from, and that it is read and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import qcompile
from qcompile.errors import InvalidOption
from qcompile.pipeline.propose.choose import ArtifactChoice, DataFacts, Machine, Omission, batch_size
from qcompile.pipeline.propose.init import InitResult, init
from qcompile.pipeline.propose.model_facts import ModelFacts
from qcompile.spec.tensors import TensorInfo

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 5)
    def forward(self, image):
        return self.head(self.conv(image).mean((2, 3)))

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)
    def forward(self, tokens, weights):
        return self.head((self.embed(tokens) * weights[..., None]).sum(1))

def build():
    torch.manual_seed(0)
    return Net()

def with_example():
    return Net(), (torch.zeros(2, 3, 8, 8),)

def pair():
    return Pair()

class Then(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.net, self.function = build(), function
    def forward(self, image):
        return self.function(self.net(image))

def label():
    return Then(lambda scores: scores.argmax(-1))

def unit():
    return Then(nn.functional.normalize)
"""
DATA = """
import numpy as np

def samples():
    generator = np.random.default_rng(0)
    for _ in range(4):
        yield generator.standard_normal((8, 3, 8, 8)).astype(np.float32), generator.integers(0, 5, 8)

def pairs():
    for _ in range(4):
        yield {"tokens": np.zeros((2, 6), np.int64), "weights": np.ones((2, 6), np.float32)}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model and data."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "data.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def proposed(*arguments: str, **options: object) -> InitResult:
    return init(*arguments, force=True, **options)  # type: ignore[arg-type]


def test_inputs_labels_and_reasons_come_from_model_and_data(folder: Path) -> None:
    done = proposed("model.py:build", data="data.py:samples", targets=["onnxruntime"], max_drop=0.5)
    recipe = done.recipe
    assert recipe.model.inputs == ("image:[batch,3,8,8]",)
    assert (recipe.data.calibration, recipe.data.evaluation) == ("data.py:samples", "data.py:samples")
    assert [one.name for one in recipe.artifact] == ["onnx-fp32", "onnx-int8"]
    assert recipe.bench is not None
    assert (recipe.bench.metric, recipe.bench.max_drop, recipe.bench.batch_size) == ("top1", 0.5, 16)
    for line in done.text.splitlines():
        if line.startswith(("inputs", "calibration", "evaluation", "metric", "batch_size", "max_time_s")):
            assert "  # " in line, f"no reason: {line}"
    assert qcompile.read_recipe(folder / "recipe.toml").bench == recipe.bench


@pytest.mark.usefixtures("folder")
def test_the_metric_follows_from_what_the_outputs_hold() -> None:
    chosen = [proposed(f"model.py:{model}", data="data.py:samples") for model in ("label", "unit")]
    qcompile.export("model.py:label", "label.onnx", inputs=["image:[batch,3,8,8]"])
    chosen.append(proposed("label.onnx", data="data.py:samples"))
    assert [done.data.metric for done in chosen] == ["f1:micro", "cosine", "f1:micro"]


@pytest.mark.usefixtures("folder")
def test_without_data_there_is_no_static_int8_and_a_comment_says_what_data_would_add() -> None:
    done = proposed("model.py:with_example", targets=["onnxruntime", "openvino"])
    precisions = {(one.target, one.precision) for one in done.recipe.artifact}
    assert precisions <= {("onnxruntime", "fp32"), ("openvino", "fp32"), ("openvino", "bf16")}
    assert "static INT8: it needs samples to calibrate on" in done.text
    assert done.recipe.model.inputs == ("image:[batch,3,8,8]",), "its example, with the batch left open"
    assert done.recipe.data.evaluation == ""


@pytest.mark.parametrize(
    ("function", "asked"),
    [("build", "image:[batch,3,HEIGHT,WIDTH]"), ("pair", "`inputs` tokens:[batch,...] and `inputs` weights")],
)
@pytest.mark.usefixtures("folder")
def test_inputs_that_cannot_be_known_are_named(function: str, asked: str) -> None:
    with pytest.raises(InvalidOption, match="the shapes of its inputs are not known") as error:
        proposed(f"model.py:{function}")
    assert asked in error.value.hint


@pytest.mark.parametrize(
    ("model", "data", "inputs", "metric"),
    [
        ("build", "d.npz", ("image:[batch,3,8,8]",), "top1"),
        ("build", "images?preprocessing=cifar10", ("image:[batch,3,32,32]",), "top1"),
        ("pair", "data.py:pairs", ("tokens:[batch,6]:int64", "weights:[batch,6]"), "cosine"),
    ],
)
def test_samples_tell_the_inputs_and_their_types_and_labels_the_metric(
    model: str, data: str, inputs: tuple[str, ...], metric: str, folder: Path
) -> None:
    from PIL import Image

    np.savez(folder / "d.npz", image=np.zeros((6, 3, 8, 8), np.float32), labels=np.arange(6) % 5)
    for index in range(8):
        path = folder / "images" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (30 * index, 0, 0)).save(path)
    done = proposed(f"model.py:{model}", data=data, targets=["onnxruntime"])
    assert done.recipe.model.inputs == inputs
    assert (done.data.has_labels, done.data.metric) == (metric == "top1", metric)
    assert ("onnx-int8-dynamic" in [one.name for one in done.recipe.artifact]) == (model == "pair")
    part = "" if data.startswith("data.py") else f"{'&' if '?' in data else '?'}part=evaluation"
    assert done.recipe.data.evaluation == f"{data}{part}"


@pytest.mark.usefixtures("folder")
def test_inputs_that_are_given_win() -> None:
    given = "image:[batch,3,height=8..64,width=8..64]"
    done = proposed("model.py:build", inputs=[given], targets=["tensorrt-rtx"])
    assert done.recipe.model.inputs == (given,)
    engine = done.recipe.artifact[0]
    assert engine.gpus
    assert engine.shapes("min_shapes") == {"image": (1, 3, 8, 8)}
    assert engine.shapes("max_shapes") == {"image": (16, 3, 64, 64)}


def test_samples_of_several_shapes_are_measured_one_by_one(folder: Path) -> None:
    """The recipe for sounds of two lengths measured batches of four, which `run` refused."""
    (folder / "sounds.py").write_text(
        "import numpy as np\n\ndef read():\n    for size in (8, 8, 16):\n"
        "        yield {'image': np.ones((1, 3, size, size), np.float32)}\n"
    )
    given = ["image:[batch,3,height=8..64,width=8..64]"]
    done = proposed("model.py:build", data="sounds.py:read", inputs=given, targets=["onnxruntime"])
    assert done.recipe.bench is not None
    assert done.recipe.bench.batch_size == 1
    assert "the samples differ in shape" in done.text
    fixed = replace(facts("convolution"), inputs=(TensorInfo("x", "float32", (4, 3, "height")),))
    assert batch_size(fixed, is_ragged=True) == (4, "the model takes no other")


def test_a_model_with_a_state_is_measured_on_a_sample_as_it_is(folder: Path) -> None:
    """The first axis of the state, its layers, was taken for the batch of a trained AECMOS."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
        g (float[batch,5,3] x, float[2,1,4] h) => (float[5,2,n,4] y)
        { s = Transpose <perm = [1, 0, 2]> (x)
        y = GRU <hidden_size = 4, direction = "bidirectional"> (s, w, r, , , h) }"""
    model = onnx.parser.parse_model(text)
    weights = {"w": np.ones((2, 12, 3), np.float32), "r": np.ones((2, 12, 4), np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, name) for name, w in weights.items())
    onnx.save(model, folder / "gru.onnx")
    (folder / "sounds.py").write_text(
        "import numpy as np\n\ndef read():\n    for seed in range(3):\n"
        "        x = np.random.default_rng(seed).random((1, 5, 3), np.float32)\n"
        "        yield {'x': x, 'h': np.zeros((2, 1, 4), np.float32)}\n"
    )
    state = np.zeros((2, 1, 4), np.float32)
    np.savez(folder / "one.npz", x=np.ones((1, 5, 3), np.float32), h=state)
    assert proposed("gru.onnx", data="one.npz", targets=["onnxruntime"]).data.shared == "same"
    done = proposed("gru.onnx", data="sounds.py:read", targets=["onnxruntime"], max_time_s=1.0, trust=True)
    assert done.recipe.bench is not None
    assert done.recipe.bench.batch_size == 1
    assert qcompile.run(folder / "recipe.toml", trust=True).results


def test_a_graph_that_holds_its_scales_is_not_calibrated(
    tiny_file: Callable[..., Path], samples: Callable[..., Path]
) -> None:
    """`run` failed: no operator would be quantized."""
    model, data = tiny_file("residual"), samples("residual", 16)
    quantized, ranges = model.with_name("quantized.onnx"), model.with_name("m.ranges")
    qcompile.calibrate(model, str(data), ranges)
    qcompile.quantize(model, quantized, ranges=str(ranges))
    recipe = quantized.with_name("r.toml")
    done = proposed(str(quantized), str(recipe), data=str(data), targets=["onnxruntime"], max_time_s=1.0)
    assert done.recipe.data.calibration == ""
    assert done.recipe.data.evaluation
    assert not qcompile.run(recipe).failures


def test_an_onnx_file_needs_no_pytorch_and_is_its_own_baseline(
    tiny_file: Callable[..., Path], samples: Callable[..., Path]
) -> None:
    model, data = tiny_file("residual"), samples("residual", 16)
    done = proposed(str(model), str(model.with_name("r.toml")), data=str(data), targets=["onnxruntime"])
    recipe = done.recipe
    assert (recipe.model.source, recipe.model.inputs) == ("residual.onnx", ())
    assert recipe.bench is not None
    assert recipe.bench.baseline == "onnx-fp32"
    assert (recipe.bench.batch_size, done.data.samples) == (8, 10), "no more than are evaluated"
    assert "10 samples, with labels" in done.text
    parts = [spec.rpartition("?")[2] for spec in (recipe.data.calibration, recipe.data.evaluation)]
    assert parts == ["part=calibration", "part=evaluation"], "one file serves both"


def test_paths_are_those_of_the_recipes_folder_whatever_its_name(folder: Path) -> None:
    done = proposed("model.py:build", str(folder / "sub/recipe.toml"), data="data.py:samples")
    assert done.recipe.model.source == "../model.py:build"
    assert done.recipe.data.evaluation == "../data.py:samples"
    odd = folder / 'a "quoted" # name'
    odd.mkdir()
    (odd / "model.py").write_text(MODEL)
    done = proposed(f"{odd}/model.py:with_example", str(odd / "recipe.toml"), targets=["onnxruntime"])
    assert done.recipe.model.source == "model.py:with_example"


def test_a_second_recipe_in_a_folder_gets_an_output_of_its_own(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[project]")
    outputs = [
        qcompile.init("model.py:with_example", folder / name, force=True).recipe.output
        for name in ("recipe.toml", "b.toml", "recipe.toml")
    ]
    assert outputs == ["out", "out-b", "out"]


def test_an_existing_recipe_is_kept_unless_forced(folder: Path) -> None:
    (folder / "recipe.toml").write_text("mine")
    with pytest.raises(InvalidOption, match="exists already"):
        init("model.py:with_example")
    assert (folder / "recipe.toml").read_text() == "mine"
    proposed("model.py:with_example")
    assert "model.py:with_example" in (folder / "recipe.toml").read_text()


IMAGE = TensorInfo("x", "float32", ("batch", 3, 8, 8))


def facts(*kinds: str, precision: str = "fp32") -> ModelFacts:
    from qcompile.model.sources.source import Source

    source = Source("m.onnx", "onnx", Path("m.onnx"))
    return ModelFacts(source, "m", (IMAGE,), {}, kinds=frozenset(kinds), precision=precision)


@pytest.mark.usefixtures("folder")
def test_learners_are_proposed_for_onnx_runtime_alone() -> None:
    """Of scikit-learn no other runtime has the operators: a recipe with these would fail."""
    tensors = [onnx.helper.make_tensor_value_info(name, 1, ["n", 3]) for name in ("x", "y")]
    scaler = onnx.helper.make_node(
        "Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.0] * 3, scale=[2.0] * 3
    )
    graph = onnx.helper.make_graph([scaler], "learner", tensors[:1], tensors[1:])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), "learner.onnx")
    done = proposed("learner.onnx")
    assert [one.name for one in done.recipe.artifact] == ["onnx-fp32"]
    assert "openvino: it has no Scaler of ai.onnx.ml" in done.text
    named = proposed("learner.onnx", targets=["openvino"])
    assert {one.target for one in named.recipe.artifact} == {"openvino"}


CPU = Machine({"tensorrt": Omission("tensorrt", "no GPU")}, emulates_bf16="it has no bf16")


def names(model: ModelFacts, *, data: str = "", machine: Machine = CPU, **options: object) -> list[str]:
    choice = ArtifactChoice(model, DataFacts(calibration=data), machine, **options)  # type: ignore[arg-type]
    return [one.name for one in choice.artifacts]


def test_what_is_proposed_follows_from_layers_data_and_machine() -> None:
    cnn, bert = facts("convolution", "product"), facts("attention", "product")
    assert names(cnn) == ["onnx-fp32", "openvino-fp32"]
    assert names(cnn, gpus=["sm86"]) == ["onnx-fp32", "openvino-fp32", "rtx-fp16"]
    assert names(cnn, data="d", gpus=["sm86"]) == [
        "onnx-fp32", "onnx-int8", "openvino-int8", "rtx-fp16", "rtx-int8",
    ]  # fmt: skip
    assert "onnx-int8-dynamic" in names(bert)
    assert "onnx-int8-dynamic" in names(facts("recurrent"))
    lstm = names(facts("recurrent"), data="d", gpus=["sm86"])
    assert lstm == ["onnx-fp32", "onnx-int8-dynamic", "openvino-fp32", "rtx-fp16", "rtx-int8"]
    assert names(facts(), data="d") == ["onnx-fp32", "openvino-fp32"]
    assert names(facts("attention"), data="d") == ["onnx-fp32", "openvino-fp32"], "a softmax has no weights"
    assert "onnx-int8-dynamic" not in names(facts("convolution", "attention"))
    assert names(facts("convolution", precision="int8")) == ["onnx-int8", "openvino-int8"]
    gpu = Machine({}, gpu="sm90")
    assert {"openvino-bf16", "trt-fp16", "rtx-fp16"} <= set(names(cnn, machine=gpu))
    assert names(cnn, data="d", targets=["openvino"]) == ["openvino-int8"]


@pytest.mark.parametrize(
    ("nodes", "kinds"),
    [
        ("c = Conv (x, w) s = Softmax (c) y = Relu (s)", {"convolution", "attention"}),
        ("t = Transpose <perm = [0, 1, 3, 2]> (x) y = MatMul (x, t)", set()),
        ("v = Identity (p) y = MatMul (x, v)", {"product"}),
    ],
)
def test_dynamic_int8_is_proposed_only_for_products_with_weights(
    folder: Path, nodes: str, kinds: set[str]
) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[batch,3,8,8] x) => (float[a,b,c,d] y) {{ {nodes} }}"""
    model = onnx.parser.parse_model(text)
    weights = {"w": np.ones((4, 3, 3, 3), np.float32), "p": np.ones((8, 8), np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, name) for name, w in weights.items())
    onnx.save(model, folder / "m.onnx")
    done = proposed("m.onnx", targets=["onnxruntime"])
    assert done.model.kinds == kinds
    assert ("onnx-int8-dynamic" in [item.name for item in done.choice.artifacts]) == ("product" in kinds)


def test_engines_are_built_for_the_gpu_asked_for_or_here_or_the_usual() -> None:
    cnn = facts("convolution")
    for machine, asked, expected in (
        (Machine({}), (), ["sm86", "sm89"]),
        (Machine({}, gpu="sm90"), (), ["sm90"]),
        (Machine({}, gpu="sm90"), ("sm120",), ["sm120"]),
    ):
        choice = ArtifactChoice(cnn, DataFacts(), machine, gpus=asked, targets=["tensorrt-rtx"])
        assert {key: value for key, value, _ in choice.artifacts[0].lines}["gpus"] == expected


def test_what_is_missing_is_named_with_what_installs_it() -> None:
    missing = Omission("openvino", "is not here", "pip it"), Omission("tensorrt", "no GPU")
    bare = Machine({item.what: item for item in missing})
    left_out = ArtifactChoice(facts("convolution"), DataFacts(), bare).left_out
    assert {"openvino: is not here; pip it", "tensorrt: no GPU"} <= set(map(str, left_out))
    assert any(str(item).startswith("tensorrt-rtx: this machine has no GPU; name") for item in left_out)
    (said,) = (
        str(item)
        for item in ArtifactChoice(facts("recurrent"), DataFacts("d"), CPU).left_out
        if item.what.startswith("static")
    )
    assert said.startswith("static INT8 for onnxruntime, openvino: it takes no recurrent layer; ")


def test_a_captured_program_tells_its_inputs_and_their_dynamic_axes(folder: Path) -> None:
    import torch

    class Scaled(torch.nn.Module):
        def forward(self, image: torch.Tensor, scale: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return image * scale * mask

    batch = torch.export.Dim("batch", min=1, max=64)
    image = torch.zeros(2, 3, 8)
    example = image, torch.ones(1, dtype=torch.float64), torch.ones_like(image, dtype=torch.bool)
    shapes = {"image": {0: batch}, "scale": None, "mask": {0: batch}}
    torch.export.save(torch.export.export(Scaled(), example, dynamic_shapes=shapes), folder / "net.pt2")
    done = proposed("net.pt2", targets=["onnxruntime"], trust=True)
    assert done.recipe.model.inputs == ("image:[batch,3,8]", "scale:1:float64", "mask:[batch,3,8]:bool")


@pytest.mark.parametrize(
    ("multiply_adds", "samples", "batch"),
    [(0, None, 1), (10**9, None, 1), (5 * 10**8, None, 2), (10**8, None, 8), (1, None, 16), (1, 6, 4)],
)
def test_a_batch_is_enough_work_and_no_more(multiply_adds: int, samples: int | None, batch: int) -> None:
    assert batch_size(replace(facts("product"), multiply_adds=multiply_adds), samples)[0] == batch
