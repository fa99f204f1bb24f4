"""Layers compared: by few taps as by all at once, and `qcompile diff --layers` as it is typed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import MakeModel, MakePath, Qc
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from int8_graphs import int8_graph
from layer_faults import all_at_once, brute_force, perturbed, random_network
from onnx import TensorProto, helper

import qcompile
from qcompile.bench.diff.layers import compare, job, taps
from qcompile.bench.diff.layers.compare import layer_diff
from qcompile.bench.diff.layers.outcome import LayerDiff
from qcompile.errors import IntentNotReached, InvalidOption, WorkerError
from qcompile.model.graph.multiply_adds import known_shapes
from qcompile.model.outputs.judgement import output_error


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Jobs are carried out here, for speed: what they do is the same. Holds how many taps each had."""
    tapped: list[int] = []

    def run(work: job.Job, *_: object) -> dict[str, Any]:
        folder = tmp_path / "jobs" / str(len(list(tmp_path.glob("jobs/*"))))
        folder.mkdir(parents=True)
        tapped.append(len(work.taps))
        return job.run_job({**asdict(work), "folder": str(folder)}, lambda _: None)

    monkeypatch.setattr(taps, "run", run)
    return tapped


@pytest.fixture
def compared(
    in_process: list[int],  # noqa: ARG001
    tiny_file: MakePath,
    samples: MakePath,
) -> Callable[..., LayerDiff]:
    """`compared(artifact)` is its comparison with the tiny residual network on samples of that."""

    def run(artifact: Path, **options: Any) -> LayerDiff:
        return layer_diff(str(tiny_file("residual")), str(artifact), data=str(samples("residual")), **options)

    return run


def ratios(diff: LayerDiff) -> dict[str, float]:
    return {layer.tensor: layer.snr_db for layer in diff.layers}


@pytest.mark.parametrize(("weight", "tensor"), [("w1", "c1"), ("b2", "c2"), ("w3", "y")])
def test_a_perturbed_weight_is_found_and_ratios_are_those_of_all_taps_at_once(
    weight: str, tensor: str, tiny: MakeModel, tiny_file: MakePath,
    samples: MakePath, compared: Callable[..., LayerDiff],
) -> None:  # fmt: skip
    artifact = tiny_file("residual", file="bad.onnx")
    onnx.save(perturbed(tiny("residual"), weight, by=0.2), artifact)
    diff = compared(artifact, samples=8)
    assert not diff
    assert diff.first_bad.tensor == tensor
    assert diff.complete
    with np.load(samples("residual")) as arrays:
        feeds = [{"x": arrays["x"][i : i + 1]} for i in range(8)]
    expected = brute_force(tiny("residual"), onnx.load(artifact), feeds)
    for name, snr in ratios(diff).items():
        assert snr == pytest.approx(expected[name], abs=0.01) or min(snr, expected[name]) > 100


@pytest.fixture
def int8_file(tiny_file: MakePath, samples: MakePath) -> MakePath:
    """`int8_file("onnxruntime")` is the tiny residual network in INT8."""
    return lambda target: int8_graph(tiny_file("residual"), samples("residual"), target)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt"])
def test_a_wrong_scale_is_found_in_int8_and_a_healthy_graph_passes(
    target: str, int8_file: MakePath, compared: Callable[..., LayerDiff]
) -> None:
    artifact = int8_file(target)
    healthy = compared(artifact)
    assert healthy
    assert all(20 < snr < 60 for snr in ratios(healthy).values())
    assert not healthy.warnings
    # TensorRT adds what the second convolution makes in float: of the two, the other branch has Q/DQ.
    first, second = ("c1", "w2_scale") if target == "tensorrt" else ("r1", "c2_scale")
    for scale, times, tensor in ((second, 0.1, "c2"), ("w1_scale", 0.1, first)):
        onnx.save(perturbed(onnx.load(int8_file(target)), scale, times=times), artifact)
        assert compared(artifact, trust=True).first_bad.tensor == tensor


