"""Engines are found by name, load what their manifest says, and say why they do not run on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from simulated_torch_cuda import install

from qcompile.building.build import build
from qcompile.core.files import manifest_path
from qcompile.core.installation import install_hint
from qcompile.engines import load
from qcompile.engines.base import BuildRequest, Engine
from qcompile.engines.build import build_engine
from qcompile.engines.gpu import device_text, parse_device, parse_devices, why_no_gpu, why_not_gpu
from qcompile.engines.onnx_runtime import engine as onnx_runtime
from qcompile.engines.onnx_runtime import runner as on_gpu
from qcompile.engines.onnx_runtime.runner import CPU, CUDA, placement_notes
from qcompile.engines.pytorch import MODES, PyTorch, PyTorchRunner
from qcompile.engines.pytorch import runner as home
from qcompile.engines.registry import engine, engine_of, names
from qcompile.errors import ArtifactError, EngineUnavailable, InvalidOption, MissingFile
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.words import PRECISIONS

MakePath = Callable[..., Path]

Feeds = dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]


@pytest.fixture
def optimized(tiny_file: MakePath, tmp_path: Path) -> Path:
    """The tiny mlp, built for ONNX Runtime."""
    return build(tiny_file("mlp"), tmp_path / "built.onnx", target="onnxruntime").path


@pytest.fixture
def engine_file(tiny_file: MakePath, tmp_path: Path) -> Path:
    """The tiny mlp, built for a GPU that is not here."""
    return build(tiny_file("mlp"), tmp_path / "built.engine", target="tensorrt-rtx", gpus=["sm86"]).path


def feeds(batch: int = 2) -> Feeds:
    """Feeds of the tiny mlp."""
    return {"x": np.random.default_rng(0).standard_normal((batch, 16)).astype(np.float32)}


def change(path: Path, **entries: object) -> None:
    """Change entries of a manifest."""
    manifest = json.loads(manifest_path(path).read_text())
    assert entries.keys() <= manifest.keys()
    manifest_path(path).write_text(json.dumps(manifest | entries))


def test_changes_are_refused_unless_trusted(optimized: Path, engine_file: Path, tiny_file: MakePath) -> None:
    optimized.write_bytes(tiny_file("mlp").read_bytes())
    engine_file.write_bytes(b"\0" + engine_file.read_bytes()[1:])
    for path in (optimized, engine_file):
        with pytest.raises(ArtifactError, match="differs from its manifest's") as caught:
            load(path)
        assert caught.value.data["file"] == path
    with load(optimized, trust=True) as runner:
        assert runner.infer(feeds())["y"].shape == (2, 8)


def test_what_has_no_manifest_that_can_be_read_is_refused(optimized: Path, engine_file: Path) -> None:
    manifest_path(optimized).write_text("{")
    with pytest.raises(ArtifactError, match="not a manifest"):
        load(optimized)
    manifest_path(engine_file).unlink()
    with pytest.raises(ArtifactError, match=r"has no manifest \(built\.engine\.json\)"):
        load(engine_file)


def test_a_model_optimized_by_another_onnxruntime_is_refused(optimized: Path) -> None:
    change(optimized, tools={"onnxruntime": "1.0.0"})
    with pytest.raises(ArtifactError, match=r"optimized by ONNX Runtime 1\.0\.0; this is ") as caught:
        load(optimized)
    assert "build it again" in caught.value.hint


@pytest.mark.parametrize(
    ("features", "architecture", "lacking"), [(["avx", "quantum"], None, "quantum"), ([], "sparc", "sparc")]
)
def test_a_model_optimized_for_another_processor_is_refused(
    features: list[str], architecture: str | None, lacking: str, optimized: Path
) -> None:
    device = json.loads(manifest_path(optimized).read_text())["device"]
    device |= {"features": features, "architecture": architecture or device["architecture"]}
    change(optimized, device=device)
    with pytest.raises(ArtifactError, match=f"optimized for a processor with .*{lacking}.* lacks"):
        load(optimized)


without_gpu = pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")


@without_gpu
def test_an_engine_without_its_gpu_is_refused_with_the_reason(engine_file: Path) -> None:
    with pytest.raises(EngineUnavailable, match="cannot run here") as caught:
        load(engine_file)
    assert caught.value.data["reason"] == why_not_gpu(0) == why_no_gpu()
    assert caught.value.data["engine"] == "tensorrt-rtx"
    assert "NVIDIA GPU" in caught.value.hint


def test_a_file_that_is_missing_or_of_no_known_kind_is_an_error(optimized: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingFile) as caught:
        load(optimized.with_name("bulit.onnx"))
    assert "built.onnx" in caught.value.hint
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InvalidOption, match="is none of"):
        load(tmp_path / "notes.txt")


def test_the_engine_follows_from_its_manifest(engine_file: Path, optimized: Path, torch_model: str) -> None:
    assert engine_of(str(engine_file)) == "tensorrt-rtx"
    assert engine_of(str(optimized)) == "onnxruntime"
    assert engine_of(torch_model) == "pytorch"
    change(engine_file, target="tensorrt")
    assert engine_of(str(engine_file)) == "tensorrt"


NEEDED = {
    "onnxruntime": "fp32 fp16 bf16 int8 int4",
    "openvino": "fp32 fp32 fp32 int8 int4",
    "tensorrt-rtx": "fp32 fp32 fp16 bf16 int8 fp8 int4 nvfp4 mxfp8",
    "torchscript": "fp32 fp32 fp32 fp32 fp32",
}
"""Engine that can build here to the precision its graph must have for each of its precisions."""


def test_an_engine_knows_its_name_says_why_it_cannot_and_what_its_graph_must_be() -> None:
    assert names() == ("onnxruntime", "openvino", "tensorrt-rtx", "tensorrt", "torchscript", "pytorch")
    for name in names():
        found = engine(name)
        assert isinstance(found, Engine)
        assert found.name == name
        assert found.takes in ("onnx", "pytorch")
        assert found.fix() or not found.why_not_run()
        assert set(found.precisions) <= set(PRECISIONS)
        if name in NEEDED:
            assert found.why_not_build() == ""
            assert found.suffix.startswith(".")
            needed = [found.graph_precision(precision) for precision in found.precisions]
            assert needed == NEEDED[name].split()


def test_an_unknown_name_is_refused() -> None:
    for name, hint in (("onnx-runtime", "did you mean 'onnxruntime'?"), ("zzz", "")):
        said = f"target '{name}' is unknown; known are onnxruntime"
        with pytest.raises(InvalidOption, match=said) as caught:
            engine(name)
        assert (caught.value.hint, caught.value.data["option"]) == (hint, "target")


def test_the_registry_imports_no_runtime() -> None:
    program = (
        "import sys; from qcompile.engines.registry import names; names(); "
        "print(sorted({'onnxruntime', 'torch', 'tensorrt_rtx', 'tensorrt', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not engine("tensorrt").why_not_build(), reason="TensorRT builds here")
def test_an_engine_that_cannot_build_says_so_before_it_looks_at_the_model(tmp_path: Path) -> None:
    request = BuildRequest("nowhere.onnx", tmp_path / "out" / "m.engine", BuildSpec(target="tensorrt"))
    with pytest.raises(EngineUnavailable, match="target tensorrt cannot build here: ") as caught:
        build_engine(engine("tensorrt"), request)
    assert caught.value.data["engine"] == "tensorrt"
    assert caught.value.data["reason"] == engine("tensorrt").why_not_build()
    assert caught.value.hint
    assert not (tmp_path / "out").exists()


@given(st.none() | st.integers(0, 999))
def test_devices_are_read_as_they_are_written(number: int | None) -> None:
    assert parse_device(device_text(number)) == number


@given(st.text(max_size=8) | st.sampled_from(["cuda:", "cuda:-1", "CPU", "gpu"]))
def test_any_other_text_is_refused(text: str) -> None:
    assume(text not in ("cpu", "cuda") and not text.removeprefix("cuda:").isdecimal())
    with pytest.raises(InvalidOption, match="cpu, cuda or cuda:NUMBER is required"):
        parse_device(text)


def test_the_processor_and_one_gpu_may_be_measured_together() -> None:
    assert parse_devices(["cpu", "cuda"]) == (None, 0)
    for texts in (["cuda:0", "cuda:1"], ["cpu", "cpu"], ["cuda", "cuda:0"]):
        with pytest.raises(InvalidOption, match="the processor and one GPU, each once"):
            parse_devices(texts)


@without_gpu
def test_runtimes_say_why_they_cannot_use_a_gpu(tiny_file: MakePath, torch_model: str) -> None:
    for mode in MODES:
        with pytest.raises(EngineUnavailable, match="cannot run on GPU 1 here") as caught:
            PyTorch().open_in_mode(torch_model, mode, device=1)
        assert caught.value.data["reason"] == engine("pytorch").why_not_run_on_gpu(1)
        assert "`devices` cpu" in caught.value.hint
    for device in (0, "cuda", "cuda:0"):
        with pytest.raises(EngineUnavailable, match="cannot run on GPU 0 here: this ONNX Runtime") as caught:
            load(tiny_file("mlp"), device=device)
        assert "onnxruntime-gpu" in caught.value.hint


def test_the_processor_may_be_named(tiny_file: MakePath, torch_model: str) -> None:
    x = np.ones((1, 16), np.float32)
    with load(tiny_file("mlp"), device="cpu") as runner, load(tiny_file("mlp")) as usual:
        np.testing.assert_array_equal(runner.infer({"x": x})["y"], usual.infer({"x": x})["y"])
    with load(torch_model, device="cpu") as runner:
        assert runner.contains == "host to host: one forward()"


def test_engines_refuse_a_wrong_device(engine_file: Path, tiny_file: MakePath, tmp_path: Path) -> None:
    built = build(tiny_file("mlp"), tmp_path / "o.onnx", target="openvino").path
    with pytest.raises(InvalidOption, match="openvino supports none of them"):
        load(built, device="cuda")
    with pytest.raises(InvalidOption, match="tensorrt-rtx runs on a GPU, not on the processor"):
        load(engine_file, device="cpu")


@pytest.mark.parametrize("options", [{"streams": 2}, {"cuda_graph": True}])
@pytest.mark.parametrize("device", [0, None])
def test_streams_and_cuda_graphs_are_tensorrts(
    torch_model: str, device: int | None, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidOption, match="streams and cuda_graph: engine pytorch supports neither"):
        load(torch_model, device=device, **options)


@pytest.fixture
def with_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU and a CUDA provider."""
    monkeypatch.setattr(onnx_runtime, "why_no_cuda_provider", lambda: "")
    monkeypatch.setattr(onnx_runtime, "why_not_gpu", lambda _: "")


