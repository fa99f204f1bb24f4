"""The claim about load: latencies of requests that arrive by themselves are those of MLPerf LoadGen.

    python benchmarks/load.py                     # all of it, about eight minutes
    python benchmarks/load.py compare --service 5 --load 0.55 --seeds 4 --requests 2000
    python benchmarks/load.py compare --model model.onnx
    python benchmarks/load.py rate --service 5 --bound 25

`compare` lets requests arrive at one runner in this process, under LoadGen's Server scenario and ours in
turn. It prints the ratios of p50, p90, p99 and of the answered requests. Both sides get the same arrivals:
those that LoadGen draws from a seed are drawn here again (`loadgen_arrivals`). With --own-arrivals each side
draws its own, and p99 of some thousand requests differs by 20% and more from one drawing to the next; so the
gaps of both sides are compared by a test of their distribution (`arrivals`).

`replay` needs no quiet machine: our queue serves the calls of a run under LoadGen again, in virtual time, and
both must say the same of them.

`rate` searches the largest rate that LoadGen calls VALID, by bisection, and ours by the same criterion;
beside it stands what `qcompile bench --p99-below` would print. Needs `pip install mlcommons-loadgen==6.0.17`.
Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import math
import os
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlperf_loadgen as loadgen
import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, save
from scipy.stats import binom, ks_2samp, kstest

import qcompile
from qcompile.bench.measuring.enough import tail_verdict
from qcompile.bench.measuring.open_loop import poisson_arrivals, serve_arrivals
from qcompile.bench.measuring.under_load import arrival_point
from qcompile.bench.results.under_load import ArrivalPoint
from qcompile.bench.statistics.launches import percentile, student_quantile

Call = Callable[[], object]
SHARES = (0.5, 0.9, 0.99)
GOAL = 0.03
SMALLEST_STEP = 0.01  # of the search


@dataclass(frozen=True)
class Run:
    """What one side measured: percentiles in ms, answered requests per second, LoadGen's verdict."""

    percentiles_ms: tuple[float, ...]
    per_s: float
    valid: bool
    calls_ns: tuple[tuple[int, int], ...] = ()


class Replay:
    """A clock that only calls of known lengths and waits move."""

    def __init__(self, services_ns: Sequence[int]) -> None:
        self.at, self.services_ns = 0, iter(services_ns)

    def now(self) -> int:
        """Return the time."""
        return self.at

    def wait_until(self, at: int) -> None:
        """Be there."""
        self.at = max(self.at, at)

    def call(self) -> None:
        """Take as long as the next call did."""
        self.at += next(self.services_ns)


def loadgen_arrivals(rate: float, count: int, seed: int) -> NDArray[np.int64]:
    """Draw what LoadGen draws: `std::exponential_distribution` of libstdc++ on `std::mt19937(seed)`.

    Source: mlcommons/inference at b66003e, loadgen/loadgen.cc, `ScheduleDistribution<Server>` and
    `GenerateQueries`: the first arrival is at 0, each gap is cut to whole nanoseconds.
    """
    words = np.random.RandomState(seed).randint(0, 1 << 32, 2 * count, dtype=np.uint32).astype(np.float64)
    uniform = (words[0::2] + words[1::2] * 2.0**32) / 2.0**64
    gaps = (-np.log(1.0 - uniform) / rate * 1e9).astype(np.int64)
    return np.concatenate(([0], np.cumsum(gaps)[:-1]))


