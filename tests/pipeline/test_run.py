"""`run`: done once, skipped when nothing changed, whole after any kill; what cannot be built has a row."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from commands import Qc
from recipes import artifact

import qcompile
from qcompile.bench.results.results import load_results
from qcompile.core.artifact import digest_artifact, read_manifest
from qcompile.core.files import manifest_path
from qcompile.errors import CalibrationError, DataError, QCompileError, RecipeError
from qcompile.pipeline.plan import plan

pytestmark = pytest.mark.usefixtures("short_blocks")

FP16 = artifact("rtx-fp16", "tensorrt-rtx", "fp16", gpus=["sm86"])
BENCH = '[bench]\nbatch_size = 4\nthreads = 1\nmax_time_s = 0.5\nbaseline = "cpu"\n'
CPU = artifact("cpu")
TABLES = (CPU, artifact("cpu-int8", precision="int8"), FP16, BENCH)


@pytest.fixture
def recipe(write_recipe: Callable[..., Path]) -> Path:
    """A recipe over a tiny ONNX file: every stage but PyTorch's, in about three seconds."""
    return write_recipe(*TABLES)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `finished` keeps the output of its first run."""
    return tmp_path_factory.mktemp("finished") / "out"


@pytest.fixture
def finished(recipe: Path, kept: Path) -> Path:
    """The recipe after a run; the output is copied from an earlier test's, as to another folder."""
    output = recipe.parent / "out"
    if kept.is_dir():
        shutil.copytree(kept, output)
    else:
        assert set(qcompile.run(recipe).stages.values()) == {"done"}
        shutil.copytree(output, kept)
    return recipe


def whole(output: Path) -> list[str]:
    """Check that every file under a final name is whole; return their names."""
    paths = [path for path in output.glob("[!.]*") if path.suffix != ".json"]
    for path in paths:
        if manifest_path(path).is_file():
            manifest = read_manifest(path)
            assert manifest is not None
            assert digest_artifact(path) == manifest.digest, path
        if path.suffix == ".onnx":
            onnx.checker.check_model(str(path))
    return [path.name for path in paths]


def test_a_second_run_does_nothing_and_says_so(finished: Path) -> None:
    output = finished.parent / "out"
    assert {"cpu.onnx", "cpu-int8.onnx", "rtx-fp16.engine", "tiny.ranges"} <= set(whole(output))
    measured = load_results(output / "results.json").as_json()
    before = {path: path.stat().st_mtime_ns for path in output.iterdir() if path.is_file()}
    second = qcompile.run(finished)
    assert set(second.stages.values()) == {"skipped"}
    assert second.results is not None
    assert second.results.as_json() == measured
    assert second.page is not None
    assert "<html" in second.page.read_text(encoding="utf-8")
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert carried_out(finished, again=("bench",)) == ["bench", "report"]


def carried_out(recipe: Path, **options: Any) -> list[str]:
    """The stages that a run carries out."""
    return [name for name, state in qcompile.run(recipe, **options).stages.items() if state == "done"]


