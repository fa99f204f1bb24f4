"""Run a built engine, if possible, and compare its outputs with ONNX Runtime's.

An output beyond the limit for its precision in `qcompile diff` (`model.outputs.judgement`) is a failed check.
An output fails the build if most of its elements are wrong: below 60 dB in fp32, 40 in tf32 and fp16, 26 in
bf16, 15 in int8, int4, FP8 and block formats. Two kinds of output are exempt: outputs for random input if
TensorRT calibrated the engine, because values may exceed the ranges, and whole numbers, because an index may
differ by one.

The inputs are the user's first batch, and random input at the shapes of the profiles. Batch 1 is
not enough: other samples of a batch have been wrong where batch 1 was right (NVIDIA/TensorRT 4853).
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
    """Descriptions of the `inputs` that ran; for each, ONNX Runtime's outputs (`expected`) and the engine's;
    reasons why inputs were `refused` and why outputs are `uncompared`."""

    inputs: list[str] = field(default_factory=list)
    expected: list[Outputs] = field(default_factory=list)
    outputs: list[Outputs] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    uncompared: str = ""


def verified(outcome: BuildOutcome, request: BuildRequest, open_runner: Callable[[], Runner]) -> BuildOutcome:
    """Add the checks of the engine's runs to the outcome, or the reason why the engine did not run."""
    if request.spec.tensorrt.strip_weights:
        return _warn_not_run(outcome, "it is stored without weights")
    if any(kind for _, kind in request.spec.tensorrt.tensor_formats.values()):
        return _warn_not_run(outcome, "its inputs or outputs have special memory formats")
    try:
        with open_runner() as runner:
            runs = _run(runner, outcome, request)
    except EngineUnavailable as error:
        return _warn_not_run(outcome, error.message)
    if not runs.outputs:
        return _warn_not_run(outcome, "; ".join(runs.refused))
    _require_finite(runs, request)
    outcome = replace(
        outcome,
        proof={**outcome.proof, "has_run": True, "run_on": runs.inputs},
        warnings=(*outcome.warnings, *(f"the engine was not run on {text}" for text in runs.refused)),
    )
    if runs.uncompared:
        detail = f"finite outputs; not compared: {runs.uncompared}"
        return replace(outcome, checks=(*outcome.checks, Check("runs on this GPU", True, detail)))
    return _judge_runs(outcome, request, runs)


def _run(runner: Runner, outcome: BuildOutcome, request: BuildRequest) -> _Runs:
    runs, reference = _Runs(), _reference(request, [tensor.name for tensor in outcome.io.outputs])
    for description, feeds in trial_inputs(outcome, request):
        request.progress(f"run it on {description}")
        expected = reference(feeds)
        if isinstance(expected, str) and runs.expected:
            continue  # ONNX Runtime cannot run the graph at these shapes, for instance in a Reshape
        try:
            outputs = runner.infer(feeds)
        except DataError as error:
            runs.refused.append(f"{description}: {error.message}")
            continue
        runs.inputs.append(description)
        runs.outputs.append(outputs)
        if isinstance(expected, str):
            runs.uncompared = expected
            break
        runs.expected.append(expected)
    return runs


def _reference(request: BuildRequest, names: list[str]) -> Callable[[Feeds], Outputs | str]:
    """Return a function that maps feeds to unoptimized ONNX Runtime's outputs, or the reason why it fails.
    The function runs the graph or, if ONNX Runtime lacks kernels (bfloat16), the user's model."""
    files = [file for file in dict.fromkeys([request.model, request.source]) if file.endswith(".onnx")]
    sessions: dict[str, Any] = {}

    def outputs(feeds: Feeds) -> Outputs | str:
        reason = ""
        for file in [*sessions] or files:
            try:
                session = sessions.get(file) or make_session(Path(file), session_options(optimize=False))
                computed = run_session(session, names, feeds, file)
            except QCompileError as error:  # the file is missing, or ONNX Runtime lacks an operator's kernel
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
                raise BuildError(f"{subject}{compared}: output {name!r} on {runs.inputs[index]}", hint=_HINT)


