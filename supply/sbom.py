"""Write a software bill of materials, CycloneDX 1.5 in JSON: qcompile and what is locked, with hashes.

    make sbom    # dist/qcompile.cdx.json

Equal inputs give equal bytes: its time is that of the commit, and its serial number is derived from it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from licences import Package, direct, packages
from lock import LOCK, ROOT, parse_lock

NEEDED = {"runtime": "required", "extra": "optional", "tests": "excluded"}


def main(output: Path) -> int:
    """Write it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    bom = bill(packages(), parse_lock(LOCK.read_text(encoding="utf-8")), _commit_time())
    output.write_text(json.dumps(bom, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{output}: {len(bom['components'])} components")
    return 0


def bill(found: list[Package], locked: dict[str, tuple[str, set[str]]], time: str) -> dict[str, Any]:
    """Return the bill of packages, with the hashes of the lock."""
    own = component("qcompile", version("qcompile"), "Apache-2.0") | {"type": "application"}
    components = [
        component(one.name, one.version, one.licence)
        | {
            "scope": NEEDED[one.role],
            "externalReferences": _files(one.name, locked.get(one.name, ("", set()))[1]),
        }
        for one in found
    ]
    references = {one["name"]: one["bom-ref"] for one in [own, *components]}
    names = [one.name for one in found]
    dependencies = [
        {
            "ref": references[name],
            "dependsOn": sorted(references[one] for one in direct(name) if one in references),
        }
        for name in ["qcompile", *names]
    ]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([components, time]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"timestamp": time, "component": own},
        "components": components,
        "dependencies": dependencies,
    }


def component(name: str, version: str, licence: str) -> dict[str, Any]:
    """Return one component; a licence that SPDX does not name is given as text."""
    reference = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
    named = (
        {"license": {"name": licence}} if licence in ("Proprietary", "unknown") else {"expression": licence}
    )
    return {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
        "licenses": [named],
    }


def _files(name: str, hashes: set[str]) -> list[dict[str, Any]]:
    """Return the files of a version that may be installed: the lock knows them by their hashes alone."""
    url = f"https://pypi.org/simple/{name}/"
    return [
        {"type": "distribution", "url": url, "hashes": [{"alg": "SHA-256", "content": one}]}
        for one in sorted(hashes)
    ]


def _commit_time() -> str:
    words = ["git", "log", "-1", "--format=%ct"]
    seconds = int(subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
