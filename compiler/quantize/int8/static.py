"""Static INT8: `onnxruntime.quantization` inserts Q/DQ by our placement, with our ranges."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from ....calibration import Method, Ranges
from ....calibration.qparams import INT8, QParams, choose_weight_qparams, quantize
from ....core.files import temporary_folder
from ....core.progress import quiet
from ....errors import EngineUnavailable, QuantizationError, first_line
from ....model.graph.graph import count_weighted, producers, weighted_nodes
from ....model.graph.graph_edits import drop_unused_initializers, refill, sort_nodes
from ....model.graph.graph_names import Aliases
from ....model.graph.graph_rules import GraphRules, graph_rules
from ....model.graph.multiply_adds import ALLOWED_SHARE, multiply_adds, named, shares
from ....model.graph.onnx_file import Graph, read_graph
from ....model.sessions.session import missed_nodes
from ....spec.words import Isa
from ...check import OnnxReference
from ..request import no_range
from .pair_limits import PairLimits
from .placement import SAME_SCALE, WRITES_FLOAT, Placement, scaled_tensors
from .rewrites import gather_by_vectors, keep_adds_apart, keep_norms_apart, quantize_tables, read_floats
from .tensorrt import join_with_convolutions, share_scales


def quantize_static(
    model: onnx.ModelProto,
    placement: Placement,
    ranges: Mapping[str, tuple[float, float]],
    *,
    isa: Isa = "avx512-vnni",
    pairs: Mapping[str, PairLimits] = MappingProxyType({}),
) -> onnx.ModelProto:
    """Return the prepared model with Q/DQ pairs.

    Args:
        ranges: Tensor name to (min, max) in real units.
        isa: Instruction set of the processor that will run it: ONNX Runtime's kernels for ARM take int8
            activations.
        pairs: Weight to its limits, where kernels add two of its products in 16 bits.
    """
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData

    for name, limits in ranges.items():
        if not np.isfinite(limits).all() or limits[0] > limits[1]:
            raise QuantizationError(
                f"tensor {name!r} has the range {limits}; two finite numbers in order are required",
                hint="calibrate again",
                tensor=name,
            )
    rules = graph_rules(placement.target)
    planned = set(placement.nodes)
    operators = sorted({node.op_type for node in model.graph.node if node.name in planned})
    outputs, given = list(model.graph.output), {value.name for value in model.graph.input}
    # An input that is an output, too, would read a pair of its own: the quantizer looks for what makes it.
    refill(model.graph.output, [value for value in outputs if value.name not in given])
    # The quantizer takes the shapes as inferred, and does not write and read the model again.
    model.metadata_props.add(key="onnx.infer", value="onnxruntime.quant")
    aliases = Aliases(model)  # the quantizer makes names of those that are there, without a look at them
    alias = {name: name for name in ranges} | aliases.of
    ranges = {alias[name]: limits for name, limits in ranges.items()}
    pairs = {alias[name]: limits for name, limits in pairs.items()}
    values = {
        name: TensorData(lowest=np.float32(low), highest=np.float32(high))
        for name, (low, high) in ranges.items()
    }
    try:
        with quiet(), all_channels_at_once(pairs) as quantizer_class:
            quantizer = quantizer_class(
                model,
                per_channel=True,
                reduce_range=False,
                weight_qType=QuantType.QInt8,
                activation_qType=QuantType.QInt8 if rules.signed(isa) else QuantType.QUInt8,
                tensors_range=TensorsData(CalibrationMethod.MinMax, values),
                nodes_to_quantize=[alias[name] for name in placement.nodes],
                nodes_to_exclude=[],
                op_types_to_quantize=operators,
                extra_options=_options(rules, operators, ranges),
            )
            quantizer.quantize_model()
            aliases.undo(quantizer.model.model)
            quantizer.model.topological_sort()
            sort_nodes(quantizer.model.model.graph)  # its own sort does not see what subgraphs read
    except ValueError as error:
        match = re.search(r"not specified for param (<\d+>)\. In static mode", str(error))
        if match and match.group(1) not in ranges:
            raise no_range(aliases.text(match.group(1))) from error
        words = aliases.text(first_line(error))
        raise QuantizationError(f"ONNX Runtime's quantizer failed: {words}") from error
    quantized: onnx.ModelProto = quantizer.model.model
    refill(quantized.graph.output, outputs)
    join_with_convolutions(quantized.graph, placement.fused)
    read_floats(quantized.graph, planned, kernels_write_float=rules.writes_floats)
    quantize_tables(quantized, set(placement.tables))
    if rules.by_onnxruntime:
        keep_norms_apart(quantized.graph)
        keep_adds_apart(quantized, planned)
    if rules.gathers_by_vectors:
        gather_by_vectors(quantized)
    drop_unused_initializers(quantized.graph)
    _check_scales(quantized)
    return quantized


def _options(
    rules: GraphRules, operators: list[str], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, Any]:
    """Extra options of ONNX Runtime's quantizer."""
    from onnxruntime.quantization import QuantType

    options: dict[str, Any] = {"ActivationSymmetric": rules.symmetric, "WeightSymmetric": True}
    if not rules.quantizes_bias:
        options["QuantizeBias"] = False
    if not rules.quantizes_chains:
        # TensorRT's parser refuses int32 DequantizeLinear, so the bias is float; 8.5 takes weights as float
        # behind a pair, not as stored int8; no operator's output is quantized by itself.
        more = {"AddQDQPairToWeight": True, "ForceQuantizeNoInputCheck": True}
        return options | more | {"OpTypesToExcludeOutputQuantization": operators}
    options["OpTypesToExcludeOutputQuantization"] = sorted(WRITES_FLOAT)
    if rules.zero_points == "where free":
        signed = [{"quant_type": QuantType.QInt8, "symmetric": True}]
        # `activation_limits` made symmetric what is to be symmetric.
        symmetric = [name for name, limits in ranges.items() if rules.is_symmetric(*limits)]
        options["TensorQuantOverrides"] = dict.fromkeys(symmetric, signed)
    return options


