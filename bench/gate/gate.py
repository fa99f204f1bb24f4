"""`qcompile gate`: two versions measured in one job, and whether the new one may replace the old one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...artifact import digest_artifact, is_manifest, read_manifest
from ...engines.gpu import is_every_gpu
from ...errors import EngineUnavailable, InvalidOption, QCompileError
from ...model.session import usable_cores
from ...progress import Progress, silent
from ...spec.decode import shared, spec_from_call
from ...spec.measure import BenchSpec, GateOptions
from ..benchmark import benchmark
from ..interpreters import Interpreters, parse_interpreters
from ..measuring.environment import environment, machine_text
from ..outputs import describe, short_name
from ..results.results import Results, now
from .checks import Check, GateRule, Limits, State, checks_of, slowdown
from .result import GateResult, PairResult

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import GateKeywords

_OLD, _NEW = "old", "new"
_ANY_WIDTH = 1.0 - 1e-9  # of an interval: the rule ends the measuring, so no row warns of a wide one


def gate(
    old: str,
    new: str,
    spec: GateOptions | None = None,
    /,
    *,
    progress: Progress = silent,
    **options: Unpack[GateKeywords],
) -> GateResult:
    """Measure an old and a new version interleaved, and judge the new one.

    Args:
        old: Artifact, MODEL, or output folder of recipes.
        new: The same of the new version; of folders, every artifact that the old one holds is judged.
        spec: What must hold, and how it is measured.
        progress: Told of every step.
        options: Fields of `GateOptions` by name, in place of those of `spec`.

    Returns:
        The checks of each pair; false where one fails.

    Raises:
        InvalidOption: If an option is wrong, or a folder is compared with a file.
        EngineUnavailable: If nothing of what is compared runs here.
        QCompileError: If a file is not there or not what it claims to be, or the data does not fit.
    """
    spec = spec_from_call(GateOptions, spec, options)
    devices = (spec.device,) if spec.device else ()
    if is_every_gpu(devices):
        raise InvalidOption(
            f"`device` {spec.device}: one device is required",
            hint="gate each GPU by itself, as cuda:0",
            option="device",
        )
    began = time.monotonic()
    pairs, added = find_pairs(old, new)
    limits = Limits(
        spec.max_slower / 100.0, spec.max_larger / 100.0, spec.max_drop, spec.outputs, spec.strict
    )
    bench = shared(BenchSpec, spec, baseline=_OLD, precision_target=_ANY_WIDTH, devices=devices)
    measuring = _Measuring(
        limits, parse_interpreters(spec.python), bench, len(pairs) > 1, spec.skip_identical, progress
    )
    results = [measuring.judge(pair) for pair in pairs]
    not_run = [pair.checks[0].text for pair in results if pair.is_skipped]
    if len(not_run) == len(results):
        raise EngineUnavailable(
            f"nothing of {old} runs here: {not_run[0]}",
            hint="run the gate on a machine that the artifacts are for",
        )
    threads = spec.threads or usable_cores()
    machine = machine_text(environment(threads, 0))
    return GateResult(results, limits, added, machine, threads, now(), time.monotonic() - began)


@dataclass(frozen=True)
class _Measuring:
    """How the pairs of one gate are measured."""

    limits: Limits
    pythons: Interpreters
    spec: BenchSpec
    is_one_of_many: bool
    skip_identical: bool
    progress: Progress

    def judge(self, pair: Pair) -> PairResult:
        """Measure a pair. What cannot run here is skipped; a new version that is gone or broken fails."""
        began = time.monotonic()
        if not pair.new:
            return _without_figures(pair, "failed", "the new folder has no such artifact")
        if self.skip_identical and is_identical(pair):
            return _without_figures(pair, "passed", "the files are the same byte for byte; not measured")
        try:
            why_not = describe(pair.old, trust=self.spec.trust, pythons=self.pythons).why_not
            if why_not:
                return _without_figures(pair, "skipped", f"it cannot run here: {why_not}")
            results = self._measure(pair)
        except QCompileError as error:
            if not self.is_one_of_many:
                raise
            return _without_figures(pair, "failed", error.message, error.hint)
        return self._judged(pair, results, time.monotonic() - began)

    def _measure(self, pair: Pair) -> Results:
        return benchmark(
            {_OLD: pair.old, _NEW: pair.new},
            self.spec,
            decided=GateRule(_OLD, _NEW, self.limits.max_slower),
            compare_made=True,
            progress=lambda text, *counts: self.progress(f"{pair.name}: {text}", *counts),
        )

    def _judged(self, pair: Pair, results: Results, seconds: float) -> PairResult:
        old, new = results.row(_OLD), results.row(_NEW)
        for row in (old, new):
            if row.status != "measured":
                return _without_figures(pair, "failed", f"the {row.name} version: {row.reason}")
        has_data = (self.spec.data or self.spec.evaluation) is not None
        noise = results.environment.get("noise") or {}
        told = [f"{row.name} version: {text}" for row in (old, new) for text in row.warnings]
        return PairResult(
            pair.name, pair.old, pair.new,
            slowdown(old.launches_ms, new.launches_ms),
            checks_of(old, new, self.limits, has_data=has_data),
            seconds,
            told,
            noise.get("reasons", ()),
        )  # fmt: skip


def _without_figures(pair: Pair, state: State, text: str, hint: str = "") -> PairResult:
    return PairResult(pair.name, pair.old, pair.new, None, [Check("run", state, text=text, hint=hint)])


_BUILT = "build"  # the stage whose files are run; the others lie beside them


@dataclass(frozen=True)
class Pair:
    """Two versions of one artifact.

    Attributes:
        name: For tables and reports.
        old, new: Paths or MODEL spellings; `new` is empty where the new folder has no such artifact.
    """

    name: str
    old: str
    new: str


def find_pairs(old: str, new: str) -> tuple[list[Pair], list[str]]:
    """Return the pairs of two artifacts, MODEL spellings or folders, in the order of the old names.

    The names behind them are those of artifacts that only the new folder has.
    """
    folders = Path(old).is_dir(), Path(new).is_dir()
    if folders == (False, False):
        return [Pair(short_name(new), old, new)], []
    if folders != (True, True):
        names = ("`old`", "`new`") if folders[0] else ("`new`", "`old`")
        raise InvalidOption(
            f"{names[0]} is a folder, {names[1]} is not; two folders or two artifacts are required"
        )
    before, after = built_artifacts(Path(old)), built_artifacts(Path(new))
    if not before:
        raise InvalidOption(
            f"`old` {old}: holds no built artifact; a manifest NAME.json beside each is required",
            hint="give the output folder of `qcompile run`",
            option="old",
        )
    pairs = [Pair(name, str(path), str(after.get(name, ""))) for name, path in before.items()]
    return pairs, [name for name in after if name not in before]


def built_artifacts(folder: Path) -> dict[str, Path]:
    """Return name to path of the artifacts of a folder that the stage `build` made, in order of names."""
    found = {}
    for beside in sorted(folder.glob("*.json")):
        path = beside.with_suffix("")
        if path.is_file() and is_manifest(beside):
            manifest = read_manifest(path)
            if manifest is not None and manifest.stage == _BUILT:
                found[path.name] = path
    return found


def is_identical(pair: Pair) -> bool:
    """Whether both are files that are the same byte for byte, with their side files."""
    old, new = Path(pair.old), Path(pair.new)
    if not (old.is_file() and new.is_file() and old.suffix == new.suffix) or old.suffix == ".py":
        return False
    return digest_artifact(old) == digest_artifact(new)
