"""`qcompile gate`: measure two versions in one run and decide whether the new one may replace the old one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from ...core.artifact import digest_artifact, is_manifest, read_manifest
from ...core.figures import DASH, counted
from ...core.plain_text import plain
from ...core.progress import Progress, silent
from ...engines.gpu import is_every_gpu
from ...errors import EngineUnavailable, InvalidOption, QCompileError
from ...model.sessions.session import usable_cores
from ...spec.decode import shared, spec_from_call
from ...spec.measure import BenchSpec, GateOptions
from ..benchmark import benchmark
from ..measure.artifacts import Interpreters, describe, parse_interpreters, short_name
from ..results.environment import environment, machine_text
from ..results.render import markdown_cell
from ..results.results import now
from .checks import GateCheck, Slowdown, State, checks_of, is_decided, slowdown

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import GateKeywords

KIND = "qcompile.gate"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PairResult:
    """The checks of one pair, in the order of `checks.Kind`.

    `warnings` are those of both rows; `disturbed` lists reasons for noise during the measurement.
    """

    name: str
    old: str
    new: str
    slowdown: Slowdown | None
    checks: Sequence[GateCheck]
    seconds: float = 0.0
    warnings: Sequence[str] = ()
    disturbed: Sequence[str] = ()


@dataclass(frozen=True)
class GateResult:
    """The outcome of a gate; true if no check fails. `added` lists artifacts that only the new folder has."""

    pairs: Sequence[PairResult]
    limits: GateOptions
    added: Sequence[str]
    machine: str
    threads: int
    created: str
    seconds: float

    def __bool__(self) -> bool:
        return not any(self.fails(check) for _, check in self.checks())

    def checks(self) -> Iterator[tuple[PairResult, GateCheck]]:
        return ((pair, check) for pair in self.pairs for check in pair.checks)

    def fails(self, check: GateCheck) -> bool:
        """Return whether a check fails the gate; with `strict`, undecided and unmeasured ones fail, too."""
        is_open = check.state == "undecided" or (check.kind == "run" and check.state == "skipped")
        return check.state == "failed" or (self.limits.strict and is_open)

    @property
    def words(self) -> str:
        failed = sum(self.fails(check) for _, check in self.checks())
        undecided = sum(check.state == "undecided" for _, check in self.checks())
        unclear = f", {undecided} undecided" if undecided else ""
        verdict = f"failed: {counted(failed, 'check')}" if failed else "passed"
        return f"{verdict}, {counted(len(self.pairs), 'artifact')}{unclear}, {self.seconds:.0f} s"

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "created": self.created,
            "passed": bool(self),
            "machine": self.machine,
            "threads": self.threads,
            "seconds": round(self.seconds, 3),
            "limits": {
                "max_slower_percent": round(self.limits.max_slower, 6),
                "max_larger_percent": round(self.limits.max_larger, 6),
                "max_drop": self.limits.max_drop,
                "outputs": self.limits.outputs,
                "strict": self.limits.strict,
            },
            "pairs": [asdict(pair) | {"seconds": round(pair.seconds, 3)} for pair in self.pairs],
            "added": list(self.added),
        }


# JUnit XML of a gate: one suite, one case per check, as Jenkins, GitLab and GitHub actions read it.
#
# The elements and attributes are those of Jenkins' schema (`junit-10.xsd` of the xUnit plugin). GitLab shows
# `classname` as the suite and drops a second case of the same name (docs.gitlab.com, "Unit test reports"), so
# the class is the artifact and the name is the check.


def junit(result: GateResult) -> str:
    """Return the XML. An undecided check becomes a skipped case with its reason; with `strict`, a failure."""
    cases = list(result.checks())
    failures = str(sum(result.fails(check) for _, check in cases))
    skipped = str(sum(_is_skipped(result, check) for _, check in cases))
    about = {
        "name": "qcompile gate", "tests": str(len(cases)), "failures": failures, "errors": "0",
        "time": f"{result.seconds:.3f}",
    }  # fmt: skip
    root = ElementTree.Element("testsuites", about)
    about |= {"skipped": skipped, "timestamp": result.created}
    suite = ElementTree.SubElement(root, "testsuite", about)
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("machine", result.machine), ("threads", str(result.threads))):
        ElementTree.SubElement(properties, "property", name=name, value=plain(value))
    for pair, check in cases:
        _add_case(suite, result, pair, check)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _add_case(suite: ElementTree.Element, result: GateResult, pair: PairResult, check: GateCheck) -> None:
    seconds = pair.seconds if check is pair.checks[0] else 0.0  # one measurement serves all checks of a pair
    case = ElementTree.SubElement(
        suite, "testcase", name=check.kind, classname=plain(pair.name), time=f"{seconds:.3f}"
    )
    text = plain(check.text)
    if result.fails(check):
        failure = ElementTree.SubElement(case, "failure", type=check.state, message=text)
        lines = (text, plain(check.hint), f"old: {plain(pair.old)}", f"new: {plain(pair.new)}")
        failure.text = "\n".join(filter(None, lines))
    elif _is_skipped(result, check):
        ElementTree.SubElement(case, "skipped", type=check.state, message=text)
    else:
        ElementTree.SubElement(case, "system-out").text = text


def _is_skipped(result: GateResult, check: GateCheck) -> bool:
    return check.state in ("undecided", "skipped") and not result.fails(check)


_HEADER = ("artifact", "check", "old", "new", "change", "verdict")
VERDICT_TEXTS: dict[State, str] = {
    "passed": "passed", "failed": "FAILED", "undecided": "undecided", "skipped": "not judged",
}  # fmt: skip


def markdown(result: GateResult) -> str:
    lines: list[tuple[str, ...]] = [_HEADER, ("---", "---", "---:", "---:", "---:", "---")]
    lines += [cells_of(result, pair, check) for pair, check in result.checks()]
    rows = ["| " + " | ".join(map(markdown_cell, cells)) + " |" for cells in lines]
    notes = [f"- {markdown_cell(note)}" for note in notes_of(result)]
    about = f"{result.machine}, {counted(result.threads, 'thread')}; interleaved, with 99% intervals"
    parts = (f"### qcompile gate: {result.words}", "\n".join(rows), "\n".join(notes), markdown_cell(about))
    return "\n\n".join(filter(None, parts)) + "\n"


def cells_of(result: GateResult, pair: PairResult, check: GateCheck) -> tuple[str, ...]:
    first = pair.name if check is pair.checks[0] else ""
    verdict = VERDICT_TEXTS[check.state]
    if result.fails(check) and check.state != "failed":
        verdict = f"FAILED: {verdict}"
    return (first, check.kind, check.old or DASH, check.new or DASH, check.change or DASH, verdict)


def notes_of(result: GateResult) -> list[str]:
    """Return a sentence for each check that did not pass, and for each artifact without an old version."""
    notes = [f"{pair.name}: {check.text}" for pair, check in result.checks() if check.state != "passed"]
    return [*notes, *(f"{name}: only the new folder has it; not judged" for name in result.added)]


_ANY_WIDTH = 1.0 - 1e-9  # of an interval: `is_decided` ends the measurement, so no row warns of a wide one


def gate(
    old: str,
    new: str,
    spec: GateOptions | None = None,
    /,
    *,
    progress: Progress = silent,
    **options: Unpack[GateKeywords],
) -> GateResult:
    """Measure an old and a new version interleaved, and check the new one.

    Args:
        old: Artifact, MODEL, or output folder of `qcompile run`.
        new: New version of it; with folders, every artifact of the old folder is checked.
        spec: Limits of the checks, and options of the measurement.
        progress: Called at every step.
        options: Fields of `GateOptions` by name, in place of those of `spec`.

    Returns:
        The checks of each pair; false if one fails.

    Raises:
        InvalidOption: If an option is wrong, or a folder is compared with a file.
        EngineUnavailable: If no old artifact can run here.
        QCompileError: If a file of the only pair is missing or invalid, or the data does not fit.
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
    bench = shared(BenchSpec, spec, baseline="old", precision_target=_ANY_WIDTH, devices=devices)
    pythons = parse_interpreters(spec.python)
    results = []
    for pair in pairs:
        try:
            results.append(_measure_pair(pair, spec, bench, pythons, progress))
        except QCompileError as error:
            if len(pairs) == 1:
                raise
            results.append(_unmeasured_pair(pair, "failed", error.message, error.hint))
    first = [pair.checks[0] for pair in results]
    if all((check.kind, check.state) == ("run", "skipped") for check in first):
        raise EngineUnavailable(
            f"no artifact of {old} runs here: {first[0].text}",
            hint="run the gate on a machine that the artifacts are for",
        )
    threads = spec.threads or usable_cores()
    machine = machine_text(environment(threads, 0))
    return GateResult(results, spec, added, machine, threads, now(), time.monotonic() - began)


