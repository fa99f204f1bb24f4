"""Create ONNX Runtime sessions, detect graphs that its optimizer breaks, and find the precisions it executes.

`find_requantized_layers`: layers that the optimizer quantizes although their Q/DQ graph does not.

    x ─ DQ ─ Conv(w, b) ─ Q        becomes        x ─ DQ ─ Conv(DQ(int8 w), DQ(int32 b)) ─ Q

The transformer WeightBiasQuantization (from 1.21 on, microsoft/onnxruntime 22889 and 22969; of Conv,
ConvTranspose and Gemm) is wrong if

1. the weight is float32 on purpose, because the layer is a float layer: it becomes int8, with one scale for
   all channels;
2. the bias has 16 bits: `b / (scale of x * scale of w)` is computed in its type, and is infinite from 65504
   on in float16;
3. that quotient is above the largest int32.

It applies to layers directly behind a DequantizeLinear with one scale.

`has_zero_padded_pool`: MaxPools that lose their padding with zeros.

    x ─ Pad(value 0) ─ MaxPool        becomes        x ─ MaxPool(pads)

The transformer Pad_Fusion (microsoft/onnxruntime 18136, in 1.17) moves the padding into the pool, where it is
not a value: at the border, the maximum of negative values and 0 becomes the maximum of the negative values.
Seen with 1.31.1, on networks with TensorFlow's padding (BiT). onnxsim did the same (onnxsim/onnxsim 290).

`has_signed_pairs`: Q/DQ of int8 from opset 21 on, behind which the optimizer adds pairs that it then rejects.

The QDQPropagationTransformer also writes the type of a new QuantizeLinear to `output_dtype`. On x86 another
optimizer changes int8 to uint8, but not in that attribute. Seen with 1.31.1 and 1.32.0, not with 1.24.4.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.installation import import_package
from ...core.plain_text import NOT_UTF8
from ...core.processor import is_arm
from ...errors import ModelError, QCompileError
from ...spec.tensors import Feeds, format_shape
from .. import onnx
from ..graph.graph import (
    ONNX_DOMAINS,
    attribute,
    captured_names,
    every_graph,
    opset,
    producers,
    stored_tensors,
    tensor_values,
    weighted_nodes,
)
from ..graph.graph_edits import refill
from ..graph.onnx_file import Graph, copy_weightless, is_large, read_graph
from .refusals import RENAMED, failure_hint, onnxruntime_words, refusal_hint, refused_words

SIGNED_ACTIVATIONS = "session.qdqisint8allowed"
"""Whether Q/DQ of int8 activations becomes integer kernels; default: on for ARM processors, off for x86."""

CORES = "QCOMPILE_CORES"
"""Environment variable: cores that a process may use on a shared machine, e.g. in a stage of a cluster."""


def usable_cores() -> int:
    """Return the number of cores that this process may use; 0 threads mean this number."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, granted_cores() or available)


def granted_cores() -> int:
    """Return the cores that the parent process granted in `CORES`, or 0."""
    text = os.environ.get(CORES, "")
    return int(text) if text.isdecimal() and text.isascii() else 0


def session_options(
    threads: int = 0, *, layouts: bool = True, optimize: bool = True, integers: bool = True
) -> Any:
    """Return session options without logs.

    Args:
        threads: Thread count; 0 means the granted cores, or ONNX Runtime's default.
        layouts: Whether memory layouts are optimized too. That level crashes the process on some float16
            graphs (seen with 1.31.1: a Transformer's encoder), so it is off where these may occur.
        optimize: Whether the graph is optimized at all; off for a file that the optimizer wrote.
        integers: Whether Q/DQ pairs become integer kernels. If not, they round floats, and stored values are
            rounded once: 18 times as fast as a graph that is not optimized (a Swin for TensorRT).
    """
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    if not optimize:
        options.graph_optimization_level = levels.ORT_DISABLE_ALL
    elif not layouts:
        options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
    if not integers:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.log_severity_level = 4  # failures are raised as exceptions
    if threads := threads or granted_cores():
        options.intra_op_num_threads = threads
    return options


