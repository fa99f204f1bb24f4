"""Mistakes that were made once in calibration, each with the test that would have caught it."""

from __future__ import annotations

import gc
import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from qcompile.calibration import calibrate, load_ranges, observe
from qcompile.calibration.calibrate import Shard
from qcompile.calibration.checkpoint import load_checkpoint
from qcompile.calibration.taps import choose_taps
from qcompile.data.archive import read_rows
from qcompile.data.batches import Data
from qcompile.errors import CalibrationError, DataError, InvalidOption, QCompileError
from qcompile.model.weightless import read_weightless


def save(path: Path, body: str, signature: str, opset: int = 17, **weights: Any) -> Path:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {signature} {{ {body} }}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, path)
    return path


def normal(*shape: int) -> Any:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def function_of(folder: Path, body: str) -> str:
    folder.mkdir(exist_ok=True)
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    (folder / "data.py").write_text(f"import numpy as np\ndef samples():\n{lines}")
    return f"{folder / 'data.py'}:samples"


def observed(model: Path, spec: str, **options: Any) -> Any:
    weightless = read_weightless(model)
    return observe(weightless, Data(spec, weightless.io.inputs, limit=options.pop("limit", None)), **options)


RELU = ("y = Relu(x)", "(float[n, 4] x) => (float[n, 4] y)")


def test_read_only_samples(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((6, 4), np.float32))
    spec = function_of(
        tmp_path / "d", f"yield from np.split(np.load({str(tmp_path / 'x.npy')!r}, mmap_mode='r'), 3)"
    )
    assert observed(save(tmp_path / "m.onnx", *RELU), spec).samples == 6


@pytest.mark.parametrize("threads", [1, 2])
def test_a_function_may_fill_one_buffer_again_and_again(tmp_path: Path, threads: int) -> None:
    model = save(
        tmp_path / "m.onnx", "a = Exp(x) b = Add(a, x) y = Relu(b)", "(float[n, w] x) => (float[n, w] y)"
    )
    spec = function_of(
        tmp_path / "d",
        "buffer = np.empty((1, 20000), np.float32)\nfor i in range(60):\n"
        "    buffer[:] = i / 10\n    yield buffer",
    )
    again = function_of(
        tmp_path / "e", "for i in range(60):\n    yield np.full((1, 20000), i / 10, np.float32)"
    )
    found, expected = (observed(model, s, threads=threads).histograms["x"].counts for s in (spec, again))
    np.testing.assert_array_equal(found, expected)


