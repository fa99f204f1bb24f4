"""One step's way: to a worker, to another one if need be, and its files back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ArtifactError, ClusterError, EngineUnavailable, StorageError
from ...pipeline.executor import Done
from ...pipeline.steps import Step
from ...pipeline.store import Store
from ...progress import Progress
from ..files import transfer
from ..messages import Given, Request, Result
from .failures import error_of
from .needs import Place, needs_of, place
from .state import RunState, as_text, with_paths
from .waiting import Lost, carry_out_there

if TYPE_CHECKING:
    from .executor import ClusterExecutor

_ATTEMPTS = 12
_REJOIN_S = 15.0


class _Again(Exception):
    """The step is submitted once more, for a reason that does not repeat."""


class Errand:
    """A step that a worker carries out.

    Args:
        executor: Whose workers.
        state: Of its run.
        store: Of its run.
        step: What is done.
        again: Carry it out even if it is done.
        progress: Told of what the worker does.
    """

    def __init__(
        self,
        executor: ClusterExecutor,
        state: RunState,
        store: Store,
        step: Step,
        again: bool,
        progress: Progress,
    ) -> None:
        self.executor, self.state, self.store, self.step, self.again = executor, state, store, step, again
        self.progress = progress
        self._only = ""
        self._killed_on = ""
        self._elsewhere = True

    def run(self) -> Done | None:
        """Have it done, and its files brought into the store of the run."""
        for _ in range(_ATTEMPTS):
            try:
                result = self._asked()
                return self._taken(result)
            except _Again:
                continue
            except Lost:
                self.executor.roster.refresh(now=True)
        raise ClusterError(
            f"{self.step.name}: {_ATTEMPTS} attempts failed: workers were lost, full or of other versions",
            hint="what was finished is kept: run again to go on",
        )

    def look(self) -> bool:
        """Whether it is done: here, or by a worker."""
        for _ in range(_ATTEMPTS):
            try:
                result = self._asked(look=True)
                if result.outcome in ("missing", "refused", "full", "killed", "failed"):
                    self._taken(result)
                return result.outcome in ("known", "done", "elsewhere")
            except _Again:
                continue
            except Lost:
                self.executor.roster.refresh(now=True)
        return False

    def _asked(self, *, look: bool = False) -> Result:
        chosen = self._place()
        if chosen.warning:
            self.executor.tell_once(chosen.warning)
        request = self._request(chosen, look=look)
        self.executor.groups.keep(self.step.kind)
        with self.executor.hearing(self.state, self.step, self.progress):
            return carry_out_there(self.executor.client, request, chosen, lambda: self._is_there(chosen))

    def _is_there(self, chosen: Place) -> bool:
        """Called while the step is waited for."""
        self.executor.require_running()
        self.executor.roster.refresh()
        return not self.executor.roster.accepted.keys().isdisjoint(chosen.workers)

    def _place(self) -> Place:
        executor, recipe, store = self.executor, self.state.recipe, self.store
        ready = executor.await_workers(self.state.excluded, _REJOIN_S)
        ready = [one for one in ready if one.address != self._killed_on] or ready
        home = executor.home(recipe, store) if self.step.kind in ("build", "evaluate") else None
        return place(self.step, needs_of(recipe, self.step, store), ready, home, only=self._only)

    def _request(self, chosen: Place, *, look: bool) -> Request:
        """What the worker is asked, after somebody holds all that it needs."""
        packed = self.state.packed()
        alive = self.executor.workers
        given: dict[str, Given] = {}
        try:
            holders = self.executor.holders.bring(
                packed.paths, alive, chosen.workers, list_of_all=packed.ref.digest
            )
            for digest, (refs, paths) in with_paths(self.state, self.step.given()).items():
                given[digest] = Given(refs, self.executor.holders.bring(paths, alive, chosen.workers))
        except (ClusterError, StorageError) as error:
            self._cannot_take(error, chosen)
        name = self.step.name
        elsewhere = self.executor.roster.finished(name) if self._elsewhere and not self.again else {}
        return Request(
            run=self.state.run,
            step=as_text(self.step),
            parcel=packed.ref,
            parcel_holders=holders,
            given=given,
            known=() if self.again else tuple(self.store.kept(name)),
            elsewhere=tuple(elsewhere),
            look=look,
            again=self.again,
            versions=dict(self.executor.roster.versions),
            alone=chosen.alone,
            memory_bytes=int(chosen.resources.get("memory", 0)),
        )

    def _cannot_take(self, error: ClusterError | StorageError, chosen: Place) -> None:
        """A worker that files were sent to is lost, or its disk is full."""
        address = str(error.data.get("address", "")) or chosen.workers[0]
        if isinstance(error, StorageError):
            self._exclude(address, error.message)
            raise _Again from error
        raise Lost from error

    def _exclude(self, address: str, reason: str) -> None:
        facts = self.executor.roster.accepted.get(address)
        self.state.excluded[address] = reason
        name = facts.name if facts else address
        self.executor.tell_once(f"worker {name}: {reason}: this run goes on without it")

    def _taken(self, result: Result) -> Done | None:
        """What comes of an answer."""
        executor, state = self.executor, self.state
        if result.outcome == "none":
            return None
        if result.outcome == "done":
            return self._brought(result)
        if result.outcome == "known":
            stored = self.store.take(result.name, publish=not self.step.shard)
            if stored is None:  # changed within the moment
                raise _Again
            main = str(result.key.get("file", ""))
            return Done(state.note(stored, main), True)
        if result.outcome == "elsewhere":
            self._only, self._elsewhere = executor.roster.finished(self.step.name).get(result.name, ""), False
            raise _Again
        if result.outcome == "missing":
            self._bring_missing(result)
            raise _Again
        if result.outcome == "refused":
            executor.roster.refuse(result.address, result.reason)
            raise _Again
        if result.outcome == "full":
            self._exclude(result.address, result.reason)
            raise _Again
        if result.outcome == "killed" and self._may_go_elsewhere(result):
            raise _Again
        raise error_of(result, output=self.store.output, folder=state.recipe.folder)

    def _may_go_elsewhere(self, result: Result) -> bool:
        """Whether another worker is to try what was killed, which it does once."""
        if self._killed_on:
            return False
        self._killed_on = result.address
        try:
            others = self._place().workers
        except EngineUnavailable:
            others = ()
        if not others or result.address in others:
            return False
        self.executor.tell_once(
            f"worker {result.worker}: the process of {self.step.name} was killed, out of memory? "
            "It is tried once more on another worker"
        )
        return True

    def _bring_missing(self, result: Result) -> None:
        """Files that died with their holder are brought by the client."""
        holders = self.executor.holders
        holders.forget([*result.missing, self.state.packed().ref.digest])
        here: dict[str, Path] = dict(self.state.packed().paths)
        for _, paths in with_paths(self.state, self.step.given()).values():
            here |= paths
        unknown = [digest for digest in result.missing if digest not in here]
        if unknown:
            raise ClusterError(
                f"worker {result.worker}: asks for {unknown[0][:19]}…, which is no file of {self.step.name}",
                address=result.address,
            )
        try:
            holders.push(result.address, {digest: here[digest] for digest in result.missing})
        except ClusterError as error:
            raise Lost from error
        except StorageError as error:
            self._exclude(result.address, error.message)

    def _brought(self, result: Result) -> Done:
        """The files of a stage that a worker holds, in the store of the run."""
        executor, state = self.executor, self.state
        executor.roster.note_finished([result.name], result.address)
        rpc = executor.client.rpc(result.address)

        def pull(folder: Path) -> None:
            files = {one.digest: (folder / _plain(one.name), one.size_bytes) for one in result.files}
            executor.client.sync(transfer.pull, rpc, files)
            for one in result.files:  # two of the same content
                if not (folder / one.name).exists():
                    shutil.copyfile(files[one.digest][0], folder / one.name)

        took = {"seconds": result.seconds, "peak_bytes": result.peak_bytes}
        try:
            stored = self.store.run(
                self.step.name, result.key, pull, again=self.again, publish=not self.step.shard, took=took
            )
        except (ClusterError, ArtifactError) as error:  # it is lost, or a file of it is damaged
            executor.roster.forget_finished(result.name)
            raise Lost from error
        if stored.folder.name != result.name:
            raise ClusterError(
                f"worker {result.worker}: {result.name} is not the name of its key; {stored.folder.name} is",
                hint="use one version of qcompile on all machines",
                worker=result.worker,
            )
        made = state.note(stored, result.files[0].name)
        held = [one.digest for one in result.files]
        executor.holders.note(result.address, [*held, state.packed().ref.digest])
        for _, paths in with_paths(state, self.step.given()).values():
            executor.holders.note(result.address, paths)
        return Done(made, result.was_done, result.worker)


def _plain(name: str) -> str:
    """The name of a file in a folder, not a way out of it."""
    if name in ("", ".", "..") or Path(name).name != name or set(name) & {"\\", "\0"}:
        raise ClusterError(f"a worker names the file {name!r}; a plain name is required")
    return name
