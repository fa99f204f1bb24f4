"""The supply chain: what is pinned is locked, the wheel is reproducible and holds the package alone."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from packaged import ROOT, build, copy_source, packaged


def test_the_lock_has_a_hash_for_every_pin() -> None:
    text = (ROOT / "requirements-test.lock").read_text().replace("\\\n", " ")
    locked = {line.split()[0]: line for line in text.splitlines() if re.match(r"[\w.-]+==", line)}
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    canonical = {re.sub(r"[-_.]+(?=[^=]*==)", "-", pin).lower() for pin in pins if not pin.startswith("#")}
    assert locked.keys() == canonical, "make lock"
    assert all("--hash=sha256:" in line for line in locked.values())


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
def test_the_wheel_is_reproducible_and_holds_the_package_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    wheels = [build(copy_source(tmp_path / name), tmp_path / f"{name}.dist") for name in ("first", "other")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as archive:
        names = set(archive.namelist())
    assert {name for name in names if ".dist-info/" not in name} == packaged()
