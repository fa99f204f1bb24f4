"""Stages carried out by the workers of a Dask scheduler.

The client submits a stage as one task that names its files by digest. The worker computes the key, which
holds what the worker has, and looks whether the client or it has done the stage before. What a worker cannot
get from others, the client uploads, straight to the worker; what a stage writes, the client downloads from
its worker into the store of the run. So the client can upload again whatever is lost with a worker.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from ... import errors
from ...core.processor import isa_here
from ...core.progress import Progress, silent
from ...errors import ArtifactError, ClusterError, EngineUnavailable, QCompileError, first_line
from ..recipe.recipe import Recipe
from ..stages.graph import ThisProcess, is_published, kind_of
from ..stages.stage import Done, Made, Stage, kind_of_others
from ..stages.stages import with_isa
from ..stages.store import Store, Stored
from . import addresses, bundle, resources

_ATTEMPTS = 20
_RETRIES = 2
"""Times that Dask tries a stage again whose process was killed."""
_AT_A_TIME = 64
_REJOIN_S = 15.0
_LOOK_S = 1.0
_AGAIN = "what was finished is kept: run again to go on"


class _Lost(Exception):
    """The workers that a stage could go to are gone, or what they made went with them."""


class Fleet:
    """The workers of a scheduler, those that join later, too.

    `insecure` are hosts that the user named as spoken to without TLS; `told` hears of every worker that is
    refused, and `refused` is address to why a worker is not used.
    """

    def __init__(self, client: Any, insecure: Sequence[str], told: Callable[[str], None]) -> None:
        self.client, self.insecure, self._told = client, insecure, told
        self.refused: dict[str, str] = {}
        self._ready: list[resources.Facts] = []
        self._lock = threading.Lock()
        self._looked_s = -_LOOK_S
        self._has_plugin = False

    def ready(self, *, now: bool = False) -> list[resources.Facts]:
        """Return the workers that may be asked; looks who is there at most once a second, unless `now`."""
        with self._lock:
            if now or not self._ready or time.monotonic() - self._looked_s > _LOOK_S:
                workers = self._announced()
                if not self._has_plugin and any("slots" not in facts.resources for facts in workers):
                    self._register()
                    workers = self._announced()
                self.refused = {facts.address: self._why_not(facts) for facts in workers}
                # A task that needs resources waits for ever where its worker announces them later.
                self._ready = [
                    facts for facts in workers
                    if "slots" in facts.resources and not self.refused.get(facts.address)
                ]  # fmt: skip
                self._looked_s = time.monotonic()
            return list(self._ready)

    def _why_not(self, facts: resources.Facts) -> str:
        if facts.address in self.refused:
            return self.refused[facts.address]
        reason = resources.why_refused(facts)
        try:
            addresses.check_address(facts.address, self.insecure, what="worker")
        except ClusterError as error:
            reason = error.message + (f" ({error.hint})" if error.hint else "")
        if reason:
            self._told(f"{reason}: it is not used")
        return reason

    def _announced(self) -> list[resources.Facts]:
        try:
            identity = self.client.sync(self.client.scheduler.identity, n_workers=-1, callback_timeout=30)
        except (OSError, TimeoutError) as error:
            raise lost_scheduler(self.client, error) from error
        return [
            resources.Facts(str(about["name"]), address, about.get("resources", {}))
            for address, about in identity["workers"].items()
            if about.get("status", "running") == "running"
        ]

    def _register(self) -> None:
        """Make workers that other tools have started take stages, those that join later, too."""
        from .plugin import NAME, StagePlugin

        try:
            self.client.register_plugin(StagePlugin(), name=NAME)
        except Exception as error:  # whatever its setup raises there
            address = self.client.scheduler.address
            problem = f"a worker cannot take stages ({first_line(error)})"
            hint = "install the client's version of qcompile on all workers"
            raise addresses.scheduler_error(address, problem, hint) from error
        self._has_plugin = True


def lost_scheduler(client: Any, error: BaseException | None = None) -> ClusterError:
    """Return the error of a scheduler that does not answer any more."""
    address = getattr(getattr(client, "scheduler", None), "address", "") or "the scheduler"
    reason = f" ({first_line(error)})" if error is not None and str(error) else ""
    hint = "what was finished is kept: start the scheduler and its workers, and run again to go on"
    return addresses.scheduler_error(address, f"the connection is lost{reason}", hint)


@dataclass
class _Run:
    """One run: its recipe, its bundles by digest, the digest of each file's, and chunks that workers hold."""

    recipe: Recipe
    digest: str = ""
    bundles: dict[str, bundle.LocalBundle] = field(default_factory=dict)
    of_path: dict[Path, str] = field(default_factory=dict)
    futures: dict[str, Any] = field(default_factory=dict)

    def note(self, path: Path, contents: bundle.LocalBundle) -> str:
        """Remember which bundle a file is the first one of."""
        digest = contents.bundle.digest()
        self.bundles[digest], self.of_path[path] = contents, digest
        return digest


