"""ONNX Runtime's engine: the proof counts what will run, and the runner converts nothing.

What its optimizer computes wrongly is found, kept from it, and seen by the build's check. What it made
becomes the same file in every process.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from mode_models import normal, run, snr_db, static, written
from numpy.typing import NDArray
from onnx import parser

import qcompile
from qcompile.compiler.opset.exact_forms import find_requantized, keep_layers_apart
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.compiler.quantize.quantize import quantize
from qcompile.core.artifact import Artifact
from qcompile.engines import load
from qcompile.engines.base import BuildRequest
from qcompile.engines.build import build_engine
from qcompile.engines.onnx_runtime.runner import put_in_order
from qcompile.engines.registry import engine
from qcompile.errors import DataError, IntentNotReached, ModelError
from qcompile.model.graph.graph import count_operators
from qcompile.model.graph.onnx_file import read_graph
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.words import Precision

MakeFile = Callable[..., Path]


def build(
    model: Path, precision: Precision, *, output: str = "built.onnx", fallback: bool = False
) -> Artifact:
    """Build for ONNX Runtime."""
    spec = BuildSpec(target="onnxruntime", precision=precision, allow_fallback=fallback)
    return build_engine(engine("onnxruntime"), BuildRequest(str(model), model.with_name(output), spec))


def test_the_proof_of_fp32_counts_every_layer_that_computes(tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    manifest = build(model, "fp32").manifest
    assert manifest.proof["planned_in_precision"] == manifest.proof["reached_in_precision"] == 3
    counts = {"int8": {}, "fp16": {}, "bf16": {}, "fp32": {"Conv": 2, "Gemm": 1}}
    assert manifest.proof["layers_by_precision"] == counts
    assert manifest.sources == {"model": read_graph(model).digest(), "graph": read_graph(model).digest()}
    assert manifest.tools["onnxruntime"] == onnxruntime.__version__
    assert manifest.device["architecture"]
    assert manifest.checks[0].passed


def test_what_computes_in_float_here_is_not_called_int8(
    tiny_file: MakeFile, samples: MakeFile, tmp_path: Path
) -> None:
    plain = tiny_file("residual")
    ranges = calibrate(plain, str(samples("residual")), tmp_path / "r.ranges", method="minmax").path
    model = quantize(plain, tmp_path / "q.onnx", ranges=ranges, target="tensorrt").path
    for path in (model, plain):
        with pytest.raises(IntentNotReached, match="int8 was requested"):
            build(path, "int8")
    kept = build(model, "int8", fallback=True)
    computed = count_operators(read_graph(kept.path).load())
    assert not {"QLinearConv", "com.microsoft::QLinearConv"} & set(computed)
    assert kept.manifest.proof["reached_in_precision"] == 0


def test_fp16_that_is_computed_in_fp32_is_not_reached_and_kept_where_that_is_allowed(
    tiny_file: MakeFile, tmp_path: Path
) -> None:
    half = quantize(tiny_file("mlp"), tmp_path / "half.onnx", precision="fp16").path
    said = r"fp16 was requested; 0 of 2 layers .* \(2 in fp32\)"
    with pytest.raises(IntentNotReached, match=said) as caught:
        build(half, "fp16")
    assert caught.value.data["proof"]
    assert "`allow_fallback`" in caught.value.hint
    assert not (tmp_path / "built.onnx").exists()
    artifact = build(half, "fp16", fallback=True)
    (warning,) = artifact.manifest.warnings
    assert warning.startswith("fp16 was requested; 0 of 2 layers")
    assert artifact.manifest.proof["reached_in_precision"] == 0


def test_a_model_without_layers_that_compute_is_built_in_fp32(tiny_file: MakeFile) -> None:
    with load(build(tiny_file("elementwise"), "fp32").path) as runner:
        found = runner.infer({"x": np.zeros((2, 4), np.float32)})["y"]
    np.testing.assert_allclose(found, np.full((2, 4), 1.5))


def test_the_runner_takes_any_batch_and_names_its_outputs(tiny_file: MakeFile) -> None:
    with load(tiny_file("residual")) as runner:
        assert [str(tensor) for tensor in runner.io.inputs] == ["x:[batch,4,8,8]:float32"]
        assert [str(tensor) for tensor in runner.io.outputs] == ["y:[batch,3]:float32"]
        for batch in (1, 5):
            assert runner.infer({"x": normal(batch, 4, 8, 8)})["y"].shape == (batch, 3)


def test_feeds_that_do_not_fit_are_refused_and_never_converted(tiny_file: MakeFile) -> None:
    with load(tiny_file("mlp")) as runner:
        for feed in (lambda feeds: runner.infer(feeds), lambda feeds: runner.time(feeds, 1)):
            with pytest.raises(DataError, match="input 'x' is float64; float32 is required"):
                feed({"x": normal(2, 16).astype(np.float64)})


def test_time_returns_as_many_positive_nanoseconds_as_asked_for(tiny_file: MakeFile) -> None:
    with load(tiny_file("mlp"), threads=1) as runner:
        for iterations in (1, 7):
            durations = runner.time({"x": normal(4, 16)}, iterations)
            assert (durations.shape, durations.dtype) == ((iterations,), np.int64)
            assert (durations > 0).all()
        assert runner.contains == "host to host: one session.run()"
        for limit_s, fewest, calls in ((0.0, 1, 1), (0.0, 4, 4), (60.0, 1, 9)):
            assert len(runner.time({"x": normal(4, 16)}, 9, limit_s=limit_s, fewest=fewest)) == calls


def test_a_model_that_fails_while_it_runs_is_an_error_of_the_model(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        tiny (float[n,m] x, float[k,l] z) => (float[a,b] y) { y = Add(x, z) }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    with load(tmp_path / "m.onnx") as runner, pytest.raises(ModelError, match="ONNX Runtime fails"):
        runner.infer({"x": normal(2, 3), "z": normal(4, 5)})


STEP = 0.05


def pair(value: str, name: str) -> str:
    """Text of a Q/DQ pair on a tensor."""
    return f"{name}_q = QuantizeLinear ({value}, s, z) {name} = DequantizeLinear ({name}_q, s, z) "


def graph(layer: str, stored: str) -> onnx.ModelProto:
    """`y = layer(x)`, relu, with Q/DQ around it; `w`, `sw` and `b` are stored by the text."""
    text = f"""<ir_version: 9, opset_import: ["" : 19]> g (float[n,2,4,4] x) => (float[n,2,4,4] y)
        <float s = {{{STEP}}}, uint8 z = {{128}}, {stored}>
        {{ {pair("x", "a")} {layer} r = Relu (c) {pair("r", "y")} }}"""
    model = parser.parse_model(text)
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}{index}"
    return model


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """All floats become float16; onnx's parser cannot read them."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return model


