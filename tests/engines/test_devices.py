"""Where an artifact runs: the spelling of devices, and what each engine says of a GPU that is not there."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from simulated_torch_cuda import install

import qcompile
from qcompile.engines import engine, load
from qcompile.engines.gpu import device_text, parse_device, parse_devices, why_no_gpu, why_not_gpu
from qcompile.engines.onnx_runtime import engine as onnx_runtime
from qcompile.engines.onnx_runtime import runner as on_gpu
from qcompile.engines.onnx_runtime.runner import CPU, CUDA, placement_notes
from qcompile.engines.pytorch import MODES, PyTorch, PyTorchRunner
from qcompile.engines.pytorch import runner as home
from qcompile.errors import ArtifactError, EngineUnavailable, InvalidOption

MakePath = Callable[..., Path]
without_gpu = pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")


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
def test_a_gpu_that_is_not_there_is_told_with_the_reason() -> None:
    assert why_not_gpu(0) == why_no_gpu() != ""


@without_gpu
@pytest.mark.parametrize("mode", MODES)
def test_pytorch_says_why_it_cannot_use_a_gpu(torch_model: str, mode: str) -> None:
    with pytest.raises(EngineUnavailable, match="cannot run on GPU 1 here") as caught:
        PyTorch().open_in_mode(torch_model, mode, device=1)
    assert caught.value.data["reason"] == engine("pytorch").why_not_run_on_gpu(1)
    assert "`devices` cpu" in caught.value.hint


@without_gpu
@pytest.mark.parametrize("device", [0, "cuda", "cuda:0"])
def test_onnx_runtime_says_why_it_cannot_use_a_gpu(tiny_file: MakePath, device: int | str) -> None:
    with pytest.raises(EngineUnavailable, match="cannot run on GPU 0 here: this ONNX Runtime") as caught:
        load(tiny_file("mlp"), device=device)
    assert "onnxruntime-gpu" in caught.value.hint


def test_the_processor_may_be_named(tiny_file: MakePath, torch_model: str) -> None:
    x = np.ones((1, 16), np.float32)
    with load(tiny_file("mlp"), device="cpu") as runner, load(tiny_file("mlp")) as usual:
        np.testing.assert_array_equal(runner.infer({"x": x})["y"], usual.infer({"x": x})["y"])
    with load(torch_model, device="cpu") as runner:
        assert runner.contains == "host to host: one forward()"


def test_an_engine_is_refused_where_it_never_runs(tiny_file: MakePath, tmp_path: Path) -> None:
    built = qcompile.build(tiny_file("mlp"), tmp_path / "o.onnx", target="openvino").path
    with pytest.raises(InvalidOption, match="openvino has no use for them"):
        load(built, device="cuda")
    plan = qcompile.build(tiny_file("mlp"), tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"]).path
    with pytest.raises(InvalidOption, match="tensorrt-rtx runs on a GPU, not on the processor"):
        load(plan, device="cpu")


@pytest.mark.parametrize("options", [{"streams": 2}, {"cuda_graph": True}])
def test_streams_and_cuda_graphs_are_tensorrts(torch_model: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="streams and cuda_graph: engine pytorch has no use"):
        load(torch_model, device=0, **options)


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
def test_a_file_optimized_for_a_processor_is_no_file_for_a_gpu(tiny_file: MakePath, tmp_path: Path) -> None:
    built = qcompile.build(tiny_file("mlp"), tmp_path / "built.onnx", target="onnxruntime").path
    with pytest.raises(ArtifactError, match="was optimized for a processor") as caught:
        load(built, device=0)
    assert "built from" in caught.value.hint


def test_nodes_that_were_left_to_the_processor_are_told() -> None:
    everything = Counter(Conv=3, Relu=2)
    assert placement_notes({CUDA: everything}) == ()
    (left,) = placement_notes({CUDA: everything, CPU: Counter(QLinearConv=4, Shape=1)})
    assert left == "5 of 10 nodes run on the processor: QLinearConv (4), Shape (1)"
    (quantized,) = placement_notes({CUDA: everything + Counter(QuantizeLinear=2, DequantizeLinear=5)})
    assert quantized.startswith("ONNX Runtime's CUDA provider computes 5 DequantizeLinear as they stand")
    (note,) = placement_notes({})
    assert "does not tell" in note


def test_the_placement_of_nodes_is_read_from_a_session(tiny_file: MakePath) -> None:
    path = tiny_file("residual")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(on_gpu._ASSIGNMENT, "1")
    session = onnxruntime.InferenceSession(path, options, providers=[CPU])
    nodes = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert on_gpu._operators_by_provider(session) == {CPU: nodes}


class Nested(torch.nn.Module):
    """Outputs in every structure that `forward` may return."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"total": left + right, "difference": left - right}


def test_a_module_is_converted_for_the_tensors_it_is_run_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.compile makes for other tensors is made again when it is timed."""
    kinds = []

    def convert(_: Any, module: Any, __: Any, arguments: Any, keywords: Any) -> Any:
        kinds.extend(tensor.is_inference() for tensor in (*arguments, *keywords.values()))
        return module

    monkeypatch.setattr(home, "_rounding", lambda *_: ())
    monkeypatch.setattr(home, "_convert", convert)
    install(monkeypatch)
    for device, expected in ((0, [True, True]), (None, [False, False])):
        with PyTorchRunner(Nested(), None, mode="compile", device=device) as runner:
            if device is not None:
                monkeypatch.setattr(runner, "_device", torch.device("meta"))
            runner.prepare({"left": np.ones(2, np.float32), "right": np.ones(2, np.float32)})
        assert kinds == expected
        kinds.clear()


def test_a_gpu_without_onnx_runtime_is_refused(tiny_file: MakePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EngineUnavailable, match="onnxruntime cannot be imported") as caught:
        load(tiny_file("mlp"), device=0)
    assert caught.value.hint == "pip install 'qcompile[cpu]'"


def test_switches_that_refuse_to_answer_are_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mixed:
        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("PyTorch is checking whether allow_tf32 is used with the new API")

    monkeypatch.setattr(torch.backends, "cudnn", Mixed())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert home._rounding(torch, torch.device("cuda", 0)) == ()


def test_tf32_is_told_where_the_gpu_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    (note,) = home._rounding(torch, torch.device("cuda", 0))
    assert note == "PyTorch computes float32 convolutions in TF32 here"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert home._rounding(torch, torch.device("cuda", 0)) == ()