def activation_limits(
    model: onnx.ModelProto, placement: Placement, ranges: Ranges, method: Method | None
) -> dict[str, tuple[float, float]]:
    """Return tensor name to (low, high) by the method, for the observed tensors that the plan may scale."""
    rules, scaled = graph_rules(placement.target), scaled_tensors(model, placement)
    sources = {name: ranges.sources(name) for name in ranges.names() if name in scaled}
    one_of = {source: name for name, source in sources.items()}
    if rules.zero_points != "where free":
        limits = {
            source: ranges.limits(name, method, symmetric=rules.symmetric) for source, name in one_of.items()
        }
        result = {name: limits[source] for name, source in sources.items()}
        if not rules.quantizes_chains:
            share_scales(model.graph, placement.nodes, result)
        return result
    uneven = {sources[name] for name in _with_zero_point(model, placement) if name in sources}
    limits = {source: ranges.limits(name, method, symmetric=False) for source, name in one_of.items()}
    for source, name in one_of.items():
        low, high = limits[source]
        if low < 0 and source not in uneven:
            limits[source] = ranges.limits(name, method, symmetric=True)
        elif low < 0 and low == -high:  # clipped on both sides: it is not to be taken for symmetric
            limits[source] = low, high * (1 + 1e-6)
    return {name: limits[source] for name, source in sources.items()}


