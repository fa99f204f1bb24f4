"""`python -m qcompile.bench.worker`: serve one artifact over standard streams.

One JSON object per line in, one out. A crash, a leak or a CUDA context is limited to this process, memory is
measured per artifact, and the interpreter may differ from the caller's. The worker exits when the caller dies
and its input ends; on Linux it is then killed even in a hanging call.

| request                                                | answer                                          |
|--------------------------------------------------------|-------------------------------------------------|
| `{"do": "hello"}`                                      | `{"python", "executable"}`                      |
| `{"do": "why_not", "engine"}`                          | `{"why_not", "fix"}`; empty if it can run       |
| `{"do": "load", "artifact", "threads", "io", "mode",   | `{"load_ns", "io", "contains",                  |
|   "device"}`                                           |   "packages", "weights"}`                       |
| `{"do": "feed", "path"}`                               | `{"first_ns", "at_rest", "notes"}`; sets the    |
|                                                        |   feeds of `time`                               |
| `{"do": "time", "iterations", "discard", "rest",       | `{"ns": [...], "at_rest"}`; after `limit_s`, no |
|   "limit_s", "fewest"}`                                |   call starts beyond the `fewest` that count    |
| `{"do": "clients", "clients", "seconds"}`              | `{"ns": [...], "wall_ns", "at_rest"}`           |
| `{"do": "in_flight", "streams", "seconds"}`            | `{"ns": [...], "wall_ns", "at_rest"}`           |
| `{"do": "gpu_times", "iterations"}`                    | `{"compute_ns", "with_transfers_ns", ...}`      |
| `{"do": "layer_times", "engine"}`                      | `{"ms": {layer: median}}`; the artifact is      |
|                                                        |   closed, so nothing can be timed afterwards    |
| `{"do": "infer", "path", "output"}`                    | `{"notes"}`; outputs are in `output` (`.npz`)   |
| `{"do": "layers", "job"}`                              | the result of `diff.layers.job.run_job`         |
| `{"do": "script", "folder"}`                           | `{"failed"}`: "" or the error of `run.py` there;|
|                                                        |   its `outputs` are written to `outputs.npz`    |
| `{"do": "memory"}`                                     | `{"peak_bytes"}`                                |
| `{"do": "usage"}`                                      | `{"cpu_s", "involuntary_switches"}`             |

`core.processes.worker` describes the protocol. Lines with the number of finished batches precede the answer
to `layers`. A timing is answered once the threads of the runtime have stopped spinning, so that they do not
disturb the next worker; `at_rest` is false if they do not stop.
"""

from __future__ import annotations

import contextlib
import math
import os
import runpy
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.processes.serve import serve
from ..errors import EngineUnavailable, InvalidOption, ModelError, first_line

if TYPE_CHECKING:
    from ..engines.base import InFlight
    from ..spec.tensors import Feeds

_LAYERS_JOB = ".diff.layers.job"  # imported by name on request: bench/diff/ imports bench/
_REST_LIMIT_S = 0.5
_REST_STEP_S = 0.005
_REST_SHARE = 0.05  # of one core: a runtime that polls its queue now and then counts as idle
_REST_STEPS = 3  # consecutive idle steps, because some threads sleep and spin alternately


