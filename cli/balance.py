"""`qcompile balance`."""

from __future__ import annotations

from ..spec.models import BalanceCommand
from .present import present_artifact
from .session import Session
from .verb import verb


@verb(
    BalanceCommand,
    "qcompile balance model.onnx -o model.even.onnx --data data.py:calibration",
    "qcompile calibrate model.even.onnx -o model.ranges --data data.py:calibration",
)
def balance(session: Session, given: BalanceCommand) -> None:
    """Print what was equalized, smoothed and left alone."""
    from ..compiler.quantize.balance.balance import balance as balance_model

    artifact = balance_model(
        given.model, given.output, data=given.data, samples=given.samples, progress=session.progress
    )
    proof = artifact.manifest.proof
    smoothed, left = proof.get("smoothed", {}), proof.get("left alone", {})
    assert isinstance(smoothed, dict), "the manifest's own form"
    assert isinstance(left, dict), "the manifest's own form"
    counts = {"equalized pairs": proof["equalized pairs"], "smoothed": len(smoothed), "left alone": len(left)}
    lines = [", ".join(f"{name}: {count}" for name, count in counts.items())]
    lines += [f"smoothed: {name} ({how})" for name, how in smoothed.items()]
    lines += [f"left alone: {name} ({reason})" for name, reason in left.items()]
    present_artifact(session, artifact, *lines)