def _measure_pair(
    pair: VersionPair, spec: GateOptions, bench: BenchSpec, pythons: Interpreters, progress: Progress
) -> PairResult:
    """Measure a pair. Skip it if the old version cannot run here; a missing or broken new version fails."""
    began = time.monotonic()
    if not pair.new:
        return _unmeasured_pair(pair, "failed", "the new folder has no such artifact")
    if spec.skip_identical and is_identical(pair):
        return _unmeasured_pair(pair, "passed", "the files are the same byte for byte; not measured")
    why_not = describe(pair.old, trust=spec.trust, pythons=pythons).why_not
    if why_not:
        return _unmeasured_pair(pair, "skipped", f"it cannot run here: {why_not}")
    results = benchmark(
        {"old": pair.old, "new": pair.new},
        bench,
        decided=partial(is_decided, spec.max_slower / 100.0),
        compare_made=True,
        progress=lambda text, *counts: progress(f"{pair.name}: {text}", *counts),
    )
    old, new = results.row("old"), results.row("new")
    for row in (old, new):
        if row.status != "measured":
            return _unmeasured_pair(pair, "failed", f"the {row.name} version: {row.reason}")
    noise = results.environment.get("noise") or {}
    return PairResult(
        pair.name, pair.old, pair.new,
        slowdown(old.launches_ms, new.launches_ms),
        checks_of(old, new, spec, has_data=(spec.data or spec.evaluation) is not None),
        time.monotonic() - began,
        [f"{row.name} version: {text}" for row in (old, new) for text in row.warnings],
        noise.get("reasons", ()),
    )  # fmt: skip


