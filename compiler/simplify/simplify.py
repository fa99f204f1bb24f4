"""`qcompile simplify`: fewer nodes, the same model.

onnxsim folds constants, fuses BatchNormalization into Conv and drops what does nothing. Three rewrites of
attention, which change values by rounding at most, take out what exporters leave there: scales,
transpositions and a guard, which stand between quantized products. The result is taken only if no input,
output or dynamic axis changed and the outputs are equal.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ...artifact import Artifact, Check, carried_isa, commit
from ...errors import EngineUnavailable, first_line
from ...files import held_folder, writing
from ...files.storage import hidden_storage_error
from ...machine_memory import out_of_memory
from ...model.graph import (
    ONNX_DOMAINS,
    attribute,
    captured_names,
    consumers,
    infer_shapes,
    producers,
    tensor_values,
)
from ...model.graph_edits import drop_unused_initializers, refill, set_values, store_constants
from ...model.onnx_file import check_onnx, count_operators, is_large, model_io, opset, save_onnx
from ...model.onnx_graph import read_graph
from ...progress import Progress, quiet, silent
from ...spec.decode import spec_from_call
from ...spec.models import SimplifySpec
from ...tensors import Feeds, ModelIO
from ..check import OnnxReference, compare_outputs, graph_manifest, sample_feeds

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import SimplifyKeywords


_FOREIGN = ["fuse_attention", "fuse_gqa"]
"""Passes of onnxsim that write `com.microsoft.Attention` and its kin, which only ONNX Runtime knows."""


def simplify(
    model: str | Path,
    output: str | Path,
    spec: SimplifySpec | None = None,
    /,
    *,
    progress: Progress = silent,
    **options: Unpack[SimplifyKeywords],
) -> Artifact:
    """Simplify an ONNX file; where that fails or changes the model, keep it as it is, with a warning.

    Args:
        model: ONNX file.
        output: ONNX file to write.
        spec: How.
        progress: Told of every step.
        options: Fields of `SimplifySpec` by name, in place of those of `spec`.

    Returns:
        The file and its manifest; `proof["removed"]` counts nodes by type, `warnings` say why the model
        was left as it is.

    Raises:
        ModelError: If the given model itself is damaged.
        DataError: If the data does not fit the model.
    """
    model, output, spec = Path(model), Path(output), spec_from_call(SimplifySpec, spec, options)
    graph = read_graph(model)
    before = graph.load()
    check_onnx(model)
    reference = OnnxReference(graph)
    feeds = list(sample_feeds(before, spec.data, reference))
    expected = [reference(item) for item in feeds]
    progress("simplify")
    with writing(output) as path:
        after, checks, problem = _attempt(model, before, path, feeds, expected, reference.names)
        if after is None:
            after = before
            save_onnx(before, path)
        old, new = Counter(count_operators(before)), Counter(count_operators(after))
        new.subtract(old)
        # Operator to number of nodes that went, negative where some came.
        removed = {name: -count for name, count in sorted(new.items(), key=lambda item: item[::-1]) if count}
        counts = {"nodes_before": old.total(), "nodes_after": old.total() + new.total()}
        manifest = graph_manifest(
            "simplify", after, "onnx onnxsim onnxruntime", {"opset": opset(after), **carried_isa(model)},
            sources={"model": graph.digest()}, proof={**counts, "removed": removed}, checks=checks,
            warnings=[f"{problem}; the model was left as it is"] * bool(problem),
        )  # fmt: skip
        return Artifact(output, commit(path, manifest))


def _attempt(
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
        simplify_attention(after)
        pool_globally(after)
        _restore_io(before, after)
        save_onnx(after, path)
        check_onnx(path)
        known, made = (
            {(node.domain, node.op_type) for node in graph.node} for graph in (before.graph, after.graph)
        )
        foreign = [f"{domain}.{name}" for domain, name in sorted(made - known) if domain not in ONNX_DOMAINS]
        if foreign:  # a simplified file is for every runtime
            raise RuntimeError(f"it wrote {', '.join(foreign)}")
        same_io = _same_io(model_io(before), model_io(after))
        outputs = map(OnnxReference(path), feeds) if same_io.passed else ()
        pairs = list(zip(expected, outputs, strict=False))
    except EngineUnavailable:
        raise
    except Exception as error:  # onnxsim fails in many ways; every one of them leaves the model whole
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
    """Over 2 GB onnxsim works from file to file, and leaves files of its own behind."""
    try:
        import onnxsim
    except ImportError as error:
        raise EngineUnavailable(
            f"simplify needs onnxsim, which cannot be imported ({error})",
            hint="pip install 'qcompile[cpu]'",
            engine="onnxsim",
        ) from error
    if not is_large(model):
        with quiet():
            simplified, ok = onnxsim.simplify(model, skipped_optimizers=_FOREIGN)
    else:
        with held_folder(folder, "simplify") as scratch:
            output = scratch / file.name
            with quiet():
                _, ok = onnxsim.simplify(str(file), output_path=str(output), skipped_optimizers=_FOREIGN)
            simplified = read_graph(output).load() if ok else None
    if not ok:
        raise RuntimeError("its own check of the outputs failed")
    return simplified


def _restore_io(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Restore declared shapes, whose names of axes may have gone, and the metadata, now onnxsim's diary."""
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


