"""`qcompile sweep`."""

from __future__ import annotations

from dataclasses import replace

from ..spec.recipes import SweepCommand
from .run import carry_out
from .session import Session
from .verb import verb

_THIS_PROCESS = "none"
"""What 0.2.0 took in place of a scheduler's address for no processes but this one."""


@verb(
    SweepCommand,
    "qcompile sweep recipe.toml",
    "qcompile sweep recipe.toml --dry-run",
    "qcompile sweep recipe.toml --only '*-int8' --again bench",
    "qcompile sweep recipe.toml --scheduler local",
    "qcompile sweep recipe.toml --scheduler tls://scheduler:8786 -o /data/sweep",
)
def sweep(session: Session, given: SweepCommand) -> int:
    """Print what was done, and one table of all that was measured."""
    from ..pipeline.sweep import plan_sweep
    from ..pipeline.sweep import sweep as sweep_recipe

    if given.scheduler == _THIS_PROCESS:
        given = replace(given, scheduler="")
    return carry_out(session, given, given.recipe, sweep_recipe, plan_sweep)
