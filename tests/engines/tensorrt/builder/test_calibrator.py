"""TensorRT's own calibration: what it is fed, and that an error never looks like the end of the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mode_models import written
from recorded_tensorrt import recorded_module
from simulated_machine import Machine, OnMachine

from qcompile.data.readers import Batch
from qcompile.engines.gpu import why_no_gpu
from qcompile.engines.registry import engine
from qcompile.engines.tensorrt.adapter import Adapter
from qcompile.engines.tensorrt.builder import calibration
from qcompile.engines.tensorrt.builder.calibration import (
    CalibrationInput,
    DeviceBuffers,
    Feeder,
    convert,
    make_calibrator,
)
from qcompile.errors import DataError, EngineUnavailable, InvalidOption
from qcompile.spec.artifacts import BuildSpec


class Memory:
    """A device that keeps what was copied to it, by input."""

    def __init__(self) -> None:
        self.copied: dict[str, list[np.ndarray[Any, Any]]] = {}

    def copy(self, name: str, array: np.ndarray[Any, Any]) -> int:
        self.copied.setdefault(name, []).append(array.copy())
        return 1000 + sum(name.encode())

    def close(self) -> None:
        """Nothing to free."""


V8 = Adapter(recorded_module("8.5.3"), "tensorrt")


def batches(*widths: int) -> Iterator[Batch]:
    """Batches of two inputs; every value says which batch it is of."""
    for index, width in enumerate(widths):
        feeds = {"x": np.full((1, width), index, np.float32), "ids": np.full((1, 2), index)}
        yield Batch(feeds, None, f"batch {index}")


def feeder(source: Iterator[Batch], device: Memory | None = None) -> Feeder:
    (first,) = batches(3)
    inputs = {
        "x": CalibrationInput("x", np.dtype("float32"), (1, 3)),
        "ids": CalibrationInput("ids", np.dtype("int32"), (1, 2)),
    }
    return Feeder(first, source, device or Memory(), lambda *_: None, inputs=inputs)


def test_batches_reach_the_device_in_the_order_of_the_names_that_tensorrt_asks_for() -> None:
    device = Memory()
    feeding = feeder(batches(3, 3), device)
    calibrator = make_calibrator(V8, feeding)
    assert isinstance(calibrator, V8.module.IInt8EntropyCalibrator2)
    by_range = make_calibrator(V8, replace(feeding, kind="minmax"))
    assert isinstance(by_range, V8.module.IInt8MinMaxCalibrator)
    ids, x = calibrator.get_batch(["ids", "x"])
    assert calibrator.get_batch(["x", "ids"]) == [x, ids] != [ids, x]
    assert device.copied["ids"][0].dtype == np.int32  # the samples have 64 bits
    np.testing.assert_array_equal(device.copied["ids"], [[[0, 0]], [[1, 1]]])
    np.testing.assert_array_equal(device.copied["x"], [np.zeros((1, 3)), np.ones((1, 3))])
    assert calibrator.get_batch(["ids", "x"]) is None
    assert (feeding.batches_fed, feeding.raised) == (2, None)
    assert calibrator.read_calibration_cache() is None
    calibrator.write_calibration_cache(memoryview(b"TRT-8503-EntropyCalibration2\nx: 3c010a14\n"))
    assert feeding.cache.endswith(b"x: 3c010a14\n")


@pytest.mark.parametrize("error", [DataError("the disk went away"), KeyboardInterrupt()])
@pytest.mark.parametrize("before_the_batch", [False, True])
def test_errors_end_the_data_and_stay_in_python(error: BaseException, before_the_batch: bool) -> None:
    once = [error]

    def fail() -> None:
        if once:
            raise once.pop()

    def broken() -> Iterator[Batch]:
        yield from batches(3)
        fail()

    feeding = feeder(batches(3, 3, 3) if before_the_batch else broken())
    calibrator = make_calibrator(V8, feeding)
    assert calibrator.get_batch(["x"]) is not None
    if before_the_batch:
        feeding.before_each_step = fail
    assert [calibrator.get_batch(["x"]) for _ in range(2)] == [None, None]  # the end of the data, to TensorRT
    assert feeding.raised is error


@pytest.mark.skipif(not why_no_gpu(), reason="there is a GPU")
def test_without_a_gpu_the_device_says_so() -> None:
    with pytest.raises(EngineUnavailable, match="no CUDA device can be used for calibration"):
        DeviceBuffers()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"calibrator": "entropy", "data": "x.npz"}, "has no INT8 calibrators"),
        ({"calibrator": "kl"}, "one of ranges, native, entropy, minmax"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        engine("tensorrt-rtx").check(BuildSpec(target="tensorrt-rtx", **{"precision": "int8", **options}))


MIXED = """(float[n,4] x, int64[n,2] ids, bool[n,4] kept, int64[2] size) => (float[a,b] y)
<float[4,4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}, int64[1] axes = {1}> {
    product = MatMul (x, w)
    zero = Sub (product, product)
    masked = Where (kept, product, zero)
    wide = Cast <to = 1> (ids)
    total = ReduceSum <keepdims = 1> (wide, axes)
    sum = Add (masked, total)
    y = Expand (sum, size)
}"""
FEEDS = {
    "x": np.linspace(-1, 1, 4, dtype=np.float32).reshape(1, 4),
    "ids": np.array([[1, 2]]),
    "kept": np.array([[True, False, True, True]]),
    "size": np.array([3, 4]),
}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """What the next build copies to."""
    made = Memory()
    monkeypatch.setattr(calibration, "DeviceBuffers", lambda *_: made)
    return made


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A model with inputs of every kind; the values of `size` are a shape."""
    return written(tmp_path / "mixed.onnx", MIXED, opset=16)


