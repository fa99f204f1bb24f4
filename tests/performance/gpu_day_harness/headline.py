"""PyTorch against TensorRT, from page-locked memory to page-locked memory, in interleaved rounds.

Each subject runs in a process of its own, by qcompile's workers, and serves both batches. Nothing is
recorded. A row is written twice: after a few rounds, and after all; the last line of a row counts.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from day import BuiltOnly, Day, NotRun, snr_db
from kit import MODELS, network_feeds
from steps import append

BATCHES = (1, 32)
BASELINE = "PyTorch FP32"
TORCH = {BASELINE: "eager", "PyTorch FP16": "half"}
MORE_TORCH = {BASELINE: "eager", "TorchScript FP32": "freeze", "torch.compile FP32": "compile"}
_INT8 = {"precision": "int8", "float_precision": "fp16"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fp32": ("", {"precision": "fp32"}),
    "fp16": (".fp16", {"precision": "fp16"}),
    "int8": (".int8", _INT8),
}
"""Name to the end of the graph's name, and options of `build`."""
MORE_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tf32": ("", {"precision": "tf32"}),
    "int8-ranges": ("", {**_INT8, "calibrator": "ranges"}),
    "int8-native": ("", {**_INT8, "calibrator": "native"}),
}
DEVICE = "cuda"
ROUNDS, BLOCK_MS, LOADS_AT_ONCE = 9, 100.0, 8
_FEW_ROUNDS, _PATIENCE_S = 3, 60.0


def build(day: Day, network: str, variant: str) -> None:
    """Build an engine with a profile for each batch; BuiltOnly if it cannot be run here."""
    from qcompile.engines.registry import engine

    ending, options = {**VARIANTS, **MORE_VARIANTS}[variant]
    if variant == "fp16" and not day.adapter.strongly_typed:
        ending = ""  # flags permit float16
    extents = _network(day, network)["inputs"].items()
    profiles = [
        ",".join(f"{name}:{'..'.join(['x'.join(map(str, (batch, *rest)))] * 3)}" for name, rest in extents)
        for batch in BATCHES
    ]
    more = dict(options)
    if "calibrator" in options and not day.adapter.has_calibrators():
        raise NotRun(f"{day.adapter.name} has no INT8 calibrators")
    if options.get("calibrator") == "ranges":
        more["ranges"] = day.folder / f"{network}.ranges"
        more["ranges"].write_bytes(gzip.decompress((day.kit / f"{network}.ranges.gz").read_bytes()))
    elif options.get("calibrator") == "native":
        more |= {"data": str(_feeds(day, network, 32)), "calibration_cache": day.folder / f"{network}.cache"}
    cache = str(day.folder / "timing.cache")
    day.build(
        f"{network}{ending}.onnx", f"{network}.{variant}", more.pop("precision"), profile=" ".join(profiles),
        part="engine", tensorrt={"timing_cache": cache} if day.adapter.keeps_timing_caches else {},
        allow_fallback=True, **more,
    )  # fmt: skip
    (day.folder / f"{network}{ending}.onnx").unlink()
    reason = engine(day.target).why_not_run()
    if reason:
        raise BuiltOnly(reason)


def measure(day: Day, network: str, *, more: bool = False) -> None:
    """Time PyTorch and the engines that were built, and write a line for each."""
    from qcompile.core.processes.worker import Worker

    torch, variants = (MORE_TORCH, MORE_VARIANTS) if more else (TORCH, VARIANTS)
    engines = {name: day.folder / f"{network}.{name}.engine" for name in variants}
    engines = {name: path for name, path in engines.items() if path.is_file()}
    if not engines:
        raise NotRun("no engine was built")
    with contextlib.ExitStack() as stack:

        def started(title: str, options: dict[str, Any]) -> Any:
            return stack.enter_context(
                Worker(title, module="qcompile.bench.worker", threads=0, timeout_s=_PATIENCE_S, **options)
            )

        def loaded(worker: Any, request: dict[str, Any]) -> Any:
            return worker.ask("load", threads=0, io=None, device=DEVICE, **request) and worker

        loads = {}
        # Workers are started here: Linux ends them with the thread that did (PR_SET_PDEATHSIG, prctl(2)).
        with ThreadPoolExecutor(LOADS_AT_ONCE) as pool:
            for title, options, request in _subjects(day, network, torch, engines):
                row = {"network": network, "row": title}
                worker = _attempt(day, row, partial(started, title, options))
                if worker is not None:
                    loads[title] = pool.submit(_attempt, day, row, partial(loaded, worker, request))
        workers = {title: load.result() for title, load in loads.items()}
        for batch in BATCHES:
            _table(day, network, batch, {title: one for title, one in workers.items() if one is not None})