@pytest.mark.usefixtures("with_provider")
def test_a_cuda_provider_that_does_not_start_is_no_run_on_the_processor(tiny_file: MakePath) -> None:
    # What a machine with onnxruntime-gpu and a GPU, but without cuDNN, gets to: ONNX Runtime goes on
    # with the processor, and so does the one that is installed here, which has no CUDA.
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(EngineUnavailable, match="CUDA provider does not start, so the processor") as caught,
    ):
        load(tiny_file("mlp"), device=0)
    assert "cudnn" in caught.value.hint


@pytest.mark.usefixtures("with_provider")
def test_a_file_optimized_for_a_processor_is_no_file_for_a_gpu(optimized: Path) -> None:
    with pytest.raises(ArtifactError, match="was optimized for a processor") as caught:
        load(optimized, device=0)
    assert "built from" in caught.value.hint


def test_nodes_that_were_left_to_the_processor_are_told() -> None:
    everything = Counter(Conv=3, Relu=2)
    assert placement_notes({CUDA: everything}) == ()
    (left,) = placement_notes({CUDA: everything, CPU: Counter(QLinearConv=4, Shape=1)})
    assert left == "5 of 10 nodes run on the processor: QLinearConv (4), Shape (1)"
    (quantized,) = placement_notes({CUDA: everything + Counter(QuantizeLinear=2, DequantizeLinear=5)})
    assert quantized.startswith("ONNX Runtime's CUDA provider runs 5 DequantizeLinear nodes unfused")
    (note,) = placement_notes({})
    assert "does not report" in note


