"""`qcompile quantize`."""

from __future__ import annotations

from typing import Any

from ..spec.artifacts import QuantizeCommand
from .session import Session
from .tables import present_artifact
from .verb import verb


@verb(
    QuantizeCommand,
    "qcompile quantize model.onnx -o model.int8.onnx --ranges model.ranges",
    "qcompile quantize model.onnx -o model.trt.onnx --ranges model.ranges --target tensorrt",
    "qcompile quantize model.onnx -o model.dyn.onnx --mode dynamic",
    "qcompile quantize model.onnx -o model.int4.onnx --mode weights --precision int4 --data data.npz "
    "--rounding gptq",
    "qcompile quantize model.onnx -o model.fp16.onnx --precision fp16 --data data.npz",
    "qcompile quantize model.onnx -o mixed.onnx --ranges model.ranges --target tensorrt "
    "--float-precision fp16 --layer '/head/*=fp32'",
)
def quantize(session: Session, given: QuantizeCommand) -> None:
    """Print what was quantized and what was left in floating point."""
    from ..compiler.quantize.quantize import quantize as quantize_model

    artifact = quantize_model(given.model, given.output, given, progress=session.progress)
    present_artifact(
        session, artifact, *_details(artifact.manifest.proof, given.precision, verbose=session.verbose)
    )


def _details(proof: object, precision: str, *, verbose: bool) -> list[str]:
    assert isinstance(proof, dict)
    lines = _searched(proof, verbose=verbose)
    for kind, operators in proof.get("nodes_by_precision", {}).items():
        if operators:
            counts = ", ".join(f"{count} {operator}" for operator, count in operators.items())
            lines.append(f"{kind}: {counts}")
    if "quantized" in proof:
        counts = ", ".join(f"{count} {operator}" for operator, count in proof["quantized"].items())
        lines.append(f"{precision}: {counts}")
    left = proof.get("left_in_float", {})
    lines += [f"left in float: {name} ({reason})" for name, reason in list(left.items())[:10]]
    if len(left) > 10:
        lines.append(f"left in float: {len(left) - 10} more, see the manifest")
    return lines


def _searched(proof: dict[str, Any], *, verbose: bool) -> list[str]:
    """What was tried, and where channels were evened out; each place where that is asked for."""
    lines = [
        f"tried: {one['tried']}: {one['refused'] if 'refused' in one else '{:.1f} dB'.format(one['snr_db'])}"
        for one in proof.get("search", [])
    ]
    smoothed, left = proof.get("smoothed", {}), proof.get("left_alone", {})
    if smoothed:
        lines.append(f"smoothed: {len(smoothed)} tensors, {len(left)} products left alone")
    if verbose:
        lines += [f"smoothed: {name} ({how})" for name, how in smoothed.items()]
        lines += [f"not smoothed: {name} ({reason})" for name, reason in left.items()]
    return lines
