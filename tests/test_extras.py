"""Which extras of setup.cfg go together: of every package a version exists that all of them take."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs/tensorrt.md").read_text(encoding="utf-8")
NUMPY_1 = "1.26.4"
"""The last of numpy 1, for which TensorRT 8 is built."""

CONFIG = ConfigParser()
CONFIG.read(ROOT / "setup.cfg")
EXTRAS = CONFIG["options.extras_require"]


def pinned() -> dict[str, str]:
    """Package to the version that the tests are run with."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.partition("==") for line in lines if "==" in line]
    return {canonicalize_name(name): version for name, _, version in pairs}


def wanted(*extras: str) -> dict[str, SpecifierSet]:
    """Package to what qcompile with extras asks of it."""
    found: dict[str, SpecifierSet] = {}
    lines = CONFIG["options"]["install_requires"].splitlines()
    left = [*lines, *(line for extra in extras for line in EXTRAS[extra].splitlines())]
    while left:
        text = left.pop().strip()
        if not text:
            continue
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name == "qcompile-onnx":
            left += [line for extra in requirement.extras for line in EXTRAS[extra].splitlines()]
        else:
            found[name] = found.get(name, SpecifierSet()) & requirement.specifier
    return found


def unresolved(*extras: str) -> list[str]:
    """The packages of which no version is known that would do: the tested one, or a bound that is named."""
    known = pinned()
    missing = []
    for name, specifiers in wanted(*extras).items():
        bounds = [one.version for one in specifiers if one.operator in (">=", "==")]
        candidates = [*bounds, *filter(None, [known.get(name)]), *[NUMPY_1] * (name == "numpy")]
        if not any(specifiers.contains(Version(version)) for version in candidates):
            missing.append(f"{name} {specifiers}")
    return missing


def together() -> list[tuple[str, ...]]:
    """The combinations that docs/tensorrt.md names."""
    return [tuple(found.split(",")) for found in re.findall(r"'\.\[([\w,-]+)\]'", GUIDE)]


@pytest.mark.parametrize("extra", list(EXTRAS))
def test_every_extra_resolves(extra: str) -> None:
    assert unresolved(extra) == []


@pytest.mark.parametrize("extras", together(), ids=",".join)
def test_the_extras_that_the_guide_puts_together_resolve(extras: tuple[str, ...]) -> None:
    assert unresolved(*extras) == []


def test_the_guide_names_a_combination_for_each_tensorrt() -> None:
    named = {extra for extras in together() for extra in extras}
    assert {"tensorrt", "tensorrt8", "tensorrt-rtx"} <= named


def test_tensorrt_8_keeps_numpy_1_and_newer_ones_take_numpy_2() -> None:
    old = wanted("tensorrt8", "cpu")["numpy"]
    assert (old.contains("2.0.0"), old.contains(NUMPY_1)) == (False, True)
    assert wanted("tensorrt", "cpu")["numpy"].contains(pinned()["numpy"])


def test_both_tensorrts_at_once_cannot_be() -> None:
    assert [text for text in unresolved("tensorrt", "tensorrt8") if text.startswith("tensorrt ")]


def test_the_tested_versions_are_within_the_ranges() -> None:
    versions = pinned()
    asked = wanted(*(extra for extra in EXTRAS if extra not in ("tensorrt8", "gpu")))
    wrong = {
        name: f"{versions[name]} {specifiers}"
        for name, specifiers in asked.items()
        if name in versions and not specifiers.contains(Version(versions[name]))
    }
    assert wrong == {}


def test_doctor_and_hints_know_every_extra_and_its_packages() -> None:
    from qcompile.core.installation import extras as known

    others = {"benchmarks", "coverage", "dev", "distributed", "docs", "gpu", "tensorrt8"}
    assert set(EXTRAS) - others == set(known())
    for extra, packages in known().items():
        specifiers = {name: found for name, found in wanted(extra).items() if name not in wanted()}
        assert {one.name: one.specifier for one in packages} == specifiers, extra