def _judge_runs(outcome: BuildOutcome, request: BuildRequest, runs: _Runs) -> BuildOutcome:
    inputs_text = ", ".join(runs.inputs)
    expected, actual = (
        {name: [outputs[name] for outputs in batches] for name in batches[0]}
        for batches in (runs.expected, runs.outputs)
    )
    forms = output_forms(request.onnx.model, request.spec.rules)
    mismatches: list[str] = []
    uncompared: list[str] = []
    for name in list(expected):
        pairs = list(zip(expected[name], actual[name], strict=True))
        differs = next(filter(None, (mismatch(a, b, request.precision) for a, b in pairs)), None)
        decider = forms[name].shape_operator if name in forms else ""
        if differs and decider and all(a.ndim == b.ndim and a.shape != b.shape for a, b in pairs):
            uncompared.append(f"output {name!r} is not compared: its extents depend on values ({decider})")
        elif differs:
            mismatches.append(f"output {name!r} is {differs[1]} where ONNX Runtime gives {differs[0]}")
        if differs:
            del expected[name], actual[name]
    if mismatches or not expected:
        detail = f"{'; '.join([*mismatches, *uncompared])}, on {inputs_text}"
        check = Check("same outputs as ONNX Runtime", not mismatches, detail)
        return replace(outcome, checks=(*outcome.checks, check), failure="; ".join(mismatches))
    judgements = judge_by_precision(expected, actual, request.precision, forms)
    lowest = min(judgements, key=lambda output: output.snr_db)
    failed = [output for output in judgements if not output.passed]
    texts = {
        output.output: f"output {output.output!r} of the engine has {output.measured} against ONNX Runtime "
        f"on {inputs_text}; {output.criterion} is required"
        for output in failed
    }
    # Float outputs with mostly wrong elements. For a calibrated engine, random input is no evidence.
    evidence = request.sample is not None or not (request.precision in BY_SIGNAL and request.spec.calibrator)
    wrong = [
        output.output
        for output in failed
        if evidence
        and not output.snr_db >= lowest_db(request.precision)
        and runs.expected[0][output.output].dtype.kind == "f"
    ]
    detail = "; ".join([f"{lowest.snr_db:.1f} dB at output {lowest.output!r} on {inputs_text}", *uncompared])
    return replace(
        outcome,
        checks=(*outcome.checks, Check("same outputs as ONNX Runtime", not failed, detail)),
        proof={**outcome.proof, "snr_db": lowest.snr_db if np.isfinite(lowest.snr_db) else None},
        warnings=(*outcome.warnings, *(text for name, text in texts.items() if name not in wrong)),
        failure="; ".join(texts[name] for name in wrong),
    )


def _warn_not_run(outcome: BuildOutcome, reason: str) -> BuildOutcome:
    return replace(outcome, warnings=(*outcome.warnings, f"the engine was not run: {reason}"))


_CHEAP_TIMES, _CHEAP_ELEMENTS = 4, 1 << 20
"""Limits for a run at MAX: input elements as a multiple of those at OPT, and in total. ONNX Runtime also runs
these inputs, unoptimized and on the CPU."""


def trial_inputs(outcome: BuildOutcome, request: BuildRequest) -> list[tuple[str, Feeds]]:
    """Return inputs, each with its description: the user's first batch, if any, then random input for every
    profile. Its shapes are OPT, MIN if not empty, and MAX if cheap, else OPT with batch 2 if permitted."""
    inputs, domains = outcome.io.inputs, read_domains(request.onnx.model, request.samples)
    data = {} if request.sample is None else _cast_sample(request.sample, outcome)
    trials = [("the data", data)] if data else []
    shape_inputs = {tensor.name: tensor for tensor in inputs if not tensor.dynamic_axes}  # their values vary
    seen: list[Any] = []
    for seed, (description, extents) in enumerate(_trials(outcome.proof["profiles"], inputs)):
        if extents in seen:
            continue
        seen.append(extents)
        shapes = {name: shape for name, shape in extents.items() if name not in shape_inputs}
        feeds = random_feeds(inputs, seed=seed, shapes=shapes, domains=domains)
        for name in extents.keys() & shape_inputs.keys():
            shape = [int(dim) for dim in shape_inputs[name].shape]
            feeds[name] = np.array(extents[name], shape_inputs[name].dtype).reshape(shape)
        trials.append((description, feeds))
    return trials


def _cast_sample(sample: Feeds, outcome: BuildOutcome) -> Feeds:
    """Return a batch in the float types of the engine's inputs; {} if an input is missing or NumPy lacks a
    type."""
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


def _trials(profiles: Any, inputs: Sequence[TensorInfo]) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
    if not profiles:
        yield "random input", {}
    for index, ranges in enumerate(profiles):
        suffix = f" of profile {index}" if len(profiles) > 1 else ""
        opt, smallest, largest = ({name: tuple(kinds[kind]) for name, kinds in ranges.items()}
                                  for kind in ("opt", "min", "max"))  # fmt: skip
        yield f"random input at OPT{suffix}", opt
        if all(0 not in extents for extents in smallest.values()):
            yield f"random input at MIN{suffix}", smallest
        largest_count, opt_count = (sum(map(math.prod, extents.values())) for extents in (largest, opt))
        if largest_count <= min(_CHEAP_TIMES * opt_count, _CHEAP_ELEMENTS):
            yield f"random input at MAX{suffix}", largest
        elif two_samples := _batch_of_two(inputs, opt, largest):
            yield f"random input at OPT{suffix} in a batch of 2", two_samples


def _batch_of_two(
    inputs: Sequence[TensorInfo], opt: Mapping[str, tuple[int, ...]], largest: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the optimal shapes with batch 2 in place of 1; {} if the profile does not permit it."""
    batch = next((tensor.dynamic_axes[0] for tensor in inputs if 0 in tensor.dynamic_axes), "")
    axes = {
        tensor.name: [axis for axis, dim in tensor.dynamic_axes.items() if dim == batch] for tensor in inputs
    }
    batch_axes = [(name, axis) for name in opt for axis in axes[name]]
    if not batch_axes or any(opt[name][axis] != 1 or largest[name][axis] < 2 for name, axis in batch_axes):
        return {}
    return {
        name: tuple(2 if axis in axes[name] else extent for axis, extent in enumerate(extents))
        for name, extents in opt.items()
    }
