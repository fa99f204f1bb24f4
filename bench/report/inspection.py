"""`qcompile inspect`: describe an ONNX file, an engine, a TorchScript archive, ranges or results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.artifact import cached_digest, is_manifest, read_manifest, size_bytes, trusting_content
from ...core.files import read_json, require_file, side_files
from ...errors import InvalidOption
from ...model.graph.onnx_file import read_graph
from ...spec.decode import spec_from_call
from ...spec.looking import InspectSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import InspectKeywords

_QUANTIZED = ("int8", "fp8", "nvfp4", "mxfp8")
"""Precisions in which both operands are quantized."""
_BY_SUFFIX = {
    ".onnx": "onnx", ".engine": "engine", ".plan": "engine", ".ranges": "ranges", ".pt": "torchscript",
    ".torchscript": "torchscript", ".pt2": "pt2",
}  # fmt: skip


def inspect(
    path: str | Path, spec: InspectSpec | None = None, /, **options: Unpack[InspectKeywords]
) -> dict[str, Any]:
    """Return the facts about a file, ready for JSON.

    Args:
        path: A file that qcompile writes, or an ONNX file of another tool.
        spec: Options.
        options: Fields of `InspectSpec` by name, in place of those of `spec`.

    Raises:
        MissingFile: If the file does not exist.
        ModelError, CalibrationError, ArtifactError: If the file is damaged.
        InvalidOption: If `inspect` does not support this type of file.
    """
    path, spec = require_file(Path(path)), spec_from_call(InspectSpec, spec, options)
    kind = _kind(path)
    facts: dict[str, Any] = {"file": str(path), "kind": kind, "size_bytes": size_bytes(path)}
    if kind == "results":
        from ..results.results import load_results

        return facts | {"results": load_results(path).as_json()}
    manifest = read_manifest(path)
    if manifest:
        facts["manifest"] = manifest.as_json()
        facts["digest"] = cached_digest([path, *side_files(path)])
        facts["matches_manifest"] = facts["digest"] == manifest.digest
    with trusting_content(path):  # inspect a changed file, too: `matches_manifest` reports the change
        if kind == "onnx":
            facts |= _onnx(path, spec.precision if spec.nodes else "")
        elif kind == "ranges":
            facts |= _ranges(path)
    return facts


def _kind(path: Path) -> str:
    if path.suffix in _BY_SUFFIX:
        return _BY_SUFFIX[path.suffix]
    if path.suffix == ".json":
        value = read_json(path, what="results")
        kind = value.get("kind") if isinstance(value, dict) else ""
        if kind == "qcompile.results":
            return "results"
        if is_manifest(path):
            raise InvalidOption(
                f"{path}: is a manifest; the artifact beside it is required",
                hint=f"inspect {path.with_name(path.name.removesuffix('.json'))}",
            )
        if kind == "qcompile.layers":
            raise InvalidOption(
                f"{path}: holds layers that `qcompile diff` compared; an artifact or results are required",
                hint="qcompile report shows it with `layers`, beside results",
            )
    if path.suffix == ".cache":
        raise InvalidOption(
            f"{path}: is a calibration cache of TensorRT; an artifact or results are required",
            hint="qcompile quantize takes it as `ranges`; it is a text file",
        )
    raise InvalidOption(
        f"{path}: unknown file type; required: .onnx, .engine, .ranges, .pt (TorchScript) or .json (results)"
    )


def _onnx(path: Path, tensor_core_precision: str) -> dict[str, Any]:
    from ...model.graph import graph
    from ...model.graph.multiply_adds import tensor_core_advice

    model = read_graph(path).load()
    by_precision = graph.count_weighted(model)
    total = sum(sum(kinds.values()) for kinds in by_precision.values())
    quantized = sum(sum(by_precision.get(kind, {}).values()) for kind in _QUANTIZED)
    facts: dict[str, Any] = {
        "opset": graph.opset(model),
        "ir_version": model.ir_version,
        "producer": " ".join(filter(None, (model.producer_name, model.producer_version))),
        "io": graph.model_io(model).as_json(),
        "operators": graph.count_operators(model),
        "precision": graph.graph_precision(model),
        "weighted_by_precision": by_precision,
        "quantized_share": quantized / total if total else 0.0,
    }
    if tensor_core_precision:
        advice = tensor_core_advice(model, tensor_core_precision)
        names = {node.name: kind for kind, of_kind in graph.weighted_nodes(model).items() for node in of_kind}
        facts["nodes"] = [
            {
                "name": node.name,
                "operator": node.op_type,
                "precision": names.get(node.name, ""),
                "tensor_cores": advice.get(node.name, ""),
            }
            for node in model.graph.node
        ]
    return facts


def _ranges(path: Path) -> dict[str, Any]:
    from ...calibration import load_ranges

    ranges = load_ranges(path)
    return {
        "model": ranges.model,
        "samples": ranges.samples,
        "method": str(ranges.method),
        "data": ranges.data,
        "tensors": len(ranges.histograms),
        "shared": len(ranges.shared),
        "skipped": dict(ranges.skipped),
    }