def _with_zero_point(model: onnx.ModelProto, placement: Placement) -> set[str]:
    """Tensors that are uint8 with a zero point, although they hold negative values.

    Symmetric int8 through a Concat loses 10 dB on OpenVINO (2026.4); and the quantizer takes a Clip out,
    whose lower limit a symmetric range would not keep. A product or a convolution with a stored weight takes
    a zero point at no cost (its kernels read uint8 in any case), and what a GELU makes, down to -0.17, has
    twice as many levels by it: 5 dB of a sentence encoder. A product of two activations does not: in float
    it stays with one (2026.4).
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    planned, made_by = set(placement.nodes), producers(model.graph)
    asymmetric: set[str] = set()
    for node in model.graph.node:
        if node.name not in planned:
            continue
        if node.op_type == "Clip":
            asymmetric.update(node.output)
        elif node.op_type in ("MatMul", "Gemm", "Conv") and node.input[1] in stored:
            asymmetric.add(node.input[0])
        elif node.op_type == "Concat":
            asymmetric.update(node.output)
            for name in node.input:
                asymmetric.add(name)
                while name in made_by and made_by[name].op_type in SAME_SCALE:
                    name = made_by[name].input[0]
                    asymmetric.add(name)
    return asymmetric


def _check_scales(model: onnx.ModelProto) -> None:
    pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    scaled = {node.input[1]: node.input[0] for node in pairs}
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor) if tensor.name in scaled else np.ones(1)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise QuantizationError(
                f"tensor {scaled[tensor.name]!r} got a scale of {values.min()}; "
                "above zero and finite is required",
                hint="exclude its node, or calibrate on more samples",
                tensor=scaled[tensor.name],
            )


@contextmanager
def all_channels_at_once(limits: Mapping[str, PairLimits]) -> Iterator[type]:
    """Yield the QDQ quantizer class to use; inside the block, all channels are quantized at once.

    ONNX Runtime's quantizer would go through them one by one in Python, which takes longer than everything
    else for a Transformer. The numbers are the same, but for weights of which no two products may overflow in
    16 bits (`pair_limits`). Where ONNX Runtime's quantizer is made otherwise than it was from 1.20 to 1.31,
    its own loops are used.
    """
    import onnxruntime
    from onnxruntime.quantization import base_quantizer, qdq_quantizer

    base: Any = qdq_quantizer.QDQQuantizer
    original = getattr(qdq_quantizer, "quantize_onnx_initializer", None)
    if original is None or not hasattr(base, "_calc_initializer_quant_params"):
        if limits:
            raise EngineUnavailable(
                f"ONNX Runtime {onnxruntime.__version__} quantizes weights in another way than 1.20 to 1.31: "
                "they cannot be fitted to a processor without VNNI",
                hint="pip install 'onnxruntime<1.32'",
                engine="onnxruntime",
            )
        yield base
        return
    fitted: dict[str, NDArray[np.int8]] = {}

    def quantize_initializer(
        weight: onnx.TensorProto,
        quant_type: int,
        zero_point: Any,
        scale: Any,
        axis: int | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if weight.name in fitted:
            return numpy_helper.from_array(fitted[weight.name], f"{weight.name}_quantized")
        plain = not rest and not any(options.values()) and weight.data_type == TensorProto.FLOAT
        if axis is None or not plain or quant_type != TensorProto.INT8 or np.any(zero_point):
            return original(weight, quant_type, zero_point, scale, axis, *rest, **options)
        values = numpy_helper.to_array(weight)
        zeros = np.zeros(np.shape(scale), np.int8)
        qparams = QParams(np.asarray(scale), zeros, INT8.qmin, INT8.qmax, axis)
        return numpy_helper.from_array(quantize(values, qparams), f"{weight.name}_quantized")

    qdq_quantizer.quantize_onnx_initializer = quantize_initializer
    find = base_quantizer.find_by_name
    base_quantizer.find_by_name = _ByName()
    try:
        yield _quantizer_class(qdq_quantizer, limits, fitted)
    finally:
        qdq_quantizer.quantize_onnx_initializer = original
        base_quantizer.find_by_name = find
        fitted.clear()


def _quantizer_class(
    module: Any, limits: Mapping[str, PairLimits], fitted: dict[str, NDArray[np.int8]]
) -> type:
    """The class; it writes the integers of weights that have limits to `fitted`."""
    base: Any = module.QDQQuantizer

    class Quantizer(base):  # type: ignore[misc]
        """The scales of weights per channel are computed at once, all others as ever."""

        tensors_to_quantize: dict[str, Any]

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.model.__class__ = _indexed(type(self.model))
            self.model.find = _ByName()

        def _calc_initializer_quant_params(self) -> dict[str, Any]:
            stored = {tensor.name: tensor for tensor in self.model.initializer()}
            every: dict[str, Any] = self.tensors_to_quantize
            weights = {
                name: info.axis % len(stored[name].dims)
                for name, info in every.items()
                if name in stored
                and info.axis is not None
                and info.tensor_type is module.QDQQuantTensorType.WEIGHT
                and stored[name].data_type == TensorProto.FLOAT
                and self.weight_qType == TensorProto.INT8
            }
            self.tensors_to_quantize = {n: info for n, info in every.items() if n not in weights}
            try:
                parameters_of: dict[str, Any] = super()._calc_initializer_quant_params()
            finally:
                self.tensors_to_quantize = every
            for name, axis in weights.items():
                values = numpy_helper.to_array(stored[name])
                if name in limits:
                    scales, fitted[name] = limits[name].fitted(values)
                    zeros = np.zeros(scales.shape, np.int8)
                else:
                    chosen = choose_weight_qparams(values, axis)
                    scales, zeros = chosen.scale, chosen.zero_point
                parameters_of[name] = module.QuantizationParams(
                    zero_point=zeros, scale=scales, quant_type=self.weight_qType, axis=axis
                )
            return parameters_of

    return Quantizer


class _ByName:
    """The quantizer's `find_by_name`, of initializers: they are only appended while it looks for them."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._count = 0

    def __call__(self, name: str, items: Any) -> Any:
        if len(items) < self._count:
            self._known, self._count = {}, 0
        for item in items[self._count :]:
            self._known.setdefault(item.name, item)
        self._count = len(items)
        return self._known.get(name)


