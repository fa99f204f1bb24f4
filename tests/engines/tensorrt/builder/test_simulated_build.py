"""What simulated builds make: engines, their inspector's words, timing caches, calibrations and refits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from recorded_tensorrt import VERSIONS
from simulated_builder import Circumstances, simulated_tensorrt
from simulated_plan import read_plan
from tensorrt_bench import Bench, listen

import qcompile

MakeFile = Callable[..., Path]

NEWER = ("10.16", "11.4", "rtx")


@pytest.mark.parametrize("version", VERSIONS)
def test_an_engine_is_built_loaded_and_asked(version: str, tiny_file: MakeFile) -> None:
    bench = Bench(simulated_tensorrt(version), tiny_file("residual"))
    bench.add_profile()
    plan = bench.build()
    assert bytes(plan)[:4] == (b"vtrt" if version == "rtx" else b"ftrt")
    assert memoryview(plan).nbytes == plan.nbytes > 1000
    engine = bench.module.Runtime(bench.log).deserialize_cuda_engine(plan)
    io = {
        engine.get_tensor_name(index): engine.get_tensor_mode(engine.get_tensor_name(index)).name
        for index in range(engine.num_io_tensors)
    }
    assert io == {"x": "INPUT", "y": "OUTPUT"}
    assert engine.get_tensor_shape("x") == (-1, 4, 8, 8)
    assert engine.get_tensor_profile_shape("x", 0) == [(2, 4, 8, 8)] * 3
    assert bench.said == []


def spelled(layers: list[dict[str, Any]], key: str) -> dict[str, str]:
    """Convolution to how the inspector spells its input."""
    return {
        layer["Name"].split(" + ")[0]: layer["Inputs"][0][key]
        for layer in layers
        if layer["LayerType"] == "CaskConvolution"
    }


@pytest.mark.parametrize("version", ["8.5.3", "10.16"])
@pytest.mark.parametrize(("flags", "words"), [((), "FP32"), (("FP16",), "FP16"), (("FP16", "INT8"), "FP16")])
def test_weak_types_become_what_is_permitted_except_where_they_fall_back(
    version: str, flags: tuple[str, ...], words: str, tiny_file: MakeFile
) -> None:
    model = tiny_file("residual")
    bench = Bench(simulated_tensorrt(version, Circumstances(fallback={"conv2"})), model, weak=True)
    bench.add_profile()
    bench.permit(*flags)
    before = spelled(bench.layers(), "Format/Datatype")
    assert set(before.values()) == {"N/A due to dynamic shapes"}
    told = spelled(bench.layers(shape=(2, 4, 8, 8)), "Format/Datatype")
    assert words in told["conv1"]
    assert "FP32" in told["conv2"]


def test_each_version_spells_its_layers_in_its_own_way(
    tiny_file: MakeFile, samples: MakeFile, tmp_path: Path
) -> None:
    ranges = qcompile.calibrate(
        tiny_file("mlp"), str(samples("mlp")), tmp_path / "r.ranges", method="minmax"
    ).path
    model = qcompile.quantize(
        tiny_file("mlp"), tmp_path / "half.onnx", ranges=ranges, precision="fp16", target="tensorrt"
    ).path
    found = {}
    for version in VERSIONS:
        bench = Bench(simulated_tensorrt(version), model)
        bench.add_profile()
        bench.permit(*(["FP16"] if version == "8.5.3" else []))
        found[version] = next(layer for layer in bench.layers(shape=(2, 16)) if "matmul1" in layer["Name"])
    assert found["8.5.3"]["LayerType"] == "MatrixMultiply"
    assert "Metadata" not in found["8.5.3"]
    assert "FP16" in found["8.5.3"]["Inputs"][0]["Format/Datatype"]
    assert found["10.16"]["LayerType"] == "gemm"
    assert found["10.16"]["Metadata"] == "[ONNX Layer: matmul1]"
    assert found["10.16"]["Inputs"][0]["Format/Datatype"] == "Half"
    for version in ("11.4", "rtx"):
        assert "Format/Datatype" not in found[version]["Inputs"][0]
        assert found[version]["Inputs"][0]["Datatype"] == "Half"


@pytest.mark.parametrize(("version", "kind"), [("8.5.3", "Myelin"), ("10.16", "kgen")])
def test_a_block_hides_its_layers_as_the_version_does(version: str, kind: str, tiny_file: MakeFile) -> None:
    circumstances = Circumstances(blocks={"matmul1", "matmul2"})
    bench = Bench(simulated_tensorrt(version, circumstances), tiny_file("mlp"))
    bench.add_profile()
    (block,) = (layer for layer in bench.layers() if layer["LayerType"] == kind)
    if version == "8.5.3":
        assert block["Name"] == "{ForeignNode[matmul1...matmul2]}"
    else:
        assert "[ONNX Layer: matmul1]" in block["Metadata"]


@pytest.mark.parametrize("version", NEWER)
def test_flags_of_weak_types_are_refused_with_strong_ones(version: str, tiny_file: MakeFile) -> None:
    bench = Bench(simulated_tensorrt(version), tiny_file("mlp"))
    bench.add_profile()
    if version == "10.16":
        bench.permit("FP16")
        assert bench.build() is None
        assert "kFP16 is set, and the network is strongly typed" in bench.said.errors()[0]
    else:
        with pytest.raises(KeyError):
            bench.permit("FP16")


@pytest.mark.parametrize(
    ("circumstances", "said"),
    [
        (Circumstances(out_of_memory=True), "OutOfMemory"),
        (Circumstances(needed_workspace=1 << 40), "due to insufficient workspace"),
        (Circumstances(no_kernel_for="matmul2"), "Could not find any implementation for node matmul2."),
    ],
)
def test_a_build_that_cannot_be_gives_nothing_and_says_why(
    circumstances: Circumstances, said: str, tiny_file: MakeFile
) -> None:
    bench = Bench(simulated_tensorrt("10.16", circumstances), tiny_file("mlp"))
    bench.add_profile()
    assert bench.build() is None
    assert any(said in text for text in bench.said.errors())


def test_a_timing_cache_saves_measuring_and_knows_its_device(tiny_file: MakeFile) -> None:
    circumstances = Circumstances()
    module = simulated_tensorrt("10.16", circumstances)
    first = Bench(module, tiny_file("mlp"))
    first.add_profile()
    cache = first.config.create_timing_cache(b"")
    assert first.config.set_timing_cache(cache, False)
    assert first.build() is not None
    assert circumstances.measured == ["matmul1:FLOAT", "matmul2:FLOAT"]
    content = bytes(first.config.get_timing_cache().serialize())

    again = Bench(module, tiny_file("mlp"))
    again.add_profile()
    assert again.config.set_timing_cache(again.config.create_timing_cache(content), False)
    assert again.build() is not None
    assert circumstances.measured == ["matmul1:FLOAT", "matmul2:FLOAT"]

    circumstances.device = "9.0"
    foreign = again.config.create_timing_cache(content)
    assert not again.config.set_timing_cache(foreign, False)
    assert again.config.set_timing_cache(foreign, True)
    fresh = again.config.create_timing_cache(b"")
    assert not fresh.combine(foreign, False)
    assert fresh.combine(foreign, True)
    assert first.said.errors() == []
    assert bytes(again.config.create_timing_cache(b"damaged").serialize()) != content
    assert "Magic tag does not match" in first.said.errors()[0]


@pytest.mark.parametrize(("version", "header"), [("8.5.3", "TRT-8503-"), ("10.16", "TRT-101601-")])
def test_a_calibrator_is_driven_to_the_end_of_its_batches(
    version: str, header: str, tiny_file: MakeFile
) -> None:
    module = simulated_tensorrt(version)
    asked: list[list[str]] = []
    written: list[bytes] = []

    class Calibrator(module.IInt8EntropyCalibrator2):  # type: ignore[misc]
        def __init__(self, batches: int) -> None:
            module.IInt8EntropyCalibrator2.__init__(self)
            self.left = batches

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: list[str]) -> list[int] | None:
            asked.append(names)
            self.left -= 1
            return [1000] if self.left >= 0 else None

        def read_calibration_cache(self) -> None:
            """There is none."""

        def write_calibration_cache(self, cache: Any) -> None:
            written.append(bytes(cache))

    bench = Bench(module, tiny_file("residual"), weak=True)
    bench.add_profile()
    bench.permit("INT8")
    bench.calibrate_at(2, 4, 8, 8)
    bench.config.int8_calibrator = Calibrator(2)
    assert "Int8" in spelled(bench.layers(shape=(2, 4, 8, 8)), "Format/Datatype")["conv1"]
    assert asked == [["x"]] * 3
    assert written[0].decode().startswith(f"{header}EntropyCalibration2\n")

    bench.config.int8_calibrator = Calibrator(0)
    assert bench.build() is None
    assert "no scaling factors detected" in bench.said.errors()[0]


@pytest.mark.parametrize("version", NEWER)
def test_a_stripped_engine_takes_the_weights_of_another_file(
    version: str, tiny_file: MakeFile, tmp_path: Path
) -> None:
    bench = Bench(simulated_tensorrt(version), tiny_file("mlp"))
    module = bench.module
    bench.add_profile()
    bench.permit("REFIT", "STRIP_PLAN")
    stripped = bench.build()
    engine = module.Runtime(bench.log).deserialize_cuda_engine(stripped)
    refitter = module.Refitter(engine, bench.log)
    assert set(refitter.get_missing_weights()) == {"w1", "b1", "w2"}
    assert not refitter.refit_cuda_engine()

    model = onnx.load(tiny_file("mlp"))
    for item in model.graph.initializer:
        item.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(item) * np.float32(2), item.name)
        )
    onnx.save(model, tmp_path / "twice.onnx")
    parser = module.OnnxParserRefitter(refitter, bench.log)
    assert parser.refit_from_file(str(tmp_path / "twice.onnx"))
    assert refitter.get_missing_weights() == []
    assert refitter.refit_cuda_engine()
    config = engine.create_serialization_config()
    config.clear_flag(module.SerializationFlag.EXCLUDE_WEIGHTS)
    full = engine.serialize_with_config(config)
    assert full.nbytes > stripped.nbytes
    twice = Bench(module, tmp_path / "twice.onnx")
    twice.add_profile()
    refitted, built = read_plan(full), read_plan(twice.build())
    assert refitted is not None
    assert built is not None
    assert refitted["weights"] == built["weights"]

    other = module.OnnxParserRefitter(refitter, bench.log)
    assert not other.refit_from_file(str(tiny_file("residual")))
    assert other.get_error(0).code() == module.ErrorCode.REFIT_FAILED


def test_a_plan_of_another_version_or_device_is_not_loaded(tiny_file: MakeFile) -> None:
    bench = Bench(simulated_tensorrt("10.16"), tiny_file("mlp"))
    bench.add_profile()
    plan = bench.build()
    newer = simulated_tensorrt("11.4")
    log, said = listen(newer)
    assert newer.Runtime(log).deserialize_cuda_engine(plan) is None
    assert "Version tag does not match" in said.errors()[-1]
    assert newer.Runtime(log).deserialize_cuda_engine(b"no plan") is None
    assert "Magic tag does not match" in said.errors()[-1]
    elsewhere = simulated_tensorrt("10.16", Circumstances(device="9.0"))
    log, said = listen(elsewhere)
    assert elsewhere.Runtime(log).deserialize_cuda_engine(plan) is None
    assert "expecting compute 9.0 got compute 8.6, please rebuild" in said.errors()[-1]
