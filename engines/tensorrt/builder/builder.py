"""Build an ONNX file into a serialized engine (plan), report the progress, and stop the build on Ctrl-C.

Python raises KeyboardInterrupt in the Python code that runs next. During a TensorRT build this code is a
callback, usually the logger. The logger's binding drops the exception (`PyLogger::log` in pyCore.cpp), and
the build continues. Signals are therefore deferred, and `IProgressMonitor`, if TensorRT has it, cancels the
build.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ....core.artifact import Check
from ....core.progress import Progress
from ....model.graph.input_notes import read_notes, with_samples
from ....spec.decode import non_default_options
from ...base import BuildOutcome, BuildRequest
from ...gpu import find_gpu
from ..adapter import Adapter
from ..log import build_failure, make_log, plain
from ..plan import needs_of_options, register_plugins
from ..runner.cuda import current_device
from .calibration import Feeder, Scales, calibration_inputs, make_calibrator, scales_for_build, set_ranges
from .configure import (
    add_profiles,
    build_routes,
    cache_file,
    configure,
    make_profiles,
    merge_cache,
    set_calibration_profile,
    use_cache,
)
from .inspector import Inspection, inspect_plan
from .network import (
    by_precision,
    compute_layers,
    force_layer_precisions,
    mark_debug_tensors,
    network_inputs,
    parse,
    set_formats,
    verify_precision,
)
from .refit import weights_digest

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class Prepared:
    """A parsed and configured network. The parser holds the weights until the build. `warnings` report an
    unused timing cache and named layers that are absent from the network."""

    def __init__(self, adapter: Adapter, request: BuildRequest, scales: Scales) -> None:
        spec, path, weak = request.spec, Path(request.model), scales is not None
        options = spec.tensorrt
        self.gpu = None if spec.gpus else find_gpu(options.device)
        self.timing_cache = cache_file(adapter, self.gpu, options.timing_cache)
        io = request.onnx.io
        notes = with_samples(read_notes(request.onnx.model), io.inputs, request.samples)
        if not any(tensor.dtype in ("int32", "int64") and len(tensor.shape) <= 1 for tensor in io.inputs):
            # An integer input of rank 0 or 1 can hold a shape; only the parsed network shows whether it does.
            make_profiles(io.inputs, spec, notes=notes)
        self.log = log = make_log(adapter.module)
        self.builder = builder = adapter.module.Builder(log.logger)
        register_plugins(adapter, builder, log, options.plugins)
        self.network = network = builder.create_network(adapter.network_flags(weak=weak))
        request.progress("parse")
        portable = options.version_compatible or bool(options.hardware_compatible)
        self.parser = parse(adapter, network, log, path, shown=request.source, portable=portable)
        set_formats(adapter, network, log, options.tensor_formats)
        mark_debug_tensors(adapter, network, request.debug_tensors)
        self.config = config = builder.create_builder_config()
        adapter.set_precision(config, request.precision, spec.floats, weak=weak, tf32=request.tf32)
        adapter.set_gpus(config, spec.gpus)
        shape_tensors = [tensor.name for tensor in network_inputs(network) if tensor.is_shape_tensor]
        self.profiles = profiles = make_profiles(io.inputs, spec, shape_tensors, notes)
        add_profiles(builder, config, profiles)
        configure(adapter, builder, config, log, options)
        cache_warnings = use_cache(config, log, self.timing_cache)
        self.layers = compute_layers(network)
        self.warnings = (*cache_warnings, *force_layer_precisions(adapter, network, config, log, request))
        self.feeder = feeder = scales if isinstance(scales, Feeder) else None
        if feeder is not None:
            feeder.inputs = calibration_inputs(adapter, network, feeder.first)
            config.int8_calibrator = make_calibrator(adapter, feeder)
            if profiles:
                set_calibration_profile(builder, config, [item.as_range() for item in feeder.inputs.values()])
        elif isinstance(scales, Mapping):
            set_ranges(adapter, network, log, scales)
        self.monitor: Any = None
        if adapter.has_progress_monitor:
            self.monitor = config.progress_monitor = make_monitor(adapter.module, request.progress)

    @property
    def shared_entries(self) -> dict[str, object]:
        """Return the entries of both a dry run's report and `proof`, the manifest's results of checks."""
        ranges = [{item.name: item.as_json() for item in profile} for profile in self.profiles]
        return {"network_layers": int(self.network.num_layers), "profiles": ranges}


def build_plan(adapter: Adapter, request: BuildRequest) -> BuildOutcome:
    """Parse, check, build, and write the plan to `request.output`."""
    with _device_and_scales(adapter, request) as scales:
        return _build(adapter, request, scales)


def dry_run(adapter: Adapter, request: BuildRequest) -> dict[str, object]:
    """Parse, check and configure, and return a description of the build."""
    with _device_and_scales(adapter, request) as scales:
        prepared = Prepared(adapter, request, scales)
        return {
            "tensorrt": adapter.name,
            "typing": "weak" if _weak(adapter, request) else "strong",
            "layers_by_precision": by_precision(prepared.layers),
            "forced_layers": dict(request.layers),
            **prepared.shared_entries,
            "gpus": list(request.spec.gpus) or [prepared.gpu.architecture if prepared.gpu else "none here"],
            "timing_cache": str(prepared.timing_cache.path) if prepared.timing_cache else "",
            "build_routes": list(build_routes(prepared.config).values()),
            "options": non_default_options(request.spec.tensorrt),
        }


@contextmanager
def _device_and_scales(adapter: Adapter, request: BuildRequest) -> Iterator[Scales]:
    device, subject = request.spec.tensorrt.device, request.source or request.model
    try:
        with current_device(device, subject), scales_for_build(adapter, request) as scales:
            yield scales
    except BaseException as error:
        # The traceback would hold TensorRT's objects until garbage collection, which may run while a later
        # build logs. Their destructors log too, and would wait for that build's logging forever.
        traceback.clear_frames(error.__traceback__)
        raise


def _build(adapter: Adapter, request: BuildRequest, scales: Scales) -> BuildOutcome:
    prepared = Prepared(adapter, request, scales)
    options, feeder, config = request.spec.tensorrt, prepared.feeder, prepared.config
    needs = needs_of_options(vars(options))
    plan = _build_and_write(adapter, request, prepared)
    inspections: list[Inspection] = []
    if prepared.gpu is not None:
        request.progress("inspect")
        inspections = inspect_plan(adapter, plan, needs, prepared.profiles)
    cache_warnings = merge_cache(config, prepared.log, prepared.timing_cache)
    problems = dict.fromkeys(inspection.problem for inspection in inspections if inspection.problem)
    unreported = [f"TensorRT's inspector does not report every layer: {problem}" for problem in problems]
    weak = _weak(adapter, request)
    layers, planned, reached, proof = verify_precision(
        adapter, request, prepared.layers, inspections, weak=weak
    )
    proof |= {**prepared.shared_entries, "has_run": False}
    if request.spec.calibrator:
        proof["calibrator"] = "ranges" if feeder is None else feeder.kind
        proof["calibration_batches"] = 0 if feeder is None else feeder.batches_fed
    if options.strip_weights and not options.refit:
        proof["weights"] = weights_digest(request.onnx)
    return BuildOutcome(
        kind="engine",
        io=request.onnx.io,
        planned=planned,
        reached=reached,
        proof=proof,
        device=prepared.gpu.as_json() if prepared.gpu else {"gpus": list(request.spec.gpus)},
        versions={adapter.package: adapter.version},
        checks=[Check("TensorRT's parser accepts every node", True, f"opset {request.onnx.opset}")],
        warnings=(*prepared.warnings, *map(plain, prepared.log.warnings), *unreported, *cache_warnings),
        calibration_cache=feeder.cache if feeder is not None else b"",
        layers=layers,
    )


def _build_and_write(adapter: Adapter, request: BuildRequest, prepared: Prepared) -> Any:
    request.progress("build")
    watchers = [watcher for watcher in (prepared.monitor, prepared.feeder) if watcher is not None]
    with defer_interrupts() as raise_if_interrupted:
        for watcher in watchers:
            watcher.before_each_step = raise_if_interrupted
        plan = prepared.builder.build_serialized_network(prepared.network, prepared.config)
    for watcher in watchers:
        if watcher.raised is not None:
            raise watcher.raised
    if plan is None:
        gpus = ", ".join(request.spec.gpus) or "of this host"
        subject = f"{request.source or request.model}: {adapter.name}"
        hint = f"{request.precision} for GPUs {gpus} failed: try another `precision`, simplify first, or"
        raise build_failure(prepared.log, subject, f"{hint} build for onnxruntime")
    with request.output.open("wb") as file:  # written first: a later failure must not lose the engine
        file.write(memoryview(plan))
    return plan


def _weak(adapter: Adapter, request: BuildRequest) -> bool:
    """Return whether TensorRT chooses the types: the network is weakly typed, or TensorRT calibrates."""
    return bool(request.spec.calibrator) or not adapter.strongly_typed


def make_monitor(module: Any, progress: Progress) -> Any:
    """Return an `IProgressMonitor` that reports the steps of the outermost phase to `progress`.

    Exceptions, for instance a deferred Ctrl-C from `before_each_step`, must not cross TensorRT's C++. The
    monitor stores the exception in `raised` and cancels the build; the caller raises it.
    """

    class Monitor(module.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)
            self.totals: dict[str, int] = {}
            self.outermost = ""
            self.raised: BaseException | None = None
            self.before_each_step: Callable[[], None] = lambda: None

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            if not parent:
                self.outermost = phase
                self.totals[phase] = steps

        def step_complete(self, phase: str, step: int) -> bool:
            try:
                self.before_each_step()
                if phase == self.outermost:
                    progress("build", step + 1, self.totals.get(phase))
            except BaseException as error:
                self.raised = error
            return self.raised is None

        def phase_finish(self, phase: str) -> None:
            self.totals.pop(phase, None)

    return Monitor()


@contextmanager
def defer_interrupts() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C, SIGTERM and SIGHUP to the end of the block; a second Ctrl-C ends the process at once.

    Only signals with a Python handler are deferred. Callbacks that can stop the build call the yielded
    function: it handles pending signals early, and raises their exceptions.
    """
    pending: list[int] = []
    handlers: dict[int, Callable[[int, FrameType | None], object]] = {}

    def note(number: int, __: FrameType | None) -> None:
        pending.append(number)
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)

    def handle() -> None:
        for number in list(pending):
            handlers[number](number, None)

    if threading.current_thread() is not threading.main_thread():  # Python handles signals only there
        yield handle
        return
    for number in (getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)):
        handler = signal.getsignal(number)
        if callable(handler):  # not SIG_IGN, SIG_DFL or a handler that C code installed
            handlers[number] = handler
            signal.signal(number, note)
    try:
        yield handle
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    handle()
