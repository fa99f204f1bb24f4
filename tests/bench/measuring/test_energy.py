"""Energy from the kernel's counters: a folder made as https://docs.kernel.org/power/powercap/powercap.html
describes it stands for /sys/class/powercap, which most virtual machines lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from qcompile.bench.measuring.gpu_metrics import POWERCAP, rapl_counter


def package(folder: Path, number: int, microjoules: int, *, name: str = "package-0") -> Path:
    zone = folder / f"intel-rapl:{number}"
    zone.mkdir(parents=True)
    (zone / "name").write_text(f"{name}\n")
    (zone / "energy_uj").write_text(f"{microjoules}\n")
    (zone / "max_energy_range_uj").write_text("1000000\n")
    return zone


def test_packages_are_added_and_a_counter_that_wraps_is_carried_on(tmp_path: Path) -> None:
    first, second = package(tmp_path, 0, 900_000), package(tmp_path, 1, 100_000, name="package-1")
    package(tmp_path, 2, 5, name="psys")  # the whole platform: contains the others
    inner = tmp_path / "intel-rapl:0:0"  # cores, which the package contains
    inner.mkdir()
    (inner / "name").write_text("core\n")
    read, source, why_not = rapl_counter(tmp_path)
    assert read is not None
    assert (source.startswith("RAPL, 2 processor"), why_not) == (True, "")
    before = read()
    (first / "energy_uj").write_text("100000\n")  # 0.9 J to 1.1 J, of which the counter forgets 1 J
    (second / "energy_uj").write_text("150000\n")
    assert read() - before == pytest.approx(250.0)  # 200 mJ and 50 mJ


def test_where_there_is_no_counter_that_is_said(tmp_path: Path) -> None:
    read, _, why_not = rapl_counter(tmp_path)
    assert read is None
    assert str(tmp_path) in why_not
    zone = package(tmp_path, 0, 1)
    (zone / "energy_uj").unlink()
    read, _, why_not = rapl_counter(tmp_path)
    assert read is None
    assert "cannot be read" in why_not


def test_on_this_machine_it_counts_up_or_says_why_not() -> None:
    read, source, why_not = rapl_counter(POWERCAP)
    if read is None:
        assert why_not
    else:
        assert source
        assert read() <= read()
