"""Steps carried out by the workers of a Dask scheduler.

The client submits a step as one task that names its files by digest. The worker computes the key, which holds
what the worker has, and looks whether the client or it has done the step before. What a worker cannot get
from others, the client uploads, straight to the worker; what a stage writes, the client downloads from its
worker into the store of the run. So the client can upload again whatever is lost with a worker.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from .. import errors
from ..errors import ArtifactError, ClusterError, EngineUnavailable, QCompileError, first_line
from ..pipeline.executor import Done, ThisProcess
from ..pipeline.kinds import kind_of_others
from ..pipeline.recipe import Recipe
from ..pipeline.stages import Made, with_isa
from ..pipeline.steps import Step
from ..pipeline.store import Store, Stored
from ..processor import isa_here
from ..progress import Progress, silent
from .bundle import LocalBundle, bundle_beside, bundle_of_recipe, bundle_of_stage, index_key, write_files
from .carriers import ClientCarrier, MissingChunk, StoreCarrier
from .facts import Facts, isa_announced
from .fleet import Fleet, lost_scheduler
from .messages import OUTPUT, RECIPE, Answer, Request, StageKilled, StepText
from .needs import Place, gpus_of, needs_of, place

_ATTEMPTS = 20
_RETRIES = 2
"""Times that Dask tries a stage again whose process was killed."""
_AT_A_TIME = 64
_HELD_BUNDLES = 1024
"""Results of stages that workers hold for the next stages; older ones are uploaded again if need be."""
_REJOIN_S = 15.0
_LOOK_S = 1.0


class _Lost(Exception):
    """The workers that a step could go to are gone, or what they made went with them."""


@dataclass
class _Run:
    """What the executor keeps of one run: its recipe, and its files as bundles by digest."""

    recipe: Recipe
    recipe_bundle: LocalBundle
    bundles: dict[str, LocalBundle] = field(default_factory=dict)
    of_path: dict[Path, str] = field(default_factory=dict)

    def note(self, path: Path, bundle: LocalBundle) -> str:
        digest = bundle.bundle.digest()
        self.bundles[digest], self.of_path[path] = bundle, digest
        return digest


class ClusterExecutor:
    """Carries out steps on workers; several runs may use it at a time, each from threads of its own.

    Args:
        client: A synchronous `distributed.Client`.
        fleet: Its workers.
        told: Of what the user should know: workers that are refused or too small.
        store: URL of a store that carries the files; empty for Dask.

    Attributes:
        did: Step to the worker that did it last, for a line on the terminal.
    """

    def __init__(self, client: Any, fleet: Fleet, told: Callable[[str], None], store: str = "") -> None:
        self.client, self.fleet, self.store = client, fleet, store
        self.did: dict[str, str] = {}
        self.stopped = threading.Event()
        self._told, self._said = told, set[str]()
        self._carrier = ClientCarrier(client)
        self._shared = StoreCarrier(store) if store else None
        self._held: OrderedDict[str, list[str]] = OrderedDict()
        self._runs: weakref.WeakKeyDictionary[Store, _Run] = weakref.WeakKeyDictionary()
        self._lock, self._uploading = threading.Lock(), threading.Lock()
        self._progress: dict[str, Progress] = {}
        self._here = ThisProcess()
        client.subscribe_topic(f"qcompile-{client.id}", self._hear)

    @property
    def workers(self) -> Mapping[str, Facts]:
        """Address to what it has, of the workers in use."""
        return {facts.address: facts for facts in self.fleet.ready()}

    @property
    def parallel(self) -> int:
        """Steps of one run at a time: all slots."""
        slots = sum(int(facts.resources.get("slots", 1)) for facts in self.fleet.ready())
        return max(1, min(slots, _AT_A_TIME))

    @property
    def kinds(self) -> Sequence[str]:
        """The GPUs of the cluster by compute capability, each once: "sm86"."""
        names = {name for facts in self.fleet.ready() for name in gpus_of(facts)}
        return sorted(name.removeprefix("gpu-") for name in names)

    @property
    def shards(self) -> int:
        """Parts of a calibration: one for each worker that calibrates."""
        return max(1, sum(bool(facts.resources.get("onnxruntime")) for facts in self.fleet.ready()))

    def do(self, recipe: Recipe, step: Step, store: Store, *, again: bool, progress: Progress) -> Done | None:
        """As `pipeline.executor.Executor.do`.

        Raises:
            EngineUnavailable: If no worker has what the step needs.
            ClusterError: If the scheduler or all workers are lost.
        """
        if step.kind == "report":  # a page for the user of this machine, drawn in a moment
            return self._here.do(recipe, step, store, again=again, progress=progress)
        try:
            done = self._do(self._run_of(recipe, store), step, store, again, progress)
        except EngineUnavailable:
            if step.kind == "quantize":  # the build then says so
                return None
            raise
        self.did[step.name] = done.where if done is not None else ""
        return done

    def is_done(self, recipe: Recipe, step: Step, store: Store) -> bool:
        """As `pipeline.executor.Executor.is_done`."""
        if not store.kept(step.name):
            return False
        run = self._run_of(recipe, store)
        return self._answer(run, step, store, again=False, look=True).outcome == "known"

    def cancel(self) -> None:
        """As `pipeline.executor.Executor.cancel`: what workers do for this client ends."""
        self.stopped.set()

    def close(self) -> None:
        """End what workers do for this client."""
        self.cancel()
        with contextlib.suppress(Exception):  # the scheduler is gone
            self._carrier.release([key for keys in self._held.values() for key in keys])
            self.client.unsubscribe_topic(f"qcompile-{self.client.id}")

    def await_workers(self, seconds: float) -> list[Facts]:
        """Return the workers that may be asked, waiting as long as a restart takes.

        Raises:
            ClusterError: If there is none.
        """
        deadline_s = time.monotonic() + seconds
        while True:
            if self.stopped.is_set():
                raise ClusterError("the run was ended", hint="what was finished is kept: run again to go on")
            if self.client.status in ("closed", "closing"):
                raise lost_scheduler(self.client)
            if workers := self.fleet.ready():
                return workers
            if time.monotonic() > deadline_s:
                reasons = "; ".join(self.fleet.refused.values())
                what = f"none of its workers can be used: {reasons}" if reasons else "it has no workers"
                raise ClusterError(
                    f"scheduler {self.client.scheduler.address}: {what}",
                    hint="start workers with `qcompile worker`; what was finished is kept: run again to go on",
                    address=self.client.scheduler.address,
                )
            self.stopped.wait(0.2)

    def _do(self, run: _Run, step: Step, store: Store, again: bool, progress: Progress) -> Done | None:
        """Have a step done, and its files brought into the store of the run."""
        for _ in range(_ATTEMPTS):
            answer = self._answer(run, step, store, again=again, progress=progress)
            if answer.outcome == "none":
                return None
            if answer.outcome == "failed":
                raise _error_of(answer, output=store.output, folder=run.recipe.folder)
            try:
                return self._stored(run, step, store, answer, again)
            except _Lost:
                continue
        raise _gave_up(step)

    def _answer(
        self, run: _Run, step: Step, store: Store, *, again: bool, look: bool = False,
        progress: Progress = silent,
    ) -> Answer:  # fmt: skip
        """Ask workers until one has all files of a step, and the versions that it needs."""
        inputs = {made.digest: self._bundle_of(run, made) for made in step.given()}
        request = Request(
            client=self.client.id,
            step=_as_text(step),
            name=step.name,
            recipe=run.recipe_bundle.bundle.digest(),
            inputs=inputs,
            store=self.store,
            known=() if again else tuple(store.kept(step.name)),
            look=look,
            again=again,
            versions=dict(self.fleet.versions),
        )
        for _ in range(_ATTEMPTS):
            chosen = self._place(run.recipe, step, store)
            self._progress[step.name] = progress
            try:
                answer = self._submitted(msgspec.structs.replace(request, alone=chosen.alone), chosen)
                if answer.outcome == "refused":
                    self.fleet.refuse(answer.address, answer.reason)
                elif answer.outcome == "missing":
                    for digest in answer.missing:
                        self._upload(answer.address, run.bundles[digest])
                else:
                    return answer
            except (_Lost, MissingChunk):
                self.fleet.ready(now=True)
            finally:
                self._progress.pop(step.name, None)
        raise _gave_up(step)

    def _place(self, recipe: Recipe, step: Step, store: Store) -> Place:
        workers = self.await_workers(_REJOIN_S)
        home = self._home(recipe, store, workers) if step.kind == "build" else None
        chosen = place(step, needs_of(recipe, step, store), workers, home)
        if chosen.warning and chosen.warning not in self._said:
            self._said.add(chosen.warning)
            self._told(chosen.warning)
        return chosen

    def _home(self, recipe: Recipe, store: Store, workers: Sequence[Facts]) -> Facts | None:
        """Return the worker that will measure a recipe's artifacts; None where nothing is measured."""
        if recipe.bench is None:
            return None
        # Engines are measured on machines of their own kinds: this is the one for the others.
        step = Step(kind="bench", machine=kind_of_others(recipe, self.kinds))
        targets = dict.fromkeys(artifact.target for artifact in recipe.artifact)
        needs = replace(needs_of(recipe, step, store), preferred=(*targets, "pytorch"))
        address = place(step, needs, workers).workers[0]
        return next(facts for facts in workers if facts.address == address)

    def _submitted(self, request: Request, chosen: Place) -> Answer:
        """Have a worker of a place carry a request out.

        Raises:
            _Lost: If no worker of the place is there any more.
        """
        future = self.client.submit(
            _carrying_out(),
            msgspec.json.encode(request),
            key=f"qcompile-{request.step.kind}-{request.name}-{uuid.uuid4().hex}",
            workers=list(chosen.workers),
            resources=dict(chosen.resources),
            retries=_RETRIES,
            pure=False,
        )
        over = threading.Event()
        try:
            future.add_done_callback(lambda _: over.set())
            while not over.wait(_LOOK_S) and not future.done():
                there = {facts.address for facts in self.await_workers(_REJOIN_S)}
                if there.isdisjoint(chosen.workers) and not future.done():
                    raise _Lost
            return self._result(future)
        except BaseException:
            with contextlib.suppress(Exception):  # the scheduler may be gone: then so is the task
                future.cancel()
            raise
        finally:
            future.release()

    def _result(self, future: Any) -> Answer:
        from distributed.comm.core import CommClosedError
        from distributed.scheduler import KilledWorker, NoValidWorkerError

        hint = "what was finished is kept: run again to go on"
        try:
            return msgspec.json.decode(future.result(timeout=60), type=Answer)
        except (CommClosedError, TimeoutError, NoValidWorkerError) as error:
            raise _Lost from error
        except CancelledError as error:
            if getattr(error, "reason", "") == "scheduler-connection-lost" or self.client.status != "running":
                raise lost_scheduler(self.client) from error
            raise _Lost from error
        except KilledWorker as error:
            number, last = error.allowed_failures + 1, error.last_worker.address
            message = f"{number} workers ended while they did it; the last was {last}"
            raise ClusterError(message, hint=f"see what ended them; {hint}", worker=last) from error
        except StageKilled as error:
            hint = f"the stage may crash a native library, or take more memory than there is; {hint}"
            raise ClusterError(f"{error} ({_RETRIES + 1} times)", hint=hint) from error
        except Exception as error:  # of Dask, or of a worker whose qcompile is another one
            message = f"a worker failed: {type(error).__name__}: {first_line(error)}"
            raise ClusterError(message, hint=f"see the worker's log; {hint}") from error

    def _upload(self, worker: str, bundle: LocalBundle) -> None:
        """Bring files to a worker, or to the store; from there others get them."""
        with self._uploading:
            keys = []
            for key, chunk in bundle.items():
                keys.append(key)
                if self._shared:
                    self._shared.put(key, chunk)
                else:
                    self._carrier.put_on(worker, key, chunk)
            self._hold(bundle.bundle.digest(), keys)

    def _hold(self, digest: str, keys: list[str]) -> None:
        with self._lock:
            self._held[digest] = keys
            self._held.move_to_end(digest)
            if len(self._held) > _HELD_BUNDLES:
                self._carrier.release(self._held.popitem(last=False)[1])

    def _stored(self, run: _Run, step: Step, store: Store, answer: Answer, again: bool) -> Done:
        """The files of a stage in the store of the run."""
        main = str(answer.key.get("file", ""))
        if answer.outcome == "known":
            stored = store.take(answer.name, publish=not step.shard)
            if stored is None:  # changed within the moment
                raise _Lost
            return Done(self._noted(run, stored, main), True)
        bundle = answer.bundle
        assert bundle is not None, "a stage that is done wrote files"
        keys = [index_key(bundle.digest()), *bundle.chunk_keys()]
        if self._shared is None:
            self._carrier.hold(keys)
            self._hold(bundle.digest(), keys)
        carrier = self._shared or self._carrier

        def download(folder: Path) -> None:
            write_files(bundle, (carrier.get(key) for key in keys[1:]), folder)

        took = {"seconds": answer.seconds, "peak_bytes": answer.peak_bytes}
        try:
            stored = store.run(
                step.name, answer.key, download, again=again, publish=not step.shard, took=took
            )
        except (MissingChunk, ArtifactError) as error:  # its worker is lost, or a chunk is damaged
            raise _Lost from error
        if stored.folder.name != answer.name:
            raise ClusterError(
                f"worker {answer.worker}: {answer.name} is not the name of its key; {stored.folder.name} is",
                hint="use one version of qcompile on all machines",
                worker=answer.worker,
            )
        return Done(self._noted(run, stored, main), answer.was_done, answer.worker)

    def _noted(self, run: _Run, stored: Stored, main: str) -> Made:
        path = stored.folder / main
        run.note(path, bundle_of_stage(stored.folder, main, dict(stored.files)))
        return Made(path, stored.files[main])

    def _bundle_of(self, run: _Run, made: Made) -> str:
        """The digest of the bundle of a file of the step."""
        with self._lock:
            if made.path not in run.of_path:  # ranges that the recipe names
                run.note(made.path, bundle_beside(made.path))
            return run.of_path[made.path]

    def _run_of(self, recipe: Recipe, store: Store) -> _Run:
        with self._lock:
            run = self._runs.get(store)
        if run is not None:
            return run
        facts: Facts | None = None
        with contextlib.suppress(EngineUnavailable):
            facts = self._home(recipe, store, self.await_workers(_REJOIN_S))
        isa = (isa_announced(facts) if facts else None) or isa_here()
        recipe = replace(recipe, artifact=tuple(with_isa(artifact, isa) for artifact in recipe.artifact))
        run = _Run(recipe, bundle_of_recipe(recipe))
        run.bundles[run.recipe_bundle.bundle.digest()] = run.recipe_bundle
        with self._lock:
            return self._runs.setdefault(store, run)

    def _hear(self, event: tuple[float, Mapping[str, Any]]) -> None:
        said = event[1]
        progress = self._progress.get(str(said.get("step")))
        if progress is not None:
            total = said.get("total")
            text = f"{said.get('text')} (worker {said.get('name')})"
            progress(text, int(said.get("done") or 0), None if total is None else int(total))


