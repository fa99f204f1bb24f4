"""The claim of CONTRIBUTING: two edits of a graph as protobuf messages, against onnx-ir's passes.

    .venv/bin/python benchmarks/graph_edits.py

Each side loads the same Transformer (random weights), turns constants into initializers, removes what nothing
reads and has a protobuf model again, in a process of its own, in interleaved rounds. It prints the seconds
behind loading, the seconds of its imports, and the peak of memory, each as the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper


def main() -> None:
    """Measure and print, or be one side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=800, help="of a token; 12 width² weights a layer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(SIDES[options.side](options.model)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "transformer.onnx"
        nodes = write_transformer(path, options.layers, options.width)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        print(f"{nodes} nodes, {size / 1e6:.0f} MB, {options.rounds} rounds")
        measured: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for turn in range(options.rounds):
            for side in list(SIDES)[:: 1 if turn % 2 else -1]:
                command = [sys.executable, __file__, "--side", side, "--model", str(path)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                measured[side].append(json.loads(done.stdout))
    for side, rows in measured.items():
        edit_s, import_s, peak_bytes = (
            statistics.median(row[key] for row in rows) for key in ("edit_s", "import_s", "peak_bytes")
        )
        print(
            f"{side:10} edits {edit_s:6.2f} s   imports {import_s:5.2f} s   peak {peak_bytes / 1e9:5.2f} GB"
        )


def protobuf(path: Path) -> dict[str, float]:
    """`model.graph_edits`, in place."""
    began = time.perf_counter()
    from qcompile.model.graph_edits import drop_unread, store_constants

    import_s = time.perf_counter() - began
    model = onnx.load(path)
    began = time.perf_counter()
    store_constants(model.graph)
    drop_unread(model.graph)
    return measured_here(began, import_s)


def onnx_ir(path: Path) -> dict[str, float]:
    """onnx-ir's own passes, from protobuf and back."""
    began = time.perf_counter()
    import onnx_ir
    from onnx_ir.passes.common import LiftConstantsToInitializersPass, RemoveUnusedNodesPass

    import_s = time.perf_counter() - began
    model = onnx.load(path)
    began = time.perf_counter()
    graph = onnx_ir.from_proto(model)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(graph)
    RemoveUnusedNodesPass()(graph)
    onnx_ir.to_proto(graph)
    return measured_here(began, import_s)


def measured_here(began: float, import_s: float) -> dict[str, float]:
    """What a side took up to now."""
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"edit_s": time.perf_counter() - began, "import_s": import_s, "peak_bytes": peak_bytes}


def write_transformer(path: Path, layers: int, width: int) -> int:
    """Write a stack of attention without softmax and MLPs, with constants and an unread node each.

    Returns:
        The number of its nodes.
    """
    generator = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"

    def weight(name: str, *shape: int) -> str:
        weights.append(numpy_helper.from_array(generator.standard_normal(shape, np.float32), name))
        return name

    def node(operator: str, inputs: list[str], output: str) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], name=output))
        return output

    for layer in range(layers):
        at = f"layer{layer}"
        scale = numpy_helper.from_array(np.float32(0.01), "")
        nodes.append(helper.make_node("Constant", [], [f"{at}.scale"], value=scale))
        parts = [
            node("MatMul", [value, weight(f"{at}.{part}.w", width, width)], f"{at}.{part}") for part in "qkv"
        ]
        mixed = node("Mul", [node("Add", parts[:2], f"{at}.sum"), parts[2]], f"{at}.mixed")
        mixed = node("Mul", [mixed, f"{at}.scale"], f"{at}.scaled")
        mixed = node("MatMul", [mixed, weight(f"{at}.o.w", width, width)], f"{at}.o")
        value = node("Add", [value, mixed], f"{at}.residual")
        wide = node(
            "Relu",
            [node("MatMul", [value, weight(f"{at}.up.w", width, 4 * width)], f"{at}.up")],
            f"{at}.relu",
        )
        down = node("MatMul", [wide, weight(f"{at}.down.w", 4 * width, width)], f"{at}.down")
        node("Neg", [down], f"{at}.unread")
        value = node("Add", [value, down], f"{at}.y")
    graph = helper.make_graph(
        nodes,
        "transformer",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["tokens", width])],
        [helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, ["tokens", width])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")
    return len(nodes)


SIDES = {"protobuf": protobuf, "onnx-ir": onnx_ir}

if __name__ == "__main__":
    main()
