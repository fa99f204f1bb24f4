"""Accuracy and difference from real workers: batch by batch, and each failure alone."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from layer_faults import perturbed

from qcompile.bench.measure.artifacts import describe, load_in_worker
from qcompile.bench.measure.recorder import Recorder
from qcompile.bench.metrics.accuracy import check_evaluation, measure_quality, read_metric
from qcompile.bench.results.row import Row
from qcompile.core.processes.worker import Worker
from qcompile.errors import DataError, ModelError
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.onnx_file import read_graph


@contextlib.contextmanager
def workers_of(artifacts: dict[str, str]) -> Iterator[tuple[dict[str, Worker], Recorder]]:
    """A loaded worker and a row of each artifact."""
    with contextlib.ExitStack() as stack:
        runnables = [describe(artifact, name=name) for name, artifact in artifacts.items()]
        workers = {}
        for runnable in runnables:
            workers[runnable.name] = stack.enter_context(
                Worker(runnable.name, module="qcompile.bench.worker", threads=1)
            )
            load_in_worker(workers[runnable.name], runnable, runnables, 1)
        rows = [Row(one.name, one.artifact, one.engine) for one in runnables]
        yield workers, Recorder(rows, "base")


def judged(artifacts: dict[str, str], data: Path | str, metric: str) -> dict[str, Row]:
    """The rows of artifacts, of which "base" is an ONNX file, after the evaluation."""
    with workers_of(artifacts) as (workers, recorder):
        io = model_io(read_graph(Path(artifacts["base"])).load())
        measure_quality(workers, recorder, io, str(data), read_metric(metric))
    return {row.name: row for row in recorder.rows}


def spoilt(path: Path, output: Path, *, by: float) -> str:
    """A copy of a model whose first weight is off."""
    model = onnx.load(path)
    onnx.save(perturbed(model, model.graph.initializer[0].name, by=by), output)
    return str(output)


def test_every_number_is_what_the_sessions_outputs_give(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    import onnxruntime

    model, data = tiny_file("residual"), samples("residual", 45)
    other = spoilt(model, tmp_path / "off.onnx", by=0.4)
    entries = judged({"base": str(model), "off": other}, data, "top1")
    arrays = np.load(data)
    a, b = (
        onnxruntime.InferenceSession(str(path)).run(None, {"x": arrays["x"]})[0] for path in (model, other)
    )
    right_a, right_b = a.argmax(1) == arrays["labels"], b.argmax(1) == arrays["labels"]
    found = entries["off"].accuracy
    assert found.value == pytest.approx(right_b.mean())
    assert found.drop.value == pytest.approx(100 * (right_a.mean() - right_b.mean()))
    assert found.agreement == pytest.approx((a.argmax(1) == b.argmax(1)).mean())
    assert found.drop.low <= found.drop.value <= found.drop.high
    assert found.samples == sum(row.samples for row in found.per_class) == 45
    for row in found.per_class:
        chosen = arrays["labels"] == row.label
        assert row.baseline == pytest.approx(right_a[chosen].mean())
        assert row.value == pytest.approx(right_b[chosen].mean())
    difference = entries["off"].difference
    assert difference.max_abs_error == pytest.approx(np.abs(a - b).max(), rel=1e-3)
    assert difference.agreement == pytest.approx(found.agreement)
    assert not difference.passed


def test_metrics_that_need_no_labels_work_without(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    model, data = tiny_file("mlp"), tmp_path / "x.npz"
    np.savez(data, x=np.load(samples("mlp", 20))["x"])
    (tmp_path / "own.py").write_text(
        "def norm(outputs, labels):\n    assert labels is None\n    return (outputs['y'] ** 2).sum(1)\n"
    )
    other = spoilt(model, tmp_path / "off.onnx", by=0.1)
    with workers_of({"base": str(model), "off": other}) as (workers, recorder):
        for metric, base_value in (("cosine", 1.0), ("mse", 0.0), (f"{tmp_path}/own.py:norm", None)):
            measure_quality(workers, recorder, read_graph(model).io, str(data), read_metric(metric))
            base, off = recorder["base"].accuracy, recorder["off"].accuracy
            assert (off.metric, off.agreement, off.per_class) == (metric, None, None)
            if base_value is not None:
                assert base.value == base_value
                assert off.drop.value > 0


def test_outputs_of_another_name_are_compared_by_their_position(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    model = onnx.load(tiny_file("mlp"))
    model.graph.node[-1].output[0] = model.graph.output[0].name = "other"
    onnx.save(model, tmp_path / "renamed.onnx")
    artifacts = {"base": str(tiny_file("mlp")), "renamed": str(tmp_path / "renamed.onnx")}
    row = judged(artifacts, samples("mlp", 20), "top1")["renamed"]
    assert (row.accuracy.agreement, row.difference.passed) == (1.0, True)


def test_what_is_wrong_with_labels_or_metric_is_said_before_measuring(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    model, data = tiny_file("mlp"), samples("mlp", 20)
    (tmp_path / "own.py").write_text("def fails(outputs, labels):\n    return outputs['logits']\n")
    np.savez(tmp_path / "two.npz", x=np.load(data)["x"], labels=np.zeros((20, 2), np.int64))
    np.savez(tmp_path / "nan.npz", x=np.full((20, 16), np.nan, np.float32), labels=np.zeros(20, np.int64))
    io = model_io(read_graph(model).load())
    with workers_of({"base": str(model)}) as (workers, _):
        worker = workers["base"]
        for path, metric, said in (
            (tmp_path / "two.npz", "top1", r"two\.npz\[0:8\]: an output of shape \(8, 8\) with labels of"),
            (tmp_path / "nan.npz", "top1", "output 'y' holds NaN"),
            (
                data,
                f"{tmp_path}/own.py:fails",
                r"own\.py:fails: raised KeyError: 'logits' \(own\.py, line 2\)",
            ),
        ):
            with pytest.raises((DataError, ModelError), match=said):
                check_evaluation(worker, io, str(path), read_metric(metric))
        check_evaluation(worker, io, str(data), read_metric("top5"))


def test_an_artifact_whose_outputs_have_no_accuracy_fails_alone(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    model, data = tiny_file("mlp"), samples("mlp", 20)
    broken = spoilt(model, tmp_path / "nan.onnx", by=np.nan)
    narrow = spoilt(model, tmp_path / "off.onnx", by=0.1)
    artifacts = {"base": str(model), "nan": broken, "off": narrow}
    entries = judged(artifacts, data, "top1")
    assert entries["nan"].status == "failed"
    assert entries["nan"].reason == f"{data.name}[0:8]: output 'y' holds NaN; it has no accuracy"
    assert entries["nan"].accuracy is None
    for name in ("base", "off"):
        assert entries[name].status == "measured"


DIES = """
import os
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        if x.mean() > 2:
            print("no more", flush=True)
            os._exit(7)
        return x


