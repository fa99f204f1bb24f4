"""TensorRT's calibration cache: written as TensorRT reads it, and read with nothing let by.

TensorRT's calibration cache as the ranges of a model, and quantizing with it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from qcompile.calibration import Method, Ranges, load_ranges
from qcompile.calibration.histogram import Histogram
from qcompile.calibration.ranges import Portion
from qcompile.calibration.tensorrt_cache import (
    CALIBRATORS,
    format_cache,
    is_cache,
    parse_cache,
    read_cache,
    version_code,
)
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.compiler.quantize.quantize import quantize
from qcompile.core.files import write_text
from qcompile.errors import CalibrationError, InvalidOption, MissingFile, ModelError, QCompileError
from qcompile.model.graph.onnx_file import read_graph

CACHE, HEADER = Path("model.cache"), "TRT-8503-EntropyCalibration2"


def float_of(digits: str) -> float:
    """The float32 that hexadecimal digits spell, most significant first."""
    return float(np.array([int(digits, 16)], np.uint32).view(np.float32)[0])


def of_amax(values: Mapping[str, float]) -> Ranges:
    """Ranges whose largest magnitudes are these, and hold by default."""
    ranges = Ranges("sha256:aa", {"sha256:dd": Portion(1)}, Method("minmax"))
    for name, value in values.items():
        ranges.histograms[name] = Histogram()
        ranges.histograms[name].add(np.array([value]))
    return ranges


# Writing.


def test_a_cache_is_written_as_tensorrt_writes_it() -> None:
    # 127 times the float32 3c010a14, the scale in TensorRT's own example.
    ranges = of_amax({"input": 1.000244140625, "conv1": 127.0, "zero": 0.0})
    ranges.histograms["empty"] = Histogram()
    ranges.shared = {"relu": ("conv1",), "flat": ("empty",)}
    text = format_cache(ranges, version="8.5.3")
    lines = [
        "conv1: 3f800000",
        "input: 3c010a14",
        "relu: 3f800000",
        f"zero: {struct.pack('!f', 1 / 127).hex()}",
    ]
    assert text.splitlines() == ["TRT-8503-EntropyCalibration2", *lines]
    fixed = Ranges("sha256:aa", fixed={"x": 127.0, "y": 63.5, "z": 1e-44})
    *written, least = format_cache(fixed, version="10.1.0").splitlines()[1:]
    assert written == ["x: 3f800000", "y: 3f000000"]
    assert float_of(least.removeprefix("z: ")) > 0  # a scale below float32 is not written as zero


NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name.splitlines() == [name]) | st.sampled_from(
    [
        "a b",
        " a ",
        "a: b",
        "a: 3c010a14",
        "/layer1/conv/Conv_output_0",
        "x:0",
        "größe",
        "TRT-8503-X",
        ": ",
        "a\rb",
        "a\x0bb",
        "a\x85b",
        "a\u2028b",
    ]
)
AMAX = st.floats(2.0**-120, 2.0**120)


@settings(deadline=None)
@given(st.dictionaries(NAMES, AMAX, min_size=1, max_size=5))
def test_what_is_written_is_read(values: dict[str, float]) -> None:
    text = format_cache(of_amax(values), version="10.1.0")
    scales = parse_cache(text, CACHE)
    assert scales == {name: float(np.float32(value / 127)) for name, value in values.items()}
    for line in text.split("\n")[1:-1]:
        name, digits = line[:-10], line[-8:]
        assert line == f"{name}: {digits}"
        assert digits == struct.pack("!f", values[name] / 127).hex()
        assert float_of(digits) == scales[name]


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_the_calibrator_is_named_in_the_header(calibrator: str) -> None:
    text = format_cache(of_amax({"x": 1.0}), version="10.16.1.11", calibrator=calibrator)
    assert text.splitlines()[0] == f"TRT-101601-{calibrator}"
    assert list(parse_cache(text, CACHE)) == ["x"]


def test_versions_are_spelled_as_in_a_cache() -> None:
    versions = "8.5.3 8.5.3.1 8.5 8.6.1 8.4.1.5 10.1.0 10.0.1 10.16.1.11 8503 100100"
    codes = "8503 8503 8500 8601 8401 100100 100001 101601 8503 100100"
    assert " ".join(map(version_code, versions.split())) == codes


@pytest.mark.parametrize("version", ["", "8.5.x", "v8.5.3", "8.", "8.5.3.1.2", "-8.5.3", "8.5.3\n", "latest"])
def test_a_version_that_is_none_is_refused(version: str) -> None:
    with pytest.raises(InvalidOption, match=r"8\.5\.3 or 8503") as caught:
        version_code(version)
    assert repr(version) in caught.value.message


# Reading.


def test_digits_of_either_case_and_leading_zeros_left_out_are_read() -> None:
    text = f"{HEADER}\r\nupper: 3C010A14\r\nlower: 3c010a14\r\n\r\nshort: 800000"
    scales = parse_cache(text, CACHE)
    assert scales["upper"] == scales["lower"] == float_of("3c010a14")
    assert scales["short"] == 2.0**-126


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_scale_is_read_exactly_or_refused(bits: int) -> None:
    (expected,) = struct.unpack("!f", bits.to_bytes(4, "big"))
    text = f"{HEADER}\nx: {bits:08x}\n"
    if math.isfinite(expected) and expected > 0:
        assert parse_cache(text, CACHE) == {"x": expected}
    else:
        with pytest.raises(CalibrationError, match="tensor 'x'"):
            parse_cache(text, CACHE)


@pytest.mark.parametrize(
    ("text", "words", "tensor"),
    [
        *(
            (f"{HEADER}\nx: 3f800000\nconv 1:0: {digits}\n",
             f"{CACHE}:3: tensor 'conv 1:0' has the scale {shown}", "conv 1:0")
            for digits, shown in (
                ("00000000", "0.0"), ("0", "0.0"), ("80000000", "-0.0"), ("bf800000", "-1.0"),
                ("7f800000", "inf"), ("ff800000", "-inf"), ("7fc00000", "nan"), ("ffffffff", "nan"),
            )
        ),
        *(
            (f"{HEADER}\nfirst: 3f800000\n{line}\n", f"{CACHE}:3: {line!r}", None)
            for line in ("x", "x: ", "x:3c010a14", "x 3c010a14", "x: 3c010a145", "x: 0x3c0", "x: 3c 01",
                         "x: 0.5", "x: -1")
        ),
        (f"{HEADER}\nx: 3f800000\ny: 3f800000\nx: 3f800000\n", f"{CACHE}:4: tensor 'x' is listed twice", "x"),
        *(
            (text, f"{CACHE}: not a TensorRT calibration cache; line 1", None)
            for text in ("", "\n", "x: 3c010a14\n", f"\n{HEADER}\n", "TRT-8503\nx: 3c010a14", "TRT--X\n",
                         "trt-8503-X")
        ),
    ],
)  # fmt: skip
def test_what_is_no_cache_is_refused_by_line_and_tensor(text: str, words: str, tensor: str | None) -> None:
    with pytest.raises(CalibrationError) as caught:
        parse_cache(text, CACHE)
    assert caught.value.message.startswith(words)
    assert caught.value.data["file"] == CACHE
    assert tensor is None or caught.value.data["tensor"] == tensor


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        (of_amax({"a\nb": 1.0}), r"'a\\nb': a cache cannot hold this name"),
        (of_amax({}), "a cache would be empty"),
        (Ranges("m", fixed={"x": 1e300}), "'x' has the scale .* beyond float32"),
    ],
)
def test_what_a_cache_cannot_hold_is_refused(ranges: Ranges, words: str) -> None:
    with pytest.raises(CalibrationError, match=words):
        format_cache(ranges, version="8.5.3")


MakePath = Callable[..., Path]


# Of a model.


def cache_file(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "model.cache"
    path.write_text("\n".join((header, *lines)) + "\n", encoding="utf-8")
    return path


def test_the_scales_of_a_model_become_its_ranges(tiny_file: MakePath, tmp_path: Path) -> None:
    model = tiny_file("residual")
    internal = ["(Unnamed Layer* 7) [Constant]_output: 3f800000", "ONNXTRT_Broadcast_12_output: 3f800000",
                "conv1 + ONNXTRT_ShapeShuffle_3: 3f800000"]  # fmt: skip
    path = cache_file(tmp_path, *internal, "x: 3f800000", "r1: 3f000000", "y: 3c010a14")
    ranges = read_cache(path, model)
    assert ranges.model == read_graph(model).digest()
    assert sorted(ranges.names()) == ["r1", "x", "y"]
    assert ranges.limits("x") == (-127.0, 127.0)
    assert ranges.amax("r1") == 63.5
    assert ranges.amax("y") == pytest.approx(127 * float_of("3c010a14"), rel=1e-12)
    assert "model.cache" in ranges.data


def test_a_tensor_that_the_model_does_not_have_is_named(tiny_file: MakePath, tmp_path: Path) -> None:
    model = tiny_file("residual")
    path = cache_file(tmp_path, "x: 3f800000", "z9: 3f800000", "images: 3f800000")
    with pytest.raises(CalibrationError, match=r"names 2 of 3 .* does not have: images, z9") as caught:
        read_cache(path, model)
    assert str(path) in caught.value.message
    assert str(model) in caught.value.message
    assert caught.value.data == {"file": path, "tensor": "images"}


def test_a_cache_without_a_tensor_of_the_model_is_refused(tiny_file: MakePath, tmp_path: Path) -> None:
    for lines in ((), ("(Unnamed Layer* 7) [Constant]_output: 3f800000",)):
        with pytest.raises(CalibrationError, match="holds no tensor of"):
            read_cache(cache_file(tmp_path, *lines), tiny_file("residual"))


@pytest.mark.parametrize(
    "content", [b"", b"\x00\x01\x02", b"TRT-\xff\xfe\x00", b"TRT-8503-X\n\xff: 3f800000"]
)
def test_a_binary_file_is_no_cache(tiny_file: MakePath, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.cache"
    path.write_bytes(content)
    with pytest.raises(CalibrationError, match=r"model\.cache") as caught:
        read_cache(path, tiny_file("residual"))
    assert caught.value.data["file"] == path


def test_a_missing_file_is_named(tiny_file: MakePath, tmp_path: Path) -> None:
    path = cache_file(tmp_path, "x: 3f800000")
    with pytest.raises(MissingFile, match=r"modle\.cache does not exist") as caught:
        read_cache(tmp_path / "modle.cache", tiny_file("residual"))
    assert "model.cache" in caught.value.hint
    with pytest.raises(MissingFile, match=r"none\.onnx"):
        read_cache(path, tmp_path / "none.onnx")
    (tmp_path / "none.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"none\.onnx"):
        read_cache(path, tmp_path / "none.onnx")


def test_caches_are_known_by_their_beginning(tmp_path: Path) -> None:
    assert is_cache(cache_file(tmp_path))
    for content in (b"", b"TRT", b"\x00TRT-8503"):
        (tmp_path / "other").write_bytes(content)
        assert not is_cache(tmp_path / "other")
    with pytest.raises(MissingFile):
        is_cache(tmp_path / "none.cache")


# Quantizing with one.


@pytest.fixture
def calibrated(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> tuple[Path, Path]:
    """The residual model and its ranges file."""
    model = tiny_file("residual")
    output = tmp_path / "m.ranges"
    return model, calibrate(model, str(samples("residual", 16)), output, threads=1).path


def activation_scales(path: Path) -> dict[str, float]:
    """Name of a tensor that a QuantizeLinear reads to its scale; weights are left out."""
    graph = onnx.load(path).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return {
        node.input[0]: float(stored[node.input[1]])
        for node in graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] not in stored
    }


@pytest.mark.parametrize("method", ["entropy", "minmax", "percentile:99.0", "mse", "auto"])
def test_a_cache_quantizes_as_the_ranges_it_was_made_from(
    calibrated: tuple[Path, Path], tmp_path: Path, method: str
) -> None:
    from qcompile.calibration import parse_method

    model, file = calibrated
    text = format_cache(load_ranges(file), version="8.5.3", method=parse_method(method))
    write_text(tmp_path / "m.cache", text)
    cached, direct = tmp_path / "cached.onnx", tmp_path / "direct.onnx"
    found = quantize(model, cached, ranges=tmp_path / "m.cache", target="tensorrt")
    expected = quantize(model, direct, ranges=file, target="tensorrt", method=method)
    scales = activation_scales(direct)
    assert set(scales) >= {"x", "r1", "f"}
    assert activation_scales(cached) == pytest.approx(scales, rel=1e-6)
    written = parse_cache(text, CACHE)
    assert {name: written[name] for name in scales} == pytest.approx(scales, rel=1e-6)
    nodes = "nodes_by_precision"
    assert found.manifest.proof[nodes] == expected.manifest.proof[nodes]
    assert "m.cache" in found.manifest.sources["calibration data"]


@pytest.mark.parametrize(
    ("options", "dropped", "error", "words", "hint"),
    [
        ({"target": "onnxruntime"}, "", InvalidOption, "waste half of the range of onnxruntime",
         "`target` tensorrt"),
        ({"method": "minmax"}, "", CalibrationError, "one scale per tensor: minmax cannot be chosen",
         "leave `method` out"),
        ({}, "r1: ", CalibrationError, "tensor 'r1' needs a scale and has no range", ""),
        ({"precision": "fp16"}, "", InvalidOption, "scales, not the largest values", ""),
    ],
)  # fmt: skip
def test_what_a_cache_cannot_give_is_refused(
    calibrated: tuple[Path, Path], tmp_path: Path, options: dict[str, str], dropped: str,
    error: type[QCompileError], words: str, hint: str,
) -> None:  # fmt: skip
    model, file = calibrated
    lines = format_cache(load_ranges(file), version="8.5.3").splitlines(keepends=True)
    write_text(
        tmp_path / "m.cache", "".join(line for line in lines if not dropped or not line.startswith(dropped))
    )
    with pytest.raises(error, match=words) as caught:
        quantize(
            model, tmp_path / "q.onnx", ranges=tmp_path / "m.cache", **({"target": "tensorrt"} | options)
        )
    assert hint in caught.value.hint
    assert not (tmp_path / "q.onnx").exists()
