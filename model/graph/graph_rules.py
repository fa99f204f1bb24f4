"""Rules for the quantized graphs of a target (a runtime or its family), defined in the runtime's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from ...errors import InvalidOption
from ...spec.engines import rows
from ...spec.words import ARM_ISAS, GRAPH_TARGETS, GraphPrecision, GraphTarget, Isa
from .. import onnx

if TYPE_CHECKING:
    RunModel = Callable[[onnx.ModelProto, Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]]

Order = Literal["", "flat", "taps"]


@dataclass(frozen=True)
class SaturatingKernels:
    """For each kind of layer, the order in which integer kernels pair products (`saturating_kernels`).

    The order is "" if no kernel saturates. Convolutions are dense, grouped, or depthwise (one channel in and
    out of each group). `products` are MatMul and Gemm by a stored weight, `activations` are MatMuls of two
    activations. `dynamic` is MatMulInteger, `recurrent` is DynamicQuantizeLSTM.
    """

    dense: Order = ""
    grouped: Order = ""
    depthwise: Order = ""
    products: Order = ""
    activations: Order = ""
    dynamic: Order = ""
    recurrent: Order = ""

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    def convolution(self, channels_in: int, channels_out: int, group: int) -> Order:
        """Return the order for a convolution with these numbers of channels in and out of each group."""
        if group == 1:
            return self.dense
        return self.depthwise if channels_in == channels_out == 1 else self.grouped


NONE = SaturatingKernels()


@dataclass(frozen=True, kw_only=True)
class GraphRules:
    """Where and how weights and activations are quantized for a runtime.

    Attributes:
        weighted: Operators with weights and integer kernels.
        zero_points: Which activations have a zero point: "all"; "none" (symmetric int8); or "where free":
            if it costs nothing (uint8). Other activations with negative values are then symmetric int8.
        signed_on_arm: Whether activations are int8 on ARM.
        quantizes_bias: Whether a bias is int32; otherwise it is float.
        quantizes_chains: Whether operators between layers are quantized if integer kernels produce all their
            inputs. Otherwise Q/DQ pairs are only where TensorRT requires them: before layers and on the
            residual branch of an Add; weights are stored in float, followed by a pair.
        writes_floats: Whether every integer kernel writes float at no cost, so that only inputs of integer
            kernels are quantized. Otherwise only kernels of matrix products write float.
        slow_products: Name of the runtime, if it multiplies two activations faster in float; else "".
        gathers_by_vectors: Whether Gathers of activations need one-dimensional indices.
        opens_recurrences: Whether LSTM and GRU are decomposed into products, which can be quantized.
        by_onnxruntime: Whether ONNX Runtime executes the graph. Rewrites then prevent some fusions, and ONNX
            Runtime reports the nodes that run in integers. Dynamic INT8 and weights in blocks need its
            operators.
        reads_nbits: Whether the runtime supports MatMulNBits, ONNX Runtime's operator for weights in blocks.
        formats: Further precisions of products, beyond int8, int4, fp16 and bf16.
        why_no_halves: Why the float layers of an INT8 graph cannot be in half precision; "" if they can.
        saturates: For each instruction set, the kernels that add two products in 16 bits, as recorded.
        run: Runs a model on this machine, to find saturating kernels; None if no kernel saturates.
    """

    weighted: frozenset[str] = frozenset(["Conv", "ConvTranspose", "MatMul", "Gemm"])
    zero_points: Literal["all", "none", "where free"] = "all"
    signed_on_arm: bool = False
    quantizes_bias: bool = False
    quantizes_chains: bool = True
    writes_floats: bool = False
    slow_products: str = ""
    gathers_by_vectors: bool = False
    opens_recurrences: bool = False
    by_onnxruntime: bool = False
    reads_nbits: bool = False
    formats: tuple[GraphPrecision, ...] = ()
    why_no_halves: str = ""
    saturates: Mapping[Isa, SaturatingKernels] = field(default_factory=dict)
    run: RunModel | None = None

    @property
    def symmetric(self) -> bool:
        return self.zero_points == "none"

    def signed(self, isa: Isa) -> bool:
        """Return whether activations are int8 on an instruction set; those of `is_symmetric` always are."""
        return self.symmetric or (self.signed_on_arm and isa in ARM_ISAS)

    def is_symmetric(self, low: float, high: float) -> bool:
        """Return whether a tensor with these limits is symmetric int8."""
        return self.symmetric or (self.zero_points == "where free" and low < 0 and low == -high)


def graph_target(engine: str) -> GraphTarget:
    """Return the target of graphs for an engine; engines of one family share a target."""
    row = rows().get(engine)
    if row is None or not row.placed_for:
        raise _unknown(engine)
    return row.placed_for


def graph_rules(target: GraphTarget) -> GraphRules:
    if target not in GRAPH_TARGETS:
        raise _unknown(target)
    rules = rows()[target].load().rules
    assert isinstance(rules, GraphRules), f"engine {target}"  # the engine's class checks it
    return rules


def targets_where(test: Callable[[GraphRules], object]) -> str:
    """Return the targets with rules that pass a test, joined by "or", for hints."""
    return " or ".join(target for target in GRAPH_TARGETS if test(graph_rules(target)))


def _unknown(target: str) -> InvalidOption:
    return InvalidOption(f"target {target!r} is unknown; known are {', '.join(GRAPH_TARGETS)}")