_MOVERS = frozenset(["Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"])


def simplify_attention(model: onnx.ModelProto) -> dict[str, int]:
    """Rewrite the graph in place; return name of each rewrite to how often it was done."""
    store_constants(model.graph)
    done = {
        "guard dropped": _drop_guards(_View(model.graph)),
        "transpositions merged": _merge_transpositions(_View(model.graph), infer_shapes(model)),
        "scale folded into weights": _fold_scales(_View(model.graph)),
    }
    drop_unused_initializers(model.graph)
    return {name: count for name, count in done.items() if count}


class _View:
    """A graph with what the rewrites ask of it; `made_by` and `readers` follow `drop` and `replace`."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.made_by, self.readers = producers(graph), consumers(graph)
        self.stored = {tensor.name: tensor for tensor in graph.initializer}
        self.kept = {value.name for value in graph.output}
        self.kept |= {name for node in graph.node for name in captured_names(node)}

    def value(self, name: str) -> NDArray[Any]:
        return tensor_values(self.stored[name])

    def is_private(self, name: str) -> bool:
        """Whether one node alone reads a tensor."""
        return name not in self.kept and len(self.readers.get(name, ())) == 1

    def replace(self, name: str, by: str) -> None:
        for node in self.readers.pop(name, ()):
            for index, operand in enumerate(node.input):
                if operand == name:
                    node.input[index] = by
            self.readers.setdefault(by, []).append(node)

    def drop(self, *nodes: onnx.NodeProto) -> None:
        for node in nodes:
            self.graph.node.remove(node)
            for name in dict.fromkeys(node.input):
                self.readers[name] = [reader for reader in self.readers[name] if reader is not node]


def _drop_guards(view: _View) -> int:
    """Where(IsNaN(s), 0, s)  becomes  s, if s is a Softmax of scores to which no mask adds an infinity.

    The guard is for rows that are masked by -inf as a whole. Where masks are finite, as -3.4e38, such a
    row is uniform, and only a NaN from elsewhere would be hidden.
    """
    done = 0
    for node in [node for node in view.graph.node if node.op_type == "Where"]:
        test, softmax = view.made_by.get(node.input[0]), view.made_by.get(node.input[2])
        if test is None or softmax is None or (test.op_type, softmax.op_type) != ("IsNaN", "Softmax"):
            continue
        zero = node.input[1] in view.stored and not view.value(node.input[1]).any()
        private = view.is_private(test.output[0]) and node.output[0] not in view.kept
        same = test.input[0] == node.input[2]
        if same and zero and private and _is_bounded(softmax.input[0], view):
            view.replace(node.output[0], node.input[2])
            view.drop(node, test)
            done += 1
    return done


def _is_bounded(name: str, view: _View) -> bool:
    """Whether a tensor holds products, and masks without an infinity, alone."""
    if name in view.stored:
        return bool(np.isfinite(view.value(name)).all())
    node = view.made_by.get(name)
    if node is None:
        return False  # an input of the model may hold anything
    if node.op_type in ("Add", "Sub", "Where"):
        return all(_is_bounded(operand, view) for operand in node.input[node.op_type == "Where" :])
    if node.op_type in ("Mul", "Div"):
        factor = view.value(node.input[1]) if node.input[1] in view.stored else np.zeros(1)
        return bool((np.isfinite(factor) & (factor != 0)).all()) and _is_bounded(node.input[0], view)
    if node.op_type in ("Expand", "Unsqueeze", "Reshape"):
        return _is_bounded(node.input[0], view)
    return bool(node.op_type == "MatMul")


def _merge_transpositions(view: _View, shapes: dict[str, tuple[int | str, ...]]) -> int:
    """Transpose, Reshape to 3 axes, Transpose, Reshape to 4  become  one Transpose.

    [b, s, h, d] ─ [b, h, s, d] ─ [b·h, s, d] ─ [b·h, d, s] ─ [b, h, d, s]
    """
    done = 0
    for last in [node for node in view.graph.node if node.op_type == "Reshape"]:
        nodes = [last]
        for operator in ("Transpose", "Reshape", "Transpose"):
            node = view.made_by.get(nodes[-1].input[0])
            if node is not None and node.op_type == operator and node.output[0] not in view.kept:
                nodes.append(node)
        if len(nodes) < 4:
            continue
        _, inner, merge, first = nodes
        private = view.is_private(inner.output[0]) and view.is_private(merge.output[0])
        if not private or (attribute(first, "perm"), attribute(inner, "perm")) != ([0, 2, 1, 3], [0, 2, 1]):
            continue
        start, merged, end = (shapes.get(node.output[0], ()) for node in (first, merge, last))
        if (len(start), len(merged), len(end)) != (4, 3, 4):
            continue
        extents = (*start[1:], *merged[1:], *end[1:])
        if not all(isinstance(extent, int) for extent in extents):
            continue  # only the batch may be unknown: then the reshapes can mean nothing else
        if merged[1:] != start[2:] or end[1:] != (start[1], start[3], start[2]):
            continue
        last.op_type = "Transpose"
        del last.attribute[:], last.input[1:]
        last.input[0] = first.input[0]
        last.attribute.extend(first.attribute)
        last.attribute[0].ints[:] = [0, 2, 3, 1]
        view.drop(inner, merge)
        if not view.readers[first.output[0]]:
            view.drop(first)
        done += 1
    return done


def _fold_scales(view: _View) -> int:
    """Mul(movers(x·w + b), c)  becomes  movers(x·(c·w) + c·b), for one number c."""
    done = 0
    for node in [node for node in view.graph.node if node.op_type == "Mul"]:
        factors = [name for name in node.input if name in view.stored and view.value(name).size == 1]
        values = [name for name in node.input if name not in view.stored]
        if len(factors) != 1 or len(values) != 1 or node.output[0] in view.kept:
            continue
        constants = _constants_before(values[0], view)
        if not constants or not all(view.is_private(name) for name in constants):
            continue
        factor = view.value(factors[0]).reshape(())
        for name in constants:
            set_values(view.stored[name], view.value(name) * factor)
        view.replace(node.output[0], values[0])
        view.drop(node)
        done += 1
    return done


def _constants_before(name: str, view: _View) -> list[str]:
    """The weight and the bias that a factor on a tensor can move into; empty if it cannot."""
    biases: list[str] = []
    while view.is_private(name) and (node := view.made_by.get(name)) is not None:
        constant = [operand in view.stored for operand in node.input]
        if node.op_type in _MOVERS:
            name = node.input[0]
        elif node.op_type == "Add" and not biases and sum(constant) == 1:
            biases.append(node.input[constant.index(True)])
            name = node.input[constant.index(False)]
        elif node.op_type in ("MatMul", "Gemm") and not constant[0] and all(constant[1:]):
            return [*biases, *node.input[1:]]
        else:
            break
    return []


_GLOBAL = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}


def pool_globally(model: onnx.ModelProto) -> int:
    """Replace pools whose one window covers all of the image, in place; return how many.

    Some networks (EfficientNet of transformers) pool with a window of 1280 x 1280 over 7 x 7, which
    TensorRT refuses; what counts is the image, as nothing is padded.
    """
    shapes = infer_shapes(model)
    done = 0
    for node in model.graph.node:
        if node.op_type not in _GLOBAL or len(node.output) != 1 or any(attribute(node, "pads", [])):
            continue
        window = attribute(node, "kernel_shape")
        image, result = (shapes.get(name, ())[2:] for name in (node.input[0], node.output[0]))
        if (
            len(image) == len(window)
            and {*result} == {1}
            and all(
                isinstance(extent, int) and size >= extent for size, extent in zip(window, image, strict=True)
            )
        ):
            node.op_type = _GLOBAL[node.op_type]
            del node.attribute[:]
            done += 1
    return done
