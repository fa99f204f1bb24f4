"""Run an ONNX file with OpenVINO."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ...errors import BuildError, ModelError, first_line
from ...tensors import Feeds, ModelIO, check_feeds
from ..base import Runner
from .kernels import Kernel, read_kernels

_WARMUP, _PROFILED = 2, 10


class OpenVinoRunner(Runner):
    """A model that is compiled for the shapes of the first feeds; other shapes share a second, dynamic one.

    With fixed shapes OpenVINO plans memory and layouts ahead: MobileNetV2 is 7% faster. With `dynamic`, all
    shapes run the model as the file has it.
    """

    contains = "host to host: one infer()"

    def __init__(
        self, core: Any, model: Any, settings: Mapping[str, Any], io: ModelIO, path: Path,
        *, dynamic: bool = False,
    ) -> None:  # fmt: skip
        self._core, self._model, self._settings, self._path = core, model, dict(settings), path
        self._dynamic = dynamic
        self.io = io
        self._fixed: tuple[dict[str, list[int]], Any] | None = None
        self._any: Any = None

    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        run = self.prepare(feeds)
        try:
            results = run()
        except RuntimeError as error:
            raise ModelError(f"{self._path}: OpenVINO fails on the feeds: {reason(error)}") from error
        return {tensor.name: results[tensor.name].copy() for tensor in self.io.outputs}

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        import numpy as np
        import openvino

        check_feeds(self.io.inputs, feeds, "feeds")
        request = self._compiled(feeds).create_infer_request()
        for name, array in feeds.items():
            # The tensor shares the array's memory, as ONNX Runtime's session does.
            tensor = openvino.Tensor(np.asarray(array, order="C"), shared_memory=True)
            try:
                request.set_tensor(name, tensor)
            except RuntimeError as error:  # its conversion may lose an input, or change its type
                raise ModelError(
                    f"{self._path}: OpenVINO does not take input {name!r}: {reason(error)}", tensor=name
                ) from error
        return lambda: request.infer(share_outputs=True)

    def kernels(self) -> list[Kernel]:
        """Return what it executes, after the first inference."""
        return read_kernels(self._fixed[1] if self._fixed else self._any)

    def kernel_times(self, feeds: Feeds) -> dict[str, float]:
        """Return kernel to its median time in milliseconds, of a model that was opened with counters."""
        request = self._compiled(feeds).create_infer_request()
        times: dict[str, list[float]] = {}
        for run in range(_WARMUP + _PROFILED):
            request.infer(dict(feeds))
            for kernel in request.profiling_info if run >= _WARMUP else ():
                times.setdefault(kernel.node_name, []).append(kernel.real_time.total_seconds() * 1e3)
        return {name: statistics.median(runs_ms) for name, runs_ms in times.items()}

    def close(self) -> None:
        self._fixed = self._any = self._model = None

    def _compiled(self, feeds: Feeds) -> Any:
        shapes = {name: list(array.shape) for name, array in feeds.items()}
        if self._fixed is None and not self._dynamic:
            model = self._model.clone()
            try:
                model.reshape(shapes)
            except RuntimeError as error:
                raise ModelError(f"{self._path}: does not take these shapes: {reason(error)}") from error
            self._fixed = shapes, self._compile(model)
        if self._fixed is not None and self._fixed[0] == shapes:
            return self._fixed[1]
        if self._any is None:
            self._any = self._compile(self._model)
        return self._any

    def _compile(self, model: Any) -> Any:
        try:
            return self._core.compile_model(model, "CPU", self._settings)
        except RuntimeError as error:
            raise BuildError(
                f"{self._path}: OpenVINO cannot compile it: {reason(error)}", file=self._path
            ) from error


def reason(error: Exception) -> str:
    """What OpenVINO says is wrong, on one line: without the places in its source and the headings."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(_NOISE) and not line.endswith(("Failure:", ":"))]
    checks = [line.partition(" failed at ")[0] + " failed" for line in lines if line.startswith("Check '")]
    return "; ".join(told[:2] or checks[-1:] or [first_line(error)])


_NOISE = ("Exception from", "Check '", "src/", "Summary", "While validating", "Shape inference")
