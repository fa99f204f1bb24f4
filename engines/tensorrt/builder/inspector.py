"""Read an engine's layers from TensorRT's inspector at detailed verbosity.

A layer of the engine may be several of the network, fused: "conv1 + relu1", or, in blocks that its second
compiler takes whole, "{ForeignNode[first...last]}", of which it tells no types inside.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ....errors import ArtifactError, BuildError
from ..adapter import Adapter
from ..plan import PlanNeeds, open_plan
from .profiles import InputRange
from .proof import ComputeLayer

_SPELLINGS = (
    (("int8",), "int8"),
    (("fp8", "e4m3"), "fp8"),
    (("int4",), "int4"),
    (("bf16", "bfloat"), "bf16"),
    (("half", "fp16", "float16"), "fp16"),
    (("float", "fp32"), "fp32"),
)
"""How types are spelled, of which "Format/Datatype" holds one: "Row major linear FP16 format", "Half"."""

_TYPE_KEYS = ("Format/Datatype", "Datatype", "DataType")
"""The first up to 10; TensorRT 11 tells format and type apart (migration guide, IEngineInspector)."""

_MOVE_ONLY = ("Reformat", "NoOp", "Shape", "Constant")
UNREPORTED = "untold"
_PRODUCT = re.compile("conv|gemm|matrix|matmul|fullyconnected", re.IGNORECASE)
"""Kinds of layers that multiply: "CaskConvolution", "gemm", "MatrixMultiply"."""


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine.

    Attributes:
        name: The network's layers that it is made of, or TensorRT's name for a block.
        kind: TensorRT's kind, such as "CaskConvolution".
        precision: Of its first input; "untold" where the inspector gives no type.
        tactic: Name of the kernel; empty where none is told.
    """

    name: str
    kind: str
    precision: str
    tactic: str

    @property
    def is_block(self) -> bool:
        """Whether it is a fused block whose layers the inspector does not list."""
        return "ForeignNode" in self.name or self.kind.lower() in ("myelin", "kgen")


@dataclass(frozen=True)
class Inspection:
    """What a built engine is.

    Attributes:
        layers: Its layers in order, those that only move data left out.
        moving: Count of layers that only copy, reformat or hold constants.
        memory_bytes: What one execution context needs on the device.
        weights_bytes: None where TensorRT does not tell.
    """

    layers: Sequence[EngineLayer]
    moving: int = 0
    memory_bytes: int = 0
    weights_bytes: int | None = None

    def as_json(self) -> dict[str, object]:
        """Return the form kept in manifests."""
        precisions: dict[str, Counter[str]] = {}
        for layer in self.layers:
            precisions.setdefault(layer.precision, Counter())[layer.kind] += 1
        return {
            "engine_layers": len(self.layers),
            "engine_layers_by_precision": {name: dict(counts) for name, counts in precisions.items()},
            "fused_layers": sum(1 for layer in self.layers if " + " in layer.name or layer.is_block),
            "moving_layers": self.moving,
            "tactics": len({layer.tactic for layer in self.layers if layer.tactic}),
            "device_memory_bytes": self.memory_bytes,
            "weights_bytes": self.weights_bytes,
        }


@dataclass
class Verdict:
    """Which of the network's layers reached a precision in the engine.

    Attributes:
        reached: Names of layers that the inspector tells in the precision.
        fell_back: Name of each that it tells in another one, to that precision.
        unreported: Names of layers inside blocks of which it tells nothing.
    """

    reached: list[str] = field(default_factory=list)
    fell_back: dict[str, str] = field(default_factory=dict)
    unreported: list[str] = field(default_factory=list)


