"""The supply chain: what is installed is locked, licences go together, the wheel holds the package alone."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaged import ROOT, packaged

Modules = dict[str, ModuleType]


@pytest.fixture(scope="module")
def supply() -> Iterator[Modules]:
    """The scripts of `supply/`, which is no package."""
    names = ("lock", "licences", "sbom", "audit", "wheel")
    sys.path.insert(0, str(ROOT / "supply"))
    try:
        yield {name: __import__(name) for name in names}
    finally:
        sys.path.remove(str(ROOT / "supply"))
        for name in names:
            sys.modules.pop(name, None)


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in pairs}


def test_the_lock_has_a_hash_for_every_pin(supply: Modules) -> None:
    locked = supply["lock"].parse_lock((ROOT / "requirements-test.lock").read_text())
    assert {name: version for name, (version, _) in locked.items()} == pins(), "make lock"
    assert all(hashes for _, hashes in locked.values())


def test_what_is_installed_here_and_needed_is_locked(supply: Modules) -> None:
    """An environment that `make` set up holds nothing that the lock does not name."""
    locked = pins()
    cuda = ("nvidia-c", "nvidia-n", "cuda-", "triton")  # what PyTorch's build for GPUs brings besides
    unlocked = [
        f"{one.name} {one.version}"
        for one in supply["licences"].packages()
        if one.name not in locked and not one.name.startswith(cuda)
    ]
    assert not unlocked, "constraints.txt, then make lock"


def test_a_lock_is_written_as_it_is_read_and_refused_without_hashes(supply: Modules) -> None:
    lock = supply["lock"]
    entries = {"a-b": ("1.0", {"0" * 64, "1" * 64}), "c": ("2+cpu", {"f" * 64})}
    assert lock.parse_lock(lock.format_lock(entries)) == entries
    with pytest.raises(ValueError, match="a_b: has no hash"):
        lock.parse_lock("a_b==1.0\n")


def test_a_file_that_the_lock_does_not_know_is_named(supply: Modules) -> None:
    def taken(name: str, digest: str) -> dict[str, Any]:
        file = {"url": f"https://x/{name}.whl", "archive_info": {"hashes": {"sha256": digest}}}
        return {"metadata": {"name": name}, "download_info": file}

    entries = {"a-b": ("1.0", {"0" * 64, "1" * 64})}
    report = {"install": [taken("A_b", "1" * 64), taken("a-b", "2" * 64), taken("c", "0" * 64)]}
    assert supply["lock"].unlocked(report, entries) == ["https://x/a-b.whl", "https://x/c.whl"]
    assert not supply["lock"].unlocked({"install": []}, entries)


def test_what_comes_with_qcompile_asks_for_its_notice_alone(supply: Modules) -> None:
    found = supply["licences"].packages()
    assert {one.name for one in found if one.role == "runtime"} >= {"numpy", "onnx", "click", "protobuf"}
    assert not supply["licences"].incompatible(found)


def test_licences_that_bind_more_are_seen(supply: Modules) -> None:
    licences = supply["licences"]
    cases = [
        ("a", "GPL-3.0-only", "runtime"),
        ("b", "unknown", "extra"),
        ("tqdm", "MPL-2.0 AND MIT", "runtime"),
    ]
    cases += [
        ("c", "MIT OR Apache-2.0", "runtime"),
        ("d", "GPL-3.0-only", "tests"),
        ("tqdm", "MPL-2.0", "extra"),
    ]
    found = [licences.Package(name, "1", licence, role) for name, licence, role in cases]
    assert [line.partition(" ")[0] for line in licences.incompatible(found)] == ["a", "b", "tqdm"]


def test_the_page_of_licences_names_every_locked_package_that_qcompile_needs() -> None:
    rows = re.findall(
        r"^\| (\S+) \| (\S+) \| (.+?) \| (.+?) \|$", (ROOT / "docs/licences.md").read_text(), re.M
    )
    listed = {
        name: version.partition("+")[0] for name, version, _, _ in rows if name not in ("package", "---")
    }
    locked = pins()
    assert listed
    assert {name: locked.get(name) for name in listed} == listed, "make licences"
    assert not [name for name, _, licence, _ in rows if licence == "unknown"]
    assert len(locked) - len(listed) <= 20, sorted(locked.keys() - listed.keys())


def test_the_bill_of_materials_names_every_package_with_its_hashes(supply: Modules) -> None:
    found = supply["licences"].packages()
    locked = supply["lock"].parse_lock((ROOT / "requirements-test.lock").read_text())
    bill = supply["sbom"].bill(found, locked, "2026-11-22T00:00:00+00:00")
    assert bill == supply["sbom"].bill(found, locked, "2026-11-22T00:00:00+00:00"), (
        "equal inputs, equal bytes"
    )
    by_name = {one["name"]: one for one in bill["components"]}
    numpy = by_name["numpy"]
    assert numpy["purl"] == f"pkg:pypi/numpy@{numpy['version']}"
    hashes = {one["hashes"][0]["content"] for one in numpy["externalReferences"]}
    assert hashes == locked["numpy"][1]
    references = {one["bom-ref"] for one in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {one["ref"] for one in bill["dependencies"]} == references
    assert {ref for one in bill["dependencies"] for ref in one["dependsOn"]} <= references
    json.dumps(bill)


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "1 of 1 packages looked up, 0 vulnerable"),
        ([{"name": "a", "skip_reason": "not found"}], 2, "0 of 1 packages looked up"),
        (
            [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}],
            1,
            "a 1: CVE-1, fixed in 2",
        ),
    ],
)
def test_an_audit_that_looked_nothing_up_is_no_success(
    supply: Modules, answers: list[dict[str, Any]], code: int, said: str
) -> None:
    found, lines = supply["audit"].verdict(answers)
    assert found == code
    assert any(said in line for line in lines)


def test_every_file_that_the_code_reads_is_packaged() -> None:
    named = packaged()
    assert all((ROOT / name.removeprefix("qcompile/")).is_file() for name in named)
    rooms = [path.parent for path in ROOT.glob("*/__init__.py")]
    found = (
        path
        for room in rooms
        for path in room.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    assert not sorted({f"qcompile/{path.relative_to(ROOT)}" for path in found} - named), (
        "package_data of setup.cfg"
    )


@pytest.mark.slow
def test_the_wheel_is_reproducible_and_holds_the_package_alone(supply: Modules, tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("the wheel is built from the files that git has")
    assert supply["wheel"].main(tmp_path) == 0, "two builds give equal bytes"
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if ".dist-info/" not in name} == packaged()
