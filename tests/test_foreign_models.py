"""The whole road: real networks of old opsets by other exporters, and a Transformer's encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qcompile
from qcompile.errors import QCompileError, UnsupportedOperator
from qcompile.model.graph.graph import weighted_nodes
from qcompile.model.graph.onnx_file import read_graph, read_weightless

SMALL = ("squeezenet",)
LARGE = "shufflenet inception_v1 inception_v2 resnet50 densenet121 bvlc_alexnet zfnet512 vgg19".split()


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_a_model_of_an_old_opset_goes_down_the_whole_road(
    name: str, light_models: dict[str, Path], tmp_path: Path
) -> None:
    """Simplify, calibrate, quantize for both targets, build both, compare."""
    model = light_models[name]
    (tensor,) = read_weightless(model).io.inputs
    x = np.random.default_rng(0).standard_normal((2, *tensor.shape[1:])).astype(np.float32)
    data = tmp_path / "x.npz"
    np.savez(data, **{tensor.name: x})
    simple = qcompile.simplify(model, tmp_path / "simple.onnx")
    assert simple.manifest.warnings == ()
    ranges = qcompile.calibrate(simple.path, str(data), tmp_path / "model.ranges")
    for target, engine in (("onnxruntime", "onnxruntime"), ("tensorrt", "tensorrt-rtx")):
        int8 = qcompile.quantize(
            simple.path, tmp_path / f"{target}.onnx", ranges=ranges.path, target=target, data=str(data)
        )
        planned = weighted_nodes(read_graph(int8.path).load())["int8"]
        assert len(planned) >= 20 or model.stem.endswith(("alexnet", "zfnet512", "vgg19"))
        built = qcompile.build(
            int8.path,
            tmp_path / f"built-{target}{'.onnx' if engine == 'onnxruntime' else '.engine'}",
            target=engine,
            precision="int8",
            gpus=["sm86"] if engine == "tensorrt-rtx" else [],
        )
        assert built.manifest.proof["reached_in_precision"] == len(planned)
    assert qcompile.diff(str(simple.path), str(tmp_path / "built-onnxruntime.onnx"), data=str(data))


def test_an_unsimplified_file_is_built_and_not_calibrated(
    light_models: dict[str, Path], tmp_path: Path
) -> None:
    """Here weights are made by nodes at run time: only `simplify` turns them into weights."""
    model = light_models["squeezenet"]
    np.savez(tmp_path / "x.npz", data_0=np.ones((1, 3, 224, 224), np.float32))
    with pytest.raises(QCompileError, match="simplify first"):
        qcompile.calibrate(model, str(tmp_path / "x.npz"), tmp_path / "m.ranges")
    built = qcompile.build(model, tmp_path / "b.onnx", target="onnxruntime")
    assert built.manifest.proof["reached_in_precision"] == 26


def test_a_graph_for_onnxruntime_is_refused_by_the_tensorrt_parser_with_its_node(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_file("residual")
    ranges = qcompile.calibrate(model, str(samples("residual")), tmp_path / "m.ranges")
    qcompile.quantize(model, tmp_path / "q.onnx", ranges=ranges.path, target="onnxruntime")
    with pytest.raises(UnsupportedOperator, match="DequantizeLinear"):
        qcompile.build(
            tmp_path / "q.onnx", tmp_path / "q.engine", target="tensorrt-rtx", precision="int8", gpus=["sm86"]
        )


SOURCE = """
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.place = nn.Parameter(torch.randn(1, 16, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # copies: equal weights
        self.head = nn.Linear(64, 7)

    def forward(self, ids, mask):
        x = self.layers(self.embed(ids) + self.place, src_key_padding_mask=mask == 0)
        return {"logits": self.head(x.mean(1))}


def build():
    torch.manual_seed(0)
    return Encoder()


def samples():
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        ids = torch.randint(0, 100, (4, 16), generator=generator)
        yield {"ids": ids, "mask": torch.ones(4, 16, dtype=torch.int64)}
"""


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the exported, simplified and calibrated encoder."""
    folder = tmp_path_factory.mktemp("encoder")
    (folder / "encoder.py").write_text(SOURCE)
    data, inputs = f"{folder}/encoder.py:samples", ["ids:[batch,16]:int64", "mask:[batch,16]:int64"]
    qcompile.export(f"{folder}/encoder.py:build", folder / "m.onnx", inputs=inputs, data=data)
    simple = qcompile.simplify(folder / "m.onnx", folder / "s.onnx", data=data)
    assert simple.manifest.warnings == ()
    qcompile.calibrate(folder / "s.onnx", data, folder / "m.ranges")
    return folder


@pytest.mark.parametrize(
    ("name", "least_db", "options"),
    [
        ("static", 30, {"target": "onnxruntime"}),
        ("tensorrt", 30, {"target": "tensorrt"}),
        ("dynamic", 25, {"mode": "dynamic"}),
        ("half", 50, {"precision": "fp16"}),
    ],
)
def test_every_mode_keeps_the_signal(name: str, least_db: float, options: dict[str, str], road: Path) -> None:
    ranges = road / "m.ranges" if name in ("static", "tensorrt") else None
    data = f"{road}/encoder.py:samples"
    artifact = qcompile.quantize(road / "s.onnx", road / f"{name}.onnx", ranges=ranges, data=data, **options)  # type: ignore[arg-type]
    assert float(artifact.manifest.checks[0].detail.split(" dB")[0]) > least_db


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_tensorrt_rtx_builds_it_in_every_precision(precision: str, road: Path) -> None:
    built = qcompile.build(
        road / "s.onnx", road / f"{precision}.engine", target="tensorrt-rtx", precision=precision,
        ranges=road / "m.ranges", gpus=["sm86"], layers={"*": "int8"} if precision == "int8" else {},
    )  # fmt: skip
    assert built.manifest.proof["layers_by_precision"] == {precision: {"MATRIX_MULTIPLY": 13}}


def test_the_int8_model_agrees_with_pytorch(road: Path) -> None:
    qcompile.build(
        road / "s.onnx", road / "cpu.onnx", target="onnxruntime", precision="int8", ranges=road / "m.ranges"
    )
    source = f"{road}/encoder.py"
    assert qcompile.diff(f"{source}:build", str(road / "cpu.onnx"), data=f"{source}:samples")


GRAPH = """
import numpy as np
import torch
from torch import nn


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(8, 32), nn.Linear(32, 6)

    def forward(self, x, segments):
        scores = self.head(torch.relu(self.embed(x))) + segments.mean()
        masked = scores.masked_fill(torch.arange(6) > 3, torch.finfo(torch.float32).min)
        return {"scores": masked, "active": scores > 0, "empty": scores[:, :0], "average": scores.mean()}


def build():
    torch.manual_seed(0)
    return Graph(), (torch.randn(40, 8), torch.zeros(7))


def samples():
    random = np.random.default_rng(0)
    yield {"x": random.normal(size=(40, 8)).astype(np.float32), "segments": np.zeros(7, np.float32)}
"""


def test_a_graph_with_masked_scores_and_bools_goes_down_the_whole_road(tmp_path: Path) -> None:
    """Its first axes are no batch; neither masks nor bools are a signal."""
    source, data = tmp_path / "graph.py", f"{tmp_path}/graph.py:samples"
    source.write_text(GRAPH)
    inputs = ["x:[nodes,8]", "segments:[segments]"]
    qcompile.export(f"{source}:build", tmp_path / "m.onnx", inputs=inputs, data=data)
    model = qcompile.simplify(tmp_path / "m.onnx", tmp_path / "s.onnx", data=data).path
    ranges = qcompile.calibrate(model, data, tmp_path / "m.ranges", samples=1).path
    int8 = qcompile.build(
        model, tmp_path / "int8.onnx", target="onnxruntime", precision="int8", ranges=ranges, data=data
    )
    half = qcompile.quantize(model, tmp_path / "half.onnx", precision="fp16", data=data)
    for artifact, least_db, most_db in ((int8, 30, 50), (half, 55, 85)):
        found = qcompile.diff(f"{source}:build", str(artifact.path), data=data)
        scores, active, empty, _ = found.outputs
        assert found.samples == 40
        assert least_db < scores.snr_db < most_db
        assert scores.criterion.endswith("; 80 masked values left out")
        assert scores.passed
        assert empty.passed
        assert (active.rule, active.agreement) == ("labels", pytest.approx(1, abs=0.05))


UNET = """
from dataclasses import dataclass
import torch
from torch import nn


@dataclass
class Output:
    sample: torch.Tensor


class UNet(nn.Module):
    '''As those of diffusers: the step is a scalar, and the output has the name of an input.'''

    def __init__(self):
        super().__init__()
        self.inside, self.outside = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)
        self.time, self.text = nn.Linear(16, 16), nn.Linear(8, 16)

    def forward(self, sample, timestep, encoder_hidden_states):
        if timestep.ndim == 0:
            timestep = timestep[None]
        angles = timestep.expand(sample.shape[0])[:, None] * torch.exp(-torch.arange(8) * 1.15)[None]
        shift = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        shift = shift + self.text(encoder_hidden_states).mean(1)
        return Output(self.outside(torch.relu(self.inside(sample) + shift[:, :, None, None])))


def build():
    torch.manual_seed(0)
    return UNet(), (torch.randn(2, 4, 8, 8), torch.tensor(3), torch.randn(2, 5, 8))


def samples():
    generator = torch.Generator().manual_seed(1)
    for step in range(4):
        count = 1 + step % 3
        sample = torch.randn(count, 4, 8, 8, generator=generator)
        text = torch.randn(count, 5, 8, generator=generator)
        yield {"sample": sample, "timestep": torch.tensor(10 * step), "encoder_hidden_states": text}
"""


def test_a_scalar_input_stays_a_scalar_on_the_whole_road(tmp_path: Path) -> None:
    (tmp_path / "unet.py").write_text(UNET)
    source, data = f"{tmp_path}/unet.py:build", f"{tmp_path}/unet.py:samples"
    axes = [f"{name}:0=batch" for name in ("sample", "encoder_hidden_states")]
    qcompile.export(source, tmp_path / "m.onnx", dynamic=axes, data=data)
    simple = qcompile.simplify(tmp_path / "m.onnx", tmp_path / "s.onnx", data=data).path
    ranges = qcompile.calibrate(simple, data, tmp_path / "m.ranges").path
    qcompile.quantize(simple, tmp_path / "q.onnx", ranges=ranges, data=data, search=False)
    for target in ("onnxruntime", "openvino", "tensorrt-rtx"):
        precision, for_rtx = ("fp16", ["sm86"]) if target == "tensorrt-rtx" else ("int8", [])
        built = qcompile.build(
            simple, tmp_path / f"{target}.{'engine' if for_rtx else 'onnx'}", target=target,
            precision=precision, ranges=ranges, data=data, gpus=for_rtx,
        )  # fmt: skip
        assert built.manifest.io is not None
        assert built.manifest.io.inputs[1].shape == ()
    for name in ("m", "s", "q"):
        model = read_weightless(tmp_path / f"{name}.onnx")
        assert [tensor.shape for tensor in model.io.inputs if tensor.name == "timestep"] == [()]
    assert qcompile.diff(source, str(tmp_path / "onnxruntime.onnx"), data=data)
