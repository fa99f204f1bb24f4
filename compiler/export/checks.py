"""Compare an exported file with its PyTorch model, also at other extents of the dynamic axes."""

from __future__ import annotations

import inspect
import itertools
from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ...core.artifact import Check
from ...core.progress import Progress, quiet
from ...data.batches import Data
from ...errors import ExportError, ModelError, first_line
from ...model.graph.input_notes import AxisRange
from ...model.sessions.random_input import EXTENTS
from ...model.sources.example import CHECK_EXTENTS, Example, declared_inputs, flat_outputs, make_example
from ...model.sources.preprocessing import Preprocessing
from ...model.sources.pytorch import WITHOUT_CACHE, ForeignOutput, LoadedModel, flat_tensors, without_cache
from ...model.sources.user_code import where_raised
from ...spec.tensors import Feeds, TensorInfo, format_shape
from ..check import OnnxReference, Outputs, compare_outputs
from .axes import Axes
from .data_axes import Shapes, inputs_of_data, varying_axes, varying_axes_check, with_preprocessing

_SEVERAL = 8  # batches of the data


@dataclass
class Original:
    """A loaded model, an example that it runs on, examples with other extents, and first feeds of the data.

    `shapes` has the input shapes in batches of the data.
    """

    loaded: LoadedModel
    label: str
    example: Example
    reference: Any
    alternatives: Sequence[Example] = ()
    data: Feeds | None = None
    samples: Data | None = None
    warnings: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    shapes: Shapes = field(default_factory=dict)

    def outputs(self, feeds: Feeds) -> Outputs:
        return flat_outputs(run(self.loaded, self.example, feeds, self.label))[1]

    def sample_feeds(self) -> list[Feeds]:
        """Return the feeds of the example and of the first batches of the data."""
        batches = itertools.islice(self.samples, _SEVERAL) if self.samples is not None else ()
        return [self.example.feeds, *(batch.feeds for batch in batches)]

    def replace_example(self, example: Example) -> bool:
        """Replace the example; return False, without a change, if the model raises on the new one."""
        try:
            self.reference = run(self.loaded, example, example.feeds, self.label)
        except ModelError:
            return False
        self.example = example
        return True


@contextmanager
def open_original(
    loaded: LoadedModel,
    label: str,
    inputs: Sequence[str | TensorInfo],
    dynamic: Sequence[str],
    data: str | None,
    preprocessing: Preprocessing | None = None,
    *,
    read: type[Data] = Data,
) -> Iterator[Original]:
    """Find an example that the model runs on; caches are off in the block if the model returns a cache.

    `preprocessing` converts the samples; if it is None, the model's preprocessing does.
    """
    samples, feeds = None, None
    shapes: Shapes = {}
    checks: list[Check] = []
    if data is not None:
        inputs, shapes = inputs_of_data(loaded, inputs, data, read)
        varying = varying_axes(declared_inputs(loaded, inputs), shapes, dynamic)
        dynamic = [*dynamic, *(f"{name}:{axis}={label}" for (name, axis), label in varying.items())]
        checks = varying_axes_check(varying, shapes)
    first = make_example(loaded, inputs, dynamic)
    if data is not None:
        samples = read(data, with_preprocessing(first.inputs, preprocessing))
        feeds = next(iter(samples)).feeds
        first = make_example(loaded, inputs, dynamic, data=feeds)
    rungs = range(1, len(EXTENTS)) if first.guessed else ()
    trials = iter([first, *(make_example(loaded, inputs, dynamic, data=feeds, rung=rung) for rung in rungs)])
    example, reference = _first_that_runs(loaded, trials, label)
    warnings = list(loaded.warnings)
    if loaded.was_training:
        warnings.append("the model was in training mode; it is exported in evaluation mode")
    with ExitStack() as stack:
        try:
            rerun = partial(run, loaded, example, example.feeds, label)
            reference, configs = without_cache(loaded.module, reference, rerun)
        except ForeignOutput as error:
            raise ExportError(f"{label}: {error.message}", hint=error.hint, **error.data) from error
        _require_real(example, reference, loaded, label)
        for config in configs:
            stack.callback(setattr, config, "use_cache", True)
        if configs:
            warnings.append(WITHOUT_CACHE.format("exported"))
        yield Original(
            loaded, label, example, reference, list(trials), feeds, samples, warnings, checks, shapes
        )


