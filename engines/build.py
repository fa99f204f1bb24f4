"""Build an artifact with an engine, and prove its precision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..artifact import Artifact, Manifest, commit, tool_versions
from ..errors import BuildError, EngineUnavailable, IntentNotReached
from ..files import write_text, writing
from ..model.multiply_adds import multiply_adds, named, shares
from ..model.onnx_file import load_onnx
from ..model.source import digest_source, parse_source
from ..model.weightless import fingerprint
from ..spec.decode import changed
from .base import BuildOutcome, BuildRequest, Engine
from .registry import engine
from .weigh import Weighed, weigh

_OWN_FIELDS = ("target", "precision")
"""Options that a manifest has fields of its own for."""


def build_engine(request: BuildRequest) -> Artifact:
    """Build from a graph that has the right precision already.

    Returns:
        The artifact and its manifest.
    """
    spec = request.spec
    chosen = require_builder(spec.target)
    chosen.check(spec)
    final = Path(request.output)
    with writing(final) as path:
        outcome = _build(chosen, request, path)
        weighed = weigh(request.precision, outcome, _multiply_adds(chosen, request.model), strict=spec.strict)
        failure = weighed.failure or outcome.failure
        manifest = _manifest(request, outcome, weighed)
        if spec.calibration_cache is not None:
            write_text(spec.calibration_cache, outcome.calibration_cache.decode())
        if failure and not spec.allow_fallback:
            kept = keep_rejected(path, final, manifest) if chosen.keeps_rejected else ""
            raise IntentNotReached(
                f"{request.source or request.model} for {spec.target}: {failure}",
                hint=_way_out(weighed, outcome) + kept,
                proof={**outcome.proof, **weighed.proof},
            )
        manifest = commit(path, manifest)
    return Artifact(final, manifest)


def _build(chosen: Engine, request: BuildRequest, path: Path) -> BuildOutcome:
    """What the engine makes; where it fails after it has written, that is kept, if it keeps such."""
    try:
        return chosen.build(replace(request, output=path))
    except BuildError as error:
        if chosen.keeps_rejected and path.is_file():
            kept = keep_rejected(path, Path(request.output), None)
            error.hint = error.hint + kept if error.hint else kept.removeprefix("; ")
        raise


def keep_rejected(path: Path, final: Path, manifest: Manifest | None) -> str:
    """Move an artifact that is not what was asked for to a name of its own; return that as words for a hint.

    Its build may have taken an hour: it can still be run, measured and looked into.
    """
    rejected = final.with_name(f"{final.stem}.rejected{final.suffix}")
    with writing(rejected) as kept:
        path.replace(kept)
        if manifest is not None:
            commit(kept, manifest)
    return f"; what was built is kept as {rejected.name}"


def _manifest(request: BuildRequest, outcome: BuildOutcome, weighed: Weighed) -> Manifest:
    spec = request.spec
    return Manifest(
        kind=outcome.kind,
        stage="build",
        target=spec.target,
        precision=request.precision,
        io=outcome.io,
        sources={"model": _digest(request.source or request.model), "graph": _digest(request.model)},
        tools={**tool_versions(*outcome.packages), **outcome.versions},
        device=outcome.device,
        options={**changed(spec, without=_OWN_FIELDS), **({"tf32": True} if request.tf32 else {})},
        proof={
            **outcome.proof,
            **weighed.proof,
            "left_in_float": dict(request.left_in_float),
            **({"worked_around": dict(request.worked_around)} if request.worked_around else {}),
            "planned_in_precision": outcome.planned,
            "reached_in_precision": outcome.reached,
        },
        checks=outcome.checks,
        warnings=[
            *request.warnings,
            *outcome.warnings,
            *_left_out(request),
            *filter(None, [weighed.failure, outcome.failure]),
            *weighed.warnings,
        ],
    )


def plan_engine(request: BuildRequest) -> dict[str, object]:
    """Check everything that `build_engine` would, and return what it would build."""
    spec = request.spec
    chosen = require_builder(spec.target)
    chosen.check(spec)
    return {"target": spec.target, "precision": request.precision, **chosen.plan(request)}


def require_builder(target: str) -> Engine:
    """Return an engine that can build here."""
    chosen = engine(target)
    reason = chosen.why_not_build()
    if reason:
        raise EngineUnavailable(
            f"target {target} cannot build here: {reason}", hint=chosen.fix(), engine=target, reason=reason
        )
    return chosen


def _multiply_adds(chosen: Engine, model: str) -> dict[str, int]:
    """Node name to its multiply-adds, where there is a graph to count them in."""
    if chosen.takes != "onnx":
        return {}
    return multiply_adds(load_onnx(Path(model), external_data=False))


def _left_out(request: BuildRequest) -> list[str]:
    """What was taken out of the plan, because the runtime was asked and computes it in float."""
    left = request.left_in_float
    if not left:
        return []
    share, counted = shares(
        [*left, *(name for name in request.planned if name not in left)],
        multiply_adds(load_onnx(Path(request.model), external_data=False)),
    )
    total = sum(share[name] for name in left)
    return [
        f"{len(left)} of {len(share)} layers stay in float, {total:.1%} of their {counted}: "
        f"{named(left, share)}"
    ]


def _way_out(weighed: Weighed, outcome: BuildOutcome) -> str:
    if not weighed.failure:
        return outcome.hint or (
            "keep layers in float32 (`layers` NAME=fp32), choose another precision, or give `allow_fallback`"
        )
    if weighed.proof.get("missed"):
        return (
            "leave the layers that missed in float (`exclude` in quantize, or `layers` NAME=fp32), choose "
            "another precision or target, or give `allow_fallback`"
        )
    return "choose another precision or target, or give `allow_fallback`"


def _digest(model: str) -> str:
    source = parse_source(model)
    return fingerprint(source.file) if source.kind == "onnx" else digest_source(source)
