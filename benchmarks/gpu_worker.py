"""One subject of `gpu.py` in a process of its own: JSON requests in, answers out, over its standard streams.

    {"do": "load", "kind": "torch" | "engine", ...}    {"do": "time", "iterations": n}
    {"do": "infer", "output": path}                     {"do": "gpu", "iterations": n}
    {"do": "memory"}                                    {"do": "reload", "times": n}

Times are host to host: inputs in host memory to outputs in host memory, synchronized, in nanoseconds.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import time
from typing import Any

import numpy as np


class TorchSubject:
    """A PyTorch module on the GPU: eager, TorchScript (traced and frozen) or `torch.compile`."""

    def __init__(self, request: dict[str, Any]) -> None:
        import torch

        self.torch = torch
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
        self.device = request["device"]
        module = getattr(home, name)().eval().to(self.device)
        self.half = bool(request.get("half"))
        module = module.half() if self.half else module
        feeds = np.load(request["feeds"])
        self.feeds = [torch.from_numpy(feeds[key]) for key in feeds.files]
        with torch.no_grad():
            example = tuple(self._to(value) for value in self.feeds)
            if request["mode"] == "torchscript":
                module = torch.jit.freeze(torch.jit.trace(module, example, strict=False))
            elif request["mode"] == "compile":
                module = torch.compile(module, mode="max-autotune")
            self.module = module

    def _to(self, value: Any) -> Any:
        value = value.to(self.device, non_blocking=True)
        return value.half() if self.half and value.is_floating_point() else value

    def run(self) -> dict[str, Any]:
        """One inference, host to host."""
        with self.torch.no_grad():
            found = self.module(*(self._to(value) for value in self.feeds))
            found = found if isinstance(found, tuple) else (found,)
            return {str(index): one.float().cpu().numpy() for index, one in enumerate(found)}

    def time(self, iterations: int) -> list[int]:
        """Nanoseconds of each inference."""
        found = []
        for _ in range(iterations):
            start = time.perf_counter_ns()
            self.run()
            found.append(time.perf_counter_ns() - start)
        return found


class EngineSubject:
    """An engine by qcompile's runner."""

    def __init__(self, request: dict[str, Any]) -> None:
        import qcompile

        self.request = request
        feeds = np.load(request["feeds"])
        self.runner: Any = qcompile.load(request["engine"], cuda_graph=request["cuda_graph"])
        self.feeds = dict(zip([t.name for t in self.runner.io.inputs], feeds.values(), strict=True))
        # TensorRT 8.5 has no 64-bit integers: its engines take the narrower ones.
        wanted = {tensor.name: tensor.dtype for tensor in self.runner.io.inputs}
        self.feeds = {name: value.astype(wanted[name]) for name, value in self.feeds.items()}

    def run(self) -> dict[str, Any]:
        """One inference, host to host."""
        found = self.runner.infer(self.feeds)
        return {str(index): np.asarray(one, np.float32) for index, one in enumerate(found.values())}

    def time(self, iterations: int) -> list[int]:
        """Nanoseconds of each inference."""
        return [int(value) for value in self.runner.time(self.feeds, iterations)]

    def gpu(self, iterations: int) -> dict[str, float]:
        """Medians in milliseconds by CUDA events, and of the host's time in the enqueue."""
        times = self.runner.gpu_times(self.feeds, iterations)
        return {
            name: float(np.median(getattr(times, name))) / 1e6
            for name in ("compute", "with_transfers", "enqueue")
        }

    def reload(self, times: int) -> None:
        """Load and unload again and again."""
        import qcompile

        for _ in range(times):
            with qcompile.load(self.request["engine"], cuda_graph=self.request["cuda_graph"]) as runner:
                runner.infer(self.feeds)
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


def answer(subject: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request on a loaded subject."""
    do = request["do"]
    if do == "time":
        return {"ns": subject.time(request["iterations"])}
    if do == "infer":
        np.savez(request["output"], **subject.run())
        return {}
    if do == "gpu":
        return subject.gpu(request["iterations"])  # type: ignore[no-any-return]
    if do == "reload":
        subject.reload(request["times"])
        return {}
    return {"free_bytes": free_bytes()}


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is no answer
    subject: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "load":
                subject = {"torch": TorchSubject, "engine": EngineSubject}[request["kind"]](request)
                subject.run()
                reply: dict[str, Any] = {}
            else:
                reply = answer(subject, request)
        except Exception as error:  # the driver reports it and goes on with the others
            reply = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
