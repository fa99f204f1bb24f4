"""`qcompile simplify`: rewrite a model with fewer nodes and equal outputs.

onnxsim folds constants, fuses BatchNormalization into Conv and removes no-ops. Einsums become products
(`einsums`). Three rewrites of attention remove scales, transpositions and a NaN guard that exporters leave
between quantized products; they change values by rounding at most. The result is accepted only if inputs,
outputs and dynamic axes are unchanged and the outputs are equal.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ...core.artifact import Artifact, Check, commit, isa_option, read_manifest
from ...core.files import locked_folder, writing
from ...core.files.storage import hidden_storage_error
from ...core.installation import import_package
from ...core.memory import out_of_memory
from ...core.progress import Progress, quiet, silent
from ...errors import EngineUnavailable, first_line
from ...model.graph.graph import (
    ONNX_DOMAINS,
    attribute,
    count_operators,
    model_io,
    opset,
    tensor_values,
)
from ...model.graph.graph_edits import drop_unused_initializers, refill, set_values, store_constants
from ...model.graph.onnx_file import Graph, copy_model, is_large, read_graph, save_onnx
from ...spec.decode import spec_from_call
from ...spec.models import SimplifySpec
from ...spec.tensors import Feeds, ModelIO
from ..check import OnnxReference, compare_outputs, graph_manifest, sample_feeds
from .einsums import einsums_to_products

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import SimplifyKeywords


_DISABLED = ["fuse_attention", "fuse_gqa", "eliminate_nop_softmax"]
"""Disabled passes of onnxsim. The first two write `com.microsoft.Attention` and related operators, which only
ONNX Runtime supports. The third writes Shape and ConstantOfShape for attention over a single token (MobileViT
on images of 64 x 64), on which TensorRT-RTX 1.7.1 fails (Myelin, kqv_gemm_split.cpp)."""


def simplify(
    model: str | Path,
    output: str | Path,
    spec: SimplifySpec | None = None,
    /,
    *,
    progress: Progress = silent,
    **options: Unpack[SimplifyKeywords],
) -> Artifact:
    """Simplify an ONNX file; if that fails or changes the model, copy it unchanged, with a warning.

    Args:
        model: ONNX file.
        output: ONNX file to write.
        spec: All options as one object.
        progress: Called at every step.
        options: Fields of `SimplifySpec` by name; they override those of `spec`.

    Returns:
        The file and its manifest; `proof["removed"]` counts removed nodes by type, `warnings` give the reason
        for an unchanged model.

    Raises:
        ModelError: If the given model is damaged.
        DataError: If the data does not fit the model.
    """
    model, output, spec = Path(model), Path(output), spec_from_call(SimplifySpec, spec, options)
    graph = read_graph(model)
    before = graph.load()
    reference = OnnxReference(graph)
    feeds = list(sample_feeds(before, spec.data, reference))
    expected = [reference(item) for item in feeds]
    progress("simplify")
    with writing(output) as path:
        after, checks, problem = _try_simplify(model, before, path, feeds, expected, reference.names)
        if after is None:
            after = before
            save_onnx(before, path)
        old, new = Counter(count_operators(before)), Counter(count_operators(after))
        new.subtract(old)
        # Operator to the number of removed nodes, negative for added nodes.
        removed = {name: -count for name, count in sorted(new.items(), key=lambda item: item[::-1]) if count}
        counts = {"nodes_before": old.total(), "nodes_after": old.total() + new.total()}
        carried = isa_option(read_manifest(model))
        manifest = graph_manifest(
            "simplify", after, "onnx onnxsim onnxruntime", {"opset": opset(after), **carried},
            sources={"model": graph.digest()}, proof={**counts, "removed": removed}, checks=checks,
            warnings=[f"{problem}; the model was left as it is"] * bool(problem),
        )  # fmt: skip
        return Artifact(output, commit(path, manifest))


def _try_simplify(
    model: Path,
    before: onnx.ModelProto,
    path: Path,
    feeds: list[Feeds],
    expected: list[Any],
    names: list[str],
) -> tuple[onnx.ModelProto | None, list[Check], str]:
    """Return the simplified model written to `path`, or None with the reason."""
    try:
        after = _run_onnxsim(before, model, path.parent)
        graph = Graph(after, model)
        simplify_attention(graph)
        pool_globally(graph)
        _restore_io(before, after)
        save_onnx(after, path)
        read_graph(path)
        old, new = (
            {(node.domain, node.op_type) for node in graph.node} for graph in (before.graph, after.graph)
        )
        foreign = [f"{domain}.{name}" for domain, name in sorted(new - old) if domain not in ONNX_DOMAINS]
        if foreign:  # a simplified file must run on every runtime
            raise RuntimeError(f"it wrote {', '.join(foreign)}")
        same_io = _same_io(model_io(before), model_io(after))
        outputs = map(OnnxReference(path), feeds) if same_io.passed else ()
        pairs = list(zip(expected, outputs, strict=False))
    except EngineUnavailable:
        raise
    except Exception as error:  # onnxsim raises many types of errors; the model is then written unchanged
        if shortage := out_of_memory(error, "simplify"):
            raise shortage from error
        problem = hidden_storage_error(error, path)
        if problem is not None:
            raise problem from error
        return None, [], f"onnxsim failed ({type(error).__name__}: {first_line(error)})"
    checks = [same_io]
    if same_io.passed:
        checks.append(compare_outputs("same outputs as before", names, pairs))
    if failed := [f"{check.name}: {check.detail}" for check in checks if not check.passed]:
        return None, [], f"onnxsim changed the model ({'; '.join(failed)})"
    return after, checks, ""


def _run_onnxsim(model: onnx.ModelProto, file: Path, folder: Path) -> onnx.ModelProto:
    """Run onnxsim: in memory up to 2 GB, above from file to file, in a folder that is removed afterwards."""
    problem = "simplify needs onnxsim, which cannot be imported"
    onnxsim = import_package("onnxsim", problem, extra="cpu", engine="onnxsim")
    if not is_large(model):
        if any(node.op_type == "Einsum" for node in model.graph.node):
            model = copy_model(model)
            einsums_to_products(model)
        with quiet():
            simplified, ok = onnxsim.simplify(model, skipped_optimizers=_DISABLED)
    else:
        with locked_folder(folder, "simplify") as scratch:
            output = scratch / file.name
            with quiet():
                _, ok = onnxsim.simplify(str(file), output_path=str(output), skipped_optimizers=_DISABLED)
            simplified = read_graph(output).load() if ok else None
    if not ok:
        raise RuntimeError("its own check of the outputs failed")
    return simplified


def _restore_io(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Restore declared shapes, as onnxsim may drop names of axes, and metadata, to which it adds its own."""
    refill(after.metadata_props, before.metadata_props)
    stored = {tensor.name for tensor in after.graph.initializer}
    declared = {value.name: value for value in (*before.graph.output, *before.graph.input)}
    for value in (*after.graph.input, *after.graph.output):
        if value.name in declared and value.name not in stored:
            value.CopyFrom(declared[value.name])