def _unmeasured_pair(pair: VersionPair, state: State, text: str, hint: str = "") -> PairResult:
    return PairResult(pair.name, pair.old, pair.new, None, [GateCheck("run", state, text=text, hint=hint)])


class VersionPair(NamedTuple):
    """Two versions of one artifact, as paths or MODEL arguments; `new` is empty if it is missing."""

    name: str
    old: str
    new: str


def find_pairs(old: str, new: str) -> tuple[list[VersionPair], list[str]]:
    """Return the pairs of two artifacts, MODELs or folders, and the names that only the new folder has."""
    folders = Path(old).is_dir(), Path(new).is_dir()
    if folders == (False, False):
        return [VersionPair(short_name(new), old, new)], []
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
    pairs = [VersionPair(name, str(path), str(after.get(name, ""))) for name, path in before.items()]
    return pairs, [name for name in after if name not in before]


def built_artifacts(folder: Path) -> dict[str, Path]:
    """Return the artifacts of a folder that the stage `build` wrote, by name, in order of names."""
    artifacts = {}
    for manifest_file in sorted(folder.glob("*.json")):
        path = manifest_file.with_suffix("")
        manifest = read_manifest(path) if path.is_file() and is_manifest(manifest_file) else None
        if manifest is not None and manifest.stage == "build":  # the folder also has files of other stages
            artifacts[path.name] = path
    return artifacts


def is_identical(pair: VersionPair) -> bool:
    """Return whether both versions are files that, with their side files, are equal byte for byte."""
    old, new = Path(pair.old), Path(pair.new)
    if not (old.is_file() and new.is_file() and old.suffix == new.suffix) or old.suffix == ".py":
        return False
    return digest_artifact(old) == digest_artifact(new)