class WorkerSession:
    """State of a worker: the loaded artifact and the feeds for its timing."""

    def __init__(self, report_progress: Callable[[int], None]) -> None:
        self.report_progress = report_progress
        self.runner: Any = None
        self.request: dict[str, Any] = {}
        self.feeds: dict[str, Any] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        handler = getattr(self, f"do_{request['do']}")
        return handler(request) or {}

    def do_hello(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"python": sys.version.split()[0], "executable": sys.executable}

    def do_why_not(self, request: dict[str, Any]) -> dict[str, Any]:
        from ..engines.registry import engine

        runtime = engine(request["engine"])
        return {"why_not": runtime.why_not_run(), "fix": runtime.fix()}

    def do_load(self, request: dict[str, Any]) -> dict[str, Any]:
        self.request = request
        start = time.perf_counter_ns()
        self.runner = self._open()
        load_ns = time.perf_counter_ns() - start

        from ..core.artifact import tool_versions
        from .results.environment import measured_packages

        packages = measured_packages()  # candidates; those that are loaded are reported
        return {
            "load_ns": load_ns,
            "io": self.runner.io.as_json(),
            "contains": self.runner.contains,
            "packages": tool_versions(*(name for name, module in packages.items() if module in sys.modules)),
            "weights": self.runner.weights and vars(self.runner.weights),
        }

    def do_feed(self, request: dict[str, Any]) -> dict[str, Any]:
        from ..core.processes.arrays import load_arrays

        self.feeds = load_arrays(request["path"])
        start = time.perf_counter_ns()
        self.runner.infer(self.feeds)
        first_ns = time.perf_counter_ns() - start
        return {"first_ns": first_ns, "at_rest": _wait_for_rest(), "notes": list(self.runner.notes)}

    def do_script(self, request: dict[str, Any]) -> dict[str, Any]:
        from ..core.processes.arrays import save_arrays

        os.chdir(request["folder"])
        try:
            outputs = runpy.run_path("run.py")["outputs"]
        except Exception as error:  # any exception of the runtime is the answer
            return {"failed": f"{type(error).__name__}: {error}"}
        save_arrays("outputs.npz", outputs)
        return {"failed": ""}

    def do_time(self, request: dict[str, Any]) -> dict[str, Any]:
        discard = request.get("discard", 0)
        durations = self.runner.time(
            self.feeds, request["iterations"] + discard,
            limit_s=request.get("limit_s", math.inf), fewest=discard + request.get("fewest", 1),
        )  # fmt: skip
        at_rest = not request.get("rest", True) or _wait_for_rest()
        return {"ns": durations[discard:].tolist(), "at_rest": at_rest}

    def do_clients(self, request: dict[str, Any]) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            runners = [self.runner]
            for _ in range(1, request["clients"]):
                runner = self.runner
                if hasattr(runner, "share"):  # single-threaded: another shares the engine, or loads it
                    runner = stack.enter_context(runner.share() if runner.can_be_shared else self._open())
                runners.append(runner)
            durations_ns, wall_ns = time_clients(runners, self.feeds, request["seconds"])
        return {"ns": durations_ns, "wall_ns": wall_ns, "at_rest": _wait_for_rest()}

    def do_in_flight(self, request: dict[str, Any]) -> dict[str, Any]:
        with self.runner.in_flight(self.feeds, request["streams"]) as inferences:
            durations_ns, wall_ns = time_in_flight(inferences, request["seconds"])
        return {"ns": durations_ns, "wall_ns": wall_ns, "at_rest": _wait_for_rest()}

    def do_gpu_times(self, request: dict[str, Any]) -> dict[str, Any]:
        if not hasattr(self.runner, "gpu_times"):
            raise InvalidOption("this runtime reports no GPU times")
        times = self.runner.gpu_times(self.feeds, request["iterations"])
        return {
            f"{name}_ns": getattr(times, name).tolist() for name in ("compute", "with_transfers", "enqueue")
        }

    def do_layer_times(self, request: dict[str, Any]) -> dict[str, Any]:
        from ..engines.gpu import parse_device
        from ..engines.registry import engine

        self.runner.close()  # two engines may not fit on a GPU
        device = self.request.get("device") or "cpu"
        times_ms = engine(request["engine"]).kernel_times(
            self.request["artifact"], self.feeds, threads=self.request["threads"], device=parse_device(device)
        )
        nonzero_ms = {layer: ms for layer, ms in times_ms.items() if ms > 0.0}  # 0: fused, or without cost
        if not nonzero_ms:
            raise EngineUnavailable("the profiler reports no layer")
        return {"ms": nonzero_ms}

    def do_infer(self, request: dict[str, Any]) -> dict[str, Any]:
        from ..core.processes.arrays import load_arrays, save_arrays

        save_arrays(request["output"], self.runner.infer(load_arrays(request["path"])))
        return {"notes": list(self.runner.notes)}

    def do_layers(self, request: dict[str, Any]) -> dict[str, Any]:
        job: Any = import_module(_LAYERS_JOB, __package__)
        answer: dict[str, Any] = job.run_job(request["job"], self.report_progress)
        return answer

    def do_memory(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"peak_bytes": peak_memory_bytes()}

    def do_usage(self, request: dict[str, Any]) -> dict[str, Any]:
        import resource

        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        children = resource.getrusage(resource.RUSAGE_CHILDREN)  # compilers that have ended
        cpu_s = time.process_time() + children.ru_utime + children.ru_stime
        return {"cpu_s": cpu_s, "involuntary_switches": switches}

    def _open(self) -> Any:
        from ..spec.tensors import ModelIO
        from ..spec.words import CUDA_GRAPH

        request = self.request
        io = ModelIO.from_json(request["io"]) if request.get("io") else None
        threads, mode = request["threads"], request.get("mode") or "eager"
        device = request.get("device")  # None: the default device of the runtime
        cuda_graph = mode == CUDA_GRAPH
        if mode != "eager" and not cuda_graph:
            from ..engines.gpu import parse_device
            from ..engines.pytorch import PyTorch
            from ..model.sources.archives import trust_files

            with trust_files():  # `describe` has checked that the user trusts it
                return PyTorch().open_in_mode(
                    request["artifact"], mode, threads=threads, io=io, device=parse_device(device or "cpu")
                )
        from ..engines import load

        # The caller has checked the digest; hashing here would count as load time.
        return load(
            request["artifact"], threads=threads, io=io, trust=True, device=device, cuda_graph=cuda_graph
        )


