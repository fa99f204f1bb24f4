"""`qcompile calibrate`."""

from __future__ import annotations

from ..spec.models import CalibrateCommand
from ..spec.words import GRAPH_TARGETS
from .session import Session
from .tables import present_artifact
from .verb import verb


@verb(
    CalibrateCommand,
    "qcompile calibrate model.onnx --data samples.npz -o model.ranges",
    "qcompile calibrate model.onnx --data data.py:calibration -o model.ranges --method percentile:99.9",
    "qcompile calibrate model.onnx --data images/ -o part2.ranges --shard 2/8",
)
def calibrate(session: Session, given: CalibrateCommand) -> None:
    """Print how many tensors were observed over how many samples."""
    from ..compiler.quantize.calibrate import calibrate as calibrate_model

    artifact = calibrate_model(
        given.model,
        given.data,
        given.output,
        targets=given.targets or GRAPH_TARGETS,
        method=given.method,
        samples=given.samples or None,
        shard=given.shard,
        threads=given.threads,
        resume=given.resume,
        progress=session.progress,
    )
    proof = artifact.manifest.proof
    shared = f", {proof['shared']} more share their ranges" if proof["shared"] else ""
    present_artifact(session, artifact, f"{proof['tensors']} tensors over {proof['samples']} samples{shared}")