def test_integer_taps_have_the_values_that_dequantize_linear_makes(
    int8_file: MakePath, tiny_file: MakePath, samples: MakePath,
    compared: Callable[..., LayerDiff],
) -> None:  # fmt: skip
    artifact = int8_file("onnxruntime")
    diff = compared(artifact, samples=4)
    with np.load(samples("residual")) as arrays:
        feeds = [{"x": arrays["x"][i : i + 1]} for i in range(4)]
    ours = all_at_once(onnx.load(tiny_file("residual")), feeds)
    theirs = all_at_once(onnx.load(artifact), feeds)
    for name in ("r1", "c2", "r2", "p"):
        expected = output_error(ours[name], theirs[f"{name}_DequantizeLinear_Output"]).snr_db
        # Integer kernels round some values to the neighbouring integer.
        assert ratios(diff)[name] == pytest.approx(expected, abs=0.3)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_halves_are_compared_tensor_by_tensor(
    precision: Any, tiny_file: MakePath, tmp_path: Path, on_processor: Callable[..., None],
    compared: Callable[..., LayerDiff],
) -> None:  # fmt: skip
    on_processor("avx512_bf16")  # OpenVINO emulates it elsewhere, where it has AVX-512
    artifact = tmp_path / "half.onnx"
    if precision == "fp16":
        qcompile.quantize(tiny_file("residual"), artifact, precision=precision)
    else:  # of the runtimes here OpenVINO alone computes in bfloat16, from a float32 graph
        try:
            qcompile.build(tiny_file("residual"), artifact, target="openvino", precision=precision)
        except IntentNotReached as error:
            pytest.skip(error.message)
    diff = compared(artifact, samples=2)
    assert diff
    assert diff.precision == precision
    low, high = (55, 85) if precision == "fp16" else (35, 65)
    assert all(low < snr < high for snr in ratios(diff).values())


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_a_built_artifact_is_looked_into_as_it_runs(
    target: str, int8_file: MakePath, tmp_path: Path, compared: Callable[..., LayerDiff]
) -> None:
    built = tmp_path / "built.onnx"
    qcompile.build(int8_file(target), built, target=target, precision="int8")
    diff = compared(built)
    assert diff
    assert ratios(diff) == pytest.approx(ratios(compared(int8_file(target))), abs=0.5)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(3, 14), st.integers(0, 99), st.integers(1, 3), st.data())
def test_a_fault_planted_anywhere_in_a_random_graph_is_found_as_by_brute_force(
    tmp_path: Path, in_process: list[int], layers: int, seed: int, most: int, data: st.DataObject
) -> None:
    model = random_network(layers, seed)
    weights = [tensor.name for tensor in model.graph.initializer]
    assume(weights)
    weight = data.draw(st.sampled_from(weights))
    bad = perturbed(random_network(layers, seed), weight, by=0.5)
    for name, one in (("good", model), ("bad", bad)):
        onnx.save(one, tmp_path / f"{name}.onnx")
    rows = np.random.default_rng(seed).standard_normal((3, 8)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=rows)
    arguments = {"data": str(tmp_path / "rows.npz"), "samples": 3}
    diff = layer_diff(str(tmp_path / "good.onnx"), str(tmp_path / "bad.onnx"), taps=most, **arguments)
    assert max(in_process) <= most
    everything = layer_diff(str(tmp_path / "good.onnx"), str(tmp_path / "bad.onnx"), **arguments)
    in_process.clear()
    expected = brute_force(model, bad, [{"x": rows[i : i + 1]} for i in range(3)])
    first = next(name for name in expected if expected[name] < 80)
    assert diff.first_bad.tensor == everything.first_bad.tensor == first
    assert first in next(node.output for node in model.graph.node if weight in node.input)
    for name, snr in ratios(diff).items():
        assert snr == pytest.approx(expected[name], abs=0.01) or min(snr, expected[name]) > 100