def build():
    return Net()
"""


def test_a_worker_that_dies_in_the_evaluation_leaves_the_others_theirs(
    tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    (tmp_path / "d.py").write_text(
        "import numpy as np\n"
        "def rows():\n    for i in range(4):\n"
        "        yield np.full((3, 4), i, np.float32), np.zeros(3, int)\n"
    )
    model = str(tiny_file("elementwise"))
    artifacts = {"base": model, "dies": f"{tmp_path}/dies.py:build", "same": model}
    entries = judged(artifacts, f"{tmp_path}/d.py:rows", "top1")
    assert entries["dies"].status == "failed"
    assert "exit code 7" in entries["dies"].reason
    assert "no more" in entries["dies"].reason
    assert entries["dies"].accuracy is entries["dies"].difference is None
    same = entries["same"].accuracy
    assert same.samples == 12
    assert same.agreement == 1.0


def test_memory_does_not_grow_with_the_data(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "d.py").write_text(
        "import numpy as np\n"
        "def few():\n    for i in range(3):\n        yield np.full((50_000, 4), i, np.float32)\n"
        "def many():\n    for i in range(15):\n        yield np.full((50_000, 4), i, np.float32)\n"
        "def mean(outputs, labels):\n    return float(outputs['y'].mean())\n"
    )
    model = str(tiny_file("elementwise"))
    peaks = []
    with workers_of({"base": model, "same": model}) as (workers, recorder):
        io = model_io(read_graph(Path(model)).load())
        metric = read_metric(f"{tmp_path}/d.py:mean")
        for name in ("few", "few", "many"):  # the first imports what is imported once
            tracemalloc.start()
            measure_quality(workers, recorder, io, f"{tmp_path}/d.py:{name}", metric)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert recorder["same"].accuracy.samples == 15 * 50_000
    assert peaks[2] < 1.1 * peaks[1]


def transcriber(path: Path) -> str:
    """A model x [n, 3] whose output is one of three texts, as ONNX Runtime returns them."""
    text = """<ir_version: 9, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
    transcriber (float[n,3] x) => (string[n] text) {
        index = ArgMax<axis=1, keepdims=0>(x)
        text = ai.onnx.ml.LabelEncoder<
            keys_int64s=[0, 1, 2], values_strings=["a b", "b c d", "e"], default_string=""
        >(index)
    }"""
    onnx.save(onnx.parser.parse_model(text), path)
    return str(path)


def test_texts_come_through_workers_and_choose_their_metric(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    texts = np.array(["a b", "b c d", "e"])[x.argmax(axis=1)]
    texts[:10] = "a c"
    np.savez(tmp_path / "d.npz", x=x, labels=texts)
    model = transcriber(tmp_path / "t.onnx")
    io = model_io(read_graph(Path(model)).load())
    with workers_of({"base": model, "same": model}) as (workers, recorder):
        metric = check_evaluation(workers["base"], io, str(tmp_path / "d.npz"), read_metric("auto"))
        measure_quality(workers, recorder, io, str(tmp_path / "d.npz"), metric)
    found = recorder["same"].accuracy
    assert (metric.name, metric.note) == ("wer", "wer: labels are texts")
    assert (found.metric, found.agreement, found.samples) == ("wer", 1.0, 40)
    wrong = {"a b": 1, "b c d": 2, "e": 2}  # against "a c"
    errors = sum(wrong[text] for text in np.array(["a b", "b c d", "e"])[x[:10].argmax(axis=1)])
    assert found.value == pytest.approx(errors / sum(len(text.split()) for text in texts))
    assert recorder["same"].difference.passed
