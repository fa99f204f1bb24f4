"""PyTorch as the baseline it is, in every mode and on a GPU; TorchScript, which must compute the same.

`torch.cuda` is simulated.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from simulated_torch_cuda import COPY_MS, KERNEL_MS, SimulatedTorchCuda, install
from torch import nn

from qcompile.core.artifact import load_artifact
from qcompile.engines import load
from qcompile.engines.base import BuildRequest
from qcompile.engines.build import build_engine
from qcompile.engines.pytorch import MODES, PyTorch, PyTorchRunner
from qcompile.engines.pytorch import runner as home
from qcompile.engines.pytorch.runner import weights_of_module
from qcompile.engines.registry import engine
from qcompile.errors import BuildError, DataError, InvalidOption, ModelError
from qcompile.model.sources.load import load_torch
from qcompile.model.sources.source import parse_source
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.words import Precision

SOURCE = """
import random
import torch
from torch import nn

class Pair(nn.Module):
    def forward(self, left, right):
        return {"total": left + right, "difference": left - right}

class Branch(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x - 1

class Counted(nn.Module):
    def forward(self, x):
        return x.reshape(len(x) * 2, -1)

class Random(nn.Module):
    def forward(self, x):
        return x * random.random()

class Moody(nn.Module):
    def forward(self, x):
        if torch.jit.is_scripting():
            return x * 2.0
        return x

class Unscriptable(nn.Module):
    def forward(self, x):
        return x + len(str(list(globals())))

def example():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), torch.ones(2, 4)

def moody():
    return Moody(), (torch.ones(2, 3),)

def unscriptable():
    return Unscriptable(), (torch.ones(2, 3),)

pair, branch, counted, made = Pair, Branch, Counted, Random
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(SOURCE)
    return path


def build(spec: str, output: Path, *inputs: str, precision: Precision = "fp32") -> Path:
    """Build for TorchScript."""
    wishes = BuildSpec(target="torchscript", precision=precision, inputs=inputs)
    return build_engine(engine("torchscript"), BuildRequest(spec, output, wishes)).path


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_the_example_of_a_model_says_what_it_takes_and_it_is_in_evaluation_mode(source: Path) -> None:
    with load(f"{source}:example") as runner:
        first, second = (runner.infer({"input": normal(2, 4)})["output"] for _ in range(2))
        np.testing.assert_array_equal(first, second)  # no dropout
        assert [str(tensor) for tensor in runner.io.inputs] == ["input:2x4:float32"]
        with pytest.raises(DataError, match="is float64; float32 is required"):
            runner.infer({"input": normal(2, 4).astype(np.float64)})


def test_a_forward_that_fails_is_an_error_of_the_model(source: Path) -> None:
    with load(f"{source}:pair") as runner, pytest.raises(ModelError, match="PyTorch fails on the feeds"):
        runner.infer({"left": normal(2, 3), "right": normal(4, 5)})


ORDERS = [("left", "right"), ("right", "left")]


