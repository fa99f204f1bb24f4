"""From an ONNX file to a serialized engine (plan)."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...artifact import Check
from ...calibration import Batch
from ...errors import BuildError, UnsupportedOperator
from ...model.graph import weighted_nodes
from ...model.onnx_file import load_onnx, model_io, opset
from ...progress import Progress
from ...shapes import ModelIO, format_shape
from ..base import BuildOutcome, BuildRequest
from .adapter import Adapter
from .calibrator import Device, Feeder, first_and_all, make_calibrator
from .log import last_error, make_log
from .profiles import InputRange, make_ranges
from .proof import engine_precisions, layers_by_precision


def build_plan(adapter: Adapter, request: BuildRequest) -> BuildOutcome:
    """Parse, check, build, and write the plan to `request.output`.

    Raises:
        InvalidOption: If shapes or GPUs contradict the model or this TensorRT.
        UnsupportedOperator: If the parser refuses a node, naming it.
        BuildError: If the build fails, with TensorRT's reason.
    """
    try:
        return _build(adapter, request)
    except BaseException as error:
        # The traceback would keep TensorRT's objects alive until the garbage collector finds them,
        # perhaps while a later build logs: their destructors log too, and wait for it forever.
        traceback.clear_frames(error.__traceback__)
        raise


def _build(adapter: Adapter, request: BuildRequest) -> BuildOutcome:
    if request.calibration is None:
        return _build_network(adapter, request, None)
    adapter.require_calibrators()
    first: Batch | None = None
    batches: Iterator[Batch] = iter(())
    if not request.calibration.scales:
        first, batches = first_and_all(request.calibration.batches)
    shapes = {name: tuple(array.shape) for name, array in first.feeds.items()} if first else {}
    device = Device()
    try:
        return _build_network(adapter, request, Feeder(batches, shapes, device, request.progress))
    finally:
        device.close()


def _build_network(adapter: Adapter, request: BuildRequest, feeder: Feeder | None) -> BuildOutcome:
    path, calibration = Path(request.model), request.calibration
    model = load_onnx(path)
    io = model_io(model)
    ranges = make_ranges(io.inputs, request)
    log = make_log(adapter.module)
    builder = adapter.module.Builder(log)
    network = builder.create_network(adapter.network_flags(weak=feeder is not None))
    request.progress("parse")
    parser = _parse(adapter, network, log, path)
    config = builder.create_builder_config()
    adapter.set_precision(config, request.precision, weak=feeder is not None)
    adapter.set_gpus(config, list(request.gpus))
    _add_profile(builder, config, ranges)
    calibrator = None
    if calibration is not None and feeder is not None:
        calibrator = make_calibrator(adapter, calibration, feeder)
        config.int8_calibrator = calibrator
        config.profiling_verbosity = adapter.module.ProfilingVerbosity.DETAILED
        if ranges and feeder.shapes:
            _set_calibration_profile(builder, config, feeder.shapes)
    monitor = None
    if adapter.has_progress_monitor:
        monitor = config.progress_monitor = _monitor(adapter.module, request.progress)
    layers = layers_by_precision(network)
    request.progress("build")
    plan = builder.build_serialized_network(network, config)
    if monitor is not None and monitor.raised is not None:
        raise monitor.raised
    if feeder is not None and feeder.raised is not None:
        raise feeder.raised
    if plan is None:
        raise BuildError(
            f"{path}: {adapter.module.__name__} {adapter.version} cannot build it: "
            f"{last_error(log, 'it gave no reason')}",
            hint=f"opset {opset(model)}, {request.precision}, "
            f"GPUs {', '.join(request.gpus) or 'the one here'}",
        )
    with request.output.open("wb") as file:
        file.write(memoryview(plan))
    del parser  # it holds the weights that the network refers to until here
    planned = len(weighted_nodes(model).get(adapter.graph_precision(request.precision), ()))
    reached = _reached(adapter, layers, request.precision)
    proof: dict[str, object] = {}
    if calibration is not None and feeder is not None:
        # Weakly typed: TensorRT chooses per layer, and says so only afterwards.
        proof = {"calibrator": calibration.calibrator, "calibration_batches": feeder.fed}
        layers = engine_precisions(_inspect(adapter, log, plan))
        planned, reached = 1, sum(layers.get("int8", {}).values())
    return BuildOutcome(
        kind="engine",
        io=ModelIO(io.inputs, io.outputs),
        planned=planned,
        reached=reached,
        proof={
            **proof,
            "layers_by_precision": layers,
            "network_layers": int(network.num_layers),
            "typing": "strong" if adapter.strongly_typed and feeder is None else "weak",
            "profiles": [
                {item.name: {"min": list(item.min), "opt": list(item.opt), "max": list(item.max)}}
                for item in ranges
            ],
            "has_run": False,
        },
        device={"gpus": list(request.gpus) or ["the GPU it was built on"]},
        packages=(adapter.module.__name__.replace("_", "-"), "onnx"),
        checks=[Check("TensorRT's parser accepts every node", True, f"opset {opset(model)}")],
        warnings=tuple(log.warnings),
        calibration_cache=feeder.cache if feeder is not None else b"",
    )


def _reached(adapter: Adapter, layers: dict[str, dict[str, int]], precision: str) -> int:
    # Weakly typed: the network still says float; the flag permits, and the inspector must be asked.
    kind = precision if adapter.strongly_typed or precision == "int8" else "fp32"
    return sum(layers.get(kind, {}).values())


def _inspect(adapter: Adapter, log: Any, plan: Any) -> str:
    """The engine inspector's words on every layer, as JSON."""
    runtime = adapter.module.Runtime(log)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise BuildError(f"the engine just built cannot be loaded: {last_error(log, 'no reason given')}")
    information = engine.create_engine_inspector().get_engine_information(
        adapter.module.LayerInformationFormat.JSON
    )
    return str(information)