def _indexed(base: Any) -> type:
    """The quantizer's model, which knows what is stored, and the readers of a tensor: it would go through all
    for each.

    What it knows is the instance's: a class lives until garbage is collected, and would hold the model.
    """

    class Indexed(base):  # type: ignore[misc]
        find: _ByName
        _readers: dict[str, list[Any]]
        _known = 0

        def get_initializer(self, name: str) -> Any:
            return self.find(name, self.model.graph.initializer)

        def _reading(self, name: str) -> list[Any]:
            nodes = self.model.graph.node
            if not 0 < self._known <= len(nodes):  # it is new, or some were removed
                self._readers, self._known = {}, 0
            for node in nodes[self._known :]:  # nodes are only appended
                for source in dict.fromkeys(node.input):
                    self._readers.setdefault(source, []).append(node)
            self._known = len(nodes)
            return self._readers.pop(name, [])

        def initializer_extend(self, inits: Sequence[onnx.TensorProto]) -> None:
            # The quantizer's own checks all that are there, again and again.
            self.model.graph.initializer.extend(map(self._check_init, inits))

        def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
            readers = self._reading(old_input_name)
            for node in readers:
                self.replace_node_input(node, old_input_name, new_input_name)
            self._readers.setdefault(new_input_name, []).extend(readers)

        def replace_input_of_nodes(
            self, old_input_name: str, new_input_name: str, node_names_set: Collection[str]
        ) -> None:
            for node in self._reading(old_input_name):
                is_named = node.name in node_names_set
                if is_named:
                    self.replace_node_input(node, old_input_name, new_input_name)
                name = new_input_name if is_named else old_input_name
                self._readers.setdefault(name, []).append(node)

    return Indexed


def executed(
    graph: Graph, planned: Sequence[str], *, signed: bool = False
) -> tuple[dict[str, dict[str, int]], dict[str, str], OnnxReference]:
    """Return what ONNX Runtime will execute, the planned nodes that it computes in float, and what runs it.

    That is precision to operator to number of weighted nodes; and name to what it is computed in.

    Activations that are `signed`, for an ARM processor, ONNX Runtime fuses on x86 only when it is told to.
    """
    with temporary_folder("executed", graph.path) as folder:
        optimized = folder / "optimized.onnx"
        run = OnnxReference(graph, layouts=True, optimized=optimized, signed=signed)
        model = read_graph(optimized).model
    asked = [node for node in weighted_nodes(graph.model)["int8"] if node.name in set(planned)]
    missed, unknown = missed_nodes(asked, graph.model, model, "int8")
    reasons = {name: f"ONNX Runtime computes it in {kind}" for name, kind in missed.items()}
    reasons |= dict.fromkeys(unknown, "ONNX Runtime does not compute it as an integer")
    return count_weighted(model, as_executed=True), reasons, run


def require_executed(model: onnx.ModelProto, planned: Sequence[str], missed: Mapping[str, str]) -> list[str]:
    """Weigh what missed; return what the user should know of it."""
    if not missed:
        return []
    share, counted = shares(planned, multiply_adds(model))
    total = sum(share[name] for name in missed)
    text = (
        f"ONNX Runtime executes {len(planned) - len(missed)} of {len(planned)} planned nodes as integers; "
        f"{total:.1%} of the planned {counted} stay in float: {named(missed, share)}"
    )
    if total > ALLOWED_SHARE:
        raise QuantizationError(
            text,
            hint="leave them in float with `exclude`: as they are they only cost conversions",
            nodes=list(missed),
        )
    return [text]
