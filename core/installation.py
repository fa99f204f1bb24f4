"""Requirements of each extra, from the metadata of the distribution, and the commands that install them.

The distribution is `qcompile-onnx`; no package index has it, and `qcompile` on the index is another project.
Hints therefore name third-party packages, never a distribution of this project.
"""

from __future__ import annotations

import copy
import functools
import importlib
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EngineUnavailable, first_line
from ..version import __version__, tool_versions

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "qcompile-onnx"
SUBSTITUTES = {
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"),
    "tensorflow": ("tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"),
}
"""For each package, other distributions of the same module."""
_ALTERNATIVES = {"tensorrt": "tensorrt8"}
"""For each extra, an alternative."""
_UNLISTED = ("benchmarks", "coverage", "dev", "docs", "gpu", "tensorrt8")
"""Extras for development, and alternatives to `cpu` and `tensorrt`."""
_PACKAGE = Path(__file__).parents[1]

Versions = Callable[[str], str]  # returns the version of a distribution, empty if not installed


def installed_version(package: str) -> str:
    """Return the version of an installed distribution, or an empty text."""
    return tool_versions(package).get(package, "")


def extras() -> Mapping[str, tuple[Requirement, ...]]:
    """Return the requirements of each extra that users may need."""
    return {extra: packages for extra, packages in _all_extras().items() if extra not in _UNLISTED}


@functools.cache
def _all_extras() -> Mapping[str, tuple[Requirement, ...]]:
    """Return the requirements of each extra and its nested extras; empty without metadata."""
    try:
        from packaging.requirements import Requirement
    except ImportError:  # another interpreter that runs a worker may lack it
        return {}
    from importlib.metadata import distributions

    places = [str(_PACKAGE.parent), *sys.path]  # a worker may run the package from outside `sys.path`
    installed = next(iter(distributions(name=DISTRIBUTION, path=places)), None)
    if installed is None:
        return {}
    declared = [Requirement(text) for text in installed.requires or ()]
    packages_by_extra = {}
    for extra in installed.metadata.get_all("Provides-Extra") or ():
        packages: dict[str, Requirement] = {}
        for requirement in _requirements_of(extra, declared):
            if previous := packages.get(requirement.name):
                requirement.specifier &= previous.specifier
            packages[requirement.name] = requirement
        if packages:
            packages_by_extra[extra] = tuple(packages.values())
    return packages_by_extra


def _requirements_of(extra: str, declared: Sequence[Requirement]) -> Iterator[Requirement]:
    """Yield the requirements of an extra and of the extras of this distribution that it includes."""
    for requirement in declared:
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": extra}):
            continue
        if requirement.name == DISTRIBUTION:
            for included in sorted(requirement.extras):
                yield from _requirements_of(included, declared)
        else:
            unmarked = copy.copy(requirement)
            unmarked.marker = None
            yield unmarked


def installed_as(package: str, version_of: Versions = installed_version) -> str:
    """Return the installed distribution of a package or a substitute, or an empty text."""
    return next(filter(version_of, (package, *SUBSTITUTES.get(package, ()))), "")


def unmet(extra: str, version_of: Versions = installed_version) -> list[Requirement]:
    """Return the requirements of an extra that are not met; empty if an alternative extra is met."""
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

    If all are met, the command names all: pip then installs their missing dependencies.
    """
    arguments = []
    for requirement in unmet(extra, version_of) or _all_extras().get(extra, ()):
        text, name = str(requirement), requirement.name
        arguments.append(shlex.quote(text.replace(name, installed_as(name, version_of) or name, 1)))
    if not arguments:
        return f"install the packages of the extra {extra!r} of qcompile"
    return f"pip install {' '.join(arguments)}"


def import_package(module: str, problem: str, *, extra: str, engine: str) -> Any:
    """Return an imported module.

    Raises:
        EngineUnavailable: If the import fails; the message is `problem` with the cause in parentheses.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        reason = first_line(error)
        message, hint = f"{problem} ({reason})", install_hint(extra)
        raise EngineUnavailable(message, hint=hint, engine=engine, reason=reason) from error


def other_distribution() -> tuple[str, str]:
    """Return problem and fix if an installed distribution `qcompile` has files in `qcompile/`, else "", "".

    `qcompile` is a foreign project or an earlier wheel of this one. An editable install puts no files there.
    """
    from importlib.metadata import Distribution, distributions

    def has_package(distribution: Distribution) -> bool:
        return any(file.parts[0] == "qcompile" for file in distribution.files or ())

    for installed in filter(has_package, distributions(name="qcompile")):
        is_ours = any(point.value == "qcompile.cli:main" for point in installed.entry_points)
        origin = f"an earlier wheel of {DISTRIBUTION}" if is_ours else "another project of the package index"
        effect = f"its files replace or hide those of {DISTRIBUTION}"
        fix = "pip uninstall -y qcompile"
        if any(map(has_package, distributions(name=DISTRIBUTION))):  # uninstalling removes the shared files
            wheel = f"dist/qcompile_onnx-{__version__}-py3-none-any.whl"
            fix += f" && pip install --force-reinstall --no-deps {wheel}"
        return f"qcompile {installed.version}, {origin}, is installed: {effect}", fix
    return "", ""
