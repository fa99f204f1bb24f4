"""What `long_run.py` does again and again: inferences, runners opened and closed, whole verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import qcompile

if TYPE_CHECKING:
    from onnx import TensorProto

    from qcompile.bench.workers.process import Worker

TORCH_MODEL = """
import torch


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).eval()
"""


@dataclass(frozen=True)
class Inputs:
    """Files that the subjects use: one model in three forms, samples, and feeds of one sample."""

    folder: Path
    onnx: Path
    openvino: Path
    pytorch: str
    samples: Path
    feeds: Path


@dataclass(frozen=True)
class Use:
    """A subject at work: `step(n)` does n more; `pids` are the processes it has started."""

    step: Callable[[int], None]
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Subject:
    """One way to use qcompile.

    Attributes:
        says: What one iteration is.
        count: Iterations of a release's run.
        open: Makes it ready; leaving it frees everything.
    """

    says: str
    count: int
    open: Callable[[Inputs], AbstractContextManager[Use]]


def write_inputs(folder: Path) -> Inputs:
    """Make the files of all subjects, a few kilobytes each; what OpenVINO builds is made when it is used."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    from qcompile.bench.workers.arrays import save_arrays

    weights = [_weight("w1", 16, 32), _weight("b1", 32), _weight("w2", 32, 8), _weight("b2", 8)]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], "second"),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("x", 16), ("y", 8))
    )
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "small.onnx")
    (folder / "net.py").write_text(TORCH_MODEL)
    samples = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    np.savez(folder / "samples.npz", x=samples)
    save_arrays(folder / "feeds.npz", {"x": samples[:1]})
    return Inputs(
        folder, folder / "small.onnx", folder / "small.openvino.onnx",
        f"{folder / 'net.py'}:build", folder / "samples.npz", folder / "feeds.npz",
    )  # fmt: skip


def _weight(name: str, *shape: int) -> TensorProto:
    import numpy as np
    from onnx import numpy_helper

    values = np.random.default_rng([len(name), *shape]).standard_normal(shape) * 0.3
    return numpy_helper.from_array(values.astype(np.float32), name)


def _artifact(inputs: Inputs, engine: str) -> tuple[str, dict[str, Any]]:
    """Return what `load` is given, built where it is not there yet."""
    import numpy as np

    x = np.load(inputs.samples)["x"][:1]
    if engine == "onnxruntime":
        return str(inputs.onnx), {"x": x}
    if engine == "openvino":
        if not inputs.openvino.exists():
            qcompile.build(str(inputs.onnx), inputs.openvino, target="openvino", precision="fp32")
        return str(inputs.openvino), {"x": x}
    return inputs.pytorch, {"input": x}


def _open(inputs: Inputs, engine: str) -> tuple[Any, dict[str, Any]]:
    from qcompile.engines.load import load
    from qcompile.tensors import ModelIO

    artifact, feeds = _artifact(inputs, engine)
    io = None
    if engine == "pytorch":
        side = {"dtype": "float32", "shape": [1, 16]}
        io = ModelIO.from_json({"inputs": [{"name": "input", **side}], "outputs": []})
    return load(artifact, threads=1, io=io), feeds


def _infer(engine: str) -> Callable[[Inputs], AbstractContextManager[Use]]:
    @contextmanager
    def subject(inputs: Inputs) -> Iterator[Use]:
        runner, feeds = _open(inputs, engine)
        with runner:

            def step(count: int) -> None:
                for _ in range(count):
                    runner.infer(feeds)

            yield Use(step)

    return subject


def _open_close(engine: str) -> Callable[[Inputs], AbstractContextManager[Use]]:
    @contextmanager
    def subject(inputs: Inputs) -> Iterator[Use]:
        def step(count: int) -> None:
            for _ in range(count):
                runner, feeds = _open(inputs, engine)
                with runner:
                    runner.infer(feeds)

        yield Use(step)

    return subject


