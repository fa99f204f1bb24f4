"""`qcompile build`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import IntentNotReached
from ..spec.artifacts import BuildCommand
from .session import Session
from .tables import bytes_text, present_artifact, profile_lines
from .verb import verb


@verb(
    BuildCommand,
    "qcompile build model.onnx --target onnxruntime -o model.cpu.onnx",
    "qcompile build model.onnx --target tensorrt-rtx --precision fp16 --gpu sm86,sm89 -o model.engine",
    "qcompile build model.onnx --target tensorrt-rtx --precision int8 --ranges model.ranges "
    "--gpu sm86 -o model.engine",
    "qcompile build model.onnx --target tensorrt --precision int8 --float-precision fp16 "
    "--ranges model.ranges --profile x:1x3x224x224..8x3x224x224..32x3x224x224 -o model.engine",
    "qcompile build model.onnx --target tensorrt --precision int8 --calibrator native "
    "--data data.py:samples -o model.engine",
    "qcompile build model.onnx --target tensorrt-rtx --gpu sm89 --precision best --ranges model.ranges "
    "--dry-run -o model.engine",
    "qcompile build model.py:build --target torchscript --input x:1x3x224x224 -o model.pt",
)
def build(session: Session, given: BuildCommand) -> None:
    """Print what was proven of the artifact."""
    from ..building import build as build_artifact
    from ..building import plan

    if given.dry_run:
        _present_plan(session, plan(given.model, given, progress=session.progress), given.output)
        return
    try:
        artifact = build_artifact(given.model, given.output, given, progress=session.progress)
    except IntentNotReached as error:
        _note_layers(session, error.data.get("proof", {}))
        raise
    _note_layers(session, artifact.manifest.proof)
    proof, asked = artifact.manifest.proof, artifact.manifest.precision
    lines = [
        f"proof: {proof['reached_in_precision']} of {proof['planned_in_precision']} layers that "
        f"compute are {asked}{_unreported(proof)}",
        *profile_lines(proof),
    ]
    if proof.get("engine_layers"):
        lines.append(
            f"engine: {proof['engine_layers']} layers ({proof['fused_layers']} fused), {proof['tactics']} "
            f"tactics, {bytes_text(float(str(proof['device_memory_bytes'])))} of device memory"
        )
    elif artifact.manifest.kind == "engine" and not proof.get("has_run"):
        lines.append("it has not been run: the proof is the types of the network")
    present_artifact(session, artifact, *lines)


def _unreported(proof: Mapping[str, object]) -> str:
    """How many layers the runtime does not report, and what else shows their precision."""
    layers, evidence = proof.get("unreported"), proof.get("evidence")
    if not (isinstance(layers, dict) and layers):
        return ""
    return f", {len(layers)} unreported" + (f" ({evidence})" if evidence else "")


def _note_layers(session: Session, proof: object) -> None:
    """With -v, every layer that missed or is unreported; a message names the largest alone."""
    assert isinstance(proof, Mapping), "a manifest's, or an error's"
    for kind in ("missed", "unreported") if session.verbose else ():
        layers = proof.get(kind)
        for name, about in layers.items() if isinstance(layers, dict) else ():
            session.note(f"{kind}: {name}: {about['share']:.1%}: {about['reason']}")


def _present_plan(session: Session, plan: dict[str, object], output: Path) -> None:
    session.json(plan)
    session.say(f"{output} would be built for {plan['target']}, {plan['precision']}; nothing was written")
    for name, value in plan.items():
        if name not in ("target", "precision") and value not in ({}, [], ""):
            session.say(f"  {name}: {value}")