@pytest.mark.usefixtures("in_process")
def test_a_tapped_graph_that_computes_something_else_is_a_warning(
    tiny_file: MakePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = job._compare_file

    def changed(tally: Any, folder: Path, number: int, array: np.ndarray, form: Any) -> str:
        return honest(tally, folder, number, array + (1.0 if folder.name.startswith("a") else 0.0), form)

    monkeypatch.setattr(job, "_compare_file", changed)
    model = str(tiny_file("residual"))
    (warning,) = layer_diff(model, model, samples=1).warnings
    assert "output 'y' changes when tensors are tapped" in warning


def joined(folder: Path, extent: int, name: str, behind: list[onnx.NodeProto]) -> str:
    """A file of a model that puts its input beside itself so often, and what follows."""
    nodes = [helper.make_node("Concat", ["x"] * extent, [name], name, axis=1), *behind]
    value = helper.make_tensor_value_info
    sizes = (("x", 4), ("y", 1 if behind else 4 * extent))
    x, y = (value(tensor, TensorProto.FLOAT, [1, size]) for tensor, size in sizes)
    graph = helper.make_graph(nodes, "shapes", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, folder / f"{extent}.onnx")
    return str(folder / f"{extent}.onnx")


@pytest.mark.usefixtures("in_process")
def test_a_tensor_of_another_shape_is_said_and_left_out(tmp_path: Path) -> None:
    mean = helper.make_node("ReduceMean", ["c"], ["y"], "y", axes=[1])
    diff = layer_diff(*(joined(tmp_path, extent, "c", [mean]) for extent in (2, 3)), samples=1)
    assert "tensor 'c' cannot be compared: its shape is (1, 12), the reference's (1, 8)" in diff.warnings
    assert set(ratios(diff)) == {"y"}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("most", [1, None])
def test_nothing_that_can_be_compared_is_an_error(tmp_path: Path, most: int | None) -> None:
    files = [joined(tmp_path, extent, "y", []) for extent in (2, 3)]
    with pytest.raises(InvalidOption, match=r"no tensor can be compared .* its shape is \(1, 12\)"):
        layer_diff(*files, samples=1, taps=most)


@pytest.mark.usefixtures("in_process")
def test_nan_in_the_artifact_is_the_worst_there_is(tiny_file: MakePath) -> None:
    artifact = tiny_file("mlp", file="nan.onnx")
    onnx.save(perturbed(onnx.load(artifact), "b1", times=math.nan), artifact)
    diff = layer_diff(str(tiny_file("mlp")), str(artifact), samples=2)
    assert diff.first_bad.tensor == "h1"
    content = json.loads(json.dumps(diff.as_json(), allow_nan=False))
    assert content["tensors"][0]["state"] == "not finite"
    assert content["tensors"][0]["snr_db"] is None


@pytest.mark.usefixtures("in_process")
def test_of_an_engine_the_outputs_that_it_was_built_to_return_are_compared(
    tiny: MakeModel, tiny_file: MakePath, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What an engine is to the comparison: something that runs, and whose graph cannot be seen.
    artifact = tiny_file("residual", file="engine.onnx")
    model = perturbed(tiny("residual"), "w2", by=0.5)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("r1", "c2"))
    onnx.save(model, artifact)
    honest = compare.artifact_side
    monkeypatch.setattr(
        compare, "artifact_side", lambda path, *, trust: replace(honest(path, trust=trust), weightless=None)
    )
    results = tmp_path / "run.json"
    diff = layer_diff(str(tiny_file("residual")), str(artifact), samples=2, save_results=results)
    assert diff.runs == 3
    assert diff.complete
    assert not diff.warnings
    assert set(ratios(diff)) == {"r1", "c2", "y"}
    assert diff.first_bad.tensor == "c2"
    assert set(diff.pairs.reference_only) == {"c1", "a", "r2", "p", "f"}


def test_the_sizes_of_tensors_are_foreseen(tiny: MakeModel) -> None:
    for batch in (1, 3):
        feeds = {"x": np.zeros((batch, 4, 8, 8), np.float32)}
        found = all_at_once(tiny("residual"), [feeds])
        shapes = known_shapes(tiny("residual"), {"x": (batch, 4, 8, 8)})
        sizes = {name: math.prod(shapes[name]) for name in found}
        assert sizes == {name: array.size for name, array in found.items()}


def test_the_command_ranks_shows_the_surroundings_and_writes_what_polygraphy_opens(
    tiny: MakeModel, tiny_file: MakePath, samples: MakePath, tmp_path: Path, qc: Qc
) -> None:
    from polygraphy.comparator import RunResults

    artifact = tiny_file("residual", file="bad.onnx")
    onnx.save(perturbed(tiny("residual"), "w2", by=0.5), artifact)
    written, results = tmp_path / "layers.json", tmp_path / "run.json"
    arguments = ["diff", tiny_file("residual"), artifact, "--layers", "--samples", 2]
    said = qc(*arguments, "--data", samples("residual"), "-o", written, "--save-results", results)
    assert said.code == 1, said
    assert "first bad tensor: c2, made by Conv conv2" in said.out
    assert "made of\n  └─ r1  Relu relu1" in said.out
    assert "read by\n  └─ a  Add add" in said.out

    content = json.loads(written.read_text())
    assert (content["kind"], content["schema_version"]) == ("qcompile.layers", 1)
    assert content["first_bad"] == {"tensor": "c2", "operator": "Conv", "node": "conv2"}
    first = content["tensors"][0]
    assert {"tensor", "operator", "node", "snr_db", "max_abs_error", "max_abs", "elements"} <= set(first)
    assert first["tensor"] == "c2"
    assert content["runs"] == 3  # as it is, with taps, and once more for the values
    # Of a model this small nearly all is the libraries: even there it is within 1.3.
    assert content["peak_memory_bytes"] <= 1.3 * content["plain_peak_memory_bytes"]

    loaded = RunResults.load(str(results))
    assert [name for name, _ in loaded.items()] == ["reference", "artifact"]
    for number in range(2):
        ours, theirs = loaded["reference"][number], loaded["artifact"][number]
        assert "c2" in ours
        assert set(ours) == set(theirs)
        np.testing.assert_array_equal(ours["r1"], theirs["r1"])
    both = [np.concatenate([one["c2"].ravel() for one in loaded[side]]) for side in ("reference", "artifact")]
    assert output_error(*both).snr_db == pytest.approx(first["snr_db"], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "--taps", "0"], "--taps 0: at least 1 is required"),
        (["--layers", "--samples", "0"], "--samples 0: at least 1 is required"),
        (["--layers", "--threshold", "nan"], "--threshold nan: a finite number is required"),
        (["--layers", "--atol", "1"], "--atol: belongs to the comparison of outputs"),
        (["--taps", "3"], "--taps: belongs to the comparison of layers"),
        (["--max-builds", "2"], "--max-builds: belongs to the comparison of layers"),
        (["--layers", "--max-builds", "2"], "--max-builds: belongs to an engine"),
        (["--layers", "--graph", "MODEL"], "--graph: belongs to an engine"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: list[str], message: str, tiny_file: MakePath, qc: Qc
) -> None:
    model = tiny_file("mlp")
    said = qc("diff", model, model, *(model if one == "MODEL" else one for one in options))
    assert said.code == 2
    assert message in said.err