IN_FLOAT = ("c = Conv (a, w, b)", "float[2,2,1,1] w = {100.0, 0.3, -0.4, 0.2}, float[2] b = {0.1, 0.2}")
IN_INT8 = "wd = DequantizeLinear <axis = 0> (w, sw) c = Conv (a, wd, b)"
WEIGHT = "int8[2,2,1,1] w = {100, 30, -40, 20}"
HALF_BIAS = (IN_INT8, f"{WEIGHT}, float[2] sw = {{0.0001, 0.0002}}, float[2] b = {{2.0, -1.0}}")
LARGE_BIAS = (IN_INT8, f"{WEIGHT}, float[2] sw = {{1e-10, 0.01}}, float[2] b = {{2.0, -1.0}}")


def faulty(name: str) -> onnx.ModelProto:
    """A graph for each case of `model/requantized`."""
    if name == "float weight":
        return graph(*IN_FLOAT)
    return in_half(graph(*HALF_BIAS)) if name == "half bias" else graph(*LARGE_BIAS)


CASES = ["float weight", "half bias", "large bias"]


def sample(model: onnx.ModelProto) -> NDArray[Any]:
    kind = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    return np.random.default_rng(0).uniform(-3, 3, (4, 2, 4, 4)).astype(kind)


def same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Equal but for values between two integers, which kernels of processors round either way."""
    differing = np.abs(one.astype(np.float64) - other)
    return bool(differing.max() < 1.01 * STEP and (differing > 0).mean() < 0.05)


@pytest.mark.parametrize("name", CASES)
def test_a_layer_that_the_optimizer_quantizes_wrongly_computes_what_the_graph_says(name: str) -> None:
    model = faulty(name)
    x = sample(model)
    expected = run(model, x=x, optimize=False)
    assert not same(run(model, x=x), expected), "mended: narrow the known fault"
    assert len(find_requantized(model)) == 1
    assert keep_layers_apart(model) == ["Conv2" if name == "float weight" else "Conv3"]
    onnx.checker.check_model(model, full_check=True)
    assert find_requantized(model) == []
    for optimize in (False, True):
        assert same(run(model, x=x, optimize=optimize), expected)


def test_a_layer_whose_bias_fits_is_left_to_the_integer_kernels() -> None:
    model = graph(IN_INT8, f"{WEIGHT}, float[2] sw = {{0.01, 0.01}}, float[2] b = {{2.0, -1.0}}")
    assert find_requantized(model) == []
    plain = graph("c = Conv (x, w, b)", IN_FLOAT[1])  # it reads no DequantizeLinear
    assert find_requantized(plain) == []


@pytest.mark.parametrize("name", CASES)
def test_the_file_and_what_is_built_of_it_compute_what_the_graph_says_with_any_options(
    name: str, tmp_path: Path
) -> None:
    model = faulty(name)
    onnx.save(model, tmp_path / "m.onnx")
    precision = "int8" if name != "float weight" else "fp32"
    built = qcompile.build(
        tmp_path / "m.onnx", tmp_path / "built.onnx", target="onnxruntime", precision=precision,
        allow_fallback=True,
    )  # fmt: skip
    assert list(built.manifest.proof["worked_around"]) == ["requantized-layer"]  # type: ignore[call-overload]
    x = sample(model)
    expected = run(model, x=x, optimize=False)
    for path in (tmp_path / "m.onnx", built.path):  # opened without the optimizer that is at fault
        with load(path) as runner:
            assert same(runner.infer({"x": x})["y"], expected)
    assert same(run(built.path, x=x), expected)
    (check,) = [one for one in built.manifest.checks if one.name == "computes what its graph says"]
    assert check.passed
    assert re.fullmatch(
        r"output 'y': (equal to|\d+\.\d dB from) its graph.*; 16 random inputs and 1 of other extents, "
        "as it is and with the default options", check.detail,
    )  # fmt: skip


def test_a_build_that_computes_another_output_than_its_graph_is_refused(tmp_path: Path) -> None:
    model = faulty("large bias")
    for node in model.graph.node:
        node.op_type = "Identity" if node.op_type == "Relu" else node.op_type  # so that it is all integers
    onnx.save(model, tmp_path / "m.onnx")

    said = "ONNX Runtime computes something else, from layer 'Conv3' on: output 'y'"
    with pytest.raises(IntentNotReached, match=said):
        build(tmp_path / "m.onnx", "int8")  # past `lower`, which rewrites the graph
    assert not (tmp_path / "built.onnx").exists()
    kept = build(tmp_path / "m.onnx", "int8", fallback=True).manifest
    assert any("computes something else" in warning for warning in kept.warnings)
    assert [check.passed for check in kept.checks] == [True, False]


def test_an_excluded_layer_stays_in_float_between_integer_ones(tmp_path: Path) -> None:
    body = """(float[n,4,8,8] x) => (float[n,4,8,8] y) {
        a = Conv <pads = [1,1,1,1]> (x, w, b) p = Relu (a)
        [float] c = Conv <pads = [1,1,1,1]> (p, v, b) q = Relu (c)
        d = Conv <pads = [1,1,1,1]> (q, u, b) y = Relu (d) }"""
    weights = {name: normal(4, 4, 3, 3, seed=seed) for seed, name in enumerate("wvu")}
    weights["v"][0] *= 100  # one scale for all channels would lose the others
    model = written(tmp_path / "m.onnx", body, **weights, b=normal(4))
    x = normal(8, 4, 8, 8, scale=1.0)
    np.savez(tmp_path / "x.npz", x=x)
    made = static(model, tmp_path, exclude=["float"])
    assert made.manifest.proof["as_executed"] == {
        "int8": {"QLinearConv": 2}, "fp32": {"Conv": 1}, "fp16": {}, "bf16": {},
    }  # fmt: skip
    plain, fused = (run(made.path, x=x, optimize=optimize) for optimize in (False, True))
    assert snr_db(plain, fused) > 40


HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, bool b) => (float[n] y, float[n] z)'
NUMBERED_WEIGHT = "<float[1] reorder_token_0 = {2}>"
BEFORE = f"{HEAD} {{ [word_token_1] word_token_5 = Abs (x) y = Neg (x) z = Neg (x) }}"
NODES = """
[{n0}] {t0} = Mul (x, reorder_token_0)
[word_token_1] word_token_5 = Abs (x)
[{n1}] {t1} = Exp ({t0})
[pick] c = If (b) <
    then_branch = yes () => (float[n] t) {{ t = Add (word_token_5, x) }},
    else_branch = no () => (float[n] e) {{ e = Neg (x) }}
