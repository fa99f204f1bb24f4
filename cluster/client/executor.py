"""Steps carried out by the workers of a Dask scheduler.

The client knows the inputs of a step, so it submits the step as one task. The worker computes the key, which
holds what the worker has, and looks whether the step was done: here, there, or by another worker. Then the
client brings its files into the store of the run.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import ClusterError, EngineUnavailable
from ...pipeline.executor import Done, ThisProcess
from ...pipeline.kinds import kind_of_others
from ...pipeline.recipe import Recipe
from ...pipeline.stages import with_isa
from ...pipeline.steps import Step
from ...pipeline.store import Store
from ...processor import isa_here
from ...progress import Progress, silent
from ...spec.words import Isa
from ..facts import isa_announced
from ..messages import Facts
from .errand import Errand
from .groups import Groups
from .holders import Holders
from .needs import gpus_of, needs_of, place
from .roster import Roster
from .state import RunState

_MOST_AT_A_TIME = 64
_IN_FLIGHT = 256


class ClusterExecutor:
    """Carries out steps on workers; several runs may use it at a time, each from threads of its own.

    Args:
        client: A synchronous `distributed.Client`.
        roster: Its workers.
        told: Of what the user should know: workers that are refused, full or too small.

    Attributes:
        did: Step to the worker that did it last, for a line on the terminal.
    """

    def __init__(self, client: Any, roster: Roster, told: Callable[[str], None]) -> None:
        self.client, self.roster, self._told = client, roster, told
        self.holders = Holders(client)
        self.groups = Groups(client)
        self.stopped = threading.Event()
        self.did: dict[str, str] = {}
        self._states: weakref.WeakKeyDictionary[Store, RunState] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._in_flight = threading.BoundedSemaphore(_IN_FLIGHT)
        self._session = uuid.uuid4().hex
        self._number = itertools.count()
        self._heard: dict[tuple[str, str], Progress] = {}
        self._said: set[str] = set()
        self._here = ThisProcess()
        client.subscribe_topic(f"qcompile-{self._session}", self._hear)

    @property
    def workers(self) -> Mapping[str, Facts]:
        """Address to what it has, of the workers in use."""
        self.roster.refresh()
        return {facts.address: facts for facts in self.roster.ready()}

    @property
    def parallel(self) -> int:
        """Steps of one run at a time: all slots."""
        slots = sum(int(facts.resources.get("slots", 1)) for facts in self.workers.values())
        return max(1, min(slots, _MOST_AT_A_TIME))

    @property
    def kinds(self) -> Sequence[str]:
        """The GPUs of the cluster by compute capability, each once: "sm86"."""
        names = {name for facts in self.workers.values() for name in gpus_of(facts)}
        return sorted(name.removeprefix("gpu-") for name in names)

    @property
    def shards(self) -> int:
        """Parts of a calibration: one for each worker that calibrates."""
        able = [facts for facts in self.workers.values() if facts.resources.get("onnxruntime")]
        return max(1, len(able))

    def do(self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress) -> Done | None:
        """As `pipeline.executor.Executor.do`.

        Raises:
            EngineUnavailable: If no worker has what the step needs.
            ClusterError: If the scheduler or all workers are lost.
        """
        if step.kind == "report":  # a page for the user of this machine, drawn in a moment
            return self._here.do(recipe, step, store, again=again, progress=progress)
        try:
            with self._in_flight:
                done = Errand(self, self._state(recipe, store), store, step, again, progress).run()
        except EngineUnavailable:
            if step.kind == "quantize":  # the build then says so
                return None
            raise
        self.did[step.name] = done.where if done is not None else ""
        return done

    def is_done(self, recipe: Recipe, step: Step, store: Store) -> bool:
        """As `pipeline.executor.Executor.is_done`; another worker may have done it, too."""
        if not store.kept(step.name) and not self.roster.finished(step.name):
            return False
        with self._in_flight:
            return Errand(self, self._state(recipe, store), store, step, False, silent).look()

    def cancel(self) -> None:
        """As `pipeline.executor.Executor.cancel`: what workers do for this client ends."""
        self.stopped.set()

    def close(self) -> None:
        """End what workers do for this client."""
        self.cancel()
        self.groups.close()
        with contextlib.suppress(Exception):  # the scheduler is gone
            self.client.unsubscribe_topic(f"qcompile-{self._session}")

    def require_running(self) -> None:
        """Give up where the user has ended the run.

        Raises:
            ClusterError: If so.
        """
        if self.stopped.is_set():
            raise stopped()

    def await_workers(self, excluded: Container[str], seconds: float) -> list[Facts]:
        """Return the workers that may be asked, after waiting for one as long as a restart takes.

        Raises:
            ClusterError: If there is none.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.require_running()
            self.roster.refresh()
            ready = self.roster.ready()
            if left := [facts for facts in ready if facts.address not in excluded]:
                return left
            if ready or time.monotonic() > deadline:
                raise self._nobody(len(ready))
            self.stopped.wait(0.2)

    def _nobody(self, excluded: int) -> ClusterError:
        reasons = "; ".join(self.roster.refused.values())
        if excluded:
            what = f"none of its {excluded} workers can go on with this run"
        elif reasons:
            what = f"none of its workers can be used: {reasons}"
        else:
            what = "it has no workers"
        return ClusterError(
            f"scheduler {self.client.scheduler.address}: {what}",
            hint="start workers with `qcompile worker`; what was finished is kept: run again to go on",
            address=self.client.scheduler.address,
        )

    @contextlib.contextmanager
    def hearing(self, state: RunState, step: Step, progress: Progress) -> Iterator[None]:
        """Hear what workers tell of a step while they do it."""
        self._heard[state.run, step.name] = progress
        try:
            yield
        finally:
            self._heard.pop((state.run, step.name), None)

    def _hear(self, event: tuple[float, Mapping[str, Any]]) -> None:
        said = event[1]
        progress = self._heard.get((str(said.get("run")), str(said.get("step"))))
        if progress is not None:
            total = said.get("total")
            text = f"{said.get('text')} (worker {said.get('name')})"
            progress(text, int(said.get("done") or 0), None if total is None else int(total))

    def tell_once(self, text: str) -> None:
        """Tell the user something, once."""
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
        self._told(text)

    def home(self, recipe: Recipe, store: Store) -> Facts | None:
        """Return the worker that will measure a recipe's artifacts; None where nothing is measured."""
        ready = self.roster.ready()
        if recipe.bench is None or not ready:
            return None
        # Engines are measured on machines of their own kinds: this is the one for the others.
        step = Step(kind="bench", machine=kind_of_others(recipe, self.kinds))
        needs = needs_of(recipe, step, store)
        targets = dict.fromkeys(one.target for one in recipe.artifact)
        whole = replace(needs, preferred=(*targets, "pytorch"))
        chosen = place(step, whole, ready).workers[0]
        return next(one for one in ready if one.address == chosen)

    def _isa(self, recipe: Recipe, store: Store) -> Isa:
        """What "auto" stands for: the instruction set of the worker that measures, else of this machine."""
        home: Facts | None = None
        with contextlib.suppress(EngineUnavailable):
            home = self.home(recipe, store)
        return (isa_announced(home) if home else None) or isa_here()

    def _state(self, recipe: Recipe, store: Store) -> RunState:
        with self._lock:
            if self.stopped.is_set():
                raise stopped()
            state = self._states.get(store)
            if state is None:
                isa = self._isa(recipe, store)
                recipe = replace(recipe, artifact=tuple(with_isa(one, isa) for one in recipe.artifact))
                state = self._states[store] = RunState(
                    f"{self._session}.{next(self._number)}", recipe, store.folder
                )
            return state


def stopped() -> ClusterError:
    """Return the error of a run that was ended."""
    return ClusterError("the run was ended", hint="what was finished is kept: run again to go on")
