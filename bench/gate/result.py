"""The outcome of a gate: the checks of every pair, and whether all that was required holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .checks import Check, Limits
from .rule import Slowdown

KIND = "qcompile.gate"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PairResult:
    """The checks of one pair.

    Attributes:
        name: Of the artifact.
        old, new: Paths or MODEL spellings.
        checks: In the order of `checks.Kind`.
        slowdown: Of the new version; None where it was not measured.
        seconds: That the pair took.
        warnings: What the rows say of the measuring.
        disturbed: What else used the machine meanwhile, and what to do about it.
    """

    name: str
    old: str
    new: str
    checks: Sequence[Check]
    slowdown: Slowdown | None = None
    seconds: float = 0.0
    warnings: Sequence[str] = ()
    disturbed: Sequence[str] = ()

    @property
    def is_skipped(self) -> bool:
        """Whether the pair could not run here."""
        return any(check.kind == "run" and check.state == "skipped" for check in self.checks)


@dataclass(frozen=True)
class GateResult:
    """The outcome of a gate; true when nothing fails.

    Attributes:
        pairs: What was judged.
        limits: What was required.
        added: Artifacts that only the new folder holds.
        machine: Where it ran, in words.
        threads: Of every artifact.
        created: When, ISO 8601 in UTC.
        seconds: That it took.
    """

    pairs: Sequence[PairResult]
    limits: Limits
    added: Sequence[str]
    machine: str
    threads: int
    created: str
    seconds: float

    def __bool__(self) -> bool:
        return not any(self.fails(check) for _, check in self.checks())

    def checks(self) -> Iterator[tuple[PairResult, Check]]:
        """Yield every check with its pair."""
        return ((pair, check) for pair in self.pairs for check in pair.checks)

    def fails(self, check: Check) -> bool:
        """Whether a check fails the gate: with `strict` also one that is open."""
        is_open = check.state == "undecided" or (check.kind == "run" and check.state == "skipped")
        return check.state == "failed" or (self.limits.strict and is_open)

    @property
    def words(self) -> str:
        """The outcome as one line."""
        failed = sum(self.fails(check) for _, check in self.checks())
        undecided = sum(check.state == "undecided" for _, check in self.checks())
        count = f"{len(self.pairs)} artifact{'' if len(self.pairs) == 1 else 's'}"
        left = f", {undecided} undecided" if undecided else ""
        verdict = f"failed: {failed} check{'' if failed == 1 else 's'}" if failed else "passed"
        return f"{verdict}, {count}{left}, {self.seconds:.0f} s"

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` form."""
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "created": self.created,
            "passed": bool(self),
            "machine": self.machine,
            "threads": self.threads,
            "seconds": round(self.seconds, 3),
            "limits": {
                "max_slower_percent": round(100.0 * self.limits.max_slower, 6),
                "max_larger_percent": round(100.0 * self.limits.max_larger, 6),
                "max_drop": self.limits.max_drop,
                "outputs": self.limits.outputs,
                "strict": self.limits.strict,
            },
            "pairs": [_pair_json(pair) for pair in self.pairs],
            "added": list(self.added),
        }


def _pair_json(pair: PairResult) -> dict[str, Any]:
    return {
        "name": pair.name,
        "old": pair.old,
        "new": pair.new,
        "slowdown": pair.slowdown and dict(vars(pair.slowdown)),
        "checks": [dict(vars(check)) for check in pair.checks],
        "seconds": round(pair.seconds, 3),
        "warnings": list(pair.warnings),
        "disturbed": list(pair.disturbed),
    }
