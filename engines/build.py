"""Build an artifact with an engine, and prove that it is what was asked for."""

from __future__ import annotations

from pathlib import Path

from ..artifact import Artifact, Manifest, commit, tool_versions, write_text, writing
from ..errors import EngineUnavailable, IntentNotReached, InvalidOption
from ..model.multiply_adds import multiply_adds, named, shares
from ..model.onnx_file import load_onnx
from ..model.source import digest_source, parse_source
from ..model.weightless import fingerprint
from .base import BuildRequest, Engine
from .registry import engine
from .weigh import Weighed, weigh


def build_engine(
    target: str,
    request: BuildRequest,
    *,
    allow_fallback: bool = False,
    strict: bool = False,
    calibration_cache: Path | None = None,
) -> Artifact:
    """Build with the engine `target` from a graph that has the right precision already.

    Args:
        target: Name of the engine.
        request: What to build; its `output` is the final path.
        allow_fallback: Hand the artifact out although its precision was not reached, with a warning.
        strict: Fail where one planned layer missed the precision, however small its share is.
        calibration_cache: Where to write what the engine's own calibrator found.

    Returns:
        The artifact and its manifest.

    Raises:
        EngineUnavailable: If the engine cannot build here, with the reason.
        IntentNotReached: If what came out is not what was asked for.
        BuildError: If the runtime refuses the model.
    """
    chosen = require_builder(target)
    _check_use(chosen, request)
    final = Path(request.output)
    with writing(final) as path:
        outcome = chosen.build(_at(request, path))
        weighed = weigh(request.precision, outcome, _multiply_adds(chosen, request.model), strict=strict)
        if weighed.failure and not allow_fallback:
            raise IntentNotReached(
                f"{request.source or request.model} for {target}: {weighed.failure}",
                hint=_way_out(weighed),
                proof={**outcome.proof, **weighed.proof},
            )
        warnings = [
            *request.warnings,
            *outcome.warnings,
            *_left_out(request),
            *filter(None, [weighed.failure]),
            *weighed.warnings,
        ]
        manifest = commit(
            path,
            Manifest(
                kind=outcome.kind,
                stage="build",
                target=target,
                precision=request.precision,
                io=outcome.io,
                sources={
                    "model": _digest(request.source or request.model),
                    "graph": _digest(request.model),
                },
                tools={**tool_versions(*outcome.packages), **outcome.versions},
                device=outcome.device,
                options={
                    "min_shapes": {k: list(v) for k, v in request.min_shapes.items()},
                    "opt_shapes": {k: list(v) for k, v in request.opt_shapes.items()},
                    "max_shapes": {k: list(v) for k, v in request.max_shapes.items()},
                    "gpus": list(request.gpus),
                    "rest": request.rest if request.precision in ("int8", "fp8") else "",
                    **({"tf32": True} if request.tf32 else {}),
                    **request.graph_options,
                    **({"layers": dict(request.layers)} if request.layers else {}),
                    **(request.options.as_json() if request.options else {}),
                },
                proof={
                    **outcome.proof,
                    **weighed.proof,
                    "left_in_float": dict(request.left_in_float),
                    "planned_in_precision": outcome.planned,
                    "reached_in_precision": outcome.reached,
                },
                checks=outcome.checks,
                warnings=warnings,
            ),
        )
    if calibration_cache is not None:
        write_text(calibration_cache, outcome.calibration_cache.decode())
    return Artifact(final, manifest)


def plan_engine(target: str, request: BuildRequest) -> dict[str, object]:
    """Check everything that `build_engine` would, and return what it would build.

    Raises:
        InvalidOption, EngineUnavailable, UnsupportedOperator: As `build_engine`.
    """
    chosen = require_builder(target)
    _check_use(chosen, request)
    return {"target": target, "precision": request.precision, **chosen.plan(request)}


def _check_use(chosen: Engine, request: BuildRequest) -> None:
    """Refuse what means nothing to an engine."""
    given = {
        "`gpus`": bool(request.gpus),
        "`min_shapes`": bool(request.min_shapes),
        "`opt_shapes`": bool(request.opt_shapes),
        "`max_shapes`": bool(request.max_shapes),
        "TensorRT's options": request.options is not None and bool(request.options.as_json()),
    }
    for option, present in given.items():
        if present and not chosen.takes_profiles:
            raise InvalidOption(f"{option}: target {chosen.name} has no use for it", hint="leave it out")


def require_builder(target: str) -> Engine:
    """Return an engine that can build here.

    Raises:
        EngineUnavailable: With the reason and the way out.
    """
    chosen = engine(target)
    reason = chosen.why_not_build()
    if reason:
        raise EngineUnavailable(
            f"target {target} cannot build here: {reason}",
            hint=chosen.fix(),
            engine=target,
            reason=reason,
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


def _way_out(weighed: Weighed) -> str:
    if weighed.proof.get("missed"):
        return (
            "leave the layers that missed in float (`exclude` in quantize, or `layers` NAME=fp32), choose "
            "another precision or target, or give `allow_fallback`"
        )
    return "choose another precision or target, or give `allow_fallback`"


def _digest(model: str) -> str:
    source = parse_source(model)
    return fingerprint(source.file) if source.kind == "onnx" else digest_source(source)


def _at(request: BuildRequest, path: Path) -> BuildRequest:
    from dataclasses import replace

    return replace(request, output=path)
