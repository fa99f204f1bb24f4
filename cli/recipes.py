"""The verbs of recipes, `run`, `sweep` and `worker`, and the connection to a `--scheduler`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.figures import counted
from ..core.processes.untrusted import is_child
from ..errors import InvalidOption, QCompileError
from ..spec import recipes
from ..spec.option import fields_of
from .session import Session, refuse_trust
from .tables import DASH, add_row, bytes_text, make_table, present_results
from .verb import verb

if TYPE_CHECKING:
    from ..pipeline.cluster.resources import WorkerFacts
    from ..pipeline.plan import Plan
    from ..pipeline.run import RunReport, StageListener
    from ..pipeline.stages.stage import Executor
    from ..spec.measure import Budget

_WORKER = "worker"


@contextlib.contextmanager
def executor_of(
    session: Session, options: recipes.SchedulerOptions, output: Path
) -> Iterator[Executor | None]:
    """Connect to the scheduler of the options and yield it; without one, yield None to run the stages here.
    Local workers store their files in `output`, the folder of the artifacts."""
    if not options.scheduler:
        for option in fields_of(recipes.SchedulerOptions):
            if getattr(options, option.name):
                problem = f"`{option.name}` is for `scheduler`, which is missing"
                raise InvalidOption(problem, option=option.name)
        yield None
        return
    from ..pipeline.cluster.connection import connect
    from ..pipeline.stages.store import FOLDER

    session.progress("connect to the scheduler")
    with connect(
        options.scheduler,
        options,
        store=output / FOLDER / _WORKER if options.scheduler == recipes.LOCAL else options.store or None,
        told=lambda text: session.warn([text]),
    ) as executor:
        names = ", ".join(sorted(facts.name for facts in executor.fleet.ready()))
        session.note(f"workers: {names}")
        yield executor


def listener_of(session: Session, executor: Executor | None = None) -> StageListener:
    """Return a function that prints a line for each finished stage, with its worker."""
    worker_of_stage: Mapping[str, str] = getattr(executor, "did", {})

    def listener(stage: str, state: str, seconds: float, /) -> None:
        if state != "skipped" or session.verbose:
            worker = worker_of_stage.get(stage) if state != "failed" else ""
            session.note(f"{state:>7}  {stage}  {seconds:.1f} s{f'  on {worker}' if worker else ''}")

    return listener


@verb(
    recipes.RunCommand,
    "qcompile run examples/digits/recipe.toml",
    "qcompile run recipe.toml -o /tmp/out --again bench",
    "qcompile run --dry-run",
    "qcompile run recipe.toml --scheduler tcp://127.0.0.1:8786",
    "qcompile run --schema > recipe.schema.json",
)
def run(session: Session, options: recipes.RunCommand) -> int:
    if options.schema:
        click.echo(json.dumps(recipes.recipe_schema(), indent=2), file=session.results)
        return 0
    from ..pipeline.plan import plan
    from ..pipeline.run import run as run_recipe

    return run_or_plan(session, options, options.recipe, run_recipe, plan)


def run_or_plan(
    session: Session,
    options: recipes.RunOptions,
    path: Path,
    run_recipe: Callable[..., RunReport],
    plan: Callable[..., Plan],
) -> int:
    """Run a recipe, or print the plan of a run; return the exit code."""
    from ..pipeline.recipe.recipe import read_recipe

    recipe = read_recipe(path)
    if recipe.model.trust and is_child():
        refuse_trust("model.trust of the recipe")
    if options.dry_run and options.scheduler:
        raise InvalidOption(
            "`dry_run` plans for this machine; it is required without `scheduler`",
            hint="leave one of them out",
            option="dry_run",
        )
    if options.dry_run:
        return _show_plan(session, plan(recipe, options, progress=session.progress))
    with executor_of(session, options, options.output or recipe.folder / recipe.output) as executor:
        try:
            report = run_recipe(
                recipe, options, executor=executor, progress=session.progress,
                listener=listener_of(session, executor),
            )  # fmt: skip
        except QCompileError as error:
            failures: Any = error.data.get("failures", {})
            session.warn(f"{name}: not built: {why}" for name, why in failures.items())
            raise
    return _present(session, report, recipe.budget)


def _present(session: Session, report: RunReport, budget: Budget) -> int:
    """Print the outcome of a run, the table of its measurements and the verdict; return the exit code."""
    from ..bench.report.recommendation import recommend
    from ..pipeline.recipe.published import RESULTS

    results = report.results
    is_compared = results is not None and not results.machines  # a sweep has a verdict for each recipe
    verdict = recommend(report.output / RESULTS, budget=budget) if is_compared else None
    session.json(
        {
            "output": str(report.output),
            "stages": report.stages,
            "artifacts": {name: str(path) for name, path in report.artifacts.items()},
            "failures": {name: error.as_json() for name, error in report.failures.items()},
            "instead": report.instead,
            "results": results.as_json() if results else None,
            "report": str(report.page) if report.page else None,
            "budget": report.budget,
            "recommendation": verdict.as_json() if verdict else None,
            "where": report.where,
            **({"impossible": report.impossible} if report.impossible else {}),
        }
    )
    if results:
        present_results(session, results)
    elif not session.quiet:
        session.table(_artifacts_table(report))
    if session.quiet or not results:  # otherwise the table shows the failures
        session.warn(f"{name}: not built: {error}" for name, error in report.failures.items())
    if not report.failures and all(state == "skipped" for state in report.stages.values()):
        session.note("nothing changed: every stage was done already (--again bench measures again)")
    if report.page:
        session.say(f"report: {report.page}")
    elif report.why_no_page:
        session.note(f"no report: {report.why_no_page}")
    session.say(f"artifacts{' and results.json' if results else ''}: {report.output}")
    for name, other in report.instead.items():
        session.say(f"use {other} in place of {name}")
    not_replaced = set(report.failed) - report.instead.keys()
    is_within = _present_budget(session, report.budget)
    if verdict:
        session.verdict(verdict.sentence)
    return 1 if not_replaced or not is_within else 0


def _present_budget(session: Session, budget: dict[str, str] | None) -> bool:
    """Print the artifacts within the budget and the reasons against the others; return if any is within."""
    if budget is None:
        return True
    within = [name for name, reason in budget.items() if not reason]
    session.say(f"within the budget: {', '.join(within) or 'no artifact'}")
    for name, reason in budget.items():
        if reason:
            session.say(f"  not {name}: {reason}")
    return bool(within)


def _show_plan(session: Session, planned: Plan) -> int:
    session.json(planned.as_json())
    if session.quiet or session.as_json:
        return 0
    titles = ("stage", "state", "seconds", "memory", "disk", "from", "why")
    table = make_table("", *titles, spare=("from", "disk"))
    for stage in planned.stages:
        estimate = stage.estimate
        seconds = DASH if estimate.seconds is None else f"{estimate.seconds:.1f}"
        sizes = [bytes_text(estimate.peak_bytes), bytes_text(estimate.disk_bytes)]
        add_row(table, stage.name, stage.state, seconds, *sizes, estimate.source, stage.why)
    session.table(table)
    if not planned.pending:
        session.say("nothing to do: every stage is done")
        return 0
    total_s = planned.total("seconds")
    session.say(
        f"to do: {len(planned.pending)} of {counted(len(planned.stages), 'stage')}, "
        f"{'some of unknown time' if total_s is None else f'about {total_s:.0f} s'}, "
        f"{bytes_text(planned.peak_bytes)} of memory, {bytes_text(planned.total('disk_bytes'))} of disk; "
        "nothing was run"
    )
    return 0


def _artifacts_table(report: Any) -> Any:
    table = make_table("", "artifact", "file", "size")
    for name, path in report.artifacts.items():
        add_row(table, name, path.name, bytes_text(path.stat().st_size))
    for name in report.failures:
        add_row(table, name, "failed", DASH)
    for name in report.impossible:
        add_row(table, name, "impossible", DASH)
    return table


@verb(
    recipes.SweepCommand,
    "qcompile sweep recipe.toml",
    "qcompile sweep recipe.toml --dry-run",
    "qcompile sweep recipe.toml --only '*-int8' --again bench",
    "qcompile sweep recipe.toml --scheduler local",
    "qcompile sweep recipe.toml --scheduler tls://scheduler:8786 -o /data/sweep",
)
def sweep(session: Session, options: recipes.SweepCommand) -> int:
    from ..pipeline.sweep import plan_sweep
    from ..pipeline.sweep import sweep as sweep_recipe

    return run_or_plan(session, options, options.recipe, sweep_recipe, plan_sweep)


@verb(
    recipes.WorkerCommand,
    "qcompile worker tcp://127.0.0.1:8786",
    "qcompile worker tls://10.0.0.1:8786 --tls-ca ca.pem --tls-cert worker.pem --tls-key worker.key",
    "qcompile worker scheduler.json --store /scratch/qcompile --slots 2",
    files=False,
)
def worker(session: Session, options: recipes.WorkerCommand) -> None:
    """Print the worker's announcement, and work until a signal ends it."""
    from ..pipeline.cluster.connection import serve

    addresses: list[str] = []

    def announced(facts: WorkerFacts) -> None:
        addresses.append(facts.address)
        if len(addresses) > 1:
            session.note(f"joined again, at {facts.address}")
            return
        session.json({"name": facts.name, "address": facts.address, "resources": dict(facts.resources)})
        session.say(f"worker {facts.name} at {facts.address}, store {options.store}")
        shown = sorted(name for name in facts.resources if name != "slots" and "=" not in name)
        stages = "stage" if options.slots == 1 else "stages"
        session.say(f"  {options.slots} {stages} at a time; announces {', '.join(shown)}")

    serve(options, announced=announced, told=session.note)