def make_session(
    model: Path | Graph,
    options: Any,
    *,
    outputs: Sequence[onnx.ValueInfoProto] = (),
    without: Sequence[str] = (),
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    error: type[QCompileError] = ModelError,
) -> Any:
    """Return a session of a file or a graph, on the CPU unless other providers are given.

    The large weights of a graph are mapped from their file. `outputs` replace the graph's. The optimizers
    `without` are disabled, and those that would change results. Raise `error` if ONNX Runtime rejects it.
    """
    source: str | bytes
    lent: list[Any] = []
    if not isinstance(model, Graph) and not session_facts(model)[1]:
        model = read_graph(model)
    if isinstance(model, Graph) and (outputs or not model.is_file):
        if is_large(model.model, loaded=True):
            if outputs:
                model = model.copy()
                refill(model.model.graph.output, outputs)
            with model.file() as file:
                return make_session(file, options, without=without, providers=providers, error=error)
        folder = str(model.path.resolve().parent)  # resolved: ONNX Runtime follows no link
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        source, lent = _lend_weights(model.model, options, outputs)
        path, unfit = model.path, _unfit_for(model.model)
    else:
        path = model.path if isinstance(model, Graph) else model
        source = str(path)
        if NOT_UTF8.search(source):
            problem = f"{path}: its name is not UTF-8; ONNX Runtime cannot open it"
            raise error(problem, hint="rename it", file=path)
        unfit, _ = session_facts(path)
    onnxruntime = import_onnxruntime()
    levels = onnxruntime.GraphOptimizationLevel
    if FLOAT8 in unfit and options.graph_optimization_level != levels.ORT_DISABLE_ALL:
        options.graph_optimization_level = levels.ORT_ENABLE_BASIC
    fit = {FLOAT8, *((QDQ_PROPAGATION,) if _takes_signed(options) else ())}
    disabled = [*without, *(name for name in unfit if name not in fit)]
    try:
        session = onnxruntime.InferenceSession(
            source, options, providers=list(providers), disabled_optimizers=disabled
        )
        session.lent_weights = lent  # keeps memory alive that the session reads but does not own
        return session
    except Exception as refusal:  # the exceptions of ONNX Runtime share no narrower base
        words = refused_words(
            refusal, lambda: (model if isinstance(model, Graph) else read_graph(path)).model
        )
        problem = f"{path}: ONNX Runtime refuses it: {words}"
        raise error(problem, hint=refusal_hint(words), file=path) from refusal


_LENT_BYTES = 65536
_LENT = {1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 10: "float16", 11: "float64"}


def _lend_weights(
    model: onnx.ModelProto, options: Any, outputs: Sequence[onnx.ValueInfoProto] = ()
) -> tuple[bytes, list[Any]]:
    """Return the model as bytes, and its large weights, which `options` pass by reference.

    Weights are neither serialized nor parsed, which would take half of the time of a ResNet-50's session.
    """
    onnxruntime = import_onnxruntime()
    light, names, values = copy_weightless(model), [], []
    if outputs:
        refill(light.graph.output, outputs)
    # ONNX Runtime discards initializers without consumers, and then fails because they are missing.
    consumed = {name for node in model.graph.node for name in (*node.input, *captured_names(node))}
    consumed |= {value.name for value in light.graph.output}
    consumed -= {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        raw = b"" if tensor.data_location == tensor.EXTERNAL else tensor.raw_data
        if len(raw) < _LENT_BYTES or tensor.data_type not in _LENT or tensor.name not in consumed:
            light.graph.initializer.append(tensor)
            continue
        array = np.frombuffer(raw, _LENT[tensor.data_type]).reshape(tensor.dims)
        names.append(tensor.name)
        values.append(onnxruntime.OrtValue.ortvalue_from_numpy(array))
        lent = light.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        lent.data_location = lent.EXTERNAL
        lent.external_data.add(key="location", value="memory")
    if names:
        options.add_external_initializers(names, values)
    return light.SerializeToString(), values


def optimize_file(
    model: Path | Graph,
    output: Path,
    options: Any,
    *,
    large: bool = False,
    without: Sequence[str] = (),
    error: type[QCompileError] = ModelError,
) -> None:
    """Write the graph after ONNX Runtime's optimizer; `options` are changed."""
    options.optimized_model_filepath = str(output)
    if large:
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{output.name}.data"
        )
    make_session(model, options, without=without, error=error)


def run_session(session: Any, names: list[str], feeds: Feeds, subject: str) -> list[Any]:
    """Return the named outputs; raise ModelError if the run fails."""
    try:
        return list(session.run(names, feeds))
    except Exception as error:  # the exceptions of ONNX Runtime share no narrower base
        raise failed_on(feeds, error, subject) from error


_ROUNDS, _BLOCK_S, _MOST_S = 5, 0.03, 2.0
_LONGER = 1.1
_LEAST_S = 5e-4
"""Below this time, the call itself dominates, and INT8 only reduces the size of the file."""