def under_loadgen(call: Call, rate: float, count: int, seed: int, bound_ms: float, *, inline: bool) -> Run:
    """Serve one request after another, from a queue that LoadGen's thread fills; or in that thread itself."""
    requests: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    calls_ns: list[tuple[int, int]] = []

    def answer(identifier: int) -> None:
        start = time.perf_counter_ns()
        call()
        calls_ns.append((start, time.perf_counter_ns()))
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(identifier, 0, 0)])

    def serve() -> None:
        while (identifier := requests.get()) is not None:
            answer(identifier)

    take = answer if inline else requests.put
    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.Server
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.server_target_qps = rate
    settings.server_target_latency_ns = int(bound_ms * 1e6)
    settings.server_target_latency_percentile = 0.99
    settings.min_query_count = count
    settings.min_duration_ms = 0
    settings.schedule_rng_seed = seed
    server = threading.Thread(target=serve)
    server.start()
    with tempfile.TemporaryDirectory() as folder, inside(folder):
        log = loadgen.LogSettings()
        log.log_output.outdir = folder
        log.log_output.copy_summary_to_stdout = False
        log.enable_trace = False
        sut = loadgen.ConstructSUT(lambda samples: [take(one.id) for one in samples] and None, lambda: None)
        qsl = loadgen.ConstructQSL(1, 1, lambda _: None, lambda _: None)
        loadgen.StartTestWithLogSettings(sut, qsl, settings, log, "")
        loadgen.DestroyQSL(qsl)
        loadgen.DestroySUT(sut)
        summary = (Path(folder) / "mlperf_log_summary.txt").read_text()
    requests.put(None)
    server.join()
    figures = dict(line.split(":", 1) for line in summary.splitlines() if line.count(":") == 1)
    told = {name.strip(" -"): text.strip() for name, text in figures.items()}
    ms = tuple(int(told[f"{share * 100:.2f} percentile latency (ns)"]) / 1e6 for share in SHARES)
    return Run(ms, float(told["Completed samples per second"]), told["Result is"] == "VALID", tuple(calls_ns))


def under_ours(call: Call, arrivals: NDArray[np.int64], bound_ms: float) -> tuple[Run, ArrivalPoint]:
    """Serve the arrivals as a worker of `bench` does; valid is what LoadGen's early stopping would say."""
    served = serve_arrivals([call], arrivals)
    ns = served.latencies.tolist()
    slow = int((served.latencies > bound_ms * 1e6).sum())
    # Source: loadgen/early_stopping.cc: at 99% confidence, fewer than 1% are slow.
    valid = not served.overloaded and binom.cdf(slow, len(ns), 0.01) <= 0.01
    rate = len(arrivals) / (arrivals[-1] / 1e9)
    point = arrival_point(
        rate, ns, served.services.tolist(), served.wall_ns, backlog=served.backlog,
        overloaded=served.overloaded,
    )  # fmt: skip
    ms = tuple(percentile(ns, share) / 1e6 for share in SHARES)
    return Run(ms, point.achieved_per_s, bool(valid)), point


def compare(call: Call, what: str, given: argparse.Namespace, *, same_arrivals: bool) -> None:
    """Print the ratios of ours to LoadGen's over seeds."""
    rate = given.load / typical_s(call)
    rows = []
    for seed in range(1, given.seeds + 1):
        drawn = (
            loadgen_arrivals(rate, given.requests, seed)
            if same_arrivals
            else poisson_arrivals(rate, given.requests, seed=seed)
        )
        sides = {
            "ours": lambda drawn=drawn: under_ours(call, drawn, 1e6)[0],
            "LoadGen": lambda seed=seed: under_loadgen(
                call, rate, given.requests, seed, 1e6, inline=given.inline
            ),
        }
        found = {name: sides[name]() for name in (sides if seed % 2 else reversed(sides))}
        rows.append((found["ours"], found["LoadGen"]))
    drawing = "the same arrivals" if same_arrivals else "arrivals of its own"
    print(f"\n{what}, {rate:.1f} requests/s, {given.requests} of them, {given.seeds} seeds, {drawing}\n")
    table(rows)


def replay(call: Call, what: str, given: argparse.Namespace) -> None:
    """Print what LoadGen and our queue say of the same arrivals and the same calls."""
    rate = given.load / typical_s(call)
    rows = []
    for seed in range(1, given.seeds + 1):
        theirs = under_loadgen(call, rate, given.requests, seed, 1e6, inline=given.inline)
        begins, ends = np.array(theirs.calls_ns, np.int64).T
        arrivals = loadgen_arrivals(rate, len(ends), seed)
        start = int((begins - arrivals).min())  # some request found nobody before it
        # Until the call ends from when it could begin: what waking the thread takes is part of it.
        free = np.maximum(arrivals + start, np.concatenate(([0], ends[:-1])))
        clock = Replay((ends - free).tolist())
        served = serve_arrivals([clock.call], arrivals, clock=clock)
        ms = tuple(percentile(served.latencies.tolist(), share) / 1e6 for share in SHARES)
        rows.append((Run(ms, len(arrivals) / (served.wall_ns / 1e9), valid=True), theirs))
    print(f"\n{what}, {rate:.1f} requests/s, {given.requests} of them: LoadGen's calls in our queue\n")
    table(rows)


