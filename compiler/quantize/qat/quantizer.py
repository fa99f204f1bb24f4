"""Place fake quantization where the target's Q/DQ go: a torchao `Quantizer`, `int8.placement` on ATen.

    ONNX Runtime, OpenVINO              TensorRT
    x ─ FQ ─ conv ─ bn ─ relu ─ FQ ─┐   x ─ FQ ─ conv ─ bn ─ relu ─┬ FQ ─ conv ─ bn ─ add
                                    │                              └ FQ ─────────────┘ (a residual branch)
  all consumers read rounded values ┘     only quantized layers read rounded values

Operators that only move values (max pooling, reshaping) use the scale of their input. The range of an
activation follows its values; weights are symmetric int8 with a scale per output channel, its largest
magnitude divided by 127. Importing this file requires PyTorch and torchao.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import onnx
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.const_fold import get_unique_attr_name_in_module
from torchao.quantization.pt2e import (
    FakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    QuantizationSpecBase,
    Quantizer,
    SharedQuantizationSpec,
)

from ....core.progress import quiet
from ....errors import ExportError, InvalidOption, QuantizationError, first_line
from ....model.graph.graph_rules import graph_rules
from ....model.graph.saturating_kernels import saturating_kernels
from ....spec.words import GraphTarget, Isa
from ..int8.pair_limits import LARGEST_SUM, PairLimits, pair_limits
from ..int8.tensorrt import ResidualAdds

__all__ = ["TargetQuantizer", "capture", "convert_pt2e", "fold_batch_norm", "prepare_qat_pt2e"]

AVERAGING = 0.01
"""Weight of the newest batch in the moving average of an activation's range; the first batch starts it."""
OPERATOR = "qcompile_operator"
"""Key in a node's `meta` for the operator that a module implements: batch_norm, dropout."""
_DROPOUTS = {"dropout": "Dropout", "feature_dropout": "Dropout2d"}
_CONVOLUTIONS = frozenset(["conv1d", "conv2d", "conv3d"])
_TRANSPOSED = frozenset(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"])
WEIGHTED = _CONVOLUTIONS | _TRANSPOSED | {"linear"}
_ACTIVATIONS = frozenset(["relu", "relu6", "hardtanh", "clamp", "clamp_min"])
_ONNX = {
    "linear": "Gemm", "add": "Add", "batch_norm": "BatchNormalization", "dropout": "Dropout",
    "leaky_relu": "LeakyRelu", "sigmoid": "Sigmoid", "tanh": "Tanh", "hardswish": "HardSwish",
    "silu": "HardSwish", **dict.fromkeys(_CONVOLUTIONS, "Conv"),
    **dict.fromkeys(_TRANSPOSED, "ConvTranspose"), **dict.fromkeys(_ACTIVATIONS, "Clip"),
}  # fmt: skip
_BETWEEN = _ACTIVATIONS | frozenset(
    """
    add mul cat avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d mean leaky_relu sigmoid
    upsample_bilinear2d
    """.split()
)
_MOVES = frozenset(
    """
    max_pool1d max_pool2d view reshape _unsafe_view flatten permute transpose t squeeze unsqueeze slice select
    contiguous clone expand dropout feature_dropout upsample_nearest2d
    """.split()
)


class ActivationFakeQuantize(FakeQuantize):  # type: ignore[misc]
    """Observes only in training mode; without an observed range, values pass unrounded."""

    frozen = False

    def train(self, mode: bool = True) -> ActivationFakeQuantize:
        """Switch observer and rounding with the mode."""
        super().train(mode)
        seen = bool(torch.isfinite(self.activation_post_process.min_val).all())
        self.enable_observer(mode and not self.frozen)
        self.enable_fake_quant((mode and not self.frozen) or seen)
        return self

    def forward(self, values: Tensor) -> Tensor:
        """Return the values rounded to the grid."""
        try:
            rounded: Tensor = super().forward(values)
        except AssertionError as error:  # from torchao's observer
            raise QuantizationError(
                f"an activation of shape {tuple(values.shape)} is not finite ({error})",
                hint="the training diverged: lower its rate",
            ) from error
        return rounded


class LimitedObserver(MovingAveragePerChannelMinMaxObserver):  # type: ignore[misc]
    """Observer with scales that avoid overflow in kernels that add two products of integers in 16 bits."""

    def __init__(self, limits: PairLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._least = torch.zeros(())

    def forward(self, weight: Tensor) -> Tensor:
        """Observe a weight, and compute the least scales of its channels."""
        room = LARGEST_SUM / (LARGEST_SUM - 1)  # rounding adds at most 1 to a pair
        least = self._limits.min_scales(weight.detach().float().cpu().numpy()) * room
        self._least = torch.from_numpy(least)
        observed: Tensor = super().forward(weight)
        return observed

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return scales and zero points of the channels."""
        scales, zero_points = super().calculate_qparams()
        return torch.maximum(scales, self._least.to(scales)), zero_points


class TargetQuantizer(Quantizer):  # type: ignore[misc]
    """Annotates a captured model, with weights as `get_attr` nodes, for one target.

    `exclude` has globs of names of modules and weights that remain in floating point.
    """

    def __init__(self, target: GraphTarget, isa: Isa, exclude: Sequence[str]) -> None:
        super().__init__()
        self.target, self.exclude, self.rules = target, exclude, graph_rules(target)
        self._kernels = saturating_kernels(target, isa)
        signed = self.rules.signed(isa)
        limits = (-128, 127) if signed else (0, 255)
        # Zero points only for tensors where they cost nothing would lose 10 dB in a Concat.
        scheme = torch.per_tensor_symmetric if self.rules.symmetric else torch.per_tensor_affine
        constructor = ActivationFakeQuantize.with_args(
            observer=MovingAverageMinMaxObserver.with_args(averaging_constant=AVERAGING)
        )
        dtype = torch.int8 if signed else torch.uint8
        self._activation = QuantizationSpec(dtype, constructor, *limits, scheme)

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the inputs and outputs to round in the nodes; raise if no layer can be quantized."""
        graph = _as_onnx(model)
        layers = {layer.name: layer for layer in graph.node}
        residuals = ResidualAdds(graph, [node.name for node in model.graph.nodes if node.op == "get_attr"])
        inputs: dict[Node, dict[Node, QuantizationSpecBase]] = {}
        results: dict[Node, Node] = {}  # node with a rounded output, to the node that provides its range
        in_float: dict[str, str] = {}  # name of a weight to the reason
        matched: set[str] = set()
        for node in model.graph.nodes:
            name, values = operator_name(node), _float_operands(node)
            if name in WEIGHTED:
                weight = str(getattr(node.args[1], "target", node.args[1]))
                reason = self._reason_in_float(node) or self._excluded(weight, matched)
                if reason is not None:
                    in_float[weight] = reason
                    continue
                inputs[node] = {node.args[1]: self._weight(model, node, layers[node.name])}
                inputs[node] |= {} if values[0] in results else {values[0]: self._activation}
                if self.rules.quantizes_chains and name != "linear":  # its kernel writes float at no cost
                    end = _end_of_chain(node, norm=True)
                    results[end] = end
            elif not self.rules.quantizes_chains:
                layer, planned = layers[node.name], {node.name for node in inputs}
                if residuals.closes(layer, planned):
                    fused = residuals.fused_operand(layer, planned)
                    inputs[node] = {value: self._activation for value in values if value.name != fused}
            elif name in _MOVES and _is_integer(node, results):
                results[node] = results[values[0]]
            elif name in _BETWEEN and _is_integer(node, results):
                end = _end_of_chain(node, norm=False)
                results[end] = end
        if missing := [pattern for pattern in self.exclude if pattern not in matched]:
            raise InvalidOption(
                f"exclude {missing[0]!r}: no quantizable weight of that name or glob",
                hint="name modules as in model.named_modules(), such as 'fc' or 'stages.0.*'",
                option="exclude",
            )
        if not any(operator_name(node) in WEIGHTED for node in inputs):
            name, reason = next(iter(in_float.items()), ("", "no convolution, no linear layer"))
            raise QuantizationError(
                f"nothing to quantize: {f'{name!r}: ' if name else ''}{reason}",
                hint="choose another target, or leave the model in float",
                reasons=in_float,
            )
        for node in dict.fromkeys([*inputs, *results]):
            source = results.get(node)
            shared = source if source is None else SharedQuantizationSpec(source)
            node.meta["quantization_annotation"] = QuantizationAnnotation(
                inputs.get(node, {}), self._activation if source is node else shared, _annotated=True
            )
        return model

    def validate(self, model: GraphModule) -> None:
        """Do nothing: all annotations come from `annotate`."""

    def _reason_in_float(self, node: Node) -> str | None:
        transposed = operator_name(node) in _TRANSPOSED
        if transposed and "ConvTranspose" not in self.rules.weighted:
            return f"{self.target} has no integer kernel for it"
        if transposed and len(node.args) > 6 and node.args[6] != 1:
            return "its weight has groups; scales per channel need one"
        weight = getattr(node.args[1], "op", "")
        return None if weight == "get_attr" else "its weight is computed at run time"

    def _excluded(self, weight: str, matched: set[str]) -> str | None:
        names = (weight, weight.rpartition(".")[0])
        hits = [glob for glob in self.exclude if any(fnmatch.fnmatchcase(name, glob) for name in names)]
        matched.update(hits)
        return f"excluded by {hits[0]!r}" if hits else None

    def _weight(self, model: GraphModule, node: Any, layer: onnx.NodeProto) -> QuantizationSpec:
        limits = pair_limits(layer, tuple(attrgetter(node.args[1].target)(model).shape), self._kernels)
        observer: Any = MovingAveragePerChannelMinMaxObserver
        if limits is not None:
            observer = LimitedObserver.with_args(limits=limits)
        axis = weight_axis(node)  # torchao passes it on only to classes with PerChannel in their names
        observer = observer.with_args(averaging_constant=1.0, ch_axis=axis)
        constructor = FakeQuantize.with_args(observer=observer)
        return QuantizationSpec(torch.int8, constructor, -127, 127, torch.per_channel_symmetric, axis)


def operator_name(node: Node) -> str:
    """Return a node's ATen operator without its overload, for example `conv2d`; "" for other nodes."""
    name = str(node.target) if node.op == "call_function" else ""
    return name.split(".")[1] if name.startswith("aten.") else str(node.meta.get(OPERATOR, ""))


def weight_axis(node: Node) -> int:
    """Return the axis of the output channels in the weight of a node."""
    return 1 if operator_name(node) in _TRANSPOSED else 0


def _float_operands(node: Node) -> list[Node]:
    """Return the operands that are float tensors, without extents of axes."""
    if operator_name(node) in _MOVES:
        return node.all_input_nodes[:1]
    return [value for value in node.all_input_nodes if not operator_name(value).startswith("sym_")]


def _end_of_chain(node: Node, *, norm: bool) -> Node:
    """Return the last node that is fused into this one: a BatchNorm (if `norm`) and activations."""
    while len(node.users) == 1:
        reader = next(iter(node.users))
        folded = norm and operator_name(reader) == "batch_norm" and reader.args[0] is node
        if not folded and operator_name(reader) not in _ACTIVATIONS:
            break
        node, norm = reader, False
    return node


def _is_integer(node: Node, results: dict[Node, Node]) -> bool:
    """Return whether integer kernels compute all operands of the node."""
    values = _float_operands(node)
    if operator_name(node) in ("add", "mul") and len(values) != 2:
        return False  # the other operand is a stored number: a float operation
    return bool(values) and node not in results and all(value in results for value in values)


def _as_onnx(model: GraphModule) -> onnx.GraphProto:
    """Return a captured model's operators under their ONNX names, for the rules of `int8.tensorrt`."""
    nodes = []
    for node in model.graph.nodes:
        names = [value.name for value in node.all_input_nodes]
        kind = _ONNX.get(operator_name(node), "Unknown")
        options = {"transB": 1} if kind == "Gemm" else {}
        if kind.startswith("Conv") and node.args[6:]:
            options = {"group": node.args[6]}
        nodes.append(onnx.helper.make_node(kind, names, [node.name], node.name, **options))
    return onnx.helper.make_graph(nodes, "model", [], [])


def capture(model: torch.nn.Module, example_inputs: Any, dynamic_shapes: Any) -> GraphModule:
    """Capture a model as a graph without in-place operators."""
    keywords = dict(example_inputs) if isinstance(example_inputs, Mapping) else {}
    single = isinstance(example_inputs, Tensor)
    arguments = () if keywords else (example_inputs,) if single else tuple(example_inputs)
    if dynamic_shapes is None:
        arguments, keywords = torch.utils._pytree.tree_map(_repeat_single, (arguments, keywords))
        dynamic_shapes = torch.utils._pytree.tree_map(_dynamic_first_axis, keywords or arguments)
    copied = copy.deepcopy(model).eval()
    captured: GraphModule
    try:
        with quiet():
            program = torch.export.export(
                copied, arguments, keywords, dynamic_shapes=dynamic_shapes, strict=False
            )
            dropouts = []  # kind and rate of dropouts; `alias_copy` marks them, because PyTorch removes them
            for node in program.graph.nodes:
                name = operator_name(node).removesuffix("_")
                if name in _DROPOUTS:
                    dropouts.append((name, node.args[1]))
                    node.target, node.args = torch.ops.aten.alias_copy.default, node.args[:1]
            captured = program.run_decompositions({}).module(check_guards=False)
    except Exception as error:
        raise ExportError(
            f"{type(model).__name__}: PyTorch cannot capture it: {first_line(error)}",
            hint="`qcompile export` gives details; PyTorch cannot capture Python branches on tensor values",
        ) from error
    _insert_mode_modules(captured, dropouts)
    return captured


def _repeat_single(value: Any) -> Any:
    """Repeat a single sample: PyTorch would fix an extent of 1."""
    grows = isinstance(value, torch.Tensor) and value.dim() and len(value) == 1
    return torch.cat([value, value]) if grows else value


def _dynamic_first_axis(value: Any) -> Any:
    return {0: torch.export.Dim.AUTO} if isinstance(value, torch.Tensor) and value.dim() else None


def _insert_mode_modules(model: GraphModule, rates: Sequence[tuple[str, float]]) -> None:
    """Replace BatchNorm and dropout nodes by modules, which follow train() and eval().

    torchao's mode switch sets the eps of every BatchNorm to 1e-5 and the rate of every dropout to 0.5.
    """
    dropouts = iter(rates)
    module: Any
    for index, node in enumerate(list(model.graph.nodes)):
        replaced = [node]
        if operator_name(node) == "alias_copy":
            name, rate = next(dropouts)
            path = get_unique_attr_name_in_module(model, f"dropout_{index}")
            module = getattr(torch.nn, _DROPOUTS[name])(rate)
        elif operator_name(node) == "_native_batch_norm_legit_no_training":
            name, replaced = "batch_norm", list(node.users)
            path = str(node.args[3].target).rpartition(".")[0]
            values = [value and attrgetter(value.target)(model) for value in node.args[1:5]]
            module = torch.nn.BatchNorm2d(len(values[2]), node.args[6], node.args[5], affine=False)
            module.weight, module.bias, module.running_mean, module.running_var = values
            module._check_input_dim = _any_axes
        else:
            continue
        model.add_submodule(path, module)
        with model.graph.inserting_before(node):
            called = model.graph.call_module(path, (node.args[0],))
        called.meta = {**node.meta, **replaced[0].meta, OPERATOR: name}
        for result in replaced:  # for BatchNorm, the `getitem` nodes of its results
            result.replace_all_uses_with(called)
    model.graph.eliminate_dead_code()
    model.recompile()


def _any_axes(_values: torch.Tensor) -> None:
    """Accept inputs with any number of axes in BatchNorm."""


def fold_batch_norm(model: GraphModule, node: Any, norm: Any) -> None:
    """Fold a BatchNorm into the float weight and bias of the convolution in front of it, if there is one.

    The weight's observer then sees the folded weight; the integers change only in sign.
    """
    reader = node.args[0]
    fake = reader.args[1] if operator_name(reader) in WEIGHTED else None
    if fake is None or fake.op != "call_module" or len(reader.users) > 1 or len(fake.users) > 1:
        return
    weight = attrgetter(fake.args[0].target)(model)
    bias = attrgetter(reader.args[2].target)(model) if len(reader.args) > 2 and reader.args[2] else None
    folded = torch.nn.utils.fusion.fuse_conv_bn_weights(
        weight, bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias,
        transpose=weight_axis(reader) == 1,
    )  # fmt: skip
    with model.graph.inserting_before(fake):
        names = []
        for kind, tensor in zip(("weight", "bias"), folded, strict=True):
            names.append(get_unique_attr_name_in_module(model, f"{kind}_folded_{node.name}"))
            model.register_buffer(names[-1], tensor.detach())
        nodes = [model.graph.get_attr(name) for name in names]
    fake.args = (nodes[0],)
    model.get_submodule(str(fake.target))(folded[0])
    reader.args = (reader.args[0], fake, nodes[1], *reader.args[3:])
    node.replace_all_uses_with(reader)
    model.graph.erase_node(node)