def test_files_that_cannot_be_compared_are_named(
    tiny_file: MakePath, tmp_path: Path, torch_model: str
) -> None:
    good = str(tiny_file("residual"))
    with pytest.raises(InvalidOption, match="layers are compared with those of an ONNX file"):
        layer_diff(torch_model, good)
    with pytest.raises(InvalidOption, match="an ONNX file or an engine is required"):
        layer_diff(good, torch_model)
    other = onnx.load(good)
    other.graph.input[0].name = "image"
    other.graph.node[0].input[0] = "image"
    onnx.save(other, tmp_path / "other.onnx")
    with pytest.raises(InvalidOption, match=r"inputs differ: residual.onnx takes x; other.onnx takes image"):
        layer_diff(good, str(tmp_path / "other.onnx"))


def test_a_process_that_dies_is_reported_with_its_last_words(
    tiny_file: MakePath, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'out of registers' >&2\nkill -9 $$\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    model = str(tiny_file("mlp"))
    with pytest.raises(WorkerError, match=r"worker of mlp.onnx died .*SIGKILL, out of memory\?") as caught:
        layer_diff(model, model, samples=1)
    assert "out of registers" in caught.value.message


def test_ctrl_c_leaves_no_process_and_no_folder(
    tiny_file: MakePath, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import psutil

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def interrupt(_: str, done: int = 0, *__: object) -> None:
        if done:
            raise KeyboardInterrupt

    model = str(tiny_file("mlp"))
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(KeyboardInterrupt):
        layer_diff(model, model, samples=4, progress=interrupt)
    assert set(psutil.Process().children(recursive=True)) <= before
    assert not list(tmp_path.glob("qcompile-layers-*"))


def test_an_engine_is_refused_without_a_gpu_before_its_graph_is_made_again(
    tiny_file: MakePath, tmp_path: Path, qc: Qc
) -> None:
    from qcompile.engines.registry import engine

    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    reason = engine("tensorrt-rtx").why_not_run()
    if not reason:
        pytest.skip("engines run here")
    model, built = tiny_file("residual", batch=2), tmp_path / "m.engine"
    qcompile.build(model, built, target="tensorrt-rtx", gpus=["sm86"])
    code, out, _ = qc("diff", model, built, "--layers", "--json")
    assert code == 1
    said = json.loads(out)
    assert said["error"] == "EngineUnavailable"
    assert reason in said["message"]
    assert "compare with the ONNX file that the engine was built from" in said["hint"]
