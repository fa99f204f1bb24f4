"""Run a built engine, where possible, and hold its outputs against ONNX Runtime's by the precision's limit.

An output beyond the limit that `diff` has for the precision (`model.outputs.judgement`) is a failed check,
and named. It fails the build where most of its elements are wrong: below 60 dB in fp32, 40 in tf32 and fp16,
26 in bf16, 15 in int8 and fp8. Random input to an engine that TensorRT calibrated by itself is no such
evidence: its values can lie outside the ranges. Neither are outputs of whole numbers: one index more or less
is no error.

It is run on the user's data, and on random input at the shapes of its profiles. A batch whose optimum is 1 is
run at 2, too: slots of a batch have been wrong where batch 1 was right (NVIDIA/TensorRT 4853).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...core.artifact import Check
from ...errors import BuildError, DataError, EngineUnavailable, QCompileError
from ...model.outputs.judgement import BY_SIGNAL, judge_by_precision, lowest_db
from ...model.outputs.masks import not_finite
from ...model.outputs.output_forms import output_forms
from ...model.sessions.random_input import random_feeds, read_domains
from ...model.sessions.session import make_session, run_session, session_options
from ...spec.tensors import Feeds, TensorInfo, mismatch
from ..base import BuildOutcome, BuildRequest, Runner

_HINT = "keep the layers concerned in float32: `layers` 'NAME=fp32'"

Outputs = Mapping[str, Any]


@dataclass
class _Runs:
    """What ran: on what, in words, outputs of the model and of the engine, and why others did not run."""

    words: list[str] = field(default_factory=list)
    expected: list[Outputs] = field(default_factory=list)
    outputs: list[Outputs] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    uncompared: str = ""


def verified(outcome: BuildOutcome, request: BuildRequest, open_runner: Callable[[], Runner]) -> BuildOutcome:
    """Return the outcome with what runs of the engine showed; with the reason where it could not be run."""
    if request.spec.tensorrt.strip_weights:
        return _not_run(outcome, "it is stored without weights")
    if any(kind for _, kind in request.spec.tensorrt.tensor_formats.values()):
        return _not_run(outcome, "its inputs or outputs are in a memory format of their own")
    try:
        with open_runner() as runner:
            runs = _run(runner, outcome, request)
    except EngineUnavailable as error:
        return _not_run(outcome, error.message)
    if not runs.outputs:
        return _not_run(outcome, "; ".join(runs.refused))
    _require_finite(runs, request)
    outcome = replace(
        outcome,
        proof={**outcome.proof, "has_run": True, "run_on": runs.words},
        warnings=(*outcome.warnings, *(f"the engine was not run on {text}" for text in runs.refused)),
    )
    if runs.uncompared:
        detail = f"finite outputs; not compared: {runs.uncompared}"
        return replace(outcome, checks=(*outcome.checks, Check("runs on this GPU", True, detail)))
    return _judged(outcome, request, runs)


def _run(runner: Runner, outcome: BuildOutcome, request: BuildRequest) -> _Runs:
    runs, reference = _Runs(), _reference(request, [tensor.name for tensor in outcome.io.outputs])
    for words, feeds in trial_inputs(outcome, request):
        request.progress(f"run it on {words}")
        expected = reference(feeds)
        if isinstance(expected, str) and runs.expected:
            continue  # a corner of the profile that the graph cannot compute, such as a Reshape to less
        try:
            outputs = runner.infer(feeds)
        except DataError as error:
            runs.refused.append(f"{words}: {error.message}")
            continue
        runs.words.append(words)
        runs.outputs.append(outputs)
        if isinstance(expected, str):
            runs.uncompared = expected
            break
        runs.expected.append(expected)
    return runs


def _reference(request: BuildRequest, names: list[str]) -> Callable[[Feeds], Outputs | str]:
    """ONNX Runtime's outputs, unoptimized, or why there are none: of the graph, else of the user's model.

    It has no kernels for some types, such as bfloat16's: then the model is computed as it was given.
    """
    files = [file for file in dict.fromkeys([request.model, request.source]) if file.endswith(".onnx")]
    sessions: dict[str, Any] = {}

    def outputs(feeds: Feeds) -> Outputs | str:
        reason = ""
        for file in [*sessions] or files:
            try:
                session = sessions.get(file) or make_session(Path(file), session_options(optimize=False))
                computed = run_session(session, names, feeds, file)
            except QCompileError as error:  # it is missing, or has no kernel for a plugin's operator
                reason = reason or error.message.replace(file, request.source or file)
                continue
            sessions[file] = session
            return dict(zip(names, computed, strict=True))
        return reason or "it is no ONNX file"

    return outputs


def _require_finite(runs: _Runs, request: BuildRequest) -> None:
    for index, outputs in enumerate(runs.outputs):
        for name, array in outputs.items():
            if array.dtype.kind != "f":
                continue
            broken = ~np.isfinite(array)
            if runs.expected and array.shape == runs.expected[index][name].shape:
                broken = not_finite(runs.expected[index][name], array)
            if broken.any():
                subject = f"{request.source or request.model}: the engine computes NaN or infinity"
                compared = ", ONNX Runtime does not" if runs.expected else ""
                raise BuildError(f"{subject}{compared}: output {name!r} on {runs.words[index]}", hint=_HINT)


def _judged(outcome: BuildOutcome, request: BuildRequest, runs: _Runs) -> BuildOutcome:
    on = ", ".join(runs.words)
    expected, actual = (
        {name: [outputs[name] for outputs in batches] for name in batches[0]}
        for batches in (runs.expected, runs.outputs)
    )
    forms = output_forms(request.onnx.model, request.spec.rules)
    others: list[str] = []
    uncompared: list[str] = []
    for name in list(expected):
        pairs = list(zip(expected[name], actual[name], strict=True))
        differs = next(filter(None, (mismatch(a, b, request.precision) for a, b in pairs)), None)
        decider = forms[name].shape_operator if name in forms else ""
        if differs and decider and all(a.ndim == b.ndim and a.shape != b.shape for a, b in pairs):
            uncompared.append(f"output {name!r} is not compared: its extents depend on values ({decider})")
        elif differs:
            others.append(f"output {name!r} is {differs[1]} where ONNX Runtime gives {differs[0]}")
        if differs:
            del expected[name], actual[name]
    if others or not expected:
        detail = f"{'; '.join([*others, *uncompared])}, on {on}"
        check = Check("same outputs as ONNX Runtime", not others, detail)
        return replace(outcome, checks=(*outcome.checks, check), failure="; ".join(others))
    judged = judge_by_precision(expected, actual, request.precision, forms)
    lowest = min(judged, key=lambda output: output.snr_db)
    failed = [output for output in judged if not output.passed]
    texts = {
        output.output: f"output {output.output!r} of the engine has {output.measured} against ONNX Runtime "
        f"on {on}; {output.criterion} is required"
        for output in failed
    }
    # Beyond its limit in most of its elements, on input that shows it.
    shown = request.sample is not None or not (request.precision in BY_SIGNAL and request.spec.calibrator)
    wrong = [
        output.output
        for output in failed
        if shown
        and not output.snr_db >= lowest_db(request.precision)
        and runs.expected[0][output.output].dtype.kind == "f"
    ]
    detail = "; ".join([f"{lowest.snr_db:.1f} dB at output {lowest.output!r} on {on}", *uncompared])
    return replace(
        outcome,
        checks=(*outcome.checks, Check("same outputs as ONNX Runtime", not failed, detail)),
        proof={**outcome.proof, "snr_db": lowest.snr_db if np.isfinite(lowest.snr_db) else None},
        warnings=(*outcome.warnings, *(text for name, text in texts.items() if name not in wrong)),
        failure="; ".join(texts[name] for name in wrong),
    )


def _not_run(outcome: BuildOutcome, reason: str) -> BuildOutcome:
    return replace(outcome, warnings=(*outcome.warnings, f"the engine was not run: {reason}"))


_CHEAP_TIMES, _CHEAP_ELEMENTS = 4, 1 << 20
"""The largest shapes are tried where they have so many times the elements of OPT at most, and so many at all:
ONNX Runtime computes them, too, unoptimized and on the processor."""


def trial_inputs(outcome: BuildOutcome, request: BuildRequest) -> list[tuple[str, Feeds]]:
    """Return inputs and what each is in words: the user's first batch, where there is one, then random input
    at OPT of every profile, and at its smallest and largest shapes where these are cheap."""
    inputs, domains = outcome.io.inputs, read_domains(request.onnx.model, request.samples)
    data = {} if request.sample is None else _as_declared(request.sample, outcome)
    trials = [("the data", data)] if data else []
    holders = {tensor.name: tensor for tensor in inputs if not tensor.dynamic_axes}  # of shapes, as values
    seen: list[Any] = []
    for seed, (words, extents) in enumerate(_places(outcome.proof["profiles"], inputs)):
        if extents in seen:
            continue
        seen.append(extents)
        shapes = {name: shape for name, shape in extents.items() if name not in holders}
        feeds = random_feeds(inputs, seed=seed, shapes=shapes, domains=domains)
        for name in extents.keys() & holders.keys():
            shape = [int(dim) for dim in holders[name].shape]
            feeds[name] = np.array(extents[name], holders[name].dtype).reshape(shape)
        trials.append((words, feeds))
    return trials


def _as_declared(sample: Feeds, outcome: BuildOutcome) -> Feeds:
    """A batch with the float types that the engine's inputs were given; {} where it cannot be had."""
    feeds: Feeds = {}
    for tensor in outcome.io.inputs:
        array = sample.get(tensor.name)
        if array is None:
            return {}
        if array.dtype.kind == "f" and array.dtype.name != tensor.dtype:
            if tensor.dtype not in ("float16", "float32", "float64"):
                return {}
            array = array.astype(tensor.dtype)
        feeds[tensor.name] = array
    return feeds


