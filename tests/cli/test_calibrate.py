"""The options of `qcompile calibrate`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import Qc
from onnx import numpy_helper, parser

from qcompile.calibration import load_ranges, observe
from qcompile.compiler.quantize.calibrate import tensors_to_calibrate
from qcompile.data.batches import Data
from qcompile.model.weightless import read_weightless


def test_fewer_targets_observe_fewer_tensors(done: Qc, qc: Qc, data: Path, tmp_path: Path) -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4, 8, 8] x) => (float[n, 4, 8, 8] y) {
            c = Conv(x, w)
            s = Sigmoid(c)
            m = Mul(c, s)
            y = Conv(m, w)
        }"""
    )
    weight = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "swish.onnx"
    onnx.save(model, path)

    def ranges(*options: str) -> Path:
        output = tmp_path / f"{'-'.join(options)}.ranges"
        done("calibrate", path, "--data", data, "-o", output, "--threads", 1, *options)
        return output

    both = ranges()
    tensorrt, runtime = ranges("--target", "tensorrt"), ranges("--target", "onnxruntime")
    observed = {file: set(load_ranges(file).histograms) for file in (both, tensorrt, runtime)}
    assert "s" in observed[runtime]
    assert "s" not in observed[tensorrt]
    assert observed[tensorrt] | observed[runtime] == observed[both]
    for options in (
        ("--target", "onnxruntime,tensorrt"),
        ("--target", "tensorrt", "--target", "onnxruntime"),
    ):
        assert ranges(*options).read_bytes() == both.read_bytes()
    for file, target in ((tensorrt, "tensorrt"), (runtime, "onnxruntime"), (both, "tensorrt")):
        done("quantize", path, "-o", tmp_path / "q.onnx", "--ranges", file, "--target", target)
    said = qc("calibrate", path, "--data", data, "-o", tmp_path / "no.ranges", "--target", "tensort")
    assert said.code == 2
    assert "'tensort'" in said.err
    assert not (tmp_path / "no.ranges").exists()


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1/0", "1", "", "/", "1/", "1/2/3", "a/b", "-1/2", "1.0/2"])
def test_a_shard_that_is_none_is_a_usage_error(
    qc: Qc, model: Path, data: Path, tmp_path: Path, shard: str
) -> None:
    said = qc("calibrate", model, "--data", data, "-o", tmp_path / "o.ranges", f"--shard={shard}")
    assert (said.code, said.out) == (2, "")
    assert repr(shard) in said.err
    assert "PART/PARTS" in said.err
    assert not (tmp_path / "o.ranges").exists()


def test_a_shard_without_samples_says_so(done: Qc, model: Path, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.ranges"
    said = done("calibrate", model, "--data", data, "-o", output, "--shard", "20/20")
    assert "over 0 samples" in said.out
    assert "warning: no sample was observed" in said.err
    assert load_ranges(output).samples == 0


@pytest.mark.parametrize("method", ["mse", "auto", "percentile:99.5"])
def test_the_method_is_that_of_the_file(
    done: Qc, model: Path, data: Path, file: Path, tmp_path: Path, method: str
) -> None:
    output = tmp_path / "other.ranges"
    said = done(
        "calibrate", model, "--data", data, "-o", output, "--method", method, "--threads", 1, "--json"
    )
    assert said.json["options"]["method"] == method
    assert done("ranges", "show", output, "--json").json["method"] == method
    # The counts are the same: it could as well have been chosen later.
    chosen, later = tmp_path / "chosen.onnx", tmp_path / "later.onnx"
    done("quantize", model, "-o", chosen, "--ranges", output)
    done("quantize", model, "-o", later, "--ranges", file, "--method", method)
    assert chosen.read_bytes() == later.read_bytes()


def test_an_unknown_method_is_a_usage_error(qc: Qc, model: Path, data: Path, tmp_path: Path) -> None:
    said = qc("calibrate", model, "--data", data, "-o", tmp_path / "o.ranges", "--method", "kl")
    assert said.code == 2
    assert "minmax, percentile[:NUMBER], entropy, mse or auto is required" in said.err
    assert not (tmp_path / "o.ranges").exists()


def interrupt(model: Path, data: Path, checkpoint: Path, after: int) -> None:
    """Leave what a calibration leaves that is interrupted after some samples."""

    def progress(_text: str, done: int = 0, _total: int | None = None, /) -> None:
        if done > after:
            raise KeyboardInterrupt

    weightless = read_weightless(model)
    samples = Data(str(data), weightless.io.inputs, batch_size=1)
    tensors = tensors_to_calibrate(weightless)
    with pytest.raises(KeyboardInterrupt):
        observe(
            weightless, samples, tensors=tensors, threads=1, checkpoint=checkpoint, checkpoint_every_s=0.0,
            progress=progress,
        )  # fmt: skip
    assert checkpoint.is_file()


@pytest.mark.parametrize("fresh", [True, False])
def test_an_interrupted_calibration_goes_on_unless_a_fresh_one_is_asked_for(
    done: Qc, model: Path, data: Path, file: Path, tmp_path: Path, fresh: bool
) -> None:
    output = tmp_path / "again.ranges"
    checkpoint = tmp_path / ".again.ranges.checkpoint"
    interrupt(model, data, checkpoint, after=5)
    command = ["calibrate", model, "--data", data, "-o", output, "--method", "entropy", "--threads", 1, "-v"]
    said = done(*command, *(["--fresh"] if fresh else []))
    assert ("continue after" in said.err) is not fresh
    assert output.read_bytes() == file.read_bytes()
    assert not checkpoint.exists()
