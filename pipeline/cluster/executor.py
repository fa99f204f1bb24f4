"""Carry out stages on the workers of a Dask scheduler.

The client submits a stage as one task that names its files by digest. The worker computes the key, which
depends on the worker's tools and hardware, and looks the stage up in the client's list and in its store. The
client uploads files that no other worker has, directly to the worker, and downloads the stage's output into
the store of the run. The client can therefore upload again any file that is lost with a worker.
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
from ..stages.stage import FinishedStage, Stage, StageFile, kind_for_unbound
from ..stages.stages import with_isa
from ..stages.store import Store, Stored
from . import addresses, bundle, resources

_ATTEMPTS = 20
_RETRIES = 2
"""How often Dask retries a stage whose process was killed."""
_MAX_PARALLEL = 64
_REJOIN_S = 15.0
_POLL_S = 1.0
_RERUN = "finished stages are kept: run again to continue"


class _WorkersLost(Exception):
    """All workers that could carry out a stage are gone, or its output was lost with its worker."""


class Fleet:
    """The workers of a scheduler, including those that join later.

    `insecure` are the hosts that the user allows without TLS. `told` receives a message for each refused
    worker. `refused` maps the address of each worker to the reason why it is not used, or to "".
    """

    def __init__(self, client: Any, insecure: Sequence[str], told: Callable[[str], None]) -> None:
        self.client, self.insecure, self._on_refused = client, insecure, told
        self.refused: dict[str, str] = {}
        self._ready: list[resources.WorkerFacts] = []
        self._lock = threading.Lock()
        self._refreshed_s = -_POLL_S
        self._has_plugin = False

    def ready(self, *, now: bool = False) -> list[resources.WorkerFacts]:
        """Return the usable workers; refresh the list at most once a second, unless `now`."""
        with self._lock:
            if now or not self._ready or time.monotonic() - self._refreshed_s > _POLL_S:
                workers = self._list_workers()
                if not self._has_plugin and any("slots" not in facts.resources for facts in workers):
                    self._register_plugin()
                    workers = self._list_workers()
                self.refused = {facts.address: self._why_refused(facts) for facts in workers}
                # Dask never starts a task whose worker announces the required resources after its submission.
                self._ready = [
                    facts for facts in workers
                    if "slots" in facts.resources and not self.refused.get(facts.address)
                ]  # fmt: skip
                self._refreshed_s = time.monotonic()
            return list(self._ready)

    def _why_refused(self, facts: resources.WorkerFacts) -> str:
        if facts.address in self.refused:
            return self.refused[facts.address]
        reason = resources.why_refused(facts)
        try:
            addresses.check_address(facts.address, self.insecure, what="worker")
        except ClusterError as error:
            reason = error.message + (f" ({error.hint})" if error.hint else "")
        if reason:
            self._on_refused(f"{reason}: it is not used")
        return reason

    def _list_workers(self) -> list[resources.WorkerFacts]:
        try:
            identity = self.client.sync(self.client.scheduler.identity, n_workers=-1, callback_timeout=30)
        except (OSError, TimeoutError) as error:
            raise lost_scheduler(self.client, error) from error
        return [
            resources.WorkerFacts(str(about["name"]), address, about.get("resources", {}))
            for address, about in identity["workers"].items()
            if about.get("status", "running") == "running"
        ]

    def _register_plugin(self) -> None:
        """Install the plugin on workers that other tools started or will start."""
        from .plugin import NAME, StagePlugin

        try:
            self.client.register_plugin(StagePlugin(), name=NAME)
        except Exception as error:  # any error of the plugin's setup on a worker
            address = self.client.scheduler.address
            problem = f"a worker cannot take stages ({first_line(error)})"
            hint = "install the client's version of qcompile on all workers"
            raise addresses.scheduler_error(address, problem, hint) from error
        self._has_plugin = True


def lost_scheduler(client: Any, error: BaseException | None = None) -> ClusterError:
    """Return the error for a scheduler that no longer answers."""
    address = getattr(getattr(client, "scheduler", None), "address", "") or "the scheduler"
    reason = f" ({first_line(error)})" if error is not None and str(error) else ""
    hint = "finished stages are kept: start the scheduler and its workers, and run again to continue"
    return addresses.scheduler_error(address, f"the connection is lost{reason}", hint)


@dataclass
class _Run:
    """One run: its recipe, bundles by digest, bundle digests by file, and futures of uploaded chunks."""

    recipe: Recipe
    digest: str = ""
    bundles: dict[str, bundle.LocalBundle] = field(default_factory=dict)
    of_path: dict[Path, str] = field(default_factory=dict)
    futures: dict[str, Any] = field(default_factory=dict)

    def note(self, path: Path, contents: bundle.LocalBundle) -> str:
        """Record the bundle that begins with the file `path`, and return the bundle's digest."""
        digest = contents.bundle.digest()
        self.bundles[digest], self.of_path[path] = contents, digest
        return digest


