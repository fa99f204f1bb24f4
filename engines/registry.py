"""The engines by name, from their rows in `spec.engines`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from ..errors import EngineUnavailable, InvalidOption
from ..spec.engines import rows
from .base import Engine


def names() -> tuple[str, ...]:
    """Return the names of all engines."""
    return tuple(rows())


def packages_of(engine_names: Iterable[str]) -> dict[str, str]:
    """Return distribution to module, for all whose versions decide what these engines build and run."""
    return {package: module for name in engine_names for package, module in engine(name).packages.items()}


def engine(name: str) -> Engine:
    """Return an engine by name.

    Raises:
        InvalidOption: If there is none of that name.
        EngineUnavailable: If its class cannot be imported, or is not what its row says.
    """
    if name not in rows():
        near = difflib.get_close_matches(name, names(), n=1)
        raise InvalidOption(
            f"target {name!r} is unknown; known are {', '.join(names())}",
            hint=f"did you mean {near[0]!r}?" if near else "",
            option="target",
        )
    home = rows()[name].load()
    problem = ""
    if not (isinstance(home, type) and issubclass(home, Engine)):
        problem = "is no subclass of qcompile.engines.base.Engine"
    elif home.name != name:
        problem = f"has name {home.name!r}"
    elif home.__abstractmethods__:
        problem = f"lacks {', '.join(sorted(home.__abstractmethods__))}"
    if problem:
        raise EngineUnavailable(f"engine {name}: {rows()[name].home} {problem}", engine=name)
    runtime: Engine = home()
    return runtime
