"""One subject of `gpu.py` in a process of its own: JSON requests in, answers out, over its standard streams.

    {"do": "load", "kind": "torch" | "engine", ...}    {"do": "time", "iterations": n, "on_device": bool}
    {"do": "infer", "output": path}                     {"do": "gpu", "iterations": n}
    {"do": "memory"}                                    {"do": "reload", "times": n}

Times are nanoseconds, synchronized. Host to host: inputs in page-locked memory to outputs in page-locked
memory, for PyTorch as for TensorRT. On the device: inputs and outputs stay there. Both subjects are run by
qcompile's runners.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


class Subject:
    """A runner with its feeds.

    Attributes:
        runner: qcompile's.
        feeds: Input to array.
    """

    def __init__(self, runner: Any, feeds: dict[str, Any]) -> None:
        self.runner, self.feeds = runner, feeds
        self._calls: dict[bool, Callable[[], Any]] = {}

    def infer(self) -> dict[str, Any]:
        """Outputs in order, as float32 on the host."""
        outputs = self.runner.infer(self.feeds)
        return {str(index): np.asarray(array, np.float32) for index, array in enumerate(outputs.values())}

    def time(self, iterations: int, *, on_device: bool) -> list[int]:
        """Nanoseconds of each inference; the call is prepared before the first."""
        if on_device not in self._calls:
            self._calls = {on_device: self._prepared(on_device)}
        call, durations_ns = self._calls[on_device], []
        for _ in range(iterations):
            start = time.perf_counter_ns()
            call()
            durations_ns.append(time.perf_counter_ns() - start)
        return durations_ns

    def _prepared(self, on_device: bool) -> Callable[[], Any]:
        call: Callable[[], Any] = (
            self.runner.prepare(self.feeds, on_device=True) if on_device else self.runner.prepare(self.feeds)
        )
        call()
        return call

    def gpu(self, iterations: int) -> dict[str, float]:
        """Medians in milliseconds by CUDA events, and of the host's time in the enqueue."""
        times = self.runner.gpu_times(self.feeds, iterations)
        return {
            name: float(np.median(getattr(times, name))) / 1e6
            for name in ("compute", "with_transfers", "enqueue")
        }


def torch_subject(request: dict[str, Any]) -> Subject:
    """A PyTorch module: eager, TorchScript (traced and frozen) or `torch.compile`."""
    import torch

    from qcompile.engines.pytorch import PyTorchRunner

    # The baseline of the published figures: float32 without TF32 unless asked for.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = bool(request.get("tf32"))
    torch.backends.cudnn.benchmark = True
    file, _, name = request["source"].rpartition(":")
    spec = importlib.util.spec_from_file_location("subject", file)
    assert spec is not None
    assert spec.loader is not None
    home = importlib.util.module_from_spec(spec)
    sys.modules["subject"] = home
    spec.loader.exec_module(home)
    on_gpu = request["device"] != "cpu"
    module = getattr(home, name)().eval().to(request["device"])
    with np.load(request["feeds"]) as stored:
        feeds = dict(stored)
    module = module.half() if request.get("half") else module
    with torch.no_grad():
        example = [torch.from_numpy(array).to(request["device"]) for array in feeds.values()]
        if request.get("half"):
            example = [one.half() if one.is_floating_point() else one for one in example]
        if request["mode"] == "torchscript":
            module = torch.jit.freeze(torch.jit.trace(module, tuple(example), strict=False))
        elif request["mode"] == "compile":
            module = torch.compile(module, mode="max-autotune")
    if request.get("half"):
        module = _halved(torch, module)
    return Subject(PyTorchRunner(module, None, device=0 if on_gpu else None), feeds)


def _halved(torch: Any, module: Any) -> Any:
    """A module of float16 that takes and returns float32, converted where it runs, as an engine does."""

    class Halved(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *tensors: Any) -> Any:
            halves = [tensor.half() if tensor.is_floating_point() else tensor for tensor in tensors]
            outputs = module(*halves)
            many = isinstance(outputs, tuple)
            return tuple(one.float() for one in outputs) if many else outputs.float()

    return Halved()


def engine_subject(request: dict[str, Any]) -> Subject:
    """An engine by qcompile's runner."""
    runner = open_engine(request)
    with np.load(request["feeds"]) as stored:
        # TensorRT 8.5 has no 64-bit integers: its engines take the narrower ones.
        feeds = {tensor.name: stored[tensor.name].astype(tensor.dtype) for tensor in runner.io.inputs}
    return Subject(runner, feeds)


def open_engine(request: dict[str, Any]) -> Any:
    """Load the engine."""
    import qcompile

    return qcompile.load(request["engine"], cuda_graph=request["cuda_graph"])


def reload(subject: Subject, request: dict[str, Any], times: int) -> None:
    """Load and unload an engine again and again."""
    for _ in range(times):
        with open_engine(request) as runner:
            runner.infer(subject.feeds)
        gc.collect()


def free_bytes() -> int:
    """Free memory of the device, by the driver's own count."""
    import ctypes

    driver = ctypes.CDLL("libcuda.so.1")
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    device = ctypes.c_int()
    driver.cuInit(0)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    driver.cuCtxPushCurrent_v2(context)
    driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    driver.cuDevicePrimaryCtxRelease_v2(device)
    return free.value


def answer(subject: Subject, loaded: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request on a subject that was loaded by another."""
    do = request["do"]
    if do == "time":
        return {"ns": subject.time(request["iterations"], on_device=request.get("on_device", False))}
    if do == "infer":
        np.savez(request["output"], **subject.infer())
        return {}
    if do == "gpu":
        return subject.gpu(request["iterations"])
    if do == "reload":
        reload(subject, loaded, request["times"])
        return {}
    return {"free_bytes": free_bytes()}


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is no answer
    subject: Any = None
    loaded: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "load":
                loaded = request
                subject = {"torch": torch_subject, "engine": engine_subject}[request["kind"]](request)
                subject.infer()
                reply: dict[str, Any] = {}
            else:
                reply = answer(subject, loaded, request)
        except Exception as error:  # the driver reports it and goes on with the others
            reply = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
