"""`qcompile simplify`: fewer nodes, the same model.

onnxsim folds constants, fuses BatchNormalization into Conv and drops what does nothing; `attention` takes
out what exporters leave there. The result is taken only if no input, output or dynamic axis changed and
the outputs are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...artifact import Artifact, Check, Manifest, commit, tool_versions
from ...artifact.int8_isa import carried_isa
from ...errors import EngineUnavailable, first_line
from ...files import held_folder, writing
from ...files.storage import hidden_storage_error
from ...machine_memory import out_of_memory
from ...model.graph import graph_precision
from ...model.onnx_file import check_onnx, count_operators, is_large, load_onnx, model_io, opset, save_onnx
from ...model.weightless import fingerprint
from ...progress import Progress, quiet, silent
from ...tensors import Feeds, ModelIO
from ..check import OnnxReference, compare_outputs, sample_feeds
from .attention import pool_globally, simplify_attention

if TYPE_CHECKING:
    import onnx

_FOREIGN = ["fuse_attention", "fuse_gqa"]
"""Passes of onnxsim that write `com.microsoft.Attention` and its kin, which only ONNX Runtime knows."""


def simplify(
    model: str | Path,
    output: str | Path,
    *,
    data: str | None = None,
    progress: Progress = silent,
) -> Artifact:
    """Simplify an ONNX file; where that fails or changes the model, keep it as it is, with a warning.

    Args:
        model: ONNX file.
        output: ONNX file to write.
        data: Samples to check the outputs on; random input otherwise.
        progress: Told of every step.

    Returns:
        The file and its manifest; `proof["removed"]` counts nodes by type, `warnings` say why the model
        was left as it is.

    Raises:
        ModelError: If the given model itself is damaged.
        DataError: If the data does not fit the model.
    """
    model, output = Path(model), Path(output)
    before = load_onnx(model)
    check_onnx(model)
    reference = OnnxReference(model)
    feeds = list(sample_feeds(before, data, reference))
    expected = [reference(item) for item in feeds]
    progress("simplify")
    with writing(output) as path:
        after, checks, warnings = _attempt(model, before, path, feeds, expected, reference.names)
        if after is None:
            after = before
            save_onnx(before, path)
        manifest = commit(path, _manifest(model, before, after, checks, warnings))
    return Artifact(output, manifest)


def removed_nodes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return operator to number of nodes that went (negative where some came)."""
    difference = {name: before.get(name, 0) - after.get(name, 0) for name in {*before, *after}}
    ordered = sorted(difference.items(), key=lambda item: (-item[1], item[0]))
    return {name: count for name, count in ordered if count}


def _attempt(
    model: Path,
    before: onnx.ModelProto,
    path: Path,
    feeds: list[Feeds],
    expected: list[Any],
    names: list[str],
) -> tuple[onnx.ModelProto | None, list[Check], list[str]]:
    """Return the simplified model written to `path`, or None with the reason as a warning."""
    kept = "the model was left as it is"
    try:
        after = _run_onnxsim(before, model, path.parent)
        simplify_attention(after)
        pool_globally(after)
        restore_io(before, after)
        save_onnx(after, path)
        check_onnx(path)
        _require_own_operators(before, after)
        same_io = _same_io(model_io(before), model_io(after))
        simplified_outputs = [OnnxReference(path)(item) for item in feeds] if same_io.passed else []
    except EngineUnavailable:
        raise
    except Exception as error:  # onnxsim fails in many ways; every one of them leaves the model whole
        if shortage := out_of_memory(error, "simplify"):
            raise shortage from error
        problem = hidden_storage_error(error, path)
        if problem is not None:
            raise problem from error
        return None, [], [f"onnxsim failed ({type(error).__name__}: {first_line(error)}); {kept}"]
    checks = [same_io]
    if same_io.passed:
        pairs = zip(expected, simplified_outputs, strict=True)
        checks.append(compare_outputs("same outputs as before", names, pairs))
    failed = [check for check in checks if not check.passed]
    if failed:
        detail = "; ".join(f"{check.name}: {check.detail}" for check in failed)
        return None, [], [f"onnxsim changed the model ({detail}); {kept}"]
    return after, checks, []


def _run_onnxsim(model: onnx.ModelProto, file: Path, folder: Path) -> onnx.ModelProto:
    """Over 2 GB onnxsim works from file to file, and leaves files of its own behind."""
    onnxsim = _import_onnxsim()
    with ExitStack() as stack:
        options = {"skipped_optimizers": _FOREIGN}
        if is_large(model):
            scratch = stack.enter_context(held_folder(folder, "simplify")) / file.name
            with quiet():
                _, ok = onnxsim.simplify(str(file), output_path=str(scratch), **options)
            simplified = load_onnx(scratch) if ok else None
        else:
            with quiet():
                simplified, ok = onnxsim.simplify(model, **options)
    if not ok:
        raise RuntimeError("its own check of the outputs failed")
    return simplified


def _import_onnxsim() -> Any:
    try:
        import onnxsim
    except ImportError as error:
        raise EngineUnavailable(
            f"simplify needs onnxsim, which cannot be imported ({error})",
            hint="pip install 'qcompile[cpu]'",
            engine="onnxsim",
        ) from error
    return onnxsim


def _require_own_operators(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """A simplified file is for every runtime: no operator of one alone may have come."""
    known = {(node.domain, node.op_type) for node in before.graph.node}
    foreign = {(n.domain, n.op_type) for n in after.graph.node if n.domain not in ("", "ai.onnx")} - known
    if foreign:
        raise RuntimeError(f"it wrote {', '.join(f'{domain}.{name}' for domain, name in sorted(foreign))}")


def restore_io(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Write the declared shapes of inputs and outputs, and the file's notes, back as they were.

    Names of dynamic axes may have gone, and onnxsim writes a diary of its own into the metadata.
    """
    del after.metadata_props[:]
    after.metadata_props.extend(before.metadata_props)
    stored = {tensor.name for tensor in after.graph.initializer}
    for values, originals in (
        (after.graph.input, before.graph.input),
        (after.graph.output, before.graph.output),
    ):
        declared = {value.name: value for value in originals}
        for value in values:
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


def _manifest(
    model: Path,
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    checks: list[Check],
    warnings: list[str],
) -> Manifest:
    counts = count_operators(before), count_operators(after)
    return Manifest(
        kind="onnx",
        stage="simplify",
        precision=graph_precision(after),
        io=model_io(after),
        sources={"model": fingerprint(model)},
        tools=tool_versions("onnx", "onnxsim", "onnxruntime"),
        options={"opset": opset(after), **carried_isa(model)},
        proof={
            "operators": counts[1],
            "nodes_before": sum(counts[0].values()),
            "nodes_after": sum(counts[1].values()),
            "removed": removed_nodes(*counts),
        },
        checks=checks,
        warnings=warnings,
    )
