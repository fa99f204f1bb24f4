"""What a recording of TensorRT-RTX in `tests/samples/tensorrt` was made of; run it to write one again.

    python tests/support/recorded_builds.py tests/samples/tensorrt

A build for an sm86, every layer of the network, profiles and flags that are refused, and a graph that the
parser refuses. Lines of VERBOSE and INFO are left out of the file: most of them are times.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx
from tensorrt_bench import Bench
from tensorrt_recorder import record

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    tiny (float[batch,4] x) => (float[batch,2] y)
    <float[4,2] w = {0.5, -0.25, 0.125, 1.0, -1.0, 2.0, 0.75, -0.5}> {
        product = MatMul (x, w)
        y = Relu (product)
    }"""
UNKNOWN = """<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
    tiny (float[2,3] x) => (float[2,3] y) { h = Relu(x) y = com.example.Unknown(h) }"""
_SILENT = ("VERBOSE", "INFO")


def build_and_look(module: Any, folder: Path) -> dict[str, Any]:
    """Use a TensorRT-RTX module, real or not, in every way that needs no GPU, and return what it says."""
    model, unknown = folder / "tiny.onnx", folder / "unknown.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), model)
    onnx.save(onnx.parser.parse_model(UNKNOWN), unknown)
    bench = Bench(module, model)
    bench.config.num_compute_capabilities = 1
    bench.config.set_compute_capability(module.ComputeCapability.SM86, 0)
    found = {"parsed": bench.parsed, "layers": _layers(bench.network), **_refused(bench, unknown)}
    profile = bench.builder.create_optimization_profile()
    profile.set_shape("x", (1, 4), (2, 4), (8, 4))
    bench.config.add_optimization_profile(profile)
    plan = bench.build()
    return {**found, "plan_bytes": plan.nbytes, "magic": bytes(memoryview(plan)[:4])}


def _layers(network: Any) -> list[Any]:
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    return [
        (
            layer.name,
            _word(layer.type),
            [
                (tensor.name, _word(tensor.dtype), tuple(tensor.shape))
                for tensor in (layer.get_output(index) for index in range(layer.num_outputs))
            ],
        )
        for layer in layers
    ]


def _refused(bench: Bench, unknown: Path) -> dict[str, Any]:
    """What it answers to wrong use, each with the errors that it logs."""
    answers: dict[str, Any] = {}
    answers["no profile"] = (bench.build() is None, _errors(bench))
    profile = bench.builder.create_optimization_profile()
    profile.set_shape("x", (4, 4), (2, 4), (1, 4))
    answers["profile out of order"] = (bench.config.add_optimization_profile(profile), _errors(bench))
    try:
        bench.config.set_flag(3)
    except TypeError as error:
        answers["number for a flag"] = str(error).split(".")[0]
    with contextlib.suppress(AttributeError):
        bench.network.get_input(0).dtype = bench.module.float16
        answers["type is set"] = True
    other = Bench(bench.module, unknown)
    error = other.parser.get_error(0)
    answers["unknown operator"] = (
        other.parsed,
        _word(error.code()),
        error.desc(),
        error.node(),
        error.node_operator(),
    )
    return answers


def _errors(bench: Bench) -> list[str]:
    errors = bench.said.errors()
    bench.said.clear()
    return errors


def _word(member: Any) -> str:
    return str(member).rsplit(".", 1)[-1]


def thinned(lines: list[str]) -> list[str]:
    """Return the lines of a recording without log lines of no consequence."""
    kept = []
    for line in lines:
        event = json.loads(line)
        first = (event.get("args") or [None])[0]
        severity = first.get("enum", "") if isinstance(first, dict) else ""
        if not ("callback" in event and severity.removeprefix("Severity.") in _SILENT):
            kept.append(line)
    return kept


def main() -> None:
    """Write the recording of the TensorRT-RTX that is installed here."""
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "recording.jsonl"
        import tensorrt_rtx

        record(tensorrt_rtx, path)
        build_and_look(tensorrt_rtx, Path(home))
        lines = thinned(path.read_text(encoding="utf-8").splitlines())
    name = f"tensorrt-rtx-{tensorrt_rtx.__version__}.jsonl"
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