def test_shards_of_a_function_beside_the_outputs(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    model = save(tmp_path / "m.onnx", *RELU)
    spec = function_of(tmp_path / "w", "yield np.arange(40, dtype=np.float32).reshape(10, 4)")
    one, two = (
        load_ranges(calibrate(model, spec, tmp_path / "w" / f"{p}.ranges", shard=f"{p}/2").path)
        for p in (1, 2)
    )
    one.merge(two)
    assert len(one.portions) == 1


def test_the_same_shard_twice_is_refused(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", *RELU)
    spec = function_of(tmp_path / "w", "yield np.arange(40, dtype=np.float32).reshape(10, 4)")
    one, two = (load_ranges(calibrate(model, spec, tmp_path / "w" / f"{p}.ranges").path) for p in (1, 2))
    with pytest.raises(CalibrationError, match="count twice"):
        one.merge(two)


@pytest.mark.parametrize(
    "body", ["y = MaxPool <kernel_shape = [2, 2]> (x)", "y = Transpose(x)", "y = Flatten(x)"]
)
def test_models_of_which_only_the_input_is_observed(tmp_path: Path, body: str) -> None:
    model = save(tmp_path / "m.onnx", body, "(float[n, 4, 8, 8] x) => (float[i, j] y)")
    np.savez(tmp_path / "x.npz", x=normal(2, 4, 8, 8))
    assert sorted(observed(model, str(tmp_path / "x.npz")).histograms) == ["x"]


def test_a_reorder_whose_output_a_subgraph_reads(tmp_path: Path) -> None:
    body = """
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        i = If (condition) <
            then_branch = yes () => (float[n, 16, 8, 8] t) { t = Neg (c) },
            else_branch = no () => (float[n, 16, 8, 8] e) { e = Abs (c) }
        >
        y = Mul (i, i)
    """
    model = save(
        tmp_path / "m.onnx",
        body,
        "(float[n, 3, 8, 8] x, bool condition) => (float[n, 16, 8, 8] y)",
        w=normal(16, 3, 3, 3),
    )
    spec = function_of(tmp_path / "d", "yield np.ones((1, 3, 8, 8), np.float32), np.array(True)")
    assert observed(model, spec, tensors={"c", "i", "y"}).samples == 1


def test_a_link_of_another_name(tmp_path: Path) -> None:
    body = "a = MatMul(x, w) y = Relu(a)"
    save(tmp_path / "real.onnx", body, "(float[n, 64] x) => (float[n, 64] y)", w=normal(64, 64))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "model.onnx").symlink_to(tmp_path / "real.onnx")
    np.savez(tmp_path / "x.npz", x=normal(3, 64))
    assert observed(tmp_path / "links" / "model.onnx", str(tmp_path / "x.npz")).samples == 3


def test_leading_silence_makes_time_look_like_a_batch(tmp_path: Path) -> None:
    model = save(
        tmp_path / "m.onnx",
        "s = CumSum(x, zero) y = Relu(s)",
        "(float[t, 4] x) => (float[t, 4] y)",
        zero=np.array(0, np.int64),
    )
    spec = function_of(tmp_path / "d", "x = np.ones((6, 4), np.float32)\nx[:2] = 0\nyield x")
    assert observed(model, spec).histograms["y"].max == 4.0


def test_inputs_that_are_strings(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node(
            "LabelEncoder",
            ["s"],
            ["f"],
            domain="ai.onnx.ml",
            keys_strings=["a", "b"],
            values_floats=[1.0, 2.0],
        ),
        helper.make_node("Relu", ["f"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [value("s", TensorProto.STRING, ["n"])], [value("y", TensorProto.FLOAT, ["n"])]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    spec = function_of(tmp_path / "d", "yield np.array(['a', 'b', 'a'])")
    assert observed(tmp_path / "m.onnx", spec).histograms["y"].max == 2.0


def half_product(path: Path) -> Path:
    w = np.full((4, 8), 200, np.float16)
    return save(path, "a = MatMul(x, w) y = Sigmoid(a)", "(float16[n, 4] x) => (float16[n, 8] y)", w=w)


def test_half_activations_are_the_rounded_ones(tmp_path: Path) -> None:
    model = half_product(tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float16)
    np.savez(tmp_path / "x.npz", x=x)
    proto = onnx.load(model)
    proto.graph.output.append(helper.make_tensor_value_info("a", TensorProto.FLOAT16, None))
    a = onnxruntime.InferenceSession(proto.SerializeToString()).run(["a"], {"x": x})[0]
    assert observed(model, str(tmp_path / "x.npz")).histograms["a"].max == float(a.max())


def test_half_activations_that_overflow_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.full((1, 4), 100, np.float16))  # 80000
    with pytest.raises(CalibrationError, match="tensor 'a' holds infinity"):
        observed(half_product(tmp_path / "m.onnx"), str(tmp_path / "x.npz"))


@pytest.mark.parametrize("save_npz", [np.savez, np.savez_compressed])
def test_damage_in_an_array_stored_by_column(tmp_path: Path, save_npz: Any) -> None:
    path = tmp_path / "x.npz"
    save_npz(path, x=np.asfortranarray(normal(64, 4096)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as numpy data"):
        list(read_rows(path, 7))


@pytest.mark.parametrize("numbers", [9, 19])
def test_an_array_stored_by_column_that_is_shorter_or_longer(tmp_path: Path, numbers: int) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": True, "shape": (5, 3)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", file.getvalue() + bytes(4 * numbers))
    with pytest.raises(DataError, match="cannot be read as numpy data"):
        list(read_rows(tmp_path / "x.npz", 2))


def test_a_row_of_an_impossible_size(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1, 10**15)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", file.getvalue())
    with pytest.raises(DataError, match="cannot be read as numpy data"):
        list(read_rows(tmp_path / "x.npz", 2))


def test_the_archive_is_closed_when_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=normal(64, 4096))
    content = bytearray(path.read_bytes())
    content[-5000] ^= 0xFF
    path.write_bytes(content)

    def read() -> None:
        rows = read_rows(path, 1)
        next(rows)
        try:
            list(rows)
        except DataError as error:
            kept = error  # noqa: F841  # a cycle

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read()
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_infinity_in_the_first_samples_does_not_warn(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "a = Add(x, x) y = Relu(a)", RELU[1])
    spec = function_of(tmp_path / "d", "x = np.ones((4, 4), np.float32)\nx[0] = np.inf\nyield x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="input 'x' holds infinity"):
            observed(model, spec)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_earliest_bad_sample_is_named_though_reading_fails_later(tmp_path: Path, threads: int) -> None:
    body = (
        "for i in range(6):\n    if i == 5: raise OSError('disk')\n"
        "    yield np.full((1, 4), np.nan if i == 3 else 0, np.float32)"
    )
    with pytest.raises(DataError, match="samples batch 3: input 'x' holds NaN"):
        observed(save(tmp_path / "m.onnx", *RELU), function_of(tmp_path / "d", body), threads=threads)


def test_the_total_of_a_shard_of_whole_batches(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "y = Relu(x)", "(float[4, 3] x) => (float[4, 3] y)")
    np.savez(tmp_path / "x.npz", x=normal(12, 3))
    said: list[Any] = []
    observed(model, str(tmp_path / "x.npz"), shard=Shard(1, 2), progress=lambda *state: said.append(state))
    assert said[-1] == ("calibrate", 8, 8)


def test_a_limit_inside_a_fixed_batch(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "y = Relu(x)", "(float[4, 3] x) => (float[4, 3] y)")
    np.savez(tmp_path / "x.npz", x=normal(12, 3))
    assert observed(model, str(tmp_path / "x.npz"), limit=6).samples in (4, 8)


def test_an_output_that_is_a_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=normal(3, 4))
    (tmp_path / "out").mkdir()
    said: list[Any] = []
    with pytest.raises(InvalidOption):
        calibrate(
            save(tmp_path / "m.onnx", *RELU),
            str(tmp_path / "x.npz"),
            tmp_path / "out",
            progress=lambda *s: said.append(s),
        )
    assert not [state for state in said if state[0] == "calibrate"]


def test_an_operator_of_another_domain_is_not_one_that_folds() -> None:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "custom" : 1]> g (float[n, 4] x) => (float[n, 4] y)'
        " <float[n, 4] c> { c = custom.Add(x, x) y = Relu(c) }"
    )
    assert choose_taps(made).names == ("c", "y")


@pytest.mark.parametrize("tensors", ["[]", '{"x": [0, 0, 0]}'])
def test_a_checkpoint_of_the_right_key_and_wrong_content_is_none(tmp_path: Path, tensors: str) -> None:
    from safetensors.numpy import save_file

    header = f'{{"key": {{}}, "tensors": {tensors}, "units": 1, "samples": 1}}'
    save_file({"x": np.zeros(3, np.int64)}, tmp_path / "c", metadata={"qcompile": header})
    assert load_checkpoint(tmp_path / "c", {}) is None


def test_negative_threads_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=normal(3, 4))
    with pytest.raises(QCompileError):
        observed(save(tmp_path / "m.onnx", *RELU), str(tmp_path / "x.npz"), threads=-1)