@contextmanager
def _worker(inputs: Inputs) -> Iterator[Use]:
    """The bench's worker, asked as the bench asks: a block of timings, frozen in between."""
    with _ready_worker(inputs) as worker:

        def step(count: int) -> None:
            left = count
            while left:
                block = min(left, 1000)
                answer = worker.ask("time", iterations=block)
                assert len(answer["ns"]) == block
                if not answer["at_rest"]:
                    worker.freeze()
                left -= block
            worker.ask("usage")

        yield Use(step, (worker.pid,))


@contextmanager
def _worker_infer(inputs: Inputs) -> Iterator[Use]:
    """Outputs through files, as `bench` asks for accuracy."""
    output = inputs.folder / "outputs.npz"
    with _ready_worker(inputs) as worker:

        def step(count: int) -> None:
            for _ in range(count):
                worker.ask("infer", path=str(inputs.feeds), output=str(output))

        yield Use(step, (worker.pid,))


@contextmanager
def _ready_worker(inputs: Inputs) -> Iterator[Worker]:
    from qcompile.bench.workers.process import Worker

    with Worker("small", threads=1) as worker:
        worker.hello()
        worker.ask("load", artifact=str(inputs.onnx), threads=1, io=None, mode="eager", device=None)
        worker.ask("feed", path=str(inputs.feeds))
        yield worker


@contextmanager
def _workers(inputs: Inputs) -> Iterator[Use]:
    def step(count: int) -> None:
        for _ in range(count):
            with _ready_worker(inputs) as worker:
                worker.ask("time", iterations=10, rest=False)

    yield Use(step)


def _verb(call: Callable[[Inputs], object]) -> Callable[[Inputs], AbstractContextManager[Use]]:
    @contextmanager
    def subject(inputs: Inputs) -> Iterator[Use]:
        def step(count: int) -> None:
            for _ in range(count):
                call(inputs)

        yield Use(step)

    return subject


def _calibrate(inputs: Inputs) -> None:
    qcompile.calibrate(str(inputs.onnx), str(inputs.samples), inputs.folder / "small.ranges")


def _build(inputs: Inputs) -> None:
    ranges = inputs.folder / "build.ranges"
    if not ranges.exists():
        qcompile.calibrate(str(inputs.onnx), str(inputs.samples), ranges)
    output = inputs.folder / "built.onnx"
    qcompile.build(
        str(inputs.onnx), output, target="onnxruntime", precision="int8", ranges=str(ranges),
        data=str(inputs.samples),
    )  # fmt: skip


def _bench(inputs: Inputs) -> None:
    output = inputs.folder / "results.json"
    output.unlink(missing_ok=True)  # or its history grows, up to a hundred runs
    artifacts = {"one": str(inputs.onnx), "two": str(inputs.onnx)}
    qcompile.benchmark(artifacts, baseline="one", output=output, max_time_s=0.5, threads=1)


SUBJECTS: Mapping[str, Subject] = {
    "onnxruntime": Subject("infer of ONNX Runtime's runner", 1_000_000, _infer("onnxruntime")),
    "worker": Subject("timed inference in a worker of the bench", 1_000_000, _worker),
    "worker-infer": Subject("infer in a worker, arrays as files", 20_000, _worker_infer),
    "openvino": Subject("infer of OpenVINO's runner", 100_000, _infer("openvino")),
    "pytorch": Subject("infer of PyTorch's runner", 100_000, _infer("pytorch")),
    "open-onnxruntime": Subject("load, infer, close", 1_000, _open_close("onnxruntime")),
    "open-openvino": Subject("load, infer, close", 1_000, _open_close("openvino")),
    "open-pytorch": Subject("load, infer, close", 1_000, _open_close("pytorch")),
    "open-worker": Subject("a worker from start to end", 200, _workers),
    "calibrate": Subject("qcompile.calibrate", 100, _verb(_calibrate)),
    "build": Subject("qcompile.build, INT8 for ONNX Runtime", 100, _verb(_build)),
    "bench": Subject("qcompile.benchmark, two artifacts", 100, _verb(_bench)),
}
