"""What the graph quantized for a runtime looks like: data that each engine's folder holds."""

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
    """The order in which the kernels of each kind of layer pair products; empty where none saturates.

    Convolutions are dense, grouped, or depthwise: one channel in and out of each group. `products` are MatMul
    and Gemm by a stored weight, `dynamic` is MatMulInteger, `recurrent` DynamicQuantizeLSTM.
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
        """Return the order of a convolution with so many channels in and out of each group."""
        if group == 1:
            return self.dense
        return self.depthwise if channels_in == channels_out == 1 else self.grouped


NONE = SaturatingKernels()


@dataclass(frozen=True, kw_only=True)
class GraphRules:
    """How weights and activations are quantized for a runtime, and where.

    Attributes:
        weighted: Operators with weights that it has integer kernels for.
        zero_points: Which activations have one: all, none (int8, symmetric), or those where it costs nothing
            (uint8), while the others that hold negative values are symmetric int8.
        signed_on_arm: Whether activations are int8 on ARM.
        quantizes_bias: Whether a bias is int32; else it is float.
        quantizes_chains: Whether what lies between layers is quantized where all that it reads is made by
            integer kernels. Else Q/DQ stand as TensorRT wants them: in front of the layers that use them,
            and on the residual branch of an add; weights are float behind a pair of them.
        writes_floats: Whether every kernel writes float at no cost, so that nothing is quantized that no
            integer kernel reads; else only those of matrix products do.
        slow_products: Who computes products of two activations faster in float; empty where they are
            quantized.
        gathers_by_vectors: Whether its Gathers of activations need indices of one axis.
        opens_recurrences: Whether LSTM and GRU are written as products, which can be quantized.
        by_onnxruntime: Whether ONNX Runtime executes it: rewrites keep its fusions apart, and it is asked
            which nodes it executes as integers. Dynamic INT8 and blocks of weights need its operators.
        reads_nbits: Whether it reads ONNX Runtime's operator for blocks of weights.
        formats: Precisions that it multiplies beyond int8, int4, fp16 and bf16.
        why_no_halves: Why the float parts of an INT8 graph cannot be halves; empty where they can.
        saturates: Instruction set to its kernels that add two products in 16 bits, as recorded of it.
        run: Runs a model on it, to see which kernels saturate here; None where none does.
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
        """Whether every activation is symmetric."""
        return self.zero_points == "none"

    def signed(self, isa: Isa) -> bool:
        """Return whether activations are int8 on an instruction set, but for those that are symmetric."""
        return self.symmetric or (self.signed_on_arm and isa in ARM_ISAS)

    def is_symmetric(self, low: float, high: float) -> bool:
        """Return whether a tensor with these limits is symmetric int8."""
        return self.symmetric or (self.zero_points == "where free" and low < 0 and low == -high)


def graph_target(engine: str) -> GraphTarget:
    """Return what a graph for an engine is placed for: engines of one family can take the same."""
    row = rows().get(engine)
    if row is None or not row.placed_for:
        raise _unknown(engine)
    return row.placed_for


def graph_rules(target: GraphTarget) -> GraphRules:
    """Return the rules of the graphs for an engine."""
    if target not in GRAPH_TARGETS:
        raise _unknown(target)
    rules = rows()[target].load().rules
    assert isinstance(rules, GraphRules), f"engine {target}"  # its class has checked it
    return rules


def targets_where(test: Callable[[GraphRules], object]) -> str:
    """Return the targets whose rules pass a test, in words, for hints."""
    return " or ".join(target for target in GRAPH_TARGETS if test(graph_rules(target)))


def _unknown(target: str) -> InvalidOption:
    return InvalidOption(f"target {target!r} is unknown; known are {', '.join(GRAPH_TARGETS)}")