def test_the_artifact_returned_is_the_one_on_disk(tmp_path: Path) -> None:
    from qcompile.artifact import load_artifact

    np.savez(tmp_path / "x.npz", x=normal(3, 4))
    artifact = calibrate(save(tmp_path / "m.onnx", *RELU), str(tmp_path / "x.npz"), tmp_path / "r")
    assert load_artifact(artifact.path) == artifact


def test_ranges_for_another_target_hint_at_the_target(tmp_path: Path) -> None:
    import qcompile

    body = "a = Conv(x, w) s = Sigmoid(a) y = MaxPool <kernel_shape = [1, 1]> (s)"
    image = "float[n, 2, 4, 4]"
    model = save(tmp_path / "m.onnx", body, f"({image} x) => ({image} y)", w=normal(2, 2, 1, 1))
    np.savez(tmp_path / "x.npz", x=normal(3, 2, 4, 4))
    ranges = qcompile.calibrate(model, str(tmp_path / "x.npz"), tmp_path / "r", targets=["tensorrt"]).path
    with pytest.raises(CalibrationError) as caught:
        qcompile.quantize(model, tmp_path / "q.onnx", ranges=ranges, target="onnxruntime")
    assert "target" in caught.value.hint


def test_samples_are_counted_by_the_models_first_input(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "y = MatMul(x, t)", "(float[n, 3] x, float[3, 4] t) => (float[n, 4] y)")
    spec = function_of(
        tmp_path / "d", "yield {'t': np.ones((3, 4), np.float32), 'x': np.ones((7, 3), np.float32)}"
    )
    assert observed(model, spec).samples == 7
