"""Write `docs/licences.md`: the licence of every package that is installed here, and what needs it.

    make licences

Exit code 1 names packages that a user of qcompile must have, and whose licence would bind what they ship.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from email.message import Message
from importlib.metadata import PackageNotFoundError, distribution, distributions, requires

from lock import ROOT, canonical

PAGE = ROOT / "docs/licences.md"

SPELLED = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "FreeBSD": "BSD-2-Clause",
    "GPL-3.0": "GPL-3.0-only",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "OSI Approved :: Apache Software License": "Apache-2.0",
    "Other/Proprietary License": "Proprietary",
    "Python Software Foundation License": "PSF-2.0",
}
"""How packages spell a licence, and its name in SPDX; most texts of "BSD" have three clauses."""
READ = {"torchao": "BSD-3-Clause"}
"""Packages whose metadata names none, read from their licence file."""
PERMISSIVE = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC",
    "LLVM-exception", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Zlib",
}  # fmt: skip
"""Licences that ask for their notice alone."""
ALLOWED = {
    "tqdm": "MPL-2.0 binds changes of its own files alone",
    "tensorrt-rtx": "NVIDIA's licence; only for targets of TensorRT-RTX, and never shipped by qcompile",
}
"""Packages of extras with another licence, and why that binds nobody who does not choose them."""


@dataclass(frozen=True)
class Package:
    """One package: canonical name, version, licence in SPDX's names, and what needs it.

    `role` is "runtime" (qcompile does not run without it), "extra" (an extra of users) or "tests".
    """

    name: str
    version: str
    licence: str
    role: str


def main() -> int:
    """Write the page, and say what does not go together."""
    found = packages()
    PAGE.write_text(page(found), encoding="utf-8")
    problems = incompatible(found)
    print("\n".join([f"{PAGE.relative_to(ROOT)}: {len(found)} packages", *problems]))
    return int(bool(problems))


def packages() -> list[Package]:
    """Return every installed package but qcompile, pip and tools that nothing of qcompile needs."""
    runtime = closure("qcompile", {""})
    of_contributors = {"dev", "benchmarks", "docs", "real"}
    extras = closure("qcompile", {extra for extra in _extras() if extra not in of_contributors})
    tests = closure("qcompile", {"dev"})
    found = {}
    for one in distributions():
        name = canonical(one.metadata["Name"])
        role = "runtime" if name in runtime else "extra" if name in extras else "tests"
        if name != "qcompile" and name in runtime | extras | tests:
            found[name] = Package(name, one.version, licence_of(name, one.metadata), role)
    return sorted(found.values(), key=lambda one: one.name)


def licence_of(name: str, metadata: Message) -> str:
    """Return a package's licence from its metadata: the expression, the short text, or a classifier."""
    classifiers = [
        one.rpartition(" :: ")[2] for one in metadata.get_all("Classifier") or () if one.startswith("License")
    ]
    texts = [metadata.get("License-Expression") or "", metadata.get("License") or "", *classifiers]
    for text in texts:
        if text in SPELLED or (text and licences_in(text) <= PERMISSIVE | {"MPL-2.0", "Proprietary"}):
            return SPELLED.get(text, text)
    return READ.get(name, "unknown")


def licences_in(expression: str) -> set[str]:
    """Return the names in an expression of SPDX."""
    return set(re.findall(r"[\w.+-]+", expression)) - {"AND", "OR", "WITH"}


def incompatible(found: list[Package]) -> list[str]:
    """Return a line for each package whose licence asks for more than its notice, unless it is allowed."""
    return [
        f"{one.name} {one.version} ({one.role}): licence {one.licence}"
        for one in found
        if one.role != "tests"
        and not licences_in(one.licence) <= PERMISSIVE
        and (one.role == "runtime" or not any(one.name.startswith(name) for name in ALLOWED))
    ]


def closure(name: str, extras: set[str]) -> set[str]:
    """Return all packages that one needs with these extras, as far as they are installed; "" is none."""
    needed, waiting = set(), [(name, extra) for extra in extras]
    seen = set(waiting)
    while waiting:
        package, extra = waiting.pop()
        for line in _requirements(package):
            match = re.match(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?[^;]*;?(.*)", line)
            if match is None or not _applies(match[3], extra):
                continue
            other = canonical(match[1])
            needed.add(other)
            for wanted in {"", *(part.strip() for part in (match[2] or "").split(","))}:
                if (other, wanted) not in seen:
                    seen.add((other, wanted))
                    waiting.append((other, wanted))
    return needed


def direct(name: str) -> set[str]:
    """Return the installed packages that one names itself, with or without an extra."""
    named = (re.match(r"[A-Za-z0-9._-]+", line) for line in _requirements(name))
    return {canonical(match[0]) for match in named if match}


def page(found: list[Package]) -> str:
    """Return the page's text."""
    roles = {"runtime": "always", "extra": "with an extra", "tests": "tests alone"}
    lines = [
        "<!-- Written by make licences from the metadata of the installed packages. -->",
        "# Licences",
        "",
        "qcompile is Apache-2.0 and ships no other package. These are the packages of the test environment,",
        "which has all extras but `gpu`, `cuda`, `tensorrt`, `tensorflow` and those of benchmarks. What",
        "*always* comes with qcompile must ask for its notice alone; `make licences` refuses the rest.",
        "",
        *(f"`{name}*`: {why}." for name, why in ALLOWED.items()),
        "",
        "| package | version | licence | needed |",
        "|---|---|---|---|",
        *(f"| {one.name} | {one.version} | {one.licence} | {roles[one.role]} |" for one in found),
    ]
    return "\n".join(lines) + "\n"


def _extras() -> list[str]:
    return distribution("qcompile").metadata.get_all("Provides-Extra") or []


def _requirements(package: str) -> list[str]:
    try:
        return requires(package) or []
    except PackageNotFoundError:
        return []


def _applies(marker: str, extra: str) -> bool:
    """Whether a requirement's marker names this extra, or none; other markers are taken for true."""
    named = re.search(r"extra\s*==\s*[\"']([^\"']+)[\"']", marker)
    return named is None or canonical(named[1]) == canonical(extra)


if __name__ == "__main__":
    sys.exit(main())
