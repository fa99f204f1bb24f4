"""A recipe whose calibration runs a function of one's own, as a request to a worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import helper, numpy_helper

from qcompile.cluster.files.content import ContentStore
from qcompile.cluster.files.parcel import Packed, pack
from qcompile.cluster.messages import FileRef, Given, Request, Result, StepText
from qcompile.files import digest_files
from qcompile.pipeline.recipe import Recipe, read_recipe

RECIPE = """
version = 1
name = "tiny"
[model]
source = "residual.onnx"
[data]
calibration = "data.py:samples"
[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
"""
FUNCTIONS = """
import os, sys, time
import numpy as np

def samples():
    with open(SAID + ".do") as file:
        return globals()[file.read()]()

def good():
    with open(SAID, "a") as file:
        file.write("once\\n")
    generator = np.random.default_rng(0)
    return [{"x": generator.standard_normal((1, 4, 8, 8)).astype(np.float32)} for _ in range(4)]

def prints():
    print('{"ok": true, "result": null}', flush=True)
    os.write(1, b'{"ok": false}\\n')
    assert sys.stdin.read() == ""
    print("and to standard error", file=sys.stderr)
    return good()

def aborts():
    print("about to end", flush=True)
    os.abort()

def raises():
    raise ValueError("no samples in " + os.path.dirname(os.path.abspath(__file__)))

def fills():
    with open("/dev/full", "w") as file:
        file.write("no room")

def hangs():
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    with open(SAID + ".written", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.replace(SAID + ".written", SAID + ".pids")
    time.sleep(600)

def stops():
    generator = np.random.default_rng(0)
    for count in range(4):
        if count == 3:
            time.sleep(10.5)
        yield {"x": generator.standard_normal((1, 4, 8, 8)).astype(np.float32)}
    hangs()

def takes_much():
    held = np.ones(1 << 29, np.uint8)
    time.sleep(600)
    return held
"""


def small_model() -> onnx.ModelProto:
    """A convolution: x [batch,4,8,8] to y [batch,4,8,8]."""
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 4, 8, 8]) for name in "xy"
    ]
    weights = numpy_helper.from_array(np.random.default_rng(1).standard_normal((4, 4, 1, 1), np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", kernel_shape=[1, 1])
    graph = helper.make_graph([node], "small", values[:1], values[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Asked:
    """A recipe with its model, ready to be asked of a worker.

    Args:
        folder: Of its own.
        code: Of the function that gives samples.
    """

    def __init__(self, folder: Path, code: str = FUNCTIONS) -> None:
        folder.mkdir(parents=True)
        self.said = folder.parent / f"{folder.name}.said"
        """A file that its function writes to, outside of the recipe."""
        onnx.save(small_model(), folder / "residual.onnx")
        (folder / "data.py").write_text(f"SAID = {str(self.said)!r}\n{code}")
        (folder / "recipe.toml").write_text(RECIPE)
        self.recipe: Recipe = read_recipe(folder / "recipe.toml")
        self.packed: Packed = pack(self.recipe, folder=folder.parent / f"{folder.name}.packed")
        path = folder / "residual.onnx"
        self.model = FileRef(path.name, digest_files([path]), path.stat().st_size)
        self.behave("good")

    def behave(self, how: str) -> None:
        """Choose what its function does from now on; see `FUNCTIONS`."""
        Path(f"{self.said}.do").write_text(how)
        Path(f"{self.said}.pids").unlink(missing_ok=True)

    def pids(self) -> list[int]:
        """The process that "hangs", and the one that it started; none before."""
        path = Path(f"{self.said}.pids")
        return [int(text) for text in path.read_text().split()] if path.exists() else []

    def times(self) -> int:
        """How often its samples were read."""
        return self.said.read_text().count("once") if self.said.exists() else 0

    def put(self, store: Path) -> None:
        """Bring all files to a worker's folder."""
        content = ContentStore(store)
        for digest, path in self.packed.paths.items():
            content.adopt(path, digest)
        content.close()

    def request(self, run: str = "run", step: StepText | None = None, **more: Any) -> Request:
        """The request to calibrate, or another one."""
        step = step or StepText("calibrate", files={"model": self.model.digest})
        given = {self.model.digest: Given((self.model,)), **more.pop("given", {})}
        return Request(run, step, self.packed.ref, given=given, **more)


def as_job(asked: Request, store: Path) -> Mapping[str, Any]:
    """The words of a request to a child."""
    return {
        "request": msgspec.to_builtins(asked),
        "store": str(store),
        "worker": "w",
        "address": "tcp://127.0.0.1:1",
    }


def result_of(answer: Mapping[str, Any]) -> Result:
    """What a child answers."""
    return msgspec.convert(answer["result"], Result)