def inspect_plan(
    adapter: Adapter, plan: Any, needs: PlanNeeds, profiles: Sequence[Sequence[InputRange]]
) -> list[Inspection]:
    """Deserialize a plan on the GPU here and read what it is made of, for each profile.

    Types depend on the shapes: without a context that knows them, TensorRT tells "N/A due to dynamic shapes"
    in their place. Each profile is asked at its OPT shapes.

    Raises:
        BuildError: If TensorRT cannot load what it just built, or has no memory to run it.
    """
    try:
        opened = open_plan(adapter, plan, needs, subject="the engine just built")
    except ArtifactError as error:
        raise BuildError(error.message) from error
    engine = opened.engine
    inspector = engine.create_engine_inspector()
    context = engine.create_execution_context() if profiles else None
    if profiles and context is None:
        raise BuildError(
            f"the engine just built cannot run here: {opened.said()}",
            hint="lower `max_shapes`, or end what else uses the GPU",
        )
    inspections = []
    for index, ranges in enumerate(profiles or [()]):
        kept = _ask_at(context, index, ranges)
        if context is not None:
            inspector.execution_context = context
        information = inspector.get_engine_information(adapter.module.LayerInformationFormat.JSON)
        layers, moving = read_layers(str(information))
        inspections.append(
            Inspection(layers, moving, adapter.memory_bytes(engine), adapter.weights_bytes(engine))
        )
        del kept
    return inspections


def _ask_at(context: Any, index: int, ranges: Sequence[InputRange]) -> list[Any]:
    """Give a context the OPT shapes of a profile; returns what it points to."""
    import numpy as np

    kept = []
    if index:  # a context begins with profile 0
        context.set_optimization_profile_async(index, 0)
    for item in ranges:
        if item.of_values:
            kept.append(np.array(item.opt, np.int32))
            context.set_tensor_address(item.name, kept[-1].ctypes.data)
        else:
            context.set_input_shape(item.name, item.opt)
    return kept


def read_layers(information: str) -> tuple[list[EngineLayer], int]:
    """Return an engine's layers from the inspector's JSON, and the count of those that only move data.

    A layer computes in the type of its first input, which TensorRT spells inside a sentence; where that is
    not told, in the type of its weights.
    """
    layers, moving = [], 0
    for layer in json.loads(information).get("Layers", []):
        if isinstance(layer, str):  # an engine built at another verbosity: names alone
            layers.append(EngineLayer(layer, "", UNREPORTED, ""))
        elif layer.get("LayerType") in _MOVE_ONLY:
            moving += 1
        else:
            first = (layer.get("Inputs") or [{}])[0]
            spelled = next((str(first[key]) for key in _TYPE_KEYS if first.get(key)), "")
            weights = layer.get("Weights")
            if _precision(spelled) == UNREPORTED and isinstance(weights, dict):
                spelled = str(weights.get("Type", ""))
            name, metadata = str(layer.get("Name", "")), str(layer.get("Metadata", ""))
            told = f"{name} {metadata}".strip()
            kind = str(layer.get("LayerType", "unknown"))
            layers.append(EngineLayer(told, kind, _precision(spelled), str(layer.get("TacticName", ""))))
    return layers, moving


def judge(planned: Sequence[ComputeLayer], precision: str, inspections: Sequence[Inspection]) -> Verdict:
    """Compare the layers that should compute in a precision with what the engine tells of them.

    A layer has reached it when it has in every profile that tells.
    """
    verdict = Verdict()
    plain_layers = [layer for inspection in inspections for layer in inspection.layers if not layer.is_block]
    for layer in planned:
        pattern = re.compile(rf"(?<![\w./-]){re.escape(layer.name)}(?![\w./-])")
        homes = [home for home in plain_layers if pattern.search(home.name)]
        # From 10 on the addition of a bias carries the product's name, too.
        homes = [home for home in homes if _PRODUCT.search(home.kind)] or homes
        told = {home.precision for home in homes} - {UNREPORTED}
        if not told:
            verdict.unreported.append(layer.name)
        elif told == {precision}:
            verdict.reached.append(layer.name)
        else:
            verdict.fell_back[layer.name] = ", ".join(sorted(told - {precision}))
    return verdict


def _precision(spelled: str) -> str:
    lowered = spelled.lower()
    for words, precision in _SPELLINGS:
        if any(word in lowered for word in words):
            return precision
    return UNREPORTED if not lowered or lowered.startswith("n/a") else lowered