def _subjects(
    day: Day, network: str, torch: Mapping[str, str], engines: Mapping[str, Path]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield the title of each row, options of its worker, and what it loads."""
    from qcompile.spec.words import CUDA_GRAPH

    there = {"python": day.torch_python, "variables": {"PYTHONPATH": day.torch_path}}
    for title, mode in torch.items():
        yield title, there, {"artifact": f"{MODELS}:{network}", "mode": mode}
    for variant, path in engines.items():
        for mode, end in (("eager", ""), (CUDA_GRAPH, ", CUDA graph")):
            yield f"TensorRT {variant}{end}", {}, {"artifact": str(path), "mode": mode}


def _table(day: Day, network: str, batch: int, workers: dict[str, Any]) -> None:
    """Time one batch in blocks, each subject a block a round, in alternating order."""
    feeds, rounds_ms, calls = str(_feeds(day, network, batch)), {}, {}
    about = {"network": network, "batch": batch}

    def ask(title: str, do: str, **arguments: Any) -> Any:
        def send() -> Any:
            answer = workers[title].ask(do, **arguments)
            if not answer.get("at_rest", True):
                workers[title].freeze()
            return answer

        answer = _attempt(day, {**about, "row": title}, send)
        if answer is None:
            del workers[title]
        return answer

    def time(title: str, iterations: int, discard: int = 0) -> float:
        answer = ask(title, "time", iterations=iterations, discard=discard)
        return float(np.median(answer["ns"])) / 1e6 if answer else 0.0

    for title in list(workers):
        rounds_ms[title] = []
        if ask(title, "feed", path=feeds):
            for _ in range(3):  # the first calls warm up
                calls[title] = max(int(BLOCK_MS / (time(title, calls.get(title, 1)) or 1)), 1)
                if title not in workers:
                    break
    for number in range(ROUNDS):
        for title in list(workers)[:: 1 if number % 2 == 0 else -1]:
            block_ms = time(title, calls[title], discard=2)
            if block_ms:
                rounds_ms[title].append(block_ms)
        if number + 1 == _FEW_ROUNDS:
            for title in workers:
                append(day.folder, {**about, **_row(title, rounds_ms)})
    for title in list(workers):
        row = {**about, **_row(title, rounds_ms)}
        with contextlib.suppress(Exception):  # PyTorch on a processor has no clock of a GPU
            times = workers[title].ask("gpu_times", iterations=50)
            row |= {
                key.replace("_ns", "_ms"): float(np.median(times[key])) / 1e6 for key in times if "_ns" in key
            }
        append(day.folder, row)  # first, whatever becomes of the rest
        output = day.folder / "outputs.npz"
        if ask(title, "infer", path=feeds, output=str(output)):
            append(day.folder, row | {"snr_db": _closeness(day, network, output)})


def _row(title: str, rounds_ms: Mapping[str, list[float]]) -> dict[str, Any]:
    """Latency, and how many times faster than the baseline; with its interval after enough rounds."""
    from qcompile.bench.results.statistics import FEWEST_ROUNDS, speedup

    times, base = rounds_ms[title], rounds_ms.get(BASELINE, [])
    row: dict[str, Any] = {"row": title, "latency_ms": float(np.median(times)), "rounds": len(times)}
    if title != BASELINE and len(base) == len(times):
        row["speedup"] = float(np.median(np.array(base) / np.array(times)))
        if len(times) >= FEWEST_ROUNDS:
            ratio = speedup([base], [times])
            row |= {"speedup": ratio.value, "low": ratio.low, "high": ratio.high}
    return row


def _attempt(day: Day, row: dict[str, Any], action: Callable[[], Any]) -> Any:
    """Return what an action returns; where it fails, write why, and return None."""
    from qcompile.errors import QCompileError

    try:
        return action()
    except QCompileError as error:
        append(day.folder, {**row, "result": "not run", "reason": str(error)})
        return None


def _network(day: Day, name: str) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((day.kit / "kit.json").read_text())["networks"][name]
    return about


def _feeds(day: Day, network: str, batch: int) -> Path:
    """The file of a batch, which is drawn where it is not there."""
    path = day.folder / f"{network}.{batch}.npz"
    if not path.is_file():
        np.savez(
            path, **{key: array[:batch] for key, array in network_feeds(**_network(day, network)).items()}
        )
    return path


def _closeness(day: Day, network: str, output: Path) -> float:
    """Signal-to-noise ratio of the first output against ONNX Runtime's in float32."""
    from qcompile.core.processes.arrays import load_arrays

    found = next(iter(load_arrays(output).values()))
    expected = next(iter(day.batch(network)[1].values()))[: len(found)]
    return round(min(snr_db(expected, found), 200.0), 1)