def slower_note(plain: Callable[[], object], other: Callable[[], object]) -> list[str]:
    """Return a note if an artifact is slower than its float model on the same sample.

    Both run in turns, in blocks of 30 ms, for at most 2 s; the least ratio of five rounds counts.
    """
    ratios: list[float] = []
    end = time.perf_counter() + _MOST_S
    for run in (plain, other):
        run()
    while not ratios or (len(ratios) < _ROUNDS and time.perf_counter() < end):
        plain_s = _block_s(plain)
        if plain_s < _LEAST_S:
            return []
        ratios.append(_block_s(other) / plain_s)
    if min(ratios) < _LONGER:
        return []
    return [
        f"on this processor it takes {min(ratios):.1f} times as long as the float model: "
        "compare both with `qcompile bench`, and use the float model if speed counts"
    ]


def _block_s(run: Callable[[], object]) -> float:
    """Return the mean seconds of a run over a block."""
    start, runs = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < _BLOCK_S or not runs:
        run()
        runs += 1
    return passed / runs


def failed_on(feeds: Feeds, error: Exception, subject: str) -> ModelError:
    """Return the error for input on which ONNX Runtime fails."""
    shapes = ", ".join(f"{name}:{format_shape(array.shape)}" for name, array in feeds.items())
    words = onnxruntime_words(error)
    return ModelError(f"{subject}: ONNX Runtime fails on {shapes}: {words}", hint=failure_hint(words))


def import_onnxruntime() -> Any:
    problem = "ONNX Runtime cannot be imported"
    return import_package("onnxruntime", problem, extra="cpu", engine="onnxruntime")


WEIGHT_BIAS_QUANTIZATION, PAD_FUSION, ADD_FUSION = "WeightBiasQuantization", "Pad_Fusion", "MatMulAddFusion"
QDQ_PROPAGATION = "QDQPropagationTransformer"
"""Names of optimizers that a session can disable."""

