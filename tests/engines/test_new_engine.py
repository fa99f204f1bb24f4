"""An installed package adds an engine: a folder and a row take it the whole road."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROW = {"home": "toy_runtime.engine:Toy", "title": "Toy Runtime"}
ENGINE = """
from pathlib import Path

from onnx.reference import ReferenceEvaluator

from qcompile.core.artifact import Check
from qcompile.engines.base import BuildOutcome, Engine, PlannedLayers, Runner
from qcompile.model.graph.graph import weighted_nodes
from qcompile.model.graph.graph_rules import GraphRules
from qcompile.model.graph.onnx_file import save_onnx
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.onnx_file import read_graph
from qcompile.spec.tensors import check_feeds


class ToyRunner(Runner):
    contains = "host to host: one run()"

    def __init__(self, path):
        model = read_graph(path).load()
        self.io, self._reference = model_io(model), ReferenceEvaluator(model)

    def infer(self, feeds):
        names = [tensor.name for tensor in self.io.outputs]
        return dict(zip(names, self.prepare(feeds)(), strict=True))

    def prepare(self, feeds):
        check_feeds(self.io.inputs, feeds, "feeds")
        return lambda: self._reference.run(None, dict(feeds))

    def close(self):
        pass


class Toy(Engine):
    name = "toy"
    suffix = ".onnx"
    packages = {"toy-runtime": "toy_runtime"}
    precisions = ("fp32", "int8")
    rules = GraphRules(weighted=frozenset(["MatMul"]), zero_points="none")

    def build(self, request):
        model = read_graph(Path(request.model)).load()
        save_onnx(model, request.output)
        names = tuple(node.name for node in weighted_nodes(model)[request.precision])
        return BuildOutcome(
            kind="onnx", io=model_io(model), planned=len(names), reached=len(names), device={},
            proof={"layers_by_precision": {request.precision: {"MatMul": len(names)}}},
            layers=PlannedLayers(names),
            checks=[Check("is read by the reference", True, "")],
        )

    def open(self, artifact, *, threads=0, io=None):
        return ToyRunner(Path(artifact))
"""
RECIPE = """
version = 1
name = "mlp"
[model]
source = "mlp.onnx"
simplify = false
[data]
calibration = "calibration.npz"
[[artifact]]
name = "mine"
target = "toy"
precision = "int8"
"""
ROAD = """
import json, sys
from importlib.metadata import version
from pathlib import Path
import qcompile
from qcompile.model.graph.onnx_file import read_graph

folder, said = Path(sys.argv[1]), {}
metadata, data = folder / "toy_runtime-1.0.dist-info" / "METADATA", str(folder / "calibration.npz")
model, int8, built = (folder / name for name in ("mlp.onnx", "mlp.int8.onnx", "built.onnx"))
ranges = qcompile.calibrate(model, data, folder / "mlp.ranges", targets=["toy"]).path
quantized = qcompile.quantize(model, int8, target="toy", ranges=ranges, allow_loss=True)
said["quantized"] = sorted({node.op_type for node in read_graph(int8).load().graph.node})
said["placed"] = quantized.manifest.proof["nodes_by_precision"]["int8"]
said["tools"] = dict(qcompile.build(str(int8), built, target="toy", precision="int8").manifest.tools)
with qcompile.load(built) as runner:
    said["runner"] = type(runner).__name__
results = qcompile.benchmark(
    [str(model), str(built)], baseline=str(model), max_time_s=1, data=data,
    output=folder / "results.json",
)
said["rows"] = {row.engine: row.reason for row in results.rows}
said["measured"] = results.environment["packages"].get("toy-runtime")
said["outputs"] = qcompile.diff(str(model), str(built), data=data).as_json()["passed"]
for key in ("first", "second", "newer"):
    if key == "newer":
        metadata.write_text(metadata.read_text().replace("1.0", "1.1"))
    report = qcompile.run(folder / "recipe.toml")
    said[key] = report.stages, {name: str(error) for name, error in report.failures.items()}