def test_a_change_makes_again_what_depends_on_it_and_nothing_else(
    finished: Path, write_recipe: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    write_recipe(*TABLES[:2], FP16.replace('precision = "fp16"', 'precision = "fp32"'), BENCH)
    assert carried_out(finished) == ["build-rtx-fp16", "bench", "report"]
    write_recipe(*TABLES)
    assert carried_out(finished) == []  # back again: the old stage is still in the store
    samples("residual", 32, seed=9).replace(tmp_path / "calibration.npz")
    # FP16 looks for overflow on the same data; what comes out is as before, and is not built again.
    changed = ["calibrate", "quantize-cpu-int8", "build-cpu-int8", "quantize-rtx-fp16", "bench", "report"]
    assert carried_out(finished) == changed


def test_a_metric_of_ones_own_is_the_recipes_and_a_change_of_it_is_noticed(
    write_recipe: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    metric = tmp_path / "metric.py"
    metric.write_text(
        "def right(outputs, labels):\n    return (outputs['y'].argmax(1) == labels).astype(float)\n"
    )
    recipe = write_recipe(*TABLES, 'metric = "metric.py:right"\n')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    report = qcompile.run(recipe)
    assert report.results is not None
    accuracy = report.results.row("cpu").accuracy
    assert accuracy is not None
    assert 0 <= accuracy.value <= 1
    metric.write_text(metric.read_text() + "# a change\n")
    assert carried_out(recipe)[0] == "bench"


def test_a_deleted_artifact_comes_back_and_a_changed_one_is_made_again(finished: Path) -> None:
    artifact = finished.parent / "out" / "cpu.onnx"
    artifact.unlink()
    assert carried_out(finished) == []
    assert "cpu.onnx" in whole(artifact.parent)
    with artifact.open("ab") as file:
        file.write(b"damage")
    assert "build-cpu" in carried_out(finished)
    whole(artifact.parent)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_kill_9_at_any_moment_leaves_only_whole_files_and_the_next_run_goes_on(recipe: Path) -> None:
    output = recipe.parent / "out"
    moments = random.Random(5)
    finished: set[str] = set()
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-m", "qcompile", "run", "-v", str(recipe)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        time.sleep(moments.uniform(0.2, 2.5))
        process.send_signal(signal.SIGKILL)
        said = process.communicate()[1]
        whole(output)
        skipped = {line.split()[1] for line in said.splitlines() if line.strip().startswith("skipped")}
        made = {line.split()[1] for line in said.splitlines() if line.strip().startswith("done")}
        assert not made & finished, "a stage that was done was done again"
        # Who is killed right behind the end of a stage has no time to say so.
        assert len(skipped - finished) <= 1
        finished |= made | skipped
    report = qcompile.run(recipe)
    assert all(report.stages[name] == "skipped" for name in finished)
    assert report.results is not None
    whole(output)
    left = [p for p in (*output.iterdir(), *(output / ".qcompile").iterdir()) if "tmp" in p.name]
    assert left == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_ends_with_130_and_no_process_stays(write_recipe: Callable[..., Path]) -> None:
    recipe = write_recipe(*TABLES[:3], BENCH.replace("0.5", "60\nprecision_target = 0.0001"))
    process = subprocess.Popen(
        [sys.executable, "-m", "qcompile", "run", str(recipe)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts its background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    me = psutil.Process(process.pid)
    workers: list[psutil.Process] = []
    deadline = time.monotonic() + 300
    while len(workers) < 2 and process.poll() is None and time.monotonic() < deadline:
        workers = me.children(recursive=True)
        time.sleep(0.01)
    assert workers, "the benchmark started no worker"
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    assert len(gone) == len(workers)
    whole(recipe.parent / "out")


def test_a_changed_budget_is_judged_without_measuring_again(
    finished: Path, write_recipe: Callable[..., Path], qc: Qc
) -> None:
    """Exit code 1 where nothing keeps it; the page recommends anew."""
    code, out, err = qc("run", write_recipe(*TABLES, "max_size_mb = 1\n"))
    assert code == 0, err
    assert "within the budget: cpu, original, cpu-int8\n" in out
    assert "bench" not in err
    code, out, err = qc("run", write_recipe(*TABLES, "max_latency_ms = 1e-6\n"))
    assert code == 1
    assert "within the budget: no artifact\n  not cpu: it exceeds the budget: latency" in out
    assert "bench" not in err
    assert "No artifact meets the budget." in (finished.parent / "out/report.html").read_text()


def bad(name: str, **options: str) -> str:
    """An artifact that cannot be built."""
    return artifact(name, "tensorrt-rtx", "fp16", gpus=["sm86"], min_shapes=["nobody:4x2"], **options)


def test_the_others_go_on_and_the_row_says_why(write_recipe: Callable[..., Path], qc: Qc) -> None:
    recipe = write_recipe(bad("bad"), CPU, BENCH)
    code, out, _ = qc("run", recipe, "--json")
    assert code == 1
    said = json.loads(out)
    assert "nobody" in said["failures"]["bad"]["message"]
    assert list(said["artifacts"]) == ["cpu"]
    rows = {row["name"]: row for row in said["results"]["artifacts"]}
    assert rows["cpu"]["status"] == "measured"
    assert (rows["bad"]["status"], rows["bad"]["engine"]) == ("failed", "tensorrt-rtx")
    assert "nobody" in rows["bad"]["reason"]
    page = Path(said["report"]).read_text(encoding="utf-8")
    assert "nobody" in page
    assert json.loads((recipe.parent / "out/results.json").read_text())["artifacts"] == [*rows.values()]

    again = qcompile.run(recipe)
    assert again.stages.pop("build-bad") == "failed", "it is tried again"
    assert set(again.stages.values()) == {"skipped"}
    assert again.results is not None
    code, _, err = qc("run", recipe)
    assert (code, "bad: failed: " in err) == (1, True)

    mended = qcompile.run(write_recipe(artifact("bad"), CPU))
    assert not mended.failures
    assert mended.stages["build-cpu"] == "skipped"


def test_the_fallback_of_an_artifact_that_cannot_be_built_is_named(
    write_recipe: Callable[..., Path], qc: Qc
) -> None:
    """Through one that cannot be built either; with one of its own kind only the exit code stays 1."""
    first = bad("trt", fallback="worse")
    recipe = write_recipe(first, bad("worse", fallback="cpu"), CPU, BENCH)
    code, out, _ = qc("run", recipe)
    assert code == 0
    assert "use cpu in place of trt\nuse cpu in place of worse\n" in out
    assert "`fallback` worse" in (recipe.parent / "out/report.html").read_text()
    code, out, _ = qc("run", recipe, "--json")
    assert (code, json.loads(out)["instead"]) == (0, {"trt": "cpu", "worse": "cpu"})
    code, out, _ = qc("run", write_recipe(first, bad("worse"), CPU, BENCH))
    assert (code, "in place of" in out) == (1, False)


@pytest.mark.parametrize(
    ("others", "problem"),
    [(("nobody",), "another artifact's name is required"), (("bad",), "fallbacks form a cycle"),
     (("worse", "bad"), "fallbacks form a cycle")],
)  # fmt: skip
def test_a_fallback_is_another_artifact(
    write_recipe: Callable[..., Path], others: tuple[str, ...], problem: str
) -> None:
    names = ("bad", "worse")
    artifacts = [bad(name, fallback=other) for name, other in zip(names, others, strict=False)]
    with pytest.raises(RecipeError, match=problem):
        qcompile.run(write_recipe(*artifacts, CPU))


def test_without_anything_that_can_be_built_the_model_is_measured_and_the_rows_say_why(
    write_recipe: Callable[..., Path],
) -> None:
    report = qcompile.run(write_recipe(*(bad(name) for name in ("bad", "cpu")), BENCH))
    assert list(report.failures) == ["bad", "cpu"]
    assert report.results is not None
    assert [row.status for row in report.results.rows] == ["measured", "failed", "failed"]
    assert report.results.baseline == "original"
    assert "'cpu' was not built" in report.results.row("bad").warnings[0]
    assert report.page is not None


def test_a_row_that_failed_is_measured_again_by_the_next_run(
    write_recipe: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Its failure may come from other load on the machine, and is no result to keep."""
    mark = tmp_path_factory.mktemp("elsewhere") / "mark"
    (tmp_path / "flaky.py").write_text(
        f"from pathlib import Path\nimport torch\n\nmark = Path({str(mark)!r})\n\ndef build():\n"
        "    if not mark.exists():\n        raise RuntimeError('not now')\n"
        "    layers = [torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(4, 3)]\n"
        "    return torch.nn.Sequential(*layers), (torch.ones(2, 4, 8, 8),)\n"
    )
    recipe = write_recipe(CPU, BENCH + 'models = ["flaky=flaky.py:build"]\n')
    first = qcompile.run(recipe)
    assert first.results
    assert (first.stages["bench"], first.results.row("flaky").status) == ("done", "failed")
    stages = {stage.name: stage for stage in plan(recipe).stages}
    assert (stages["build-cpu"].state, stages["bench"].state) == ("done", "changed")
    assert stages["bench"].why == "an artifact failed"
    mark.touch()
    second = qcompile.run(recipe)
    assert second.results
    assert (second.stages["bench"], second.results.row("flaky").status) == ("done", "measured")
    assert second.stages["build-cpu"] == "skipped"
    assert qcompile.run(recipe).stages["bench"] == "skipped"


def test_without_a_benchmark_the_exit_code_says_it(write_recipe: Callable[..., Path], qc: Qc) -> None:
    recipe = write_recipe(bad("bad"), CPU)
    code, _, err = qc("run", recipe, "-q")
    assert (code, "bad: not built: " in err) == (1, True)
    assert (recipe.parent / "out/cpu.onnx").is_file()


def test_an_error_that_ends_the_run_does_not_hide_what_failed_before(
    write_recipe: Callable[..., Path], tmp_path: Path, qc: Qc
) -> None:
    (tmp_path / "mine.py").write_text("def metric(outputs, labels):\n    raise ValueError('no such thing')\n")
    recipe = write_recipe(bad("bad"), CPU, BENCH + 'metric = "mine.py:metric"\n')
    code, _, said = qc("run", recipe)
    assert code == 1
    assert "warning: bad: not built: " in said
    assert "nobody" in said
    assert "no such thing" in said
    code, out, _ = qc("run", recipe, "--json")
    assert (code, "nobody" in json.loads(out)["data"]["failures"]["bad"]) == (1, True)


def test_artifacts_that_need_no_ranges_outlive_the_calibration(
    write_recipe: Callable[..., Path], tmp_path: Path
) -> None:
    np.savez(tmp_path / "calibration.npz", x=np.full((4, 4, 8, 8), np.nan, np.float32))
    int8 = artifact("bad", "tensorrt-rtx", "int8", gpus=["sm86"])
    report = qcompile.run(write_recipe(int8, CPU))
    assert list(report.artifacts) == ["cpu"]
    assert isinstance(report.failures["bad"], DataError | CalibrationError)
    with pytest.raises(QCompileError, match="NaN"):
        qcompile.run(write_recipe(int8, artifact("cpu", "openvino", "int8")))


def test_a_recipe_names_no_shapes_where_its_samples_have_them(tmp_path: Path) -> None:
    """A model and a function of samples are enough, and a change of the samples counts."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(8, 4), nn.ReLU())\n"
    )
    samples = tmp_path / "samples.py"
    text = (
        "import numpy as np\n\ndef read():\n    for length in (5, 7, 9):\n"
        "        yield np.ones((2, length, 8), np.float32)\n"
    )
    samples.write_text(text)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'version = 1\nname = "net"\n[model]\nsource = "net.py:build"\n'
        '[data]\ncalibration = "samples.py:read"\n' + artifact("int8", precision="int8")
    )
    assert not qcompile.run(recipe).failures
    manifest = read_manifest(tmp_path / "out" / "net.onnx")
    assert manifest is not None
    (tensor,) = manifest.io.inputs
    assert (tensor.name, tensor.shape) == ("input", ("batch", "input_1", 8))
    samples.write_text(text.replace("(5, 7, 9)", "(6, 6, 6)"))
    assert "export" in carried_out(recipe)
