"""Ask TensorRT's inspector, at detailed verbosity, what a built engine is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import ArtifactError, BuildError
from ..adapter import Adapter
from ..plan import OpenPlan, PlanNeeds, open_plan
from .engine_layers import EngineLayer, ReadLayers, decoded, read_layers
from .profiles import InputRange


@dataclass(frozen=True)
class Inspection:
    """What a built engine is.

    Attributes:
        layers: Its layers in order, those that only move data left out.
        moving: Count of layers that only copy, reformat or hold constants.
        memory_bytes: What one execution context needs on the device.
        weights_bytes: None where TensorRT does not tell.
        problem: Why not everything is known; empty where it is.
        count: Of all its layers, as TensorRT counts them.
    """

    layers: Sequence[EngineLayer]
    moving: int = 0
    memory_bytes: int = 0
    weights_bytes: int | None = None
    problem: str = ""
    count: int = 0

    def as_json(self) -> dict[str, object]:
        """Return the form kept in manifests; layers are no number where none could be read."""
        precisions: dict[str, Counter[str]] = {}
        for layer in self.layers:
            precisions.setdefault(layer.precision, Counter())[layer.kind or "of unknown kind"] += 1
        return {
            "engine_layers": len(self.layers) if self.layers or not self.problem else None,
            "engine_layers_by_precision": {name: dict(counts) for name, counts in precisions.items()},
            "fused_layers": sum(1 for layer in self.layers if " + " in layer.name or layer.is_block),
            "moving_layers": self.moving,
            "tactics": len({layer.tactic for layer in self.layers if layer.tactic}),
            "device_memory_bytes": self.memory_bytes,
            "weights_bytes": self.weights_bytes,
            **({"inspector": f"not known: {self.problem}"} if self.problem else {}),
        }


def inspect_plan(
    adapter: Adapter, plan: Any, needs: PlanNeeds, profiles: Sequence[Sequence[InputRange]]
) -> list[Inspection]:
    """Deserialize a plan on the GPU here and read what it is made of, for each profile.

    Types depend on the shapes: without a context that knows them, TensorRT tells "N/A due to dynamic shapes"
    in their place. Each profile is asked at its OPT shapes. An inspector that does not answer is no error:
    the inspection says what is not known.

    Raises:
        BuildError: If TensorRT cannot load what it just built, or has no memory to run it.
    """
    opened = _opened(adapter, plan, needs)
    engine = opened.engine
    context = engine.create_execution_context() if profiles else None
    if profiles and context is None:
        raise BuildError(
            f"the engine just built cannot run here: {opened.said()}",
            hint="lower `max_shapes`, or end what else uses the GPU",
        )
    inspector = engine.create_engine_inspector()
    inspections = []
    for index, ranges in enumerate(profiles or [()]):
        kept: list[Any] = []
        problem = _choose_shapes(context, index, ranges, kept)
        if context is not None and not problem:
            inspector.execution_context = context
        read = _answered(adapter, inspector, engine, index)
        inspections.append(
            Inspection(
                read.layers,
                read.moving,
                adapter.memory_bytes(engine),
                _weights_bytes(adapter, engine),
                "; ".join(filter(None, [problem, read.problem])),
                int(engine.num_layers),
            )
        )
        del kept
    return inspections


def _weights_bytes(adapter: Adapter, engine: Any) -> int | None:
    """Size of an engine's weights; None before 10, which does not tell."""
    stat = getattr(adapter.module, "EngineStat", None)
    return int(engine.get_engine_stat(stat.TOTAL_WEIGHTS_SIZE)) if stat is not None else None


def twin_differs(adapter: Adapter, plan: Any, needs: PlanNeeds, twin: Inspection) -> list[str]:
    """Return a warning where an engine is not made as the detailed twin that was inspected in its place."""
    engine = _opened(adapter, plan, needs).engine
    layers, memory = int(engine.num_layers), adapter.memory_bytes(engine)
    if (layers, memory) == (twin.count, twin.memory_bytes):
        return []
    return [
        f"the engine has {layers} layers and needs {memory} bytes; the detailed one that was inspected has "
        f"{twin.count} and needs {twin.memory_bytes}: TensorRT chose other kernels"
    ]


def _opened(adapter: Adapter, plan: Any, needs: PlanNeeds) -> OpenPlan:
    try:
        return open_plan(adapter, plan, needs, subject="the engine just built")
    except ArtifactError as error:
        raise BuildError(error.message) from error


def _choose_shapes(context: Any, index: int, ranges: Sequence[InputRange], kept: list[Any]) -> str:
    """Give a context the OPT shapes of a profile; returns why it does not take them.

    The bindings return False, or raise RuntimeError (python/src/infer/pyCore.cpp).

    Args:
        kept: Takes what the context then points to.
    """
    import numpy as np

    try:
        if index and not context.set_optimization_profile_async(index, 0):  # a context begins with profile 0
            return f"profile {index} cannot be chosen"
        for item in ranges:
            if item.of_values:
                wide = str(context.engine.get_tensor_dtype(item.name)).endswith("INT64")  # from 10 on
                kept.append(np.array(item.opt, np.int64 if wide else np.int32))
                taken = context.set_tensor_address(item.name, kept[-1].ctypes.data)
            else:
                taken = context.set_input_shape(item.name, item.opt)
            if not taken:
                return f"profile {index} does not take the OPT shape of {item.name!r}"
    except (RuntimeError, ValueError, TypeError) as error:
        return f"profile {index} does not take its OPT shapes: {error}"
    return ""


def _answered(adapter: Adapter, inspector: Any, engine: Any, profile: int) -> ReadLayers:
    """What the inspector says of a profile: of the engine as a whole, or else layer by layer."""
    whole = read_layers(_asked(adapter, inspector.get_engine_information), profile)
    if not whole.empty and not whole.problem:
        return whole
    count = engine.num_layers
    answers = [decoded(_asked(adapter, inspector.get_layer_information, at)) for at in range(count)]
    lost = sum(1 for _, problem in answers if problem)
    single = read_layers([answer for answer, problem in answers if not problem], profile)
    if single.empty:
        return ReadLayers(problem=whole.problem or ("" if not count else "it names no layer"))
    problem = f"of {lost} of {count} layers there is no answer" if lost else single.problem
    return ReadLayers(single.layers, single.moving, problem)


def _asked(adapter: Adapter, ask: Any, *which: int) -> object:
    """One answer; None where TensorRT has none, or its text is no UTF-8 (a name that was cut)."""
    try:
        return ask(*which, adapter.module.LayerInformationFormat.JSON)
    except (UnicodeDecodeError, RuntimeError):
        return None