def _carrying_out() -> Callable[[bytes], bytes]:
    """Return what `client.submit` has a worker do: it is sent by value, the scheduler needs no qcompile."""

    def qcompile_stage(request: bytes) -> bytes:
        from qcompile.cluster.task import carry_out_request

        return carry_out_request(request)

    return qcompile_stage


def _as_text(step: Step) -> StepText:
    return StepText(
        kind=step.kind,
        artifact=step.artifact,
        shard=step.shard,
        source_digest=step.source_digest,
        files={name: made.digest for name, made in step.files.items()},
        shards=tuple(made.digest for made in step.shards),
        built={name: made.digest for name, made in step.built.items()},
        why_not=dict(step.why_not),
        unavailable=step.unavailable,
        machine=step.machine,
        trial=step.trial,
    )


def _error_of(answer: Answer, *, output: Path, folder: Path) -> QCompileError:
    """The error that a worker told of, as one process would raise it."""

    def here(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(OUTPUT, str(output)).replace(RECIPE, str(folder))
        if isinstance(value, dict):
            return {str(key): here(item) for key, item in value.items()}
        return [here(item) for item in value] if isinstance(value, list) else value

    kinds = {kind.__name__: kind for kind in _kinds(QCompileError)}
    kind = kinds.get(str(answer.error.get("error", "")), QCompileError)
    data = answer.error.get("data")
    values = here(data) if isinstance(data, dict) else {}
    values = {name: value for name, value in values.items() if name not in ("message", "hint", "self")}
    error = kind(
        here(str(answer.error.get("message", ""))), hint=here(str(answer.error.get("hint", ""))), **values
    )
    error.data = {**error.data, "worker": answer.worker}
    return error


def _kinds(kind: type[QCompileError]) -> Iterator[type[QCompileError]]:
    """The classes that errors.py declares."""
    if kind.__module__ == errors.__name__:
        yield kind
    for subclass in kind.__subclasses__():
        yield from _kinds(subclass)


def _gave_up(step: Step) -> ClusterError:
    return ClusterError(
        f"{step.name}: {_ATTEMPTS} attempts failed: workers were lost, or have other versions",
        hint="what was finished is kept: run again to go on",
    )