def _same_io(before: ModelIO, after: ModelIO) -> Check:
    name = "same inputs, outputs and dynamic axes"
    for kind in ("inputs", "outputs"):
        old = {tensor.name: tensor for tensor in getattr(before, kind)}
        new = {tensor.name: tensor for tensor in getattr(after, kind)}
        for tensor in old.values():
            if tensor.name not in new:
                return Check(name, False, f"{kind[:-1]} {tensor.name!r} was lost")
            if new[tensor.name] != tensor:
                return Check(name, False, f"{tensor} became {new[tensor.name]}")
        if list(old) != list(new):
            return Check(name, False, f"{kind} are now {', '.join(new)}")
    return Check(name, True, f"{len(before.inputs)} in, {len(before.outputs)} out")


_LAYOUT_OPERATORS = frozenset(["Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"])


def simplify_attention(graph: Graph) -> dict[str, int]:
    """Rewrite the graph in place; return name of each rewrite to the number of its matches."""
    store_constants(graph.model.graph)
    graph.edited()
    counts = {
        "guard dropped": _drop_guards(graph),
        "transpositions merged": _merge_transpositions(graph),
        "scale folded into weights": _fold_scales(graph),
    }
    drop_unused_initializers(graph.model.graph)
    graph.edited()
    return {name: count for name, count in counts.items() if count}


def _drop_guards(graph: Graph) -> int:
    """Where(IsNaN(s), 0, s)  becomes  s, if s is a Softmax of scores without an infinite mask.

    The guard is for rows masked entirely by -inf. With finite masks, e.g. -3.4e38, the Softmax of a masked
    row is uniform, and the guard could only hide a NaN from elsewhere.
    """
    count = 0
    for node in [node for node in graph.model.graph.node if node.op_type == "Where"]:
        is_nan, softmax = graph.producers.get(node.input[0]), graph.producers.get(node.input[2])
        if is_nan is None or softmax is None or (is_nan.op_type, softmax.op_type) != ("IsNaN", "Softmax"):
            continue
        zero = node.input[1] in graph.stored and not tensor_values(graph.stored[node.input[1]]).any()
        private = graph.is_private(is_nan.output[0]) and node.output[0] not in graph.pinned
        same = is_nan.input[0] == node.input[2]
        if same and zero and private and _is_bounded(softmax.input[0], graph):
            graph.replace_uses(node.output[0], node.input[2])
            graph.remove(node, is_nan)
            count += 1
    return count


def _is_bounded(name: str, graph: Graph) -> bool:
    """Return whether a tensor consists only of matrix products and finite masks."""
    if name in graph.stored:
        return bool(np.isfinite(tensor_values(graph.stored[name])).all())
    node = graph.producers.get(name)
    if node is None:
        return False  # a model input may be infinite
    if node.op_type in ("Add", "Sub", "Where"):
        return all(_is_bounded(operand, graph) for operand in node.input[node.op_type == "Where" :])
    if node.op_type in ("Mul", "Div"):
        factor = tensor_values(graph.stored[node.input[1]]) if node.input[1] in graph.stored else np.zeros(1)
        return bool((np.isfinite(factor) & (factor != 0)).all()) and _is_bounded(node.input[0], graph)
    if node.op_type in ("Expand", "Unsqueeze", "Reshape"):
        return _is_bounded(node.input[0], graph)
    return bool(node.op_type == "MatMul")


