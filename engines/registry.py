"""The engines by name, from their rows in `spec.engines`.

Their capabilities are data: with the spec, they decide the graph to build.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from ..errors import EngineUnavailable, InvalidOption
from ..spec.engines import rows
from .base import Engine
from .words import KnownFault


def names() -> tuple[str, ...]:
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
        hint = f"did you mean {near[0]!r}?" if near else ""
        problem = f"target {name!r} is unknown; known are {', '.join(names())}"
        raise InvalidOption(problem, hint=hint, option="target")
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


@dataclass(frozen=True)
class Capabilities:
    """What decides which graph an engine needs; what `Engine` has under the same name is as there.

    Attributes:
        in_graph: Each precision that it can be asked for, to the precision that the graph must have for it.
        in_graph_if_weak: As `in_graph` where types are left to it on purpose; empty where that cannot be.
        tells_missed: Whether it tells, before the build, which quantized layers it would compute in float.
    """

    target: str
    takes: str
    in_graph: Mapping[str, str]
    lacks: tuple[str, ...]
    highest_opset: int | None
    keeps_layers: bool
    has_best: bool
    tells_missed: bool
    reader: str = ""
    operators: tuple[str, ...] | None = None
    faults: tuple[KnownFault, ...] = ()
    in_graph_if_weak: Mapping[str, str] = field(default_factory=dict)

    def needed(self, precision: str, *, weak: bool = False) -> str:
        """Return the precision that the graph must have for one that it is asked for."""
        return (self.in_graph_if_weak if weak and self.in_graph_if_weak else self.in_graph)[precision]

    def as_json(self) -> dict[str, object]:
        """Return the form that stands in the key of a stage."""
        return asdict(self)


def capabilities(engine: Engine) -> Capabilities:
    """Read what an engine of this machine can be given."""
    operators = engine.operators()
    weak = {precision: engine.graph_precision_if_weak(precision) for precision in engine.precisions}
    return Capabilities(
        engine.name,
        engine.takes,
        {precision: engine.graph_precision(precision) for precision in engine.precisions},
        tuple(sorted(engine.lacks)),
        engine.highest_opset(),
        keeps_layers=engine.keeps_layers,
        has_best=engine.has_best,
        tells_missed=type(engine).missed_layers is not Engine.missed_layers,
        reader=engine.reader(),
        operators=None if operators is None else tuple(sorted(operators)),
        faults=tuple(engine.known_faults()),
        in_graph_if_weak={precision: kind for precision, kind in weak.items() if kind is not None},
    )