def _places(profiles: Any, inputs: Sequence[TensorInfo]) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
    """Where to try: words, and the extents of each dynamic input there."""
    if not profiles:
        yield "random input", {}
    for index, ranges in enumerate(profiles):
        of = f" of profile {index}" if len(profiles) > 1 else ""
        opt, smallest, largest = ({name: tuple(kinds[kind]) for name, kinds in ranges.items()}
                                  for kind in ("opt", "min", "max"))  # fmt: skip
        yield f"random input at OPT{of}", opt
        if all(0 not in extents for extents in smallest.values()):
            yield f"random input at MIN{of}", smallest
        most, usual = (sum(map(math.prod, extents.values())) for extents in (largest, opt))
        if most <= min(_CHEAP_TIMES * usual, _CHEAP_ELEMENTS):
            yield f"random input at MAX{of}", largest
        elif pair := _of_two(inputs, opt, largest):
            yield f"random input at OPT{of} in a batch of 2", pair


def _of_two(
    inputs: Sequence[TensorInfo], opt: Mapping[str, tuple[int, ...]], largest: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The optimal shapes with a batch of 2 in place of 1; {} where the profile has no such batch."""
    batch = next((tensor.dynamic_axes[0] for tensor in inputs if 0 in tensor.dynamic_axes), "")
    axes = {
        tensor.name: [axis for axis, dim in tensor.dynamic_axes.items() if dim == batch] for tensor in inputs
    }
    places = [(name, axis) for name in opt for axis in axes[name]]
    if not places or any(opt[name][axis] != 1 or largest[name][axis] < 2 for name, axis in places):
        return {}
    return {
        name: tuple(2 if axis in axes[name] else extent for axis, extent in enumerate(extents))
        for name, extents in opt.items()
    }