@pytest.mark.parametrize("fed", ORDERS)
def test_a_program_of_torch_export_takes_inputs_by_name_in_any_order(
    fed: tuple[str, str], tmp_path: Path
) -> None:
    class Difference(torch.nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return left - right

    program = torch.export.export(Difference(), (torch.ones(2, 3), torch.ones(2, 3)))
    torch.export.save(program, tmp_path / "m.pt2")
    values = {"left": normal(2, 3), "right": normal(2, 3, seed=1)}
    with load(tmp_path / "m.pt2", trust=True) as runner:
        (found,) = runner.infer({name: values[name] for name in fed}).values()
    np.testing.assert_array_equal(found, values["left"] - values["right"])


def test_torchscript_computes_what_eager_execution_does_at_any_batch(
    torch_model: str, tmp_path: Path
) -> None:
    path = build(torch_model, tmp_path / "m.pt", "x:[batch,3,8,8]")
    manifest = load_artifact(path).manifest
    assert manifest.kind == manifest.target == "torchscript"
    assert manifest.proof["dtypes"] == ["torch.float32"]
    assert [check.name for check in manifest.checks] == ["same outputs as PyTorch"]
    with load(path, trust=True) as scripted, load(torch_model) as eager:
        assert scripted.io == manifest.io
        assert [str(tensor) for tensor in scripted.io.inputs] == ["x:[batch,3,8,8]:float32"]
        assert [str(tensor) for tensor in scripted.io.outputs] == ["output:[?,5]:float32"]
        for batch in (1, 4):
            found, expected = (runner.infer(images(batch))["output"] for runner in (scripted, eager))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("names", ORDERS)
@pytest.mark.parametrize("fed", ORDERS)
def test_torchscript_takes_inputs_by_name_in_any_order(
    names: tuple[str, str], fed: tuple[str, str], source: Path, tmp_path: Path
) -> None:
    path = build(f"{source}:pair", tmp_path / "m.pt", *(f"{name}:[n,3]" for name in names))
    values = {"left": normal(4, 3), "right": normal(4, 3, seed=1)}
    with load(path, trust=True) as runner:
        outputs = runner.infer({name: values[name] for name in fed})
        with pytest.raises(DataError, match="input 'right' is missing"):
            runner.infer({"left": values["left"]})
    np.testing.assert_array_equal(outputs["total"], values["left"] + values["right"])
    np.testing.assert_array_equal(outputs["difference"], values["left"] - values["right"])


@pytest.mark.parametrize(
    ("function", "shape", "precision", "said"),
    [
        pytest.param("example", "", "fp16", "built in fp32; fp16 was requested", id="fp16"),
        pytest.param("example", "", "int8", "built in fp32; int8 was requested", id="int8"),
        pytest.param("made", "x:2x3", "fp32", "models.py:made", id="random"),
        pytest.param("branch", "x:2x3", "fp32", "models.py:branch", id="a branch on data"),
        pytest.param("counted", "x:[n,4]", "fp32", "models.py:counted", id="an extent frozen by the trace"),
    ],
)
def test_what_torchscript_cannot_be_is_refused_and_named(
    function: str, shape: str, precision: Precision, said: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=said):
        build(f"{source}:{function}", tmp_path / "m.pt", *([shape] if shape else []), precision=precision)
    assert not (tmp_path / "m.pt").exists()


def images(batch: int) -> dict[str, NDArray[np.float32]]:
    return {"x": normal(batch, 3, 8, 8, seed=batch)}


@pytest.mark.parametrize(
    "mode",
    [
        *(mode for mode in MODES if mode not in ("compile", "half", "autocast")),
        pytest.param("compile", marks=pytest.mark.slow),
    ],
)
def test_every_mode_computes_what_eager_does_for_every_batch_size(torch_model: str, mode: str) -> None:
    with PyTorch().open(torch_model, threads=1) as eager:
        expected = {batch: next(iter(eager.infer(images(batch)).values())) for batch in (2, 3)}
    with PyTorch().open_in_mode(torch_model, mode, threads=1) as runner:
        for batch in (2, 3, 2):
            [found] = runner.infer(images(batch)).values()
            np.testing.assert_allclose(found, expected[batch], rtol=1e-4, atol=1e-5)
        assert (runner.contains == "host to host: one forward()") is (mode == "eager")
        assert len(runner.time(images(2), 3)) == 3


@pytest.mark.parametrize("mode", ["half", "autocast"])
def test_sixteen_bits_are_what_pytorch_makes_of_them(torch_model: str, mode: str) -> None:
    module = load_torch(parse_source(torch_model)).module
    feeds = images(2)
    with torch.inference_mode():
        if mode == "half":
            expected = module.half()(torch.from_numpy(feeds["x"]).half())
        else:
            with torch.autocast("cpu"):
                expected = module(torch.from_numpy(feeds["x"]))
    with PyTorch().open_in_mode(torch_model, mode, threads=1) as runner:
        [found] = runner.infer(feeds).values()
        assert runner.weights is not None
        assert runner.weights.precision == ("fp16" if mode == "half" else "")
    assert expected.dtype == (torch.float16 if mode == "half" else torch.bfloat16)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.float().numpy())


def test_a_mode_that_computes_something_else_or_cannot_take_the_model_is_refused(source: Path) -> None:
    feeds = {"x": np.ones((2, 3), np.float32)}
    runner = PyTorch().open_in_mode(f"{source}:moody", "script")
    with runner, pytest.raises(ModelError, match="computes something else than eager"):
        runner.prepare(feeds)
    with PyTorch().open_in_mode(f"{source}:unscriptable", "script") as runner:
        with pytest.raises(ModelError, match="PyTorch mode script: fails"):
            runner.infer(feeds)
        with pytest.raises(DataError):
            runner.infer({"x": np.ones((2, 4), np.float64)})