def table(rows: Sequence[tuple[Run, Run]]) -> None:
    """Print a row for each figure of ours and LoadGen's."""
    print("| | LoadGen | ours | ours / LoadGen | 95% interval | each seed |\n|---|---|---|---|---|---|")
    for index, name in enumerate(("p50, ms", "p90, ms", "p99, ms")):
        table_row(name, [(a.percentiles_ms[index], b.percentiles_ms[index]) for a, b in rows])
    table_row("answered/s", [(a.per_s, b.per_s) for a, b in rows])


def table_row(name: str, pairs: Sequence[tuple[float, float]]) -> None:
    """Print the medians of both sides, and the mean of the ratios with Student's interval."""
    logs = [math.log(ours / other) for ours, other in pairs]
    mean = statistics.fmean(logs)
    half = (
        student_quantile(0.95, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        if len(logs) > 1
        else math.inf
    )
    ours, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ends = f"[{math.exp(mean - half):.3f}, {math.exp(mean + half):.3f}]"
    each = " ".join(f"{math.exp(one):.3f}" for one in logs)
    verdict = "" if abs(math.exp(mean) - 1.0) <= GOAL else ", beyond 3%"
    print(
        f"| {name} | {other:.3f} | {ours:.3f} | {math.exp(mean):.3f}{verdict} | {ends} | {each} |", flush=True
    )


def rate(call: Call, what: str, given: argparse.Namespace) -> None:
    """Print the largest rates of both sides for each seed."""
    service_s = typical_s(call)
    bound_ms = given.bound or 5.0 * service_s * 1e3
    print(
        f"\n{what}, largest rate with p99 below {bound_ms:.1f} ms, {given.requests} requests at each rate\n"
    )
    print("| seed | LoadGen, VALID | ours, by the same criterion | ratio | by p99 [certain] |")
    print("|---|---|---|---|---|")
    for seed in range(1, given.seeds + 1):
        points: list[ArrivalPoint] = []

        def ours(per_s: float, seed: int = seed, points: list[ArrivalPoint] = points) -> bool:
            run, point = under_ours(call, loadgen_arrivals(per_s, given.requests, seed), bound_ms)
            points.append(point)
            return run.valid

        def theirs(per_s: float, seed: int = seed) -> bool:
            return under_loadgen(call, per_s, given.requests, seed, bound_ms, inline=given.inline).valid

        found = bisect_both(ours, theirs, 0.3 / service_s, 0.95 / service_s)
        mine, other = found
        row = f"| {seed} | {other:.1f} | {mine:.1f} | {mine / other:.3f} | {by_p99(points, bound_ms)} |"
        print(row, flush=True)


def by_p99(points: Sequence[ArrivalPoint], bound_ms: float) -> str:
    """The largest of the measured rates whose p99 is below the bound, and the nearest that are certain."""
    verdicts = [
        (one.rate_per_s, tail_verdict(one.p99_low_ms, one.p99_high_ms, bound_ms) if one.keeps_up else "above")
        for one in points
    ]
    best = max((one.rate_per_s for one in points if one.p99_ms and one.p99_ms < bound_ms), default=math.nan)
    low = max((rate for rate, verdict in verdicts if verdict == "below"), default=math.nan)
    high = min((rate for rate, verdict in verdicts if verdict == "above"), default=math.nan)
    return f"{best:.1f} [{low:.1f}, {high:.1f}]"


def arrivals(count: int = 100_000) -> None:
    """Print whether the gaps that LoadGen draws and ours are of one distribution."""
    gaps = {
        "LoadGen": np.diff(loadgen_arrivals(100.0, count, 1)) / 1e9,
        "ours": np.diff(poisson_arrivals(100.0, count)) / 1e9,
    }
    print("\nGaps between arrivals, 100 requests/s\n")
    print("| | mean, ms | p99, ms | KS against exponential |\n|---|---|---|---|")
    for name, some in gaps.items():
        fit = kstest(some, "expon", args=(0.0, 0.01)).pvalue
        print(f"| {name} | {some.mean() * 1e3:.3f} | {np.quantile(some, 0.99) * 1e3:.2f} | p = {fit:.2f} |")
    print(f"\nBoth of one distribution: KS p = {ks_2samp(*gaps.values()).pvalue:.2f}", flush=True)


def bisect_both(
    ours: Callable[[float], bool], theirs: Callable[[float], bool], low: float, high: float
) -> tuple[float, float]:
    """Search the largest valid rate of both sides, step by step in turn."""
    ends = {"ours": [low, high], "theirs": [low, high]}
    while max(top / bottom for bottom, top in ends.values()) > 1.0 + SMALLEST_STEP:
        for name, is_valid in (("ours", ours), ("theirs", theirs)):
            bottom, top = ends[name]
            middle = math.sqrt(bottom * top)
            ends[name][0 if is_valid(middle) else 1] = middle
    return math.sqrt(math.prod(ends["ours"])), math.sqrt(math.prod(ends["theirs"]))


def spinning(ms: float) -> Call:
    """A call of a fixed length, which computes all the time."""

    def call() -> None:
        end = time.perf_counter_ns() + int(ms * 1e6)
        while time.perf_counter_ns() < end:
            pass

    return call


@contextmanager
def onnx_call(path: str) -> Iterator[Call]:
    """A model in ONNX Runtime on one thread; without a path, convolutions of some milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        if not path:
            path = str(Path(folder) / "convolutions.onnx")
            convolutions(path)
        with qcompile.load(path, threads=1, trust=True) as runner:
            feeds = {
                one.name: np.ones([d if isinstance(d, int) else 1 for d in one.shape], one.dtype)
                for one in runner.io.inputs
            }
            yield runner.prepare(feeds)


def convolutions(path: str) -> None:
    """Write eight convolutions with 32 channels on 64x64."""
    rng, nodes, weights = np.random.default_rng(0), [], []
    for i in range(8):
        w = rng.normal(0, 0.05, (32, 32 if i else 3, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"], pads=[1] * 4))
    ends = [
        helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [1, c, 64, 64])
        for i, c in ((0, 3), (8, 32))
    ]
    graph = helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def typical_s(call: Call) -> float:
    """Median of calls one after the other."""
    found = []
    for _ in range(100):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


@contextmanager
def inside(folder: str) -> Iterator[None]:
    """LoadGen looks for settings in the current folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["all", "compare", "replay", "rate"], default="all")
    parser.add_argument("--service", type=float, default=5.0, help="ms of a call that spins")
    parser.add_argument("--model", default=None, help="ONNX file; '' for convolutions")
    parser.add_argument("--load", type=float, default=0.55, help="share of the time that calls take")
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bound", type=float, default=0.0, help="ms; default: five calls")
    parser.add_argument("--own-arrivals", action="store_true", help="each side draws its own arrivals")
    parser.add_argument("--inline", action="store_true", help="call in LoadGen's thread, without a queue")
    given = parser.parse_args()
    spin = spinning(given.service)
    if given.what == "all":
        arrivals()
    if given.what in ("all", "replay"):
        replay(spin, f"calls of {given.service:g} ms", given)
    if given.model is None and given.what in ("all", "compare"):
        compare(spin, f"calls of {given.service:g} ms", given, same_arrivals=not given.own_arrivals)
    if given.what == "all" or (given.what == "compare" and given.model is not None):
        with onnx_call(given.model or "") as call:
            compare(call, "ONNX Runtime, 1 thread", given, same_arrivals=not given.own_arrivals)
    if given.what == "all":
        given.seeds = 1
    if given.what in ("all", "rate"):
        rate(spin, f"calls of {given.service:g} ms", given)


if __name__ == "__main__":
    main()
