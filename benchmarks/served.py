"""What serving costs: one ONNX file in a process of its own, and on real servers, in one interleaved bench.

    .venv/bin/python benchmarks/served.py                            # every server that is installed
    .venv/bin/python benchmarks/served.py --servers triton --model model.onnx --batch-size 8 --max-time 120
    .venv/bin/python benchmarks/served.py --servers triton --p99-below 20    # the largest rate of each

`served_harness/servers.py` says how Triton, MLServer and KServe are installed. Each serves the file with ONNX
Runtime and one thread, as the process of the baseline does, on this machine. Outputs are compared first: a
server must answer what the file computes, bit for bit (exit code 1 otherwise). The cost is the difference of
the medians: the client, the network of this machine, the protocol and the server's queue.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "served_harness"))
from servers import NAME, SERVERS, python_of, running  # noqa: E402

import qcompile  # noqa: E402
from qcompile.bench.results.results import Results  # noqa: E402
from qcompile.bench.results.row import Row  # noqa: E402

IN_PROCESS = "in process"


def digits() -> Path:
    """Return the ResNet-20 of the example as an ONNX file with a dynamic batch."""
    path = ROOT / "build/benchmarks/served" / f"{NAME}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    model = f"{ROOT}/examples/digits/model.py:build"
    return Path(qcompile.export(model, path, inputs=["image:[batch,3,32,32]"]).path)


def line(row: Row, base: Row) -> str:
    """Return the figures of a row."""
    if row.latency is None or base.latency is None:
        return f"| {row.name} | {row.status}: {row.reason} | | | | |"
    cost = "–" if row is base else f"{row.latency.median_ms - base.latency.median_ms:+.3f}"
    p99 = f"{row.latency.p99_ms:.3f}" if row.latency.p99_ms is not None else "–"
    equal = "–" if row is base else "yes" if is_equal(row) else "NO"
    rate = f"{row.throughput_per_s:.0f}" if row.throughput_per_s else "–"
    return f"| {row.name} | {row.latency.median_ms:.3f} | {p99} | {cost} | {rate} | {equal} |"


def is_equal(row: Row) -> bool:
    """Return whether the outputs are those of the baseline, bit for bit."""
    return row.difference is not None and row.difference.max_abs_error == 0.0


def show(results: Results) -> bool:
    """Print the table, and return whether all outputs are equal."""
    base = next(row for row in results.rows if row.name == IN_PROCESS)
    print("| artifact | median, ms | p99, ms | cost of serving, ms | samples/s | outputs equal |")
    print("|---|---|---|---|---|---|")
    for row in results.rows:
        print(line(row, base))
    for row in results.rows:
        for text in row.warnings:
            if "the server says" in text or "is served" in text:
                print(f"{row.name}: {text}")
        if row.largest_rate is not None:
            found = row.largest_rate
            per_s = f"{found.per_s:.0f} requests/s" if found.per_s else f"none ({found.reason})"
            print(f"{row.name}: largest rate with p99 below {found.p99_below_ms:g} ms: {per_s}")
        for point in row.concurrency:
            print(f"{row.name}: {point.count} clients: {point.throughput_per_s:.0f} samples/s")
    return all(is_equal(row) for row in results.rows if row is not base)


def main() -> None:
    """Start the servers, measure, print, and end them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", type=Path, help="ONNX file; default: the ResNet-20 of examples/digits")
    parser.add_argument("--servers", default=",".join(SERVERS), help=f"of {', '.join(SERVERS)}")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--clients", default="", help="numbers of clients, such as 1,2,4")
    parser.add_argument("--p99-below", type=float, help="find the largest rate with p99 below, in ms")
    parser.add_argument("--max-time", type=float, default=60.0, help="seconds of the interleaved bench")
    parser.add_argument("-o", "--output", type=Path, help="results.json")
    given = parser.parse_args()
    model = given.model or digits()
    with contextlib.ExitStack() as stack:
        artifacts = {IN_PROCESS: str(model)}
        for name in given.servers.split(","):
            if python_of(name) is None:
                print(f"{name}: not installed in build/servers/{name}; left out", file=sys.stderr)
                continue
            server = stack.enter_context(running(name, model))
            artifacts |= {f"{name}, {transport}": url for transport, url in server.addresses.items()}
        samples = ROOT / "build/benchmarks/served/samples.npz"
        made_samples(model, samples, given.batch_size)
        results = qcompile.benchmark(
            artifacts,
            baseline=IN_PROCESS,
            data=str(samples),
            batch_size=given.batch_size,
            threads=1,
            clients=[int(count) for count in given.clients.split(",") if count],
            p99_below_ms=given.p99_below,
            max_time_s=given.max_time,
            output=given.output,
            progress=lambda text: print(text, file=sys.stderr),
        )
    sys.exit(0 if show(results) else 1)


def made_samples(model: Path, path: Path, count: int) -> None:
    """Write random samples that the model takes: every artifact is fed them, and their outputs compared."""
    import numpy as np

    rng = np.random.default_rng(0)
    with qcompile.load(model, threads=1) as runner:
        arrays = {
            one.name: rng.standard_normal(
                [count if isinstance(extent, str) else extent for extent in one.shape]
            ).astype(one.dtype)
            for one in runner.io.inputs
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


if __name__ == "__main__":
    main()
