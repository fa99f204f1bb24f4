"""TensorRT's calibration cache as the ranges of a model, and quantizing with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper
from tensorrt_caches import CACHE, HEADER, float_of

from qcompile.calibration import Ranges, load_ranges
from qcompile.calibration.tensorrt_cache import format_cache, is_cache, parse_cache, read_cache
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.compiler.quantize.quantize import quantize
from qcompile.errors import CalibrationError, InvalidOption, MissingFile, ModelError
from qcompile.files import write_text
from qcompile.model.weightless import fingerprint

MakePath = Callable[..., Path]


# Of a model.


def cache_file(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "model.cache"
    path.write_text("\n".join((header, *lines)) + "\n", encoding="utf-8")
    return path


def test_the_scales_of_a_model_become_its_ranges(tiny_file: MakePath, tmp_path: Path) -> None:
    model = tiny_file("residual")
    ranges = read_cache(cache_file(tmp_path, "x: 3f800000", "r1: 3f000000", "y: 3c010a14"), model)
    assert ranges.model == fingerprint(model)
    assert sorted(ranges.names()) == ["r1", "x", "y"]
    assert ranges.limits("x") == (-127.0, 127.0)
    assert ranges.amax("r1") == 63.5
    assert ranges.amax("y") == pytest.approx(127 * float_of("3c010a14"), rel=1e-12)
    assert "model.cache" in ranges.data


def test_names_that_tensorrt_makes_up_are_left_out(tiny_file: MakePath, tmp_path: Path) -> None:
    path = cache_file(
        tmp_path,
        "(Unnamed Layer* 7) [Constant]_output: 3f800000",
        "x: 3f800000",
        "ONNXTRT_Broadcast_12_output: 3f800000",
        "conv1 + ONNXTRT_ShapeShuffle_3: 3f800000",
    )
    assert list(read_cache(path, tiny_file("residual")).names()) == ["x"]


def test_a_tensor_that_the_model_does_not_have_is_named(tiny_file: MakePath, tmp_path: Path) -> None:
    model = tiny_file("residual")
    path = cache_file(tmp_path, "x: 3f800000", "z9: 3f800000", "images: 3f800000")
    with pytest.raises(CalibrationError, match=r"names 2 of 3 .* does not have: images, z9") as caught:
        read_cache(path, model)
    assert str(path) in caught.value.message
    assert str(model) in caught.value.message
    assert caught.value.data == {"file": path, "tensor": "images"}


def test_a_cache_of_another_model_is_refused(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> None:
    ranges = load_ranges(
        calibrate(tiny_file("mlp"), str(samples("mlp", 4)), tmp_path / "m.ranges", threads=1).path
    )
    write_text(tmp_path / "mlp.cache", format_cache(ranges, version="8.5.3"))
    output = tmp_path / "q.onnx"
    with pytest.raises(CalibrationError, match=r"mlp\.cache: names .* that .*residual\.onnx does not have"):
        quantize(tiny_file("residual"), output, ranges=tmp_path / "mlp.cache", target="tensorrt")
    assert not output.exists()


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


def test_onnx_runtime_is_not_given_symmetric_scales(calibrated: tuple[Path, Path], tmp_path: Path) -> None:
    model, file = calibrated
    write_text(tmp_path / "m.cache", format_cache(load_ranges(file), version="8.5.3"))
    with pytest.raises(InvalidOption, match="half of the range is lost to onnxruntime") as caught:
        quantize(model, tmp_path / "q.onnx", ranges=tmp_path / "m.cache", target="onnxruntime")
    assert "`target` tensorrt" in caught.value.hint
    assert not (tmp_path / "q.onnx").exists()


def test_no_method_can_be_chosen_for_a_cache(calibrated: tuple[Path, Path], tmp_path: Path) -> None:
    model, file = calibrated
    write_text(tmp_path / "m.cache", format_cache(load_ranges(file), version="8.5.3"))
    output = tmp_path / "q.onnx"
    with pytest.raises(CalibrationError, match="one scale per tensor: minmax cannot be chosen") as caught:
        quantize(model, output, ranges=tmp_path / "m.cache", target="tensorrt", method="minmax")
    assert "leave `method` out" in caught.value.hint
    assert not output.exists()


def test_a_tensor_that_needs_a_scale_and_is_not_in_the_cache_is_named(
    calibrated: tuple[Path, Path], tmp_path: Path
) -> None:
    model, file = calibrated
    lines = format_cache(load_ranges(file), version="8.5.3").splitlines(keepends=True)
    write_text(tmp_path / "m.cache", "".join(line for line in lines if not line.startswith("r1: ")))
    with pytest.raises(CalibrationError, match="tensor 'r1' needs a scale and has no range"):
        quantize(model, tmp_path / "q.onnx", ranges=tmp_path / "m.cache", target="tensorrt")


def test_fp16_is_not_made_from_a_cache(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    model, cache = tiny_file("mlp"), tmp_path / "m.cache"
    cache.write_text(format_cache(Ranges("m", fixed={"x": 1.27}), version="8.5.3"))
    with pytest.raises(InvalidOption, match="scales, not the largest values"):
        quantize(model, tmp_path / "h.onnx", ranges=cache, target="tensorrt", precision="fp16")