def test_an_unknown_mode_is_refused(torch_model: str) -> None:
    with pytest.raises(InvalidOption, match="known are eager, trace, script, freeze, compile"):
        PyTorch().open_in_mode(torch_model, "fast")


LEFT, RIGHT = np.ones((2, 3), np.float32), np.full((2, 3), 4.0, np.float32)
FEEDS = {"right": RIGHT, "left": LEFT}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimulatedTorchCuda:
    """`torch.cuda`."""
    monkeypatch.setattr(home, "_rounding", lambda *_: ("noted",))
    return install(monkeypatch)


class Nested(nn.Module):
    """Outputs in every structure that `forward` may return."""

    def __init__(self, cuda: SimulatedTorchCuda | None) -> None:
        super().__init__()
        self._cuda = cuda

    def forward(self, left: Any, right: Any) -> dict[str, Any]:
        if self._cuda is not None:
            self._cuda.enqueue(KERNEL_MS)
        return {"total": left + right, "both": (left - right, [left * right])}


def open_runner(module: nn.Module, mode: Any = "eager") -> PyTorchRunner:
    """A runner whose GPU is the processor."""
    runner = PyTorchRunner(module, None, mode=mode, device=0)
    runner._device = torch.device("cpu")
    return runner


@pytest.mark.parametrize("mode", ["eager", "trace"])
def test_inputs_and_outputs_are_in_page_locked_memory(
    cuda: SimulatedTorchCuda, mode: Any, source: Path
) -> None:
    with open_runner(load_torch(parse_source(f"{source}:pair")).module, mode) as runner:
        assert runner.notes == ("noted",)
        assert runner.contains.startswith("host to host, in page-locked memory: copies to the GPU, forward()")
        found = runner.infer(FEEDS)
        assert cuda.copies == 4
        assert not cuda.unfinished
        np.testing.assert_array_equal(found["total"], LEFT + RIGHT)
        np.testing.assert_array_equal(found["difference"], LEFT - RIGHT)
        assert all(array.flags.owndata for array in found.values())  # copies: page-locked memory is scarce
        again = runner.infer({"left": LEFT + 1, "right": RIGHT})
        np.testing.assert_array_equal(again["total"], LEFT + 1 + RIGHT)
        assert len(runner.time(FEEDS, 3)) == 3


def test_a_prepared_call_keeps_its_memory_and_its_structure(cuda: SimulatedTorchCuda) -> None:
    with open_runner(Nested(cuda)) as runner:
        run = runner.prepare(FEEDS)
        first = run()
        pinned = len(cuda.pinned)
        second = run()
    assert len(cuda.pinned) == pinned == 5
    assert first["total"].data_ptr() == second["total"].data_ptr()
    np.testing.assert_array_equal(second["both"][0].numpy(), LEFT - RIGHT)
    np.testing.assert_array_equal(second["both"][1][0].numpy(), LEFT * RIGHT)


def test_memory_grows_where_an_output_does(cuda: SimulatedTorchCuda) -> None:
    class Growing(nn.Module):
        calls = 0

        def forward(self, left: Any) -> Any:
            self.calls += 1
            return left.repeat(self.calls, 1)

    with open_runner(Growing()) as runner:
        run = runner.prepare({"left": LEFT})
        assert [run().shape[0] for _ in range(3)] == [2, 4, 6]
    assert not cuda.unfinished


def test_the_gpus_clock_tells_compute_from_copies(cuda: SimulatedTorchCuda) -> None:
    with open_runner(Nested(cuda)) as runner:
        times = runner.gpu_times(FEEDS, 4)
    assert times.compute.tolist() == [KERNEL_MS * 1e6] * 4
    assert times.with_transfers.tolist() == [(KERNEL_MS + 5 * COPY_MS) * 1e6] * 4
    assert (times.enqueue > 0).all()


