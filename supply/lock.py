"""Write `requirements-test.lock`: every version of constraints.txt with the hashes of its files.

    make lock    # after a change of constraints.txt; needs a package index

The hashes are those that the index publishes for all files of a version, so one lock serves every system
and every Python. A file that pip takes from elsewhere, such as PyTorch's build for CPUs (`2.13.0+cpu`, which
PyPI does not have), is added with the hash that it has here: pip downloads it to tell.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS, LOCK = ROOT / "constraints.txt", ROOT / "requirements-test.lock"
HEADER = """\
# Written by `make lock` from constraints.txt: the files that the test environment may be installed from.
# make LOCK=yes .venv/.ready
"""
FROM_ELSEWHERE = ("torch",)


def main(uv: str) -> None:
    """Compile with uv, and add what this machine's pip takes from elsewhere."""
    words = [
        uv,
        "pip",
        "compile",
        "--no-config",
        "--no-deps",
        "--generate-hashes",
        "--no-header",
        "--no-annotate",
    ]
    compiled = subprocess.run([*words, "-q", str(CONSTRAINTS)], check=True, stdout=subprocess.PIPE, text=True)
    entries = parse_lock(compiled.stdout)
    for name in FROM_ELSEWHERE:
        version, hashes = entries[name]
        entries[name] = version, hashes | {_taken_here(f"{name}=={version}")}
    LOCK.write_text(HEADER + format_lock(entries), encoding="utf-8")
    print(
        f"{LOCK.name}: {len(entries)} packages, {sum(len(hashes) for _, hashes in entries.values())} hashes"
    )


def check(report: Path) -> int:
    """Say which files of a report of pip are not in the lock: 1 if there is one."""
    entries = parse_lock(LOCK.read_text(encoding="utf-8"))
    unknown = unlocked(json.loads(report.read_text(encoding="utf-8")), entries)
    for file in unknown:
        print(f"{file}: its hash is not in {LOCK.name}; `make lock` adds it, if you know where it comes from")
    return int(bool(unknown))


def unlocked(report: dict[str, Any], entries: dict[str, tuple[str, set[str]]]) -> list[str]:
    """Return the addresses of the files whose hash the lock does not have."""
    return [
        taken["download_info"]["url"]
        for taken in report["install"]
        if taken["download_info"]["archive_info"]["hashes"]["sha256"]
        not in entries.get(canonical(taken["metadata"]["name"]), ("", set()))[1]
    ]


def parse_lock(text: str) -> dict[str, tuple[str, set[str]]]:
    """Return each package's version and SHA-256 hashes.

    Raises:
        ValueError: If a package has no hash.
    """
    entries = {}
    joined = re.sub(r"\\\n", " ", text)
    for line in joined.splitlines():
        found = re.match(r"([A-Za-z0-9._-]+)==(\S+)", line)
        if found is None:
            continue
        hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
        if not hashes:
            raise ValueError(f"{found[1]}: has no hash")
        entries[canonical(found[1])] = found[2], hashes
    return entries


def format_lock(entries: dict[str, tuple[str, set[str]]]) -> str:
    """Return the lines that pip reads."""
    lines = []
    for name, (version, hashes) in sorted(entries.items()):
        lines.append(
            " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{one}" for one in sorted(hashes))])
        )
    return "\n".join(lines) + "\n"


def canonical(name: str) -> str:
    """Return a package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _taken_here(requirement: str) -> str:
    """Return the hash of the file that pip would install here."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--no-deps",
            "--report",
            str(report),
        ]
        subprocess.run([sys.executable, "-m", "pip", *words, requirement], check=True)
        (taken,) = json.loads(report.read_text())["install"]
        digest: str = taken["download_info"]["archive_info"]["hashes"]["sha256"]
        return digest


if __name__ == "__main__":
    sys.exit(check(Path(sys.argv[2])) if sys.argv[1] == "--check" else main(sys.argv[1]))
