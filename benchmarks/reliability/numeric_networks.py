"""Quantize random networks, run them on ONNX Runtime and OpenVINO, and judge every integer by the reference.

    python benchmarks/reliability/numeric_networks.py --networks 200 --out numbers.jsonl
    python benchmarks/reliability/numeric_networks.py --networks 5 --first 1000

A case is one network by one scheme on one runtime. The reference, tests/support/qdq_reference, is plain numpy
in float64 with derived bounds. Where the file of `--out` has a network already it is not repeated. ONNX
Runtime runs with and without its optimizer. Schemes with weights of 8 bits are left out on x86 without VNNI,
whose kernels sum two products in int16.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from qdq_reference.watched import integers_of, judged, watched  # noqa: E402
from quantized_networks import samples, saved  # noqa: E402
from random_networks import random_network  # noqa: E402
from runtimes import OPENVINO_SLACK, on_onnxruntime, on_openvino  # noqa: E402

import qcompile  # noqa: E402
from qcompile.errors import QuantizationError  # noqa: E402
from qcompile.processor import processor  # noqa: E402

SCHEMES: dict[str, dict[str, Any]] = {
    "onnxruntime 7 bits": {"target": "onnxruntime", "isa": "avx2"},
    "onnxruntime 8 bits": {"target": "onnxruntime", "isa": "avx512-vnni"},
    "onnxruntime part": {"target": "onnxruntime", "isa": "avx2", "exclude": "random"},
    "openvino 7 bits": {"target": "openvino", "isa": "avx2"},
    "openvino 8 bits": {"target": "openvino", "isa": "avx512-vnni"},
    "tensorrt": {"target": "tensorrt"},
    "dynamic": {"target": "onnxruntime", "mode": "dynamic", "weight_type": "uint8"},
    "int4": {"target": "onnxruntime", "mode": "weights", "precision": "int4"},
    "int4 qdq": {"target": "openvino", "mode": "weights", "precision": "int4"},
}
_WEIGHTED = ("Conv", "MatMul", "Gemm")


def schemes() -> dict[str, dict[str, Any]]:
    """Those that this processor computes exactly."""
    flags = json.dumps(processor()).lower()
    return {name: how for name, how in SCHEMES.items() if "8 bits" not in name or "vnni" in flags}


def cases(seed: int) -> Iterator[dict[str, Any]]:
    """Yield the results of one network."""
    model = random_network(seed)
    with tempfile.TemporaryDirectory(prefix="numbers-") as name:
        folder = Path(name)
        path, data = saved(model, folder)
        ranges = qcompile.calibrate(path, str(data), folder / "m.ranges").path
        for scheme, how in schemes().items():
            told = {**how}
            if told.get("mode", "static") == "static":
                told["ranges"] = ranges
            if told.pop("exclude", ""):
                nodes = [node.name for node in model.graph.node if node.op_type in _WEIGHTED]
                random = np.random.default_rng(seed)
                told["exclude"] = [one for one in nodes if random.random() < 0.4] or nodes[:1]
            about = {"seed": seed, "scheme": scheme}
            try:
                made = qcompile.quantize(path, folder / "q.onnx", allow_loss=True, **told)
            except QuantizationError as error:
                yield {**about, "runtime": "", "refused": error.message.rpartition(": ")[2][:80]}
                continue
            yield from runs(about, onnx.load(made.path), told["target"])


def runs(about: dict[str, Any], model: onnx.ModelProto, target: str) -> Iterator[dict[str, Any]]:
    """Yield what each runtime makes of a quantized model."""
    feeds = samples(model, 2, seed=about["seed"])
    shown, names = watched(model)
    for optimize in (False, True) if target == "onnxruntime" else (False,):
        runtime = "onnxruntime, optimized" if optimize else "onnxruntime"
        found = on_onnxruntime(shown, feeds, optimize=optimize)
        yield {**about, "runtime": runtime, **verdict(model, feeds, integers_of(model, found, names))}
    if any(node.domain == "com.microsoft" or node.op_type == "Scan" for node in model.graph.node):
        return  # OpenVINO does not read them
    shown, names = watched(model, dequantized=True)
    if any(node.op_type == "DynamicQuantizeLinear" for node in model.graph.node):
        return  # its integers cannot be seen there
    found = on_openvino(shown, feeds)
    given = integers_of(model, found, names)
    yield {**about, "runtime": "openvino", **verdict(model, feeds, given, slack=OPENVINO_SLACK)}


def verdict(
    model: onnx.ModelProto, feeds: dict[str, Any], given: dict[str, Any], *, slack: float = 0.0
) -> dict[str, Any]:
    """What the reference says of a run."""
    deviations, count = judged(model, feeds, given, slack=slack)
    wrong = [[one.tensor, one.count, one.size, round(one.worst, 3)] for one in deviations]
    return {"judged": count, "deviations": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first network")
    parser.add_argument(
        "--out", type=Path, help="file of results, one a line; networks in it are not repeated"
    )
    parser.add_argument("--max-time", type=float, default=float("inf"), help="seconds")
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out and options.out.exists() else []
    results = [json.loads(line) for line in lines]
    done, begun = {one["seed"] for one in results}, time.monotonic()
    for seed in range(options.first, options.first + options.networks):
        if seed in done or time.monotonic() - begun > options.max_time:
            continue
        try:
            found = list(cases(seed))
        except Exception as error:  # a failure of any stage is a result
            found = [
                {"seed": seed, "scheme": "", "runtime": "", "error": f"{type(error).__name__}: {error}"[:300]}
            ]
            traceback.print_exc()
        results += found
        if options.out:
            with options.out.open("a") as file:
                file.writelines(json.dumps(one) + "\n" for one in found)
    print_table(results)


def print_table(results: list[dict[str, Any]]) -> None:
    counts: dict[tuple[str, str], Counter[str]] = {}
    for one in results:
        kind = "error" if "error" in one else "refused" if "refused" in one else "cases"
        row = counts.setdefault((one["scheme"], one["runtime"]), Counter())
        row[kind] += 1
        row["elements"] += one.get("judged", 0)
        row["deviating"] += bool(one.get("deviations"))
    print("| scheme | runtime | cases | elements | cases that deviate | refused | errors |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for (scheme, runtime), row in sorted(counts.items()):
        cells = [row[name] for name in ("cases", "elements", "deviating", "refused", "error")]
        print(f"| {scheme} | {runtime} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    total = sum(counts.values(), Counter[str]())
    print(f"| all | | {total['cases']:,} | {total['elements']:,} | {total['deviating']:,} | "
          f"{total['refused']:,} | {total['error']:,} |")  # fmt: skip
    for one in results:
        if one.get("deviations") or "error" in one:
            print(json.dumps(one))


if __name__ == "__main__":
    main()