def test_the_placement_of_nodes_is_read_from_a_session(tiny_file: MakePath) -> None:
    path = tiny_file("residual")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(on_gpu._ASSIGNMENT, "1")
    session = onnxruntime.InferenceSession(path, options, providers=[CPU])
    nodes = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert on_gpu._operators_by_provider(session) == {CPU: nodes}


@pytest.mark.parametrize(("device", "inference"), [(0, [True, True]), (None, [False, False])])
def test_a_module_is_converted_for_the_tensors_it_is_run_with(
    device: int | None, inference: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch.compile makes for other tensors is made again when it is timed."""
    kinds = []

    def convert(_: Any, module: Any, __: Any, arguments: Any, keywords: Any) -> Any:
        kinds.extend(tensor.is_inference() for tensor in (*arguments, *keywords.values()))
        return module

    monkeypatch.setattr(home, "_rounding", lambda *_: ())
    monkeypatch.setattr(home, "_convert", convert)
    install(monkeypatch)
    with PyTorchRunner(torch.nn.PairwiseDistance(), None, mode="compile", device=device) as runner:
        if device is not None:
            monkeypatch.setattr(runner, "_device", torch.device("meta"))
        runner.prepare({"x1": np.ones(2, np.float32), "x2": np.ones(2, np.float32)})
    assert kinds == inference


def test_a_gpu_without_onnx_runtime_is_refused(tiny_file: MakePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EngineUnavailable, match="onnxruntime cannot be imported") as caught:
        load(tiny_file("mlp"), device=0)
    assert caught.value.hint == install_hint("cpu")


class Mixed:
    """Switches that refuse to answer."""

    @property
    def allow_tf32(self) -> bool:
        raise RuntimeError("PyTorch is checking whether allow_tf32 is used with the new API")


@pytest.mark.parametrize(
    ("switches", "capability", "notes"),
    [
        (SimpleNamespace(allow_tf32=True), (8, 0), ("PyTorch computes float32 convolutions in TF32 here",)),
        (SimpleNamespace(allow_tf32=True), (7, 5), ()),
        (Mixed(), (9, 0), ()),
    ],
)
def test_tf32_is_told_where_the_gpu_has_it(
    switches: Any, capability: tuple[int, int], notes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends, "cudnn", switches)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert home._rounding(torch, torch.device("cuda", 0)) == notes