_FLOAT, _FLOAT16, _BFLOAT16 = 1, 10, 16
_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_FOLDED = ("Constant", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_LARGEST_INT32 = 2.0**31 - 1


def find_requantized_layers(model: onnx.ModelProto) -> Iterator[tuple[onnx.GraphProto, onnx.NodeProto]]:
    """Yield these layers, each with its graph; a bias that is not loaded counts as small."""
    stored: dict[str, onnx.TensorProto] = {}
    for graph in every_graph(model.graph):
        stored |= stored_tensors(graph)
        made_by = producers(graph)
        for node in graph.node:
            if node.op_type not in _LAYERS or node.domain not in ONNX_DOMAINS:
                continue
            activation, weight = made_by.get(node.input[0]), made_by.get(node.input[1])
            if activation is None or not _dequantizes(activation):
                continue
            scale = activation.input[1]
            if scale in stored and math.prod(stored[scale].dims) != 1:
                continue
            if weight is None or weight.op_type in _FOLDED:
                name = node.input[1]  # stored as float32, directly or before folded nodes
                while name not in stored and name in made_by and made_by[name].op_type in _FOLDED:
                    name = made_by[name].input[0]
                if name in stored and stored[name].data_type == _FLOAT:
                    yield graph, node
            elif _dequantizes(weight):
                bias = stored.get(node.input[2]) if len(node.input) > 2 else None
                if bias is not None and _overflows(bias, activation, weight, stored):
                    yield graph, node


def _overflows(
    bias: onnx.TensorProto, activation: Any, weight: Any, stored: Mapping[str, onnx.TensorProto]
) -> bool:
    """Return whether a bias overflows int32 with the scale of its products."""
    if bias.data_type in (_FLOAT16, _BFLOAT16):
        return True
    tensors = [bias, stored.get(activation.input[1]), stored.get(weight.input[1])]
    loaded = [t for t in tensors if t and t.data_type == _FLOAT and not t.external_data]
    if len(loaded) < len(tensors):
        return False
    b, x, w = (tensor_values(t).astype(np.float64).reshape(-1) for t in loaded)
    with np.errstate(divide="ignore", invalid="ignore"):
        try:
            quotient = np.abs(b) / (x * w)
        except ValueError:  # blockwise scales, which the optimizer skips
            return False
    return bool(np.any(quotient > _LARGEST_INT32))


def _dequantizes(node: Any) -> bool:
    return node is not None and node.op_type == "DequantizeLinear" and node.domain in ONNX_DOMAINS


FLOAT8 = "float8"
"""All optimizers above the basic ones, which make integer kernels of FP8 pairs: 1.31.1 rejects most of these
graphs; 1.32.0 rejects none, but computed a small network wrong, by its largest value."""
_FLOAT8 = range(17, 21)
_TYPED_PAIRS = 21


def has_zero_padded_pool(model: onnx.ModelProto) -> bool:
    """Return whether a MaxPool follows a Pad of 0, or of an unknown value."""
    for graph in every_graph(model.graph):
        pads = (node for node in graph.node if node.op_type == "Pad" and node.domain in ONNX_DOMAINS)
        padded = {pad.output[0]: pad for pad in pads if attribute(pad, "mode", "constant") == "constant"}
        stored, pools = stored_tensors(graph), (node for node in graph.node if node.op_type == "MaxPool")
        if any(pool.input[0] in padded and _is_zero(padded[pool.input[0]], stored) for pool in pools):
            return True
    return False


def session_facts(path: Path) -> tuple[tuple[str, ...], bool]:
    """Return the optimizers that a session of a file must disable (`FLOAT8`: all above the basic ones), and
    whether runtimes can read the file as it is."""
    try:
        status = path.stat()
        return _facts_of_file(path, status.st_mtime_ns, status.st_size)
    except (OSError, QCompileError):  # the runtime will report the problem
        return (), True


@functools.lru_cache(maxsize=256)
def _facts_of_file(path: Path, _changed: int, _size: int) -> tuple[tuple[str, ...], bool]:
    graph = read_graph(path)
    return _unfit_for(graph.model), graph.is_file


def _unfit_for(model: onnx.ModelProto) -> tuple[str, ...]:
    _, *subgraphs = every_graph(model.graph)
    defects = {
        PAD_FUSION: has_zero_padded_pool(model),
        # In subgraphs it repeats names of the outer graph (1.31.1), which makes the file invalid.
        ADD_FUSION: any(node.op_type == "MatMul" for graph in subgraphs for node in graph.node),
        QDQ_PROPAGATION: has_signed_pairs(model),
        FLOAT8: any(tensor.data_type in _FLOAT8 for tensor in model.graph.initializer),
    }
    return tuple(name for name, is_present in defects.items() if is_present)


def has_signed_pairs(model: onnx.ModelProto) -> bool:
    """Return whether activations are quantized to int8, in an opset with a type in QuantizeLinear."""
    stored = stored_tensors(model.graph)
    pairs = (node for node in model.graph.node if node.op_type == "QuantizeLinear")
    kinds = (stored[name].data_type for node in pairs for name in node.input[2:] if name in stored)
    return opset(model) >= _TYPED_PAIRS and onnx.TensorProto.INT8 in kinds


def _takes_signed(options: Any) -> bool:
    """Return whether a session does not change int8 to uint8."""
    try:
        return bool(options.get_session_config_entry(SIGNED_ACTIVATIONS) == "1")
    except RuntimeError:  # not set
        return is_arm()


def _is_zero(pad: onnx.NodeProto, stored: dict[str, onnx.TensorProto]) -> bool:
    """Return whether a Pad inserts 0, also its default."""
    if len(pad.input) < 3 or not pad.input[2]:
        return float(attribute(pad, "value", 0.0)) == 0.0  # up to opset 10
    tensor = stored.get(pad.input[2])
    return tensor is None or not np.any(tensor_values(tensor).astype(np.float64))


def missed_nodes(
    planned: Sequence[onnx.NodeProto], model: onnx.ModelProto, optimized: onnx.ModelProto, precision: str
) -> tuple[dict[str, str], list[str]]:
    """Return planned nodes that run in another precision, with it, and those of unknown precision.

    A planned node without a trace in `optimized`, which the optimizer made of `model`, was fused into another
    node. Its precision is unknown only if some node of another precision matches no planned node's name.
    """
    planned_names = {node.name for node in planned}
    nodes = {node.name for node in model.graph.node}
    by_result = {output: node.name for node in model.graph.node for output in node.output if output}
    names = by_result | {name: name for name in nodes}  # a node's name before that of a result
    missed: dict[str, str] = {}
    located: set[str] = set()
    has_unknown = False
    for kind, computed in weighted_nodes(optimized, as_executed=True).items():
        for node in computed:
            if origin := _origin(node, names, by_result, planned_names):
                located.add(origin)
                if kind != precision:
                    missed[origin] = kind
            elif kind != precision:  # the optimizer made it if its name is not in the file, or if it is fused
                has_unknown |= node.name not in nodes or node.op_type.startswith("Fused")
    unlocated = [node.name for node in planned if node.name not in located]
    return missed, unlocated if has_unknown else []


def _origin(
    node: onnx.NodeProto, names: Mapping[str, str], by_result: Mapping[str, str], planned: Collection[str]
) -> str:
    """Return the planned node from which `node` was made, by names of nodes and results; "" for none."""
    plain_name = node.name.removeprefix("fused ")
    for start, lookup in ((plain_name, names), *((output, by_result) for output in node.output)):
        name = start
        while name not in lookup and (match := RENAMED.match(name)):
            name = match.group(1)
        if (origin := lookup.get(name, "")) in planned:
            return origin
    return ""
