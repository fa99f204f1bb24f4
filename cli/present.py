"""How a finished artifact is shown, and what was measured: what it is, what was checked, what to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from ..artifact import Artifact
from ..tensors import ModelIO, format_shape
from .session import Session
from .tables import (
    bytes_text,
    curve_table,
    gpu_table,
    layer_tables,
    noise_lines,
    reasons,
    results_table,
)

if TYPE_CHECKING:
    from ..bench.results.results import Results


def present_artifact(session: Session, artifact: Artifact, *details: str) -> None:
    """Print an artifact's path, size, checks and warnings, or its manifest as JSON."""
    manifest = artifact.manifest
    session.json({"path": str(artifact.path), **manifest.as_json()})
    session.say(f"{artifact.path}  {bytes_text(manifest.size_bytes)}  {manifest.precision}".rstrip())
    if manifest.io is not None:
        present_io(session, manifest.io)
    for detail in details:
        session.say(f"  {detail}")
    for check in manifest.checks:
        session.say(f"  checked: {check.name}: {check.detail}")
    session.warn(manifest.warnings)


def present_io(session: Session, io: ModelIO) -> None:
    """Print a line for each input and output."""
    for word, tensors in (("in ", io.inputs), ("out", io.outputs)):
        for tensor in tensors:
            session.say(f"  {word} {tensor}")


def profile_lines(proof: Mapping[str, Any]) -> list[str]:
    """Say the shapes that an engine takes, each profile as `--profile` spells it."""
    return [
        "profile "
        + ", ".join(
            f"{name}:" + "..".join(format_shape(one[kind]) for kind in ("min", "opt", "max"))
            for name, one in ranges.items()
        )
        for ranges in proof.get("profiles", [])
        if ranges
    ]


def present_results(session: Session, results: Results) -> None:
    """Print the table of a benchmark, its curves, and what to know of them."""
    from ..bench.results.render import warning_lines
    from ..bench.results.row import Curve

    if not session.quiet:
        session.table(results_table(results, width=session.width))
        curves = [curve_table(results, curve) for curve in get_args(Curve)]
        for table in (gpu_table(results), *curves, *layer_tables(results)):
            if table is not None:
                session.table(table)
    for line in reasons(results):
        session.note(line)
    if results.settings.get("metric_note"):
        session.note(f"accuracy is {results.settings['metric_note']}")
    session.warn([*noise_lines(results), *warning_lines(results)])