def test_inferences_in_flight_have_streams_and_memory_of_their_own(cuda: SimulatedTorchCuda) -> None:
    with open_runner(Nested(cuda)) as runner, runner.in_flight(FEEDS, 3) as inferences:
        for inference in inferences:
            inference.start()
        assert len(cuda.unfinished) == len(cuda.streams) == 3
        inferences[1].wait()
        assert len(cuda.unfinished) == 2
    assert not cuda.unfinished


def test_the_processor_has_neither_clock_nor_streams() -> None:
    with PyTorchRunner(Nested(None), None) as runner:
        with pytest.raises(InvalidOption, match="PyTorch runs on the processor here") as caught:
            runner.gpu_times(FEEDS, 1)
        assert caught.value.hint == "give `devices` cuda"
        with pytest.raises(InvalidOption, match="on the processor"), runner.in_flight(FEEDS, 2):
            pass


VALUES = 3 * 8 * 9 + 8 + 8 * 5 + 5


class Net(nn.Module):
    """A convolution with bias and a Linear: [N,3,8,8] to [N,5]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.relu(self.conv(x)).mean((2, 3)))


@pytest.fixture
def net() -> Iterator[nn.Module]:
    """A network, while torch.ao may say that it is deprecated."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield Net().eval()


def test_a_float_module_holds_its_parameters_and_statistics_are_bytes(net: nn.Module) -> None:
    for module, expected in (
        (copy.deepcopy(net).half(), (VALUES, 2 * VALUES, "fp16")),
        (net, (VALUES, 4 * VALUES, "")),
        (nn.BatchNorm2d(4).eval(), (8, 4 * 4 * 4 + 8, "")),
    ):
        held = weights_of_module(torch, module)
        assert (held.parameters, held.bytes, held.precision) == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cell", [torch.nn.LSTM, torch.nn.GRU])
def test_packed_weights_of_a_recurrent_layer_are_counted(cell: Any) -> None:
    from torch.ao.quantization import quantize_dynamic

    module = torch.nn.Sequential(cell(8, 16, num_layers=2, bidirectional=True)).eval()
    values = sum(parameter.numel() for parameter in module.parameters())
    held = weights_of_module(torch, quantize_dynamic(module, {cell}, dtype=torch.qint8))
    assert (held.parameters, held.precision) == (values, "int8")
    assert values < held.bytes < 2 * values


def test_packed_weights_are_counted_and_parameters_alone_would_miss_them(net: nn.Module) -> None:
    dynamic = torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)
    assert sum(p.numel() for p in dynamic.parameters()) == 3 * 8 * 9 + 8
    held = weights_of_module(torch, dynamic)
    assert (held.parameters, held.precision) == (VALUES, "int8")
    assert held.bytes < 4 * VALUES


def test_fx_and_fake_quantized_modules_hold_as_many_values(net: nn.Module) -> None:
    from torch.ao.quantization import get_default_qat_qconfig_mapping, get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx, prepare_qat_fx

    x = torch.randn(4, 3, 8, 8)
    prepared = prepare_fx(copy.deepcopy(net), get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    static = weights_of_module(torch, convert_fx(prepared))
    assert (static.parameters, static.precision) == (VALUES, "int8")
    assert static.bytes < 2 * VALUES
    simulated = prepare_qat_fx(copy.deepcopy(net).train(), get_default_qat_qconfig_mapping("x86"), (x,))
    held = weights_of_module(torch, simulated)
    assert (held.parameters, held.precision) == (VALUES, "int8")
    assert held.bytes >= 4 * VALUES


def test_what_pt2e_folds_is_counted_once_compiled_or_not(net: nn.Module) -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    x = torch.randn(4, 3, 8, 8)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(net, (x,)).module(), quantizer)
    prepared(x)
    converted = convert_pt2e(prepared)
    held = weights_of_module(torch, converted)
    assert (held.parameters, held.precision) == (VALUES, "int8")
    assert held.bytes < 3 * VALUES
    assert weights_of_module(torch, torch.compile(converted)) == held


def test_a_frozen_trace_holds_its_weights_as_constants(net: nn.Module) -> None:
    traced = torch.jit.trace(net, torch.randn(2, 3, 8, 8))
    assert weights_of_module(torch, traced).parameters == VALUES
    assert weights_of_module(torch, torch.jit.freeze(traced)).parameters == VALUES