>
[{n2}] {t2} = Sigmoid ({t0})
[y] y = Add (c, {t1})
[z] z = Mul ({t2}, {t1})
"""


def as_process(seed: int) -> onnx.ModelProto:
    """The same graph as one process has it: numbers, and an order of the nodes, of its own."""
    chance = random.Random(seed)
    numbers = chance.sample(range(1, 100), 4)
    names = {}
    for letter, kind, two in (("n", "Reorder", numbers[:2]), ("t", "reorder", numbers[2:])):
        spelled = [kind, *(f"{kind}_token_{number}" for number in two)]
        chance.shuffle(spelled)
        names |= {f"{letter}{index}": name for index, name in enumerate(spelled)}
    model = parser.parse_model(f"{HEAD} {NUMBERED_WEIGHT} {{ {NODES.format(**names)} }}")
    waiting, known = list(model.graph.node), {"x", "b", "reorder_token_0"}
    del model.graph.node[:]
    while waiting:
        ready = [
            node for node in waiting if {*node.input, *(["word_token_5"] * (node.name == "pick"))} <= known
        ]
        node = chance.choice(ready)
        waiting.remove(node)
        known |= {*node.output}
        model.graph.node.append(node)
    return model


def test_every_order_and_numbering_becomes_one_that_computes_the_same() -> None:
    before, files = parser.parse_model(BEFORE), set[bytes]()
    feeds = {"x": np.array([-1, 0.5], np.float32), "b": np.array(True)}
    outputs = []
    for seed in range(20):
        model = as_process(seed)
        assert put_in_order(model, before)
        onnx.checker.check_model(model)
        files.add(model.SerializeToString())
        outputs.append(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds))
    assert len(files) == 1
    expected = onnxruntime.InferenceSession(as_process(0).SerializeToString()).run(None, feeds)
    for found in outputs:
        np.testing.assert_array_equal(found, expected)
    names = {name for node in onnx.load_from_string(files.pop()).graph.node for name in node.output}
    assert "word_token_5" in names


def test_what_has_no_name_gets_none() -> None:
    """Nodes of functions that ONNX Runtime writes out (HardSwish) have none; nor has an operand left out."""
    graph = f"{HEAD} {{ [word_token_1] word_token_5 = Abs (x) _token_7 = Clip (x, , word_token_5) "
    model = parser.parse_model(f"{graph} y = Add (_token_7, word_token_5) z = Neg (x) }}")
    assert put_in_order(model, parser.parse_model(f"{HEAD} {{ [y] y = Neg (x) [z] z = Neg (x) }}"))
    onnx.checker.check_model(model)
    (clip,) = (node for node in model.graph.node if node.op_type == "Clip")
    assert clip.input[1] == ""
    assert [node.name for node in model.graph.node].count("") == 3


def test_a_graph_without_numbers_stays_as_it_is() -> None:
    model = parser.parse_model(BEFORE)
    content = model.SerializeToString()
    assert not put_in_order(model, model)
    assert model.SerializeToString() == content


@pytest.mark.parametrize("name", ["shufflenet"])
def test_two_processes_build_one_file(light_models: dict[str, Path], tmp_path: Path, name: str) -> None:
    for number in (1, 2):
        words = [
            "build",
            light_models[name],
            "--target",
            "onnxruntime",
            "-o",
            tmp_path / f"{number}.onnx",
            "-q",
        ]
        subprocess.run([sys.executable, "-m", "qcompile", *map(str, words)], check=True)
    assert (tmp_path / "1.onnx").read_bytes() == (tmp_path / "2.onnx").read_bytes()


def test_layers_of_known_extents_inside_and_outside_of_a_branch_make_a_valid_file(tmp_path: Path) -> None:
    """The optimizer gave the parts of both one name, and the checker called the file damaged."""
    body = """m = MatMul(x, w) h = Add(m, b) s = ReduceMean <keepdims = 0> (h) c = Greater(s, zero)
        y = If(c) < then_branch = t () => (float[2,4,8] p) { n = MatMul(h, w) p = Add(n, b) },
                    else_branch = e () => (float[2,4,8] q) { q = Neg(h) } >"""
    weights = {"w": np.eye(8, dtype=np.float32), "b": np.ones(8, np.float32), "zero": np.float32(0)}
    text = f"(float[2,4,8] x) => (float[2,4,8] y) {{ {body} }}"
    model = written(tmp_path / "m.onnx", text, **weights)
    built = qcompile.build(model, tmp_path / "b.onnx", target="onnxruntime")
    x = np.ones((2, 4, 8), np.float32)
    with qcompile.load(built.path) as runner:
        np.testing.assert_allclose(runner.infer({"x": x})["y"], 3 * x)