def peak_memory_bytes() -> int:
    """Return the peak resident memory in bytes; prefer VmHWM to `ru_maxrss`, which a child inherits."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _wait_for_rest() -> bool:
    """Wait until no other thread of this process runs; return False if one still runs after half a second.

    ONNX Runtime's threads spin for about 50 ms after the last call (1.31.1, 2 threads).
    """
    end, quiet = time.monotonic() + _REST_LIMIT_S, 0
    while time.monotonic() < end:
        used, began = time.process_time(), time.perf_counter()
        time.sleep(_REST_STEP_S)
        share = (time.process_time() - used) / (time.perf_counter() - began)
        quiet = quiet + 1 if share < _REST_SHARE and not _has_running_thread() else 0
        if quiet == _REST_STEPS:
            return True
    return False


def _has_running_thread() -> bool:
    """Return whether another thread is running or waits for a busy core: state R, proc(5)."""
    this_thread = threading.get_native_id()
    for thread in Path("/proc/self/task").glob("*/stat"):
        try:
            state = thread.read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue  # the thread has ended
        if state == "R" and int(thread.parent.name) != this_thread:
            return True
    return False


def time_clients(runners: Sequence[Any], feeds: Feeds, seconds: float) -> tuple[list[int], int]:
    """Run one client thread per entry of `runners`, each in a closed loop; a runner may occur several times.

    Returns the duration of each call and the time from the common start to the end of the last call, in ns.
    """
    calls = [runner.prepare(feeds) for runner in runners]
    for call in calls:
        call()
    gate = threading.Barrier(len(calls) + 1)
    deadline = 0

    def client(call: Any) -> list[int]:
        clock, durations_ns = time.perf_counter_ns, list[int]()
        gate.wait()
        now = clock()
        while now < deadline or not durations_ns:
            start = now
            call()
            now = clock()
            durations_ns.append(now - start)
        return durations_ns

    with ThreadPoolExecutor(len(calls)) as pool:
        clients = [pool.submit(client, call) for call in calls]
        begin = time.perf_counter_ns()
        deadline = begin + int(seconds * 1e9)
        gate.wait()
    wall_ns = time.perf_counter_ns() - begin
    try:
        return [ns for durations in clients for ns in durations.result()], wall_ns
    except Exception as error:  # a runtime may raise anything
        raise ModelError(f"{len(calls)} clients: a call fails: {first_line(error)}") from error


_WARM_UP_ROUNDS = 3


def time_in_flight(inferences: Sequence[InFlight], seconds: float) -> tuple[list[int], int]:
    """Keep all inferences in flight: restart the oldest one as soon as its outputs arrive.

    Returns the duration of each inference, from its start to its outputs, and the total time, in ns.
    """
    for _ in range(_WARM_UP_ROUNDS):
        for inference in inferences:
            inference.start()
        for inference in inferences:
            inference.wait()
    clock = time.perf_counter_ns
    durations_ns: list[int] = []
    in_flight: deque[tuple[InFlight, int]] = deque()
    now = begin = clock()
    deadline = begin + int(seconds * 1e9)
    for inference in inferences:
        in_flight.append((inference, clock()))
        inference.start()
    while in_flight:
        inference, started_ns = in_flight.popleft()
        inference.wait()
        now = clock()
        durations_ns.append(now - started_ns)
        if now < deadline:
            in_flight.append((inference, now))
            inference.start()
    return durations_ns, now - begin


if __name__ == "__main__":
    serve(lambda report_progress: WorkerSession(report_progress).answer)