def calibrated(
    here: Machine, model: Path, *samples: dict[str, Any], float_precision: str = "auto", **options: Any
) -> Any:
    """Build with TensorRT's own calibrator on samples."""
    folder = here.folder / "samples"
    folder.mkdir()
    for index, sample in enumerate(samples):
        np.savez(folder / f"{index}.npz", **sample)
    sizes = {name: (4, 4) if name == "size" else (2, *array.shape[1:]) for name, array in samples[0].items()}
    return here.build(
        model, "int8", calibrator="native", data=str(folder), min_shapes={**sizes, "size": (1, 4)},
        opt_shapes=sizes, max_shapes=sizes, allow_fallback=True, options=options,
        float_precision=float_precision,
    )  # fmt: skip


@pytest.mark.parametrize(("version", "wide"), [("8.5.3", "int32"), ("10.16", "int64")])
def test_samples_have_the_networks_types(wide: str, here: Machine, mixed: Path, device: Memory) -> None:
    proof = calibrated(here, mixed, FEEDS, FEEDS).manifest.proof
    assert proof["calibration_batches"] == 2
    first = {name: arrays[0] for name, arrays in device.copied.items()}
    assert {name: str(array.dtype) for name, array in first.items()} == {
        "x": "float32", "ids": wide, "kept": "bool", "size": wide
    }  # fmt: skip
    for name, array in first.items():
        np.testing.assert_array_equal(array, FEEDS[name])
    # The calibration profile has the values of shape inputs.
    assert ("size", (3, 4), (3, 4), (3, 4)) in here.told("set_shape_input")
    assert ("ids", (1, 2), (1, 2), (1, 2)) in here.told("set_shape")
    assert "size" not in {name for name, *_ in here.told("set_shape")}


@pytest.mark.parametrize(
    ("version", "options"),
    [("8.5.3", {"io_formats": ("x=float16",)}), ("10.16", {"io_formats": ("x=bfloat16",)}), ("8.5.3", {})],
)
def test_halves_and_bytes_get_float32_samples(
    version: str, options: dict[str, Any], machine: OnMachine, tmp_path: Path, device: Memory
) -> None:
    text = MIXED.replace("bool[n,4] kept", "uint8[n,4] pixels")
    text = text.replace("    zero = Sub (product, product)\n", "    bytes = Cast <to = 1> (pixels)\n")
    text = text.replace("Where (kept, product, zero)", "Mul (bytes, product)")
    pixels = np.array([[0, 1, 128, 255]], np.uint8)
    samples = {name: array for name, array in FEEDS.items() if name != "kept"} | {"pixels": pixels}
    calibrated(machine(version), written(tmp_path / "m.onnx", text, opset=16), samples, **options)
    for name in ("x", "pixels"):
        np.testing.assert_array_equal(device.copied[name][0], samples[name])
        assert device.copied[name][0].dtype == np.float32


@pytest.mark.parametrize(
    ("version", "name", "value", "said"),
    [
        ("8.5.3", "ids", [[1, 2**31]], "1.npz: input 'ids' is int64; TensorRT reads int32"),
        ("10.16", "size", [4, 4], "holds the shape 4, 4; TensorRT calibrates at one.* 3, 4"),
        ("10.16", "ids", [[1, 2], [3, 4]], "input 'ids' has shape 2x2"),
    ],
)
def test_a_sample_that_the_network_does_not_hold_ends_the_build_by_name(
    name: str, value: Any, said: str, here: Machine, mixed: Path, device: Memory
) -> None:
    wrong = {**FEEDS, name: np.array(value, FEEDS[name].dtype)}
    with pytest.raises(DataError, match=said):
        calibrated(here, mixed, FEEDS, wrong, float_precision="fp32")
    assert here.nothing_built
    assert name in device.copied


def test_an_input_of_unknown_bytes_is_refused(machine: OnMachine, mixed: Path, device: Memory) -> None:
    with pytest.raises(InvalidOption, match=r"`calibrator`: input 'x' .*in a memory format of its own"):
        calibrated(machine("10.16"), mixed, FEEDS, io_formats=("x=:hwc8",))
    assert not device.copied


@pytest.mark.parametrize(
    ("array", "dtype", "fits"),
    [
        (np.array([2**31 - 1, -(2**31)]), "int32", True),
        (np.array([2**31]), "int32", False),
        (np.array([0, 1]), "bool", True),
        (np.array([2]), "bool", False),
        (np.array([0.1], np.float64), "float32", True),  # rounded, as whoever calls the engine rounds it
        (np.array([1e39], np.float64), "float32", False),
        (np.array([np.inf, np.nan], np.float32), "float16", True),
        (np.array([3.0], np.float32), "uint8", True),
        (np.array([3.5], np.float32), "uint8", False),
        (np.array([np.nan], np.float32), "int32", False),
        (np.array(7), "int32", True),
    ],
)
def test_conversions_keep_all_values_or_are_none(array: np.ndarray[Any, Any], dtype: str, fits: bool) -> None:
    converted = convert(array, np.dtype(dtype))
    assert (converted is not None) == fits
    if converted is not None:
        assert (converted.dtype, converted.shape) == (np.dtype(dtype), array.shape)
        np.testing.assert_array_equal(converted, array.astype(dtype))


def test_a_transposed_sample_is_made_contiguous() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    taken = CalibrationInput("x", np.dtype("float32"), (3, 2)).take(Batch({"x": array}, None, "one"))
    assert taken.flags.c_contiguous
    np.testing.assert_array_equal(taken, array)
