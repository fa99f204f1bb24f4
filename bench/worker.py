"""`python -m qcompile.bench.worker`: serve one artifact over standard streams.

One JSON object per line in, one out. A crash, a leak or a CUDA context stays in this process, memory is
measured per artifact, and the interpreter may be another one than the caller's. When the caller dies,
the input ends and so does the worker; where the system can do it, it is killed even in a call that hangs.

| request                                                | answer                                          |
|--------------------------------------------------------|-------------------------------------------------|
| `{"do": "hello"}`                                      | `{"python", "executable"}`                      |
| `{"do": "why_not", "engine"}`                          | `{"why_not", "fix"}`; empty where it can run    |
| `{"do": "load", "artifact", "threads", "io", "mode",   | `{"load_ns", "io", "contains",                  |
|   "device"}`                                           |   "packages", "weights"}`                       |
| `{"do": "feed", "path"}`                               | `{"first_ns", "at_rest", "notes"}`; `time` has  |
|                                                        |   the feeds                                     |
| `{"do": "time", "iterations", "discard", "rest"}`      | `{"ns": [...], "at_rest"}`                      |
| `{"do": "clients", "clients", "seconds"}`              | `{"ns": [...], "wall_ns", "at_rest"}`           |
| `{"do": "in_flight", "streams", "seconds"}`            | `{"ns": [...], "wall_ns", "at_rest"}`           |
| `{"do": "gpu_times", "iterations"}`                    | `{"compute_ns", "with_transfers_ns", ...}`      |
| `{"do": "layer_times", "engine"}`                      | `{"ms": {layer: median}}`; the artifact is      |
|                                                        |   closed, so nothing can be timed afterwards    |
| `{"do": "infer", "path", "output"}`                    | `{"notes"}`; outputs are in `output` (`.npz`)   |
| `{"do": "layers", "job"}`                              | what `diff.layers.job.run_job`       returns    |
| `{"do": "script", "folder"}`                           | `{"failed"}`: "" or the error of `run.py`       |
|                                                        |   there, whose `outputs` are in `outputs.npz`   |
| `{"do": "memory"}`                                     | `{"peak_bytes"}`                                |
| `{"do": "usage"}`                                      | `{"cpu_s", "involuntary_switches"}`             |

`core.processes.worker` says how requests and answers travel. In front of the answer to `layers` comes how
many batches are done. A timing is answered once the threads of the runtime have stopped spinning, so that
they do not disturb the next worker: `at_rest` is false where they never do.
"""

from __future__ import annotations

import contextlib
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

_LAYERS_JOB = ".diff.layers.job"  # served here, known only by name: bench/diff/ is built on bench/
_REST_LIMIT_S = 0.5
_REST_STEP_S = 0.005
_REST_SHARE = 0.05  # of one core: a runtime that looks at its queue now and then is at rest
_REST_STEPS = 3  # in a row: some threads sleep and spin by turns


