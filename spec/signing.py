"""The verbs that sign artifacts, and the option that demands it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from .decode import Checked
from .option import argument, option

VERIFY_KEY = Annotated[
    Path | None,
    option("Key that must have signed every file that is run; see `qcompile sign`.", metavar="FILE"),
]
_KEY = Annotated[Path, option("File of 32 random bytes or more, which who verifies has too.", metavar="FILE")]


@dataclass(frozen=True, kw_only=True)
class SignCommand(Checked):
    """Sign ARTIFACTS: write FILE.sig beside each, the HMAC-SHA256 of its manifest."""

    artifacts: Annotated[tuple[Path, ...], argument("Artifacts with their manifests.")]
    key: _KEY
    new_key: Annotated[bool, option("Make the key first: a new file that its owner alone may read.")] = False


@dataclass(frozen=True, kw_only=True)
class VerifyCommand(Checked):
    """Verify that ARTIFACTS were signed with a key, and not changed since; the exit code is 1 if not."""

    artifacts: Annotated[tuple[Path, ...], argument("Artifacts with their manifests and signatures.")]
    key: _KEY