def _merge_transpositions(graph: Graph) -> int:
    """Transpose, Reshape to 3 axes, Transpose, Reshape to 4  become  one Transpose.

    [b, s, h, d] ─ [b, h, s, d] ─ [b·h, s, d] ─ [b·h, d, s] ─ [b, h, d, s]
    """
    count = 0
    for last in [node for node in graph.model.graph.node if node.op_type == "Reshape"]:
        nodes = [last]
        for operator in ("Transpose", "Reshape", "Transpose"):
            node = graph.producers.get(nodes[-1].input[0])
            if node is not None and node.op_type == operator and node.output[0] not in graph.pinned:
                nodes.append(node)
        if len(nodes) < 4:
            continue
        _, inner, merge, first = nodes
        private = graph.is_private(inner.output[0]) and graph.is_private(merge.output[0])
        if not private or (attribute(first, "perm"), attribute(inner, "perm")) != ([0, 2, 1, 3], [0, 2, 1]):
            continue
        start, merged, end = (graph.shapes.get(node.output[0], ()) for node in (first, merge, last))
        if (len(start), len(merged), len(end)) != (4, 3, 4):
            continue
        extents = (*start[1:], *merged[1:], *end[1:])
        if not all(isinstance(extent, int) for extent in extents):
            continue  # only the batch may be dynamic: otherwise the reshapes are ambiguous
        if merged[1:] != start[2:] or end[1:] != (start[1], start[3], start[2]):
            continue
        last.op_type = "Transpose"
        del last.attribute[:]
        graph.set_inputs(last, first.input[0])
        last.attribute.extend(first.attribute)
        last.attribute[0].ints[:] = [0, 2, 3, 1]
        graph.remove(inner, merge)
        if not graph.consumers[first.output[0]]:
            graph.remove(first)
        count += 1
    return count


def _fold_scales(graph: Graph) -> int:
    """Mul(layout(x·w + b), c)  becomes  layout(x·(c·w) + c·b), for a scalar c and layout operators."""
    count = 0
    for node in [node for node in graph.model.graph.node if node.op_type == "Mul"]:
        factors = [
            name
            for name in node.input
            if name in graph.stored and tensor_values(graph.stored[name]).size == 1
        ]
        values = [name for name in node.input if name not in graph.stored]
        if len(factors) != 1 or len(values) != 1 or node.output[0] in graph.pinned:
            continue
        if len(graph.stored[factors[0]].dims) > len(graph.shapes.get(values[0], ())):
            continue  # the factor adds axes
        constants = _constants_before(values[0], graph)
        if not constants or not all(graph.is_private(name) for name in constants):
            continue
        factor = tensor_values(graph.stored[factors[0]]).reshape(())
        for name in constants:
            set_values(graph.stored[name], tensor_values(graph.stored[name]) * factor)
        graph.replace_uses(node.output[0], values[0])
        graph.remove(node)
        count += 1
    return count


def _constants_before(name: str, graph: Graph) -> list[str]:
    """Return the weight and bias that can absorb a factor on a tensor; empty if none can."""
    biases: list[str] = []
    while graph.is_private(name) and (node := graph.producers.get(name)) is not None:
        constant = [operand in graph.stored for operand in node.input]
        if node.op_type in _LAYOUT_OPERATORS:
            name = node.input[0]
        elif node.op_type == "Add" and not biases and sum(constant) == 1:
            biases.append(node.input[constant.index(True)])
            name = node.input[constant.index(False)]
        elif node.op_type in ("MatMul", "Gemm") and not constant[0] and all(constant[1:]):
            return [*biases, *node.input[1:]]
        else:
            break
    return []


_GLOBAL_POOLS = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}


def pool_globally(graph: Graph) -> int:
    """Replace pools with one window over the whole image by global pools, in place; return their number.

    EfficientNet of transformers pools 7 x 7 with a window of 1280 x 1280, which TensorRT refuses. Without
    padding the part of the window beyond the image has no effect.
    """
    count = 0
    for node in graph.model.graph.node:
        if node.op_type not in _GLOBAL_POOLS or len(node.output) != 1 or any(attribute(node, "pads", [])):
            continue
        window = attribute(node, "kernel_shape")
        image, result = (graph.shapes.get(name, ())[2:] for name in (node.input[0], node.output[0]))
        if (
            len(image) == len(window)
            and {*result} == {1}
            and all(
                isinstance(extent, int) and size >= extent for size, extent in zip(window, image, strict=True)
            )
        ):
            node.op_type = _GLOBAL_POOLS[node.op_type]
            del node.attribute[:]
            count += 1
    return count