print(json.dumps(said, default=str))
"""


def install(folder: Path, *, row: object = ROW, engine: str = ENGINE) -> dict[str, str]:
    """Write the package as an installer leaves it; return the environment of processes that have it."""
    package, info = folder / "toy_runtime", folder / "toy_runtime-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "row.py").write_text(f"ROW = {row!r}")
    (package / "engine.py").write_text(engine)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-runtime\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[qcompile.engines]\ntoy = toy_runtime.row:ROW\n")
    return {**os.environ, "PYTHONPATH": str(folder), "QCOMPILE_CORES": "1"}


def qc(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qcompile", *map(str, arguments)]
    folder = environment["PYTHONPATH"]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def test_an_engine_of_another_package_goes_the_whole_road(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    environment = install(tmp_path)
    tiny_file("mlp", opset=21)
    samples("mlp", 8).rename(tmp_path / "calibration.npz")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    command = [sys.executable, "-c", ROAD, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert said["quantized"] == ["Add", "DequantizeLinear", "MatMul", "QuantizeLinear", "Relu"]
    assert said["placed"] == {"MatMul": 2}
    assert said["tools"]["toy-runtime"] == said["measured"] == "1.0"
    assert said["runner"] == "ToyRunner"
    assert said["rows"] == {"onnxruntime": "", "toy": ""}
    assert said["outputs"] is True
    names = ("export", "calibrate", "quantize-mine", "build-mine")
    assert said["first"] == [dict.fromkeys(names, "done"), {}]
    assert said["second"] == [dict.fromkeys(names, "skipped"), {}]
    assert said["newer"] == [{**dict.fromkeys(names, "skipped"), "build-mine": "done"}, {}]

    words = ("diff", "mlp.onnx", "built.onnx", "--layers", "--data", "calibration.npz", "--json")
    layers = json.loads(qc(environment, *words).stdout)
    assert layers["passed"]
    assert {tensor["tensor"] for tensor in layers["tensors"]} == {"x", "m1", "h1", "r1", "y"}
    assert qc(environment, "report", "results.json", "-o", "page.html").returncode == 0
    assert "Toy Runtime" in (tmp_path / "page.html").read_text()
    words = ("gate", "built.onnx", "built.onnx", "--max-time", "1", "--skip-identical", "--json")
    assert json.loads(qc(environment, *words).stdout)["passed"]
    found = json.loads(qc(environment, "doctor", "--json").stdout)
    assert found["packages"]["toy-runtime"] == "1.1"
    assert "toy" in [target["target"] for target in found["targets"] if not target["why_not_build"]]
    states = {cell["precision"]: cell["state"] for cell in found["precisions"] if cell["target"] == "toy"}
    assert states["fp32"] == "fast"
    assert states["fp16"] == states["fp8"] == "no"
    assert qc(environment, "init", "mlp.onnx", "--target", "toy", "-o", "init.toml").returncode == 0
    assert 'name = "toy-fp32"' in (tmp_path / "init.toml").read_text()


@pytest.mark.parametrize(
    ("row", "engine", "message"),
    [
        ({"home": "toy_runtime.engine:Toy"}, ENGINE, "its row toy_runtime.row:ROW cannot be read"),
        ({**ROW, "colour": "red"}, ENGINE, "unexpected keyword argument 'colour'"),
        (ROW, ENGINE.replace("packages =", "wheels ="), "lacks 'packages'"),
        (ROW, ENGINE.replace("rules =", "laws ="), "lacks 'rules'"),
        (ROW, ENGINE.replace("def build", "def make"), "lacks build"),
        (ROW, ENGINE.replace('name = "toy"', 'name = "toi"'), "has name 'toi'"),
        (ROW, ENGINE.replace("(Engine)", ""), "is no subclass of qcompile.engines.base.Engine"),
        ({**ROW, "home": "toy_runtime.elsewhere:Toy"}, ENGINE, "No module named 'toy_runtime.elsewhere'"),
    ],
)
def test_an_engine_that_lacks_something_is_refused_and_it_is_named(
    row: object, engine: str, message: str, tmp_path: Path
) -> None:
    said = qc(install(tmp_path, row=row, engine=engine), "build", "m.onnx", "--target", "toy", "-o", "b.onnx")
    assert said.returncode
    assert "engine 'toy'" in said.stderr or "engine toy" in said.stderr
    assert message in said.stderr
    assert "Traceback" not in said.stderr


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    environment = install(tmp_path)
    points = tmp_path / "toy_runtime-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text().replace("toy =", "tensorrt ="))
    said = qc(environment, "build", "--help")
    assert "engine 'tensorrt' is registered already (.engines.tensorrt:TensorRT)" in said.stderr


def test_nothing_of_the_engine_is_imported_for_help(tmp_path: Path) -> None:
    environment = install(tmp_path, engine="raise RuntimeError")
    said = qc(environment, "build", "--help")
    assert (said.returncode, said.stderr) == (0, "")
    assert "torchscript|toy]" in said.stdout
