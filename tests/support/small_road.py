"""A model of 700 parameters, and what must hold after any fault: which files are not what they should be."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DETERMINISTIC = (".onnx", ".ranges", ".data")
"""Endings of the artifacts that two runs must make equal byte for byte; measurements differ."""


def model(weights: int = 0) -> onnx.ModelProto:
    """Two convolutions with a residual add: x [batch,4,16,16] to y [batch,3].

    Args:
        weights: Bytes of a further layer, for files of some size.
    """
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name)

    wide = max(3, weights // 16)
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4, kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", pads=[1] * 4, kernel_shape=[3, 3]),
        helper.make_node("Add", ["c2", "r1"], ["a"], "add"),
        helper.make_node("GlobalAveragePool", ["a"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "gemm", transB=1),
    ]
    stored = [weight("w1", 4, 4, 3, 3), weight("b1", 4), weight("w2", 4, 4, 3, 3), weight("b2", 4)]
    stored += [weight("w3", wide, 4), weight("b3", wide)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", wide])
    graph = helper.make_graph(nodes, "small", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def broken(folder: Path) -> list[str]:
    """What is wrong with the files under final names: partial ones, and wrong pairs with a manifest."""
    wrong = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        if any(part.startswith(".qcompile-tmp-") for part in path.relative_to(folder).parts):
            continue
        if not path.is_file() or path.name in ("lock", "recipe.toml"):
            continue
        try:
            _check(path)
        except Exception as error:  # a file of any kind, damaged in any way
            wrong.append(f"{path}: {type(error).__name__}: {error}")
    return wrong


def _check(path: Path) -> None:
    if path.suffix == ".json":
        json.loads(path.read_bytes())
    if path.suffix == ".onnx":
        onnx.checker.check_model(str(path))
    if path.suffix == ".npz":
        np.load(path, allow_pickle=False).close()
    manifest = path.with_name(path.name + ".json")
    if manifest.is_file():
        side = path.with_name(path.name + ".data")
        content = path.read_bytes() + (side.read_bytes() if side.is_file() else b"")
        expected = json.loads(manifest.read_bytes())["digest"]
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != expected:
            raise ValueError("is not what its manifest says")
    if path.name == "stage.json":
        for name, digest in json.loads(path.read_bytes())["files"].items():
            made = hashlib.sha256((path.parent / name).read_bytes()).hexdigest()
            if f"sha256:{made}" != digest:
                raise ValueError(f"{name} is not what its record says")


def contents(folder: Path) -> dict[str, str]:
    """Name to digest of the artifacts that must not depend on any fault."""
    return {
        path.name: hashlib.sha256(_as_compared(path)).hexdigest()
        for path in sorted(folder.iterdir())
        if path.suffix in DETERMINISTIC and not path.name.startswith(".")
    }


def _as_compared(path: Path) -> bytes:
    """The bytes of a file. ONNX Runtime 1.31 names the nodes it adds differently from run to run."""
    if path.name != "cpu.onnx":
        return path.read_bytes()
    built = onnx.load(str(path))
    for node in built.graph.node:
        node.name = ""
    return bytes(built.SerializeToString(deterministic=True))