class ClusterExecutor:
    """Carries out stages on workers; several runs may use it at a time, each from threads of its own.

    `store` is the URL of a store that carries the files, empty for Dask.
    """

    def __init__(self, client: Any, fleet: Fleet, store: str = "") -> None:
        self.client, self.fleet, self.store = client, fleet, store
        self.stopped = threading.Event()
        self._shared = bundle.StoreCarrier(store) if store else None
        self._runs: weakref.WeakKeyDictionary[Store, _Run] = weakref.WeakKeyDictionary()
        self._lock, self._uploading = threading.Lock(), threading.Lock()
        self._progress: dict[tuple[str, str], Progress] = {}
        client.subscribe_topic(f"qcompile-{client.id}", self._hear)

    @property
    def parallel(self) -> int:
        slots = sum(int(facts.resources["slots"]) for facts in self.fleet.ready())
        return max(1, min(slots, _AT_A_TIME))

    @property
    def kinds(self) -> Sequence[str]:
        names = {name for facts in self.fleet.ready() for name in resources.gpus_of(facts)}
        return sorted(name.removeprefix("gpu-") for name in names)

    @property
    def shards(self) -> int:
        """Parts of a calibration: one for each worker that calibrates."""
        return max(1, sum("onnxruntime" in facts.resources for facts in self.fleet.ready()))

    def do(
        self, recipe: Recipe, stage: Stage, store: Store, *, again: bool, progress: Progress
    ) -> Done | None:
        if kind_of(stage).in_driver(stage):
            return ThisProcess().do(recipe, stage, store, again=again, progress=progress)
        run = self._run_of(recipe, store)
        for _ in range(_ATTEMPTS):
            try:
                answer = self._answer(run, stage, store, again, progress)
            except EngineUnavailable:
                if kind_of(stage).optional:
                    return None
                raise
            if answer.outcome == "none":
                return None
            if answer.outcome == "failed":
                text = msgspec.json.encode(answer.error).decode()
                for name, folder in ((bundle.OUTPUT, store.output), (bundle.RECIPE, recipe.folder)):
                    text = text.replace(name, msgspec.json.encode(str(folder)).decode()[1:-1])
                failure = msgspec.json.decode(text)  # raised as one process would raise it
                kind: type[QCompileError] = getattr(errors, failure["error"], QCompileError)
                error = kind(failure["message"], hint=failure["hint"])
                error.data = {**failure["data"], "worker": answer.worker}
                raise error
            with contextlib.suppress(_Lost):
                return self._stored(run, stage, store, answer, again)
        raise _gave_up(stage)

    def is_done(self, recipe: Recipe, stage: Stage, store: Store) -> bool:
        if not store.kept(stage.name):
            return False
        answer = self._answer(self._run_of(recipe, store), stage, store, False, silent, look=True)
        return answer.outcome in ("known", "done")

    def cancel(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        """End what workers do for this client, and let them forget its files."""
        self.cancel()
        with contextlib.suppress(Exception):  # the scheduler is gone
            self._runs.clear()
            self.client.unsubscribe_topic(f"qcompile-{self.client.id}")

    def await_workers(self, seconds: float) -> list[resources.Facts]:
        """Return the workers that may be asked, waiting as long as a restart takes."""
        deadline_s = time.monotonic() + seconds
        while not self.stopped.is_set():
            if self.client.status in ("closed", "closing"):
                raise lost_scheduler(self.client)
            if workers := self.fleet.ready():
                return workers
            if time.monotonic() > deadline_s:
                reasons = "; ".join(filter(None, self.fleet.refused.values()))
                what = f"none of its workers can be used: {reasons}" if reasons else "it has no workers"
                address = self.client.scheduler.address
                raise addresses.scheduler_error(
                    address, what, f"start workers with `qcompile worker`; {_AGAIN}"
                )
            self.stopped.wait(0.2)
        raise ClusterError("the run was ended", hint=_AGAIN)

    def _answer(
        self, run: _Run, stage: Stage, store: Store, again: bool, progress: Progress, *, look: bool = False
    ) -> bundle.Answer:
        """Ask workers until one has all files of a stage."""
        digests = {
            role: {key: artifact.digest for key, artifact in getattr(stage, role).items()}
            for role in ("files", "parts", "built")
        }
        with self._lock:
            for artifact in stage.inputs():
                if artifact.path not in run.of_path:  # ranges that the recipe names
                    run.note(artifact.path, bundle.bundle_beside(artifact.path))
        request = bundle.Request(
            client=self.client.id,
            stage={**vars(stage), **digests},
            name=stage.name,
            recipe=run.digest,
            inputs={artifact.digest: run.of_path[artifact.path] for artifact in stage.inputs()},
            store=self.store,
            known=() if again else tuple(store.kept(stage.name)),
            look=look,
            again=again,
            alone=kind_of(stage).measures,
        )
        self._progress[run.digest, stage.name] = progress
        for _ in range(_ATTEMPTS):
            workers = self.await_workers(_REJOIN_S)
            needs = kind_of(stage).needs(run.recipe, stage)
            home = self._home(run.recipe, workers) if needs.as_measured else None
            try:
                answer = self._submitted(request, *resources.place(run.recipe, stage, workers, home))
                if answer.outcome != "missing":
                    return answer
                carrier = self._shared or bundle.ClientCarrier(self.client, run.futures, answer.address)
                with self._uploading:
                    for digest in answer.missing:
                        for key, chunk in run.bundles[digest].items():
                            carrier.put(key, chunk)
            except (_Lost, bundle.MissingChunk):
                self.fleet.ready(now=True)
        raise _gave_up(stage)

    def _home(self, recipe: Recipe, workers: Sequence[resources.Facts]) -> resources.Facts | None:
        """Return the worker that will measure a recipe's artifacts; None where nothing is measured."""
        if recipe.bench is None:
            return None
        # Engines are measured on machines of their own kinds: this is the one for the others.
        built = {artifact.name: Made(Path(), "") for artifact in recipe.artifact}
        stage = Stage(kind="bench", machine=kind_of_others(recipe, self.kinds), built=built)
        (address, *_), _ = resources.place(recipe, stage, workers)
        return next(facts for facts in workers if facts.address == address)

    def _submitted(
        self, request: bundle.Request, workers: list[str], needs: dict[str, float]
    ) -> bundle.Answer:
        def qcompile_stage(request: bytes) -> bytes:  # sent by value: the scheduler needs no qcompile
            from qcompile.pipeline.cluster.plugin import carry_out_request

            return carry_out_request(request)

        future = self.client.submit(
            qcompile_stage,
            msgspec.json.encode(request),
            key=f"qcompile-stage-{request.name}-{uuid.uuid4().hex}",
            workers=workers,
            resources=needs,
            retries=_RETRIES,
            pure=False,
        )
        over = threading.Event()
        try:
            future.add_done_callback(lambda _: over.set())
            while not over.wait(_LOOK_S) and not future.done():
                addresses = {facts.address for facts in self.await_workers(_REJOIN_S)}
                if addresses.isdisjoint(workers) and not future.done():
                    raise _Lost
            return self._result(future)
        except BaseException:
            with contextlib.suppress(Exception):  # the scheduler may be gone: then so is the task
                future.cancel()
            raise
        finally:
            future.release()

    def _result(self, future: Any) -> bundle.Answer:
        from distributed.comm.core import CommClosedError
        from distributed.scheduler import KilledWorker, NoValidWorkerError

        try:
            return msgspec.json.decode(future.result(timeout=60), type=bundle.Answer)
        except (CommClosedError, TimeoutError, NoValidWorkerError) as error:
            raise _Lost from error
        except CancelledError as error:
            if getattr(error, "reason", "") == "scheduler-connection-lost" or self.client.status != "running":
                raise lost_scheduler(self.client) from error
            raise _Lost from error
        except KilledWorker as error:
            number, last = error.allowed_failures + 1, error.last_worker.address
            message = f"{number} workers ended while they did it; the last was {last}"
            raise ClusterError(message, hint=f"see what ended them; {_AGAIN}", worker=last) from error
        except bundle.StageKilled as error:
            hint = f"the stage may crash a native library, or take more memory than there is; {_AGAIN}"
            raise ClusterError(f"{error} ({_RETRIES + 1} times)", hint=hint) from error
        except Exception as error:  # of Dask, or of a worker whose qcompile is another one
            message = f"a worker failed: {type(error).__name__}: {first_line(error)}"
            raise ClusterError(message, hint=f"see the worker's log; {_AGAIN}") from error

    def _stored(self, run: _Run, stage: Stage, store: Store, answer: bundle.Answer, again: bool) -> Done:
        """The files of a stage in the store of the run."""
        from distributed import Future

        main, publish = str(answer.key.get("file", "")), is_published(stage)
        if answer.bundle is None:
            stored = store.take(answer.name, publish=publish)
            if stored is None:  # changed within the moment
                raise _Lost
            return Done(_noted(run, stored, main), True)
        contents, carrier = answer.bundle, self._shared or bundle.ClientCarrier(self.client, run.futures)
        keys = contents.keys()
        if self._shared is None:  # what keeps the chunks that the worker put for this client
            run.futures.update({key: Future(key, self.client) for key in keys})

        def download(folder: Path) -> None:
            bundle.write_files(contents, (carrier.get(key) for key in keys[1:]), folder)

        try:
            stored = store.run(
                stage.name, answer.key, download, again=again, publish=publish, took=answer.took
            )
        except (bundle.MissingChunk, ArtifactError) as error:  # its worker is lost, or a chunk is damaged
            raise _Lost from error
        return Done(_noted(run, stored, main), answer.was_done, answer.worker)

    def _run_of(self, recipe: Recipe, store: Store) -> _Run:
        with self._lock:
            run = self._runs.get(store)
        if run is not None:
            return run
        facts: resources.Facts | None = None
        with contextlib.suppress(EngineUnavailable):
            facts = self._home(recipe, self.await_workers(_REJOIN_S))
        isa = (resources.isa_announced(facts) if facts else None) or isa_here()
        recipe = replace(recipe, artifact=tuple(with_isa(artifact, isa) for artifact in recipe.artifact))
        run = _Run(recipe)
        run.digest = run.note(recipe.path, bundle.bundle_of_recipe(recipe))
        with self._lock:
            return self._runs.setdefault(store, run)

    def _hear(self, event: tuple[float, Mapping[str, Any]]) -> None:
        recipe, name = event[1]["stage"]
        progress = self._progress.get((recipe, name), silent)
        progress(f"{event[1]['text']} (worker {event[1]['name']})", event[1]["done"], event[1]["total"])


def _noted(run: _Run, stored: Stored, main: str) -> Made:
    path = stored.folder / main
    run.note(path, bundle.bundle_of_stage(stored.folder, main, stored.files))
    return Made(path, stored.files[main])


def _gave_up(stage: Stage) -> ClusterError:
    return ClusterError(f"{stage.name}: {_ATTEMPTS} attempts failed: workers were lost", hint=_AGAIN)