class WorkerSession:
    """The artifact being served, and the feeds it is timed on."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.tell = tell
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
        spent = time.perf_counter_ns() - start

        from ..core.artifact import tool_versions
        from .results.environment import measured_packages

        packages = measured_packages()  # that could be what it measures
        return {
            "load_ns": spent,
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
        spent = time.perf_counter_ns() - start
        return {"first_ns": spent, "at_rest": _wait_for_rest(), "notes": list(self.runner.notes)}

    def do_script(self, request: dict[str, Any]) -> dict[str, Any]:
        from ..core.processes.arrays import save_arrays

        os.chdir(request["folder"])
        try:
            outputs = runpy.run_path("run.py")["outputs"]
        except Exception as error:  # whatever the runtime raises is what is looked for
            return {"failed": f"{type(error).__name__}: {error}"}
        save_arrays("outputs.npz", outputs)
        return {"failed": ""}

    def do_time(self, request: dict[str, Any]) -> dict[str, Any]:
        discard = request.get("discard", 0)
        durations = self.runner.time(self.feeds, request["iterations"] + discard)
        at_rest = not request.get("rest", True) or _wait_for_rest()
        return {"ns": durations[discard:].tolist(), "at_rest": at_rest}

    def do_clients(self, request: dict[str, Any]) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            runners = [self.runner]
            for _ in range(1, request["clients"]):
                runner = self.runner
                if hasattr(runner, "share"):  # for one thread: another shares its engine, or loads it
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
            raise InvalidOption("this runtime has no clock on a GPU")
        times = self.runner.gpu_times(self.feeds, request["iterations"])
        return {
            f"{name}_ns": getattr(times, name).tolist() for name in ("compute", "with_transfers", "enqueue")
        }

    def do_layer_times(self, request: dict[str, Any]) -> dict[str, Any]:
        from ..engines.gpu import parse_device
        from ..engines.registry import engine

        self.runner.close()  # two at once may not fit on a GPU
        place = self.request.get("device") or "cpu"
        times_ms = engine(request["engine"]).kernel_times(
            self.request["artifact"], self.feeds, threads=self.request["threads"], device=parse_device(place)
        )
        taken_ms = {layer: ms for layer, ms in times_ms.items() if ms > 0.0}  # others are fused, or free
        if not taken_ms:
            raise EngineUnavailable("the profiler reports no layer")
        return {"ms": taken_ms}

    def do_infer(self, request: dict[str, Any]) -> dict[str, Any]:
        from ..core.processes.arrays import load_arrays, save_arrays

        save_arrays(request["output"], self.runner.infer(load_arrays(request["path"])))
        return {"notes": list(self.runner.notes)}

    def do_layers(self, request: dict[str, Any]) -> dict[str, Any]:
        job: Any = import_module(_LAYERS_JOB, __package__)
        answer: dict[str, Any] = job.run_job(request["job"], self.tell)
        return answer

    def do_memory(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"peak_bytes": peak_memory_bytes()}

    def do_usage(self, request: dict[str, Any]) -> dict[str, Any]:
        import resource

        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        children = resource.getrusage(resource.RUSAGE_CHILDREN)  # compilers, once they have ended
        cpu_s = time.process_time() + children.ru_utime + children.ru_stime
        return {"cpu_s": cpu_s, "involuntary_switches": switches}

    def _open(self) -> Any:
        from ..spec.tensors import ModelIO
        from ..spec.words import CUDA_GRAPH

        request = self.request
        io = ModelIO.from_json(request["io"]) if request.get("io") else None
        threads, mode = request["threads"], request.get("mode") or "eager"
        device = request.get("device")  # without one: where its engine runs by itself
        cuda_graph = mode == CUDA_GRAPH
        if mode != "eager" and not cuda_graph:
            from ..engines.gpu import parse_device
            from ..engines.pytorch import PyTorch
            from ..model.sources.archives import trusting

            with trusting():  # `describe` has required it
                return PyTorch().open_in_mode(
                    request["artifact"], mode, threads=threads, io=io, device=parse_device(device or "cpu")
                )
        from ..engines import load

        # The caller has checked the digest; hashing here would count as load time.
        return load(
            request["artifact"], threads=threads, io=io, trust=True, device=device, cuda_graph=cuda_graph
        )


def peak_memory_bytes() -> int:
    """Return the largest resident memory this process had.

    Not `ru_maxrss` where it can be avoided: a child inherits its parent's there.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _wait_for_rest() -> bool:
    """Wait until no other thread of this process runs; false when one still does after half a second.

    ONNX Runtime's threads spin for about 50 ms after the last call (1.31.1, 2 threads).
    """
    end, quiet = time.monotonic() + _REST_LIMIT_S, 0
    while time.monotonic() < end:
        used, began = time.process_time(), time.perf_counter()
        time.sleep(_REST_STEP_S)
        share = (time.process_time() - used) / (time.perf_counter() - began)
        quiet = quiet + 1 if share < _REST_SHARE and not _wants_to_run() else 0
        if quiet == _REST_STEPS:
            return True
    return False


def _wants_to_run() -> bool:
    """Whether another thread runs, or would on a machine that is less busy: state R, proc(5)."""
    this_thread = threading.get_native_id()
    for thread in Path("/proc/self/task").glob("*/stat"):
        try:
            state = thread.read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue  # it has ended meanwhile
        if state == "R" and int(thread.parent.name) != this_thread:
            return True
    return False


def time_clients(runners: Sequence[Any], feeds: Feeds, seconds: float) -> tuple[list[int], int]:
    """Let one client per runner call in a closed loop; a runner may serve several threads.

    Returns the nanoseconds of every call, and those from the common start to the end of the last call.
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
    """Keep all inferences under way: as soon as the oldest is done, it is started again.

    Returns the nanoseconds of each inference, from its start until its outputs were waited for, and of all.
    """
    for _ in range(_WARM_UP_ROUNDS):
        for inference in inferences:
            inference.start()
        for inference in inferences:
            inference.wait()
    clock = time.perf_counter_ns
    durations_ns: list[int] = []
    under_way: deque[tuple[InFlight, int]] = deque()
    now = begin = clock()
    deadline = begin + int(seconds * 1e9)
    for inference in inferences:
        under_way.append((inference, clock()))
        inference.start()
    while under_way:
        inference, started_ns = under_way.popleft()
        inference.wait()
        now = clock()
        durations_ns.append(now - started_ns)
        if now < deadline:
            under_way.append((inference, now))
            inference.start()
    return durations_ns, now - begin


if __name__ == "__main__":
    serve(lambda tell: WorkerSession(tell).answer)