def _set_calibration_profile(builder: Any, config: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """TensorRT calibrates at the OPT shape of a profile; this one has the shape of the data only."""
    profile = builder.create_optimization_profile()
    for name, shape in shapes.items():
        profile.set_shape(name, shape, shape, shape)
    if not config.set_calibration_profile(profile):
        found = ", ".join(f"{name}:{format_shape(shape)}" for name, shape in shapes.items())
        raise BuildError(f"TensorRT refuses the calibration profile ({found})")


def _parse(adapter: Adapter, network: Any, log: Any, path: Path) -> Any:
    parser = adapter.module.OnnxParser(network, log)
    if parser.parse_from_file(str(path)):
        return parser
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    if not errors:
        raise BuildError(f"{path}: TensorRT cannot parse it: {last_error(log, 'no reason given')}")
    error = errors[0]
    operator = error.node_operator() if hasattr(error, "node_operator") else ""
    node = error.node_name() if hasattr(error, "node_name") else ""
    nodes = load_onnx(path, external_data=False).graph.node
    if not node and 0 <= error.node() < len(nodes):
        node = nodes[error.node()].name or f"making {', '.join(nodes[error.node()].output)}"
    raise UnsupportedOperator(
        f"{path}: {adapter.module.__name__} {adapter.version} refuses {operator or 'the graph'} "
        f"{node!r}: {' '.join(str(error.desc()).split())}",
        hint="simplify first; a graph quantized for ONNX Runtime must be quantized for tensorrt",
        operator=operator,
        node=node,
    )


def _add_profile(builder: Any, config: Any, ranges: list[InputRange]) -> None:
    if not ranges:
        return
    profile = builder.create_optimization_profile()
    for item in ranges:
        profile.set_shape(item.name, item.min, item.opt, item.max)
    if config.add_optimization_profile(profile) < 0:
        shapes = ", ".join(f"{item.name} up to {format_shape(item.max)}" for item in ranges)
        raise BuildError(f"TensorRT refuses the optimization profile ({shapes})")


def _monitor(module: Any, progress: Progress) -> Any:
    class Monitor(module.IProgressMonitor):  # type: ignore[misc]
        """Passes the outermost phase on. What is raised meanwhile (Ctrl-C) must not cross TensorRT's
        C++: it is kept, the build is cancelled, and the caller raises it."""

        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)
            self.totals: dict[str, int] = {}
            self.outermost = ""
            self.raised: BaseException | None = None

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            if not parent:
                self.outermost = phase
                self.totals[phase] = steps

        def step_complete(self, phase: str, step: int) -> bool:
            try:
                if phase == self.outermost:
                    progress("build", step + 1, self.totals.get(phase))
            except BaseException as error:
                self.raised = error
            return self.raised is None

        def phase_finish(self, phase: str) -> None:
            self.totals.pop(phase, None)

    return Monitor()
