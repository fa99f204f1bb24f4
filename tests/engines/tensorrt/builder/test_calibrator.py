"""TensorRT's own calibration: what it is fed, and that an error never looks like the end of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorrt_rtx

import qcompile
from qcompile.data.readers import Batch
from qcompile.engines.gpu import why_no_gpu
from qcompile.engines.tensorrt.adapter import Adapter
from qcompile.engines.tensorrt.builder.calibration import (
    CalibrationInput,
    Device,
    Feeder,
    first_and_all,
    make_calibrator,
)
from qcompile.errors import DataError, EngineUnavailable, InvalidOption


class Memory:
    """A device whose buffers are arrays of this process."""

    def __init__(self) -> None:
        self.buffers: dict[int, np.ndarray[Any, Any]] = {}

    def copy(self, name: str, array: np.ndarray[Any, Any]) -> int:
        address = 1000 + sum(name.encode())
        self.buffers[address] = array.copy()
        return address


class Base:
    """What TensorRT's calibrator classes are to Python: a class with a constructor that must be called."""

    def __init__(self) -> None:
        self.constructed = True


V8 = Adapter(
    SimpleNamespace(
        __version__="8.5.3.1",
        __name__="tensorrt",
        BuilderFlag=SimpleNamespace(INT8=1, FP16=2, TF32=3),
        NetworkDefinitionCreationFlag=SimpleNamespace(EXPLICIT_BATCH=0),
        IInt8EntropyCalibrator2=type("IInt8EntropyCalibrator2", (Base,), {}),
        IInt8MinMaxCalibrator=type("IInt8MinMaxCalibrator", (Base,), {}),
    ),
    "tensorrt",
)
V10 = Adapter(
    SimpleNamespace(
        **{
            **vars(V8.module),
            "NetworkDefinitionCreationFlag": SimpleNamespace(EXPLICIT_BATCH=0, STRONGLY_TYPED=1),
        }
    ),
    "tensorrt",
)


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
    return Feeder(first, source, device or Memory(), lambda *_: None, inputs)


def test_batches_reach_the_device_in_the_order_of_the_names_that_tensorrt_asks_for() -> None:
    device = Memory()
    feeding = feeder(batches(3, 3), device)
    calibrator = make_calibrator(V8, "entropy", feeding)
    assert calibrator.constructed
    assert isinstance(calibrator, V8.module.IInt8EntropyCalibrator2)
    ids, x = calibrator.get_batch(["ids", "x"])
    np.testing.assert_array_equal(device.buffers[x], np.zeros((1, 3), np.float32))
    np.testing.assert_array_equal(device.buffers[ids], [[0, 0]])
    assert device.buffers[ids].dtype == np.int32  # the samples have 64 bits
    assert calibrator.get_batch(["ids", "x"]) == [ids, x]
    np.testing.assert_array_equal(device.buffers[x], np.ones((1, 3), np.float32))
    assert calibrator.get_batch(["ids", "x"]) is None
    assert (feeding.fed, feeding.raised) == (2, None)


def test_minmax_is_tensorrts_other_class() -> None:
    made = make_calibrator(V8, "minmax", feeder(batches(3)))
    assert isinstance(made, V8.module.IInt8MinMaxCalibrator)


def test_an_error_in_the_data_is_kept_and_nothing_is_fed_afterwards() -> None:
    def broken() -> Iterator[Batch]:
        yield from batches(3)
        raise DataError("the disk went away")

    feeding = feeder(broken())
    calibrator = make_calibrator(V8, "entropy", feeding)
    assert calibrator.get_batch(["x"]) is not None
    assert calibrator.get_batch(["x"]) is None  # to TensorRT this is the end of the data
    assert calibrator.get_batch(["x"]) is None
    assert isinstance(feeding.raised, DataError)
    assert "the disk went away" in str(feeding.raised)