def run(loaded: LoadedModel, example: Example, feeds: Feeds, label: str) -> Any:
    """Return the model's outputs on feeds; raise ModelError, naming random inputs, if the model raises."""
    try:
        with quiet():
            return example.call(loaded.module, feeds)
    except Exception as error:
        random = [f"{name} ({format_shape(feeds[name].shape)})" for name in feeds if name in example.made_up]
        where, hint = "its input", "check the shapes and dtypes of `inputs` against forward()"
        if random:
            where = f"random input {', '.join(random)}"
            hint = (
                "return (module, example) from the function, give `data`, or give `inputs` with extents that "
                "suit the model, such as x:[batch,3,height=64,width=64]"
            )
        raise ModelError(
            f"{label}: raised {type(error).__name__} on {where}: {first_line(error)}"
            f"{where_raised(error, None)}",
            hint=hint,
        ) from error


def _first_that_runs(loaded: LoadedModel, examples: Iterator[Example], label: str) -> tuple[Example, Any]:
    errors: list[ModelError] = []
    for example in examples:
        try:
            return example, run(loaded, example, example.feeds, label)
        except ModelError as error:
            errors.append(error)
    if len(errors) > 1:
        extents = ", ".join(f"{image}/{length}" for image, length in EXTENTS[1:])
        errors[0].message += f" (nor does it run with other extents, of images/of lengths: {extents})"
    raise errors[0]


