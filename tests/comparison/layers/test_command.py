"""`qcompile diff --layers` as it is typed: what it shows and writes, and how it fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from layer_faults import perturbed

import qcompile
from qcompile.cli import main
from qcompile.comparison.layers import layer_diff
from qcompile.errors import InvalidOption, WorkerError
from qcompile.model.output_error import output_error


def test_the_command_ranks_shows_the_surroundings_and_writes_what_polygraphy_opens(
    tiny: Callable[..., onnx.ModelProto],
    tiny_file: Callable[..., Path],
    samples: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from polygraphy.comparator import RunResults

    artifact = tiny_file("residual", file="bad.onnx")
    onnx.save(perturbed(tiny("residual"), "w2", by=0.5), artifact)
    written, results = tmp_path / "layers.json", tmp_path / "run.json"
    arguments = ["diff", str(tiny_file("residual")), str(artifact), "--layers", "--samples", "2"]
    arguments += ["--data", str(samples("residual")), "-o", str(written), "--save-results", str(results)]
    with pytest.raises(SystemExit) as done:
        main(arguments)
    said = capsys.readouterr()
    assert done.value.code == 1, said.err
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
    options: list[str], message: str, tiny_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tiny_file("mlp"))
    with pytest.raises(SystemExit) as done:
        main(["diff", model, model, *(model if one == "MODEL" else one for one in options)])
    assert done.value.code == 2
    assert message in capsys.readouterr().err


def test_files_that_cannot_be_compared_are_named(
    tiny_file: Callable[..., Path], tmp_path: Path, torch_model: str
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
    tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    tiny_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from qcompile.engines.registry import engine

    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    reason = engine("tensorrt-rtx").why_not_run()
    if not reason:
        pytest.skip("engines run here")
    model, built = tiny_file("residual", batch=2), tmp_path / "m.engine"
    qcompile.build(model, built, target="tensorrt-rtx", gpus=["sm86"])
    with pytest.raises(SystemExit) as done:
        main(["diff", str(model), str(built), "--layers", "--json"])
    assert done.value.code == 1
    said = json.loads(capsys.readouterr().out)
    assert said["error"] == "EngineUnavailable"
    assert reason in said["message"]
    assert "compare with the ONNX file that the engine was built from" in said["hint"]