def test_an_interrupt_does_not_cross_tensorrt() -> None:
    def interrupted() -> Iterator[Batch]:
        raise KeyboardInterrupt
        yield from batches(3)

    feeding = feeder(interrupted())
    assert feeding.next(["x"]) is None
    assert isinstance(feeding.raised, KeyboardInterrupt)


def test_an_interrupt_that_was_deferred_ends_the_data() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    feeding = feeder(batches(3, 3))
    assert feeding.next(["x"]) is not None
    feeding.before_each_batch = interrupted
    assert feeding.next(["x"]) is None
    assert isinstance(feeding.raised, KeyboardInterrupt)


def test_a_batch_of_another_shape_is_an_error_that_names_it() -> None:
    feeding = feeder(batches(3, 4))
    assert feeding.next(["x"]) is not None
    assert feeding.next(["x"]) is None
    assert isinstance(feeding.raised, DataError)
    assert "batch 1: input 'x' has shape 1x4" in feeding.raised.message
    assert "1x3" in feeding.raised.message


def test_no_cache_is_read_and_the_found_scales_are_kept() -> None:
    feeding = feeder(batches(3))
    native = make_calibrator(V8, "entropy", feeding)
    assert native.read_calibration_cache() is None
    native.write_calibration_cache(memoryview(b"TRT-8503-EntropyCalibration2\nx: 3c010a14\n"))
    assert feeding.cache.endswith(b"x: 3c010a14\n")


def test_the_first_batch_is_looked_at_and_not_lost() -> None:
    first, every = first_and_all(batches(3, 3, 3))
    assert first.where == "batch 0"
    assert [batch.where for batch in every] == ["batch 0", "batch 1", "batch 2"]
    with pytest.raises(DataError, match="no batch to calibrate on"):
        first_and_all([])


@pytest.mark.skipif(not why_no_gpu(), reason="there is a GPU")
def test_without_a_gpu_the_device_says_so() -> None:
    with pytest.raises(EngineUnavailable, match="no CUDA device can be used for calibration"):
        Device()


class Config:
    """Records the flags it is told."""

    def __init__(self) -> None:
        self.flags: list[object] = []

    def set_flag(self, flag: object) -> None:
        self.flags.append(flag)

    def clear_flag(self, flag: object) -> None:
        """Only TF32 is ever taken away."""
        assert flag == V8.module.BuilderFlag.TF32


@pytest.mark.parametrize("adapter", [V8, V10])
def test_calibration_makes_types_weak_where_they_could_be_strong(adapter: Adapter) -> None:
    adapter.require_calibrators()
    assert adapter.network_flags(weak=True) == 1 << 0  # EXPLICIT_BATCH alone
    config = Config()
    adapter.set_precision(config, "int8", weak=True)
    assert config.flags == [1]
    adapter.set_precision(config, "int8", weak=True, float_precision="fp16")
    assert config.flags == [1, 1, 2]


def test_tensorrt_rtx_refuses_calibrators_and_names_the_way_that_is_left() -> None:
    adapter = Adapter(tensorrt_rtx, "tensorrt-rtx")
    with pytest.raises(InvalidOption, match=r"tensorrt_rtx .* has no INT8 calibrators") as caught:
        adapter.require_calibrators()
    assert "`ranges`" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"calibrator": "entropy", "data": "x.npz"}, "has no INT8 calibrators"),
        ({"calibrator": "kl"}, "one of ranges, native, entropy, minmax"),
        ({"calibrator": "entropy", "precision": "fp16"}, "is for `precision` int8"),
        ({"calibration_cache": "c.txt"}, "is for `calibrator`"),
    ],
)
def test_build_refuses_what_cannot_be_before_any_work(
    tiny_file: Callable[..., Path], tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    output = tmp_path / "m.engine"
    with pytest.raises(InvalidOption, match=said):
        qcompile.build(
            tiny_file("residual"), output, target="tensorrt-rtx", **{"precision": "int8", **options}
        )
    assert not output.exists()
