"""A built engine is run once, where it can be, and its outputs are held against ONNX Runtime's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...artifact import Check
from ...errors import BuildError, EngineUnavailable, QCompileError
from ...model.input_domain import read_domains
from ...model.output_error import output_error
from ...model.random_input import random_feeds
from ...model.session import make_session, run_session, session_options
from ...model.weightless import read_weightless
from ...tensors import Feeds, ModelIO
from ..base import BuildOutcome, BuildRequest, Runner

if TYPE_CHECKING:
    from collections.abc import Callable

_POOR_DB = 10.0
_HINT = "keep the layers concerned in float32: `layers` 'NAME=fp32'"


def verified(outcome: BuildOutcome, request: BuildRequest, open_runner: Callable[[], Runner]) -> BuildOutcome:
    """Return the outcome with what a run of the engine showed; with the reason where it could not be run.

    Args:
        outcome: Of a build on this machine's GPU.
        request: What was built.
        open_runner: Loads the engine.

    Raises:
        BuildError: If the engine computes NaN or infinity where ONNX Runtime does not, or cannot be run
            although its runtime works here.
    """
    if request.options is not None and request.options.strip_weights:
        return _not_run(outcome, "it is stored without weights")
    if request.options is not None and any(kind for _, kind in request.options.tensor_formats.values()):
        return _not_run(outcome, "its inputs or outputs are in a memory format of their own")
    shapes, values = _opt_shapes(outcome)
    domains = read_domains(read_weightless(Path(request.model)).model)
    feeds = {**random_feeds(outcome.io.inputs, shapes=shapes, domains=domains), **values}
    try:
        with open_runner() as runner:
            outputs = runner.infer(feeds)
    except EngineUnavailable as error:
        return _not_run(outcome, error.message)
    expected = _reference(request.model, outcome.io, feeds)
    if isinstance(expected, str):
        _require_finite(outputs, request)
        checked = Check("runs on this GPU", True, f"finite outputs; not compared: {expected}")
        return replace(outcome, checks=(*outcome.checks, checked), proof={**outcome.proof, "has_run": True})
    worst = min(output_error(expected[name], outputs[name]).snr_db for name in expected)
    if not np.isfinite(worst) and worst < 0:
        raise BuildError(
            f"{request.source or request.model}: the engine computes NaN or infinity, ONNX Runtime does not",
            hint=_HINT,
        )
    checked = Check("same outputs as ONNX Runtime", worst >= _POOR_DB, f"{worst:.1f} dB on one random input")
    warnings = outcome.warnings
    if not checked.passed:
        warnings = (*warnings, f"its outputs are only {worst:.1f} dB from ONNX Runtime's on random input")
    return replace(
        outcome,
        checks=(*outcome.checks, checked),
        warnings=warnings,
        proof={**outcome.proof, "has_run": True, "snr_db": worst if np.isfinite(worst) else None},
    )


def _opt_shapes(outcome: BuildOutcome) -> tuple[dict[str, tuple[int, ...]], Feeds]:
    """The OPT shapes of the first profile, and the values of inputs that hold shapes."""
    profiles: Any = outcome.proof["profiles"]
    opts = {name: tuple(kinds["opt"]) for name, kinds in profiles[0].items()} if profiles else {}
    held = {tensor.name: tensor for tensor in outcome.io.inputs if not tensor.dynamic_axes}
    values = {
        name: np.array(opt, held[name].dtype).reshape([int(dim) for dim in held[name].shape])
        for name, opt in opts.items()
        if name in held
    }
    return {name: opt for name, opt in opts.items() if name not in held}, values


def _reference(model: str, io: ModelIO, feeds: Feeds) -> dict[str, Any] | str:
    """ONNX Runtime's outputs, unoptimized; the reason where it cannot compute them."""
    try:
        session = make_session(Path(model), session_options(optimize=False))
        names = [tensor.name for tensor in io.outputs]
        return dict(zip(names, run_session(session, names, feeds, model), strict=True))
    except QCompileError as error:  # it is missing, or has no kernel for a plugin's operator
        return error.message


def _require_finite(outputs: dict[str, Any], request: BuildRequest) -> None:
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise BuildError(
                f"{request.source or request.model}: the engine's output {name!r} holds NaN or infinity",
                hint=_HINT,
            )


def _not_run(outcome: BuildOutcome, reason: str) -> BuildOutcome:
    return replace(outcome, warnings=(*outcome.warnings, f"the engine was not run: {reason}"))