class ClusterExecutor:
    """Carries out stages of concurrent runs on workers; `store` is the URL of a store in place of Dask."""

    def __init__(self, client: Any, fleet: Fleet, store: str = "") -> None:
        self.client, self.fleet, self.store = client, fleet, store
        self.stopped = threading.Event()
        self._shared = bundle.StoreCarrier(store) if store else None
        self._runs: weakref.WeakKeyDictionary[Store, _Run] = weakref.WeakKeyDictionary()
        self._lock, self._uploading = threading.Lock(), threading.Lock()
        self._progress: dict[tuple[str, str], Progress] = {}
        client.subscribe_topic(f"qcompile-{client.id}", self._on_event)

    @property
    def parallel(self) -> int:
        slots = sum(int(facts.resources["slots"]) for facts in self.fleet.ready())
        return max(1, min(slots, _MAX_PARALLEL))

    @property
    def kinds(self) -> Sequence[str]:
        names = {name for facts in self.fleet.ready() for name in resources.gpus_of(facts)}
        return sorted(name.removeprefix("gpu-") for name in names)

    @property
    def shards(self) -> int:
        """Parts of a calibration: one per worker with ONNX Runtime."""
        return max(1, sum("onnxruntime" in facts.resources for facts in self.fleet.ready()))

    def do(
        self, recipe: Recipe, stage: Stage, store: Store, *, again: bool, progress: Progress
    ) -> FinishedStage | None:
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
            with contextlib.suppress(_WorkersLost):
                return self._fetch(run, stage, store, answer, again)
        raise _attempts_error(stage)

    def is_done(self, recipe: Recipe, stage: Stage, store: Store) -> bool:
        if not store.finished_names(stage.name):
            return False
        answer = self._answer(self._run_of(recipe, store), stage, store, False, silent, look=True)
        return answer.outcome in ("known", "done")

    def cancel(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        """Stop this client's tasks on the workers and release its files."""
        self.cancel()
        with contextlib.suppress(Exception):  # the scheduler may be lost
            self._runs.clear()
            self.client.unsubscribe_topic(f"qcompile-{self.client.id}")

    def await_workers(self, seconds: float) -> list[resources.WorkerFacts]:
        """Return the usable workers; wait up to `seconds` for the first, then raise `ClusterError`."""
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
                    address, what, f"start workers with `qcompile worker`; {_RERUN}"
                )
            self.stopped.wait(0.2)
        raise ClusterError("the run was ended", hint=_RERUN)

    def _answer(
        self, run: _Run, stage: Stage, store: Store, again: bool, progress: Progress, *, look: bool = False
    ) -> bundle.Answer:
        """Submit a stage until a worker has all its files, and return the worker's answer."""
        digests = {
            role: {key: artifact.digest for key, artifact in getattr(stage, role).items()}
            for role in ("files", "parts", "built")
        }
        with self._lock:
            for artifact in stage.inputs():
                if artifact.path not in run.of_path:  # the recipe's ranges file
                    run.note(artifact.path, bundle.bundle_of_file(artifact.path))
        request = bundle.Request(
            client=self.client.id,
            stage={**vars(stage), **digests},
            name=stage.name,
            recipe=run.digest,
            inputs={artifact.digest: run.of_path[artifact.path] for artifact in stage.inputs()},
            store=self.store,
            known=() if again else tuple(store.finished_names(stage.name)),
            find_only=look,
            again=again,
            alone=kind_of(stage).measures,
        )
        self._progress[run.digest, stage.name] = progress
        for _ in range(_ATTEMPTS):
            workers = self.await_workers(_REJOIN_S)
            needs = kind_of(stage).needs(run.recipe, stage)
            home = self._measuring_worker(run.recipe, workers) if needs.as_measured else None
            try:
                answer = self._submit(request, *resources.place_stage(run.recipe, stage, workers, home))
                if answer.outcome != "missing":
                    return answer
                carrier = self._shared or bundle.ClientCarrier(self.client, run.futures, answer.address)
                with self._uploading:
                    for digest in answer.missing:
                        for key, chunk in run.bundles[digest].items():
                            carrier.put(key, chunk)
            except (_WorkersLost, bundle.MissingChunk):
                self.fleet.ready(now=True)
        raise _attempts_error(stage)

    def _measuring_worker(
        self, recipe: Recipe, workers: Sequence[resources.WorkerFacts]
    ) -> resources.WorkerFacts | None:
        """Return the worker that will measure the recipe's artifacts; None without `[bench]`."""
        if recipe.bench is None:
            return None
        # GPU-specific engines are measured on their GPUs; this worker measures the other artifacts.
        built = {artifact.name: StageFile(Path(), "") for artifact in recipe.artifact}
        stage = Stage(kind="bench", machine=kind_for_unbound(recipe, self.kinds), built=built)
        (address, *_), _ = resources.place_stage(recipe, stage, workers)
        return next(facts for facts in workers if facts.address == address)

    def _submit(self, request: bundle.Request, workers: list[str], needs: dict[str, float]) -> bundle.Answer:
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
            while not over.wait(_POLL_S) and not future.done():
                addresses = {facts.address for facts in self.await_workers(_REJOIN_S)}
                if addresses.isdisjoint(workers) and not future.done():
                    raise _WorkersLost
            return self._result(future)
        except BaseException:
            with contextlib.suppress(Exception):  # if the scheduler is lost, so is the task
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
            raise _WorkersLost from error
        except CancelledError as error:
            if getattr(error, "reason", "") == "scheduler-connection-lost" or self.client.status != "running":
                raise lost_scheduler(self.client) from error
            raise _WorkersLost from error
        except KilledWorker as error:
            number, last = error.allowed_failures + 1, error.last_worker.address
            message = f"{number} workers ended during the stage; the last was {last}"
            raise ClusterError(message, hint=f"see what ended them; {_RERUN}", worker=last) from error
        except bundle.StageKilled as error:
            hint = f"the stage may crash a native library or exceed the memory; {_RERUN}"
            raise ClusterError(f"{error} ({_RETRIES + 1} times)", hint=hint) from error
        except Exception as error:  # from Dask, or from a worker with another qcompile
            message = f"a worker failed: {type(error).__name__}: {first_line(error)}"
            raise ClusterError(message, hint=f"see the worker's log; {_RERUN}") from error

    def _fetch(
        self, run: _Run, stage: Stage, store: Store, answer: bundle.Answer, again: bool
    ) -> FinishedStage:
        """Return the files of a finished stage in the run's store; download them if necessary."""
        from distributed import Future

        main, publish = str(answer.key.get("file", "")), is_published(stage)
        if answer.bundle is None:
            stored = store.take(answer.name, publish=publish)
            if stored is None:  # removed or changed since the request
                raise _WorkersLost
            return FinishedStage(_note_output(run, stored, main), True)
        contents, carrier = answer.bundle, self._shared or bundle.ClientCarrier(self.client, run.futures)
        keys = contents.keys()
        if self._shared is None:  # these futures hold the chunks that the worker stored for this client
            run.futures.update({key: Future(key, self.client) for key in keys})

        def download(folder: Path) -> None:
            bundle.write_files(contents, (carrier.get(key) for key in keys[1:]), folder)

        try:
            stored = store.run(
                stage.name, answer.key, download, again=again, publish=publish, took=answer.cost,
                is_complete=lambda folder: kind_of(stage).is_complete(folder / main),
            )  # fmt: skip
        except (bundle.MissingChunk, ArtifactError) as error:  # its worker is lost, or a chunk is damaged
            raise _WorkersLost from error
        return FinishedStage(_note_output(run, stored, main), answer.was_done, answer.worker)

    def _run_of(self, recipe: Recipe, store: Store) -> _Run:
        with self._lock:
            run = self._runs.get(store)
        if run is not None:
            return run
        facts: resources.WorkerFacts | None = None
        with contextlib.suppress(EngineUnavailable):
            facts = self._measuring_worker(recipe, self.await_workers(_REJOIN_S))
        isa = (resources.isa_announced(facts) if facts else None) or isa_here()
        recipe = replace(recipe, artifact=tuple(with_isa(artifact, isa) for artifact in recipe.artifact))
        run = _Run(recipe)
        run.digest = run.note(recipe.path, bundle.bundle_of_recipe(recipe))
        with self._lock:
            return self._runs.setdefault(store, run)

    def _on_event(self, event: tuple[float, Mapping[str, Any]]) -> None:
        recipe, name = event[1]["stage"]
        progress = self._progress.get((recipe, name), silent)
        progress(f"{event[1]['text']} (worker {event[1]['name']})", event[1]["done"], event[1]["total"])


def _note_output(run: _Run, stored: Stored, main: str) -> StageFile:
    path = stored.folder / main
    run.note(path, bundle.bundle_of_stage(stored.folder, main, stored.files))
    return StageFile(path, stored.files[main])


def _attempts_error(stage: Stage) -> ClusterError:
    return ClusterError(f"{stage.name}: {_ATTEMPTS} attempts failed: workers were lost", hint=_RERUN)
