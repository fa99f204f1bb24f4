"""The packages of each extra, by the metadata of the distribution, and the command that installs them.

The distribution is `qcompile-onnx`, and no package index has it. The index has a project `qcompile`, which is
somebody else's. Hints therefore name third-party packages, and never a distribution of this project.
"""

from __future__ import annotations

import copy
import functools
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..version import __version__, tool_versions

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "qcompile-onnx"
SUBSTITUTES = {
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"),
    "tensorflow": ("tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"),
}
"""Package to the distributions that have the same module."""
_ALTERNATIVES = {"tensorrt": "tensorrt8"}
"""Extra to another extra that serves the same purpose."""
_UNLISTED = ("benchmarks", "coverage", "dev", "docs", "gpu", "tensorrt8")
"""Extras for development, and alternatives of `cpu` and `tensorrt`."""
_PACKAGE = Path(__file__).parents[1]

Versions = Callable[[str], str]  # of a distribution; empty where it is not installed


def installed_version(package: str) -> str:
    """Return the version of an installed distribution; empty where it is not installed."""
    return tool_versions(package).get(package, "")


def extras() -> Mapping[str, tuple[Requirement, ...]]:
    """Return extra to its packages, for the extras that a user may need."""
    return {extra: packages for extra, packages in _all_extras().items() if extra not in _UNLISTED}


@functools.cache
def _all_extras() -> Mapping[str, tuple[Requirement, ...]]:
    """Return extra to its packages, with those of the extras that it includes.

    Empty where there is no metadata, and in another interpreter that runs a worker without `packaging`.
    """
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return {}
    from importlib.metadata import distributions

    places = [str(_PACKAGE.parent), *sys.path]  # a worker finds the package, and not always by `sys.path`
    installed = next(iter(distributions(name=DISTRIBUTION, path=places)), None)
    if installed is None:
        return {}
    declared = [Requirement(text) for text in installed.requires or ()]
    found = {}
    for extra in installed.metadata.get_all("Provides-Extra") or ():
        packages: dict[str, Requirement] = {}
        for requirement in _of_extra(extra, declared):
            if earlier := packages.get(requirement.name):
                requirement.specifier &= earlier.specifier
            packages[requirement.name] = requirement
        if packages:
            found[extra] = tuple(packages.values())
    return found


def _of_extra(extra: str, declared: Sequence[Requirement]) -> Iterator[Requirement]:
    """Yield the requirements of an extra, and of the extras of this distribution that it includes."""
    for requirement in declared:
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": extra}):
            continue
        if requirement.name == DISTRIBUTION:
            for included in sorted(requirement.extras):
                yield from _of_extra(included, declared)
        else:
            unmarked = copy.copy(requirement)
            unmarked.marker = None
            yield unmarked


def installed_as(package: str, version_of: Versions = installed_version) -> str:
    """Return the installed distribution of a package, or an installed substitute; empty if there is none."""
    return next(filter(version_of, (package, *SUBSTITUTES.get(package, ()))), "")


def unmet(extra: str, version_of: Versions = installed_version) -> list[Requirement]:
    """Return the requirements of an extra whose package is missing or has a version outside the range."""
    if extra in _ALTERNATIVES and not unmet(_ALTERNATIVES[extra], version_of):
        return []
    return [
        requirement
        for requirement in _all_extras().get(extra, ())
        if not (name := installed_as(requirement.name, version_of))
        or not requirement.specifier.contains(version_of(name), prereleases=True)
    ]


def install_hint(extra: str, version_of: Versions = installed_version) -> str:
    """Return the command that installs the unmet requirements of an extra.

    If all are met, the command names all of them: pip then installs the dependencies that they lack.
    """
    words = []
    for requirement in unmet(extra, version_of) or _all_extras().get(extra, ()):
        text, name = str(requirement), requirement.name
        words.append(shlex.quote(text.replace(name, installed_as(name, version_of) or name, 1)))
    if not words:
        return f"install the packages of the extra {extra!r} of qcompile"
    return f"pip install {' '.join(words)}"


def other_distribution() -> tuple[str, str]:
    """Return problem and fix if an installed distribution `qcompile` has files in `qcompile/`, else "", "".

    It is another project, or an earlier wheel of this one. An editable one has no such file.
    """
    from importlib.metadata import Distribution, distributions

    def has_package(distribution: Distribution) -> bool:
        return any(file.parts[0] == "qcompile" for file in distribution.files or ())

    for other in filter(has_package, distributions(name="qcompile")):
        earlier = any(point.value == "qcompile.cli:main" for point in other.entry_points)
        origin = f"an earlier wheel of {DISTRIBUTION}" if earlier else "another project of the package index"
        effect = f"its files replace or hide those of {DISTRIBUTION}"
        fix = "pip uninstall -y qcompile"
        if any(map(has_package, distributions(name=DISTRIBUTION))):  # it loses the files that both have
            wheel = f"dist/qcompile_onnx-{__version__}-py3-none-any.whl"
            fix += f" && pip install --force-reinstall --no-deps {wheel}"
        return f"qcompile {other.version}, {origin}, is installed: {effect}", fix
    return "", ""