def _require_real(example: Example, reference: Any, loaded: LoadedModel, label: str) -> None:
    tensors = flat_tensors(reference)
    types = [("takes", tensor.name, tensor.dtype) for tensor in example.inputs]
    types += [("returns", name, str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors]
    for verb, name, dtype in types:
        if dtype.startswith("complex"):
            module = getattr(loaded.module, "inner", loaded.module)
            code = getattr(inspect.unwrap(module.forward), "__code__", None)
            place = (
                f" ({Path(code.co_filename).name}, line {code.co_firstlineno}, in forward)" if code else ""
            )
            raise ExportError(
                f"{label}: {type(module).__name__} {verb} {dtype}{f' as {name}' if name else ''}{place}; "
                "inputs and outputs of ONNX are real",
                hint="take real tensors by torch.view_as_complex(input), return torch.view_as_real(output)",
            )


_FEW = 16  # a first axis traced with at most this extent is a batch, checked at CHECK_EXTENTS
_TRACED_BATCHES = 16  # batches of the data on which a traced file is compared
_BEYOND = 4096  # largest extent that is tried beyond a limit


@dataclass
class ExportComparison:
    """Compares the original with the file, `traced` or not, on the same feeds, and finds the ranges of axes.

    `lowest_db` is the sufficient SQNR in dB if both sides round to integers.
    """

    original: Original
    session: OnnxReference
    names: Sequence[str]
    axes: Axes
    traced: bool
    lowest_db: float | None
    progress: Progress
    ranges: dict[str, AxisRange] = field(init=False)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranges = dict(self.axes.ranges)

    @property
    def example(self) -> Example:
        """The example from which checks start, with the first feeds of the data if there is any."""
        example, data = self.original.example, self.original.data
        return example if data is None else replace(example, feeds=data, made_up=frozenset())

    def run(self) -> Iterator[Check]:
        """Yield the checks of dynamic axes, at the traced extents, on other values, and on the data."""
        checks = [check for names in self.axes.equal for check in self._axis_checks(names)]
        yield from checks
        if not checks or self.traced:
            self.progress("compare with PyTorch")
            yield self.compare("same outputs as PyTorch", self.original.example.feeds)
        if self.traced and not self.original.data:
            # Integers do not vary: they may be indices.
            other = self.original.example.at({}, seed=1).items()
            varied = {name: -array if array.dtype.kind == "f" else array for name, array in other}
            yield self.compare("same outputs as PyTorch on other values", varied)
        if self.original.samples is not None:
            # A trace contains the branches of one sample; other samples may take other branches.
            batches = itertools.islice(self.original.samples, _TRACED_BATCHES if self.traced else 1)
            yield self.compare("same outputs as PyTorch on the data", *(batch.feeds for batch in batches))

    def compare(self, subject: str, *inputs: Feeds) -> Check:
        check = self._compare(subject, *((self.original.outputs(feeds), feeds) for feeds in inputs))
        if not check.passed:
            self._refuse(check, inputs[0])
        return check

    def _compare(self, subject: str, *runs: tuple[Outputs, Feeds]) -> Check:
        try:
            pairs = [(reference, self.session(feeds)) for reference, feeds in runs]
        except ModelError as error:
            return Check(subject, False, error.message)
        return compare_outputs(subject, self.names, pairs, lowest_db=self.lowest_db)

    def _axis_checks(self, names: frozenset[str]) -> Iterator[Check]:
        """Yield the checks of one axis, at extents other than the traced one."""
        name = " = ".join(sorted(names))
        refusal, checked = "", False
        preferred, fallbacks = self._extents_to_check(names, self._range_of(names))
        for extent in (*preferred, *fallbacks):
            if checked and extent in fallbacks:
                break
            feeds = self.example.at(dict.fromkeys(names, extent))
            try:
                reference = self.original.outputs(feeds)
            except ModelError as error:
                refusal = refusal or error.message
                if extent == 1:
                    self._set_minimum(names, 2)
                continue
            self.progress(f"compare with PyTorch at {name} {extent}")
            check = self._compare(f"same outputs as PyTorch at {name} {extent}", (reference, feeds))
            if check.passed:
                checked = True
                yield check
            elif extent == 1 and names & self.axes.may_be_one:
                self._set_minimum(names, 2)  # PyTorch assumed that the axis is never 1
            else:
                self._refuse(check, feeds)
        if not checked:
            why = refusal or "none exists"
            self.warnings.append(f"axis {name!r} was not checked at another extent: {why}")
        self._check_beyond_limits(names)

    def _extents_to_check(self, names: frozenset[str], limits: AxisRange) -> tuple[list[int], list[int]]:
        """Return extents to check, and fallbacks if the original raises on all of these."""
        traced = self.example.extents[next(iter(names))]
        axes = [item for tensor in self.example.inputs for item in tensor.dynamic_axes.items()]
        first = all(axis == 0 for axis, name in axes if name in names)
        step = limits.multiple
        grown, half = traced + max(traced // 2 // step * step, step), max(traced // 2 // step, 1) * step
        candidates = [grown, traced + step, traced * 2, half, traced + 3 * step]
        preferred = list(CHECK_EXTENTS) if first and traced <= _FEW else candidates[: 3 if self.traced else 1]
        if names & self.axes.may_be_one and 1 not in preferred:
            preferred.append(1)

        def allowed(extents: Sequence[int], excluded: Sequence[int]) -> list[int]:
            return [
                extent
                for extent in dict.fromkeys(extents)
                if extent >= 1 and extent not in excluded and limits.round_up(extent) == extent
            ]

        first_choice = allowed(preferred, [traced])
        fallbacks = [*candidates, limits.round_up(1), limits.round_up(traced * 4)]
        return first_choice, allowed(fallbacks, [traced, *first_choice])

    def _range_of(self, names: frozenset[str]) -> AxisRange:
        return next((self.ranges[name] for name in names if name in self.ranges), AxisRange())

    def _set_minimum(self, names: frozenset[str], minimum: int) -> None:
        for name in names:
            limits = self.ranges.get(name, AxisRange())
            self.ranges[name] = AxisRange(minimum, limits.maximum, limits.multiple)

    def _check_beyond_limits(self, names: frozenset[str]) -> None:
        """Compare file and model at extents beyond limits that were not requested.

        Most limits are the model's: it raises beyond them. If the model runs and the outputs differ, the
        limit comes from a Python branch that is frozen in the file. If the outputs agree, PyTorch was too
        careful: it assumes that no extent inside the model is 1.
        """
        limits = self._range_of(names)
        ranges = self.original.example.ranges
        required = next((ranges[name] for name in names if name in ranges), AxisRange())
        step = limits.multiple
        name, beyond = " = ".join(sorted(names)), (limits.maximum or 0) + step
        is_limited = limits.maximum not in (None, required.maximum)
        if is_limited and self._compare_at(names, beyond) == "differs":
            if self._data_lies_in(names, limits):
                self.warnings.append(
                    f"axis {name!r} takes {format_range(limits)}, where all samples lie: the model branches "
                    "on its extent, and beyond these the file's outputs differ"
                )
                return
            raise ExportError(
                f"{self.original.label}: axis {name!r} cannot be dynamic without a range: the model "
                f"branches on its extent, and the file is right only for {format_range(limits)}",
                hint=f"declare the range in `inputs`: {name}={limits.minimum}..{limits.maximum}",
            )
        self._lower_minimum(names, max(required.minimum, 2) - 1)
        if step > 1 and self._compare_at(names, self.example.extents[next(iter(names))] + 1) == "differs":
            self.warnings.append(
                f"axis {name!r}: the model takes other extents than multiples of {limits.multiple}, too; "
                "there this file's outputs differ"
            )

    def _data_lies_in(self, names: frozenset[str], limits: AxisRange) -> bool:
        """Return whether there is data and all its batches have extents within the limits."""
        extents = [
            shape[axis]
            for tensor in self.example.inputs
            for axis, name in tensor.dynamic_axes.items()
            for shape in self.original.shapes.get(tensor.name, ())
            if name in names
        ]
        return bool(extents) and all(limits.round_up(extent) == extent for extent in extents)

    def _lower_minimum(self, names: frozenset[str], below: int) -> None:
        """Lower a minimum to the least extent above `below` from which on file and model agree."""
        limits = self._range_of(names)
        extents = range(limits.minimum - limits.multiple, below, -limits.multiple)
        outcome = self._compare_at(names, extents[0]) if extents else ""
        if outcome == "differs":
            subject = f"axis {' = '.join(sorted(names))!r}: below {limits.minimum}"
            self.warnings.append(f"{subject} the outputs of this file and the model differ")
        if outcome == "equal":  # each side runs a few times
            count = bisect(extents, False, 1, key=lambda extent: self._compare_at(names, extent) != "equal")
            self._set_minimum(names, extents[count - 1])

    def _compare_at(self, names: frozenset[str], extent: int) -> str:
        """Return "equal" or "differs" for the outputs at an extent, or "refused" if either side raises."""
        if extent > _BEYOND:
            return "refused"
        feeds = self.example.at(dict.fromkeys(names, extent))
        try:
            pair = self.original.outputs(feeds), self.session(feeds)
        except ModelError:
            return "refused"
        equal = compare_outputs("", self.names, [pair], lowest_db=self.lowest_db).passed
        return "equal" if equal else "differs"

    def _refuse(self, check: Check, feeds: Feeds) -> NoReturn:
        message = f"{self.original.label}: the exported file failed '{check.name}': {check.detail}"
        runs = zip(self.original.outputs(feeds), self.original.outputs(feeds), strict=True)
        if not all(np.array_equal(first, second, equal_nan=True) for first, second in runs):
            raise ModelError(
                f"{message}; the model itself is random: two runs on one input differ",
                hint="take the randomness out of forward(), or leave it out of the exported part",
            )
        hint = "branches of Python on values or extents are frozen at export"
        names = sorted(self.original.example.made_up) if self.original.data is None else []
        if names:
            hint += (
                f"; {', '.join(names)} {'is' if len(names) == 1 else 'are'} made up: return "
                "(module, example) from the function, or give `data`, if the model takes no such input"
            )
        raise ModelError(message, hint=hint)


def format_range(limits: AxisRange) -> str:
    """Return a range in words: "32 to 512, multiples of 8"."""
    end = "or more" if limits.maximum is None else f"to {limits.maximum}"
    return f"{limits.minimum} {end}" + (f", multiples of {limits.multiple}" if limits.multiple > 1 else "")
