"""What goes wrong in `faults.py`, one function a fault: it strikes, and returns what was seen.

Each function is given a `Scene`, a cluster that runs and a recipe, and says in `Scene.problems` what should
not be. `Scene.look` looks at what must hold after every fault.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "benchmarks/reliability")]

from cluster_trials import (  # noqa: E402
    Client,
    Said,
    Watch,
    await_stage,
    await_true,
    busy,
    differing,
    finished,
    run_once,
    write_recipe,
    wrong_files,
)
from clusters import Cluster, running_cluster  # noqa: E402
from odd_workers import another_qcompile, another_version, with_small_files  # noqa: E402
from scarcity import mounted  # noqa: E402

_WEIGHTS = 4 << 20
_MIDDLE_S = {"calibrate": 3.0, "build": 0.6, "bench": 6.0}
"""Seconds of a stage, in which the fault strikes: of 100 samples of 30 ms, of 2 s a launch."""


@dataclass
class Scene:
    """A cluster, a recipe, and what is seen.

    Attributes:
        cluster: It runs.
        work: Folder of the trial.
        recipe: What is run.
        watch: Counts what the workers carry out.
        chance: Where and when the fault strikes.
        expected: Artifact to its digest, of one process.
        problems: What should not be.
        seen: What was, for the table.
        kept: Finished stages that the client held when the fault struck.
        struck: The kind of stage that was struck, which may be carried out again.
        at_once: Clients that ask for the same at a time: each may have it done by another worker.
    """

    cluster: Cluster
    work: Path
    recipe: Path
    watch: Watch
    chance: random.Random
    expected: dict[str, str]
    problems: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)
    struck: str = ""
    at_once: int = 1

    @property
    def out(self) -> Path:
        """Where the client publishes."""
        return self.work / "out"

    def middle(self, kind: str, *more: object) -> tuple[Client, str]:
        """Start a run, and wait until a worker is somewhere in a stage of a kind; return both."""
        client = Client(self.cluster, self.recipe, self.out, *more)
        name = await_stage(self.cluster, f"qcompile-{kind}-", client)
        time.sleep(self.chance.uniform(0, _MIDDLE_S[kind]))
        self.kept, self.struck = finished(self.out), kind
        self._counted = {name: times for name, times in self.watch.times().items() if name in self.kept}
        return client, name

    def expect(self, said: Said, code: int = 0, *, text: str = "") -> None:
        """Note where a client ended otherwise, or with a traceback."""
        if said.code != code:
            self.problems.append(f"exit code {said.code}; {code} is expected: {said.text[-1500:]}")
        if text and text not in said.text:
            self.problems.append(f"it does not say {text!r}: {said.text[-1500:]}")
        self.no_traceback(said)

    def no_traceback(self, said: Said) -> None:
        if "Traceback" in said.text:
            self.problems.append(f"traceback: {said.text[-3000:]}")

    def look(self, *outputs: Path) -> None:
        """Look at what must hold after every fault."""
        for output in outputs or (self.out,):
            if differ := differing(output, self.expected):
                self.problems.append(f"{output.name}: not what one process makes: {', '.join(differ)}")
        self.problems += wrong_files(self.cluster, *(outputs or (self.out,)))
        times = self.watch.times()
        for name, before in getattr(self, "_counted", {}).items():
            if times.get(name, 0) > before:
                self.problems.append(f"{name} was done, and was done again")
        again = {name for name, count in times.items() if count > self.at_once}
        for name in sorted(again):
            if not (self.struck and name.startswith((self.struck, f"quantize-{self.struck}"))):
                self.problems.append(f"{name} was carried out {times[name]} times")
        self.seen.append(f"{sum(times.values())} stages for {len(times)}")


@contextmanager
def scene(
    work: Path, chance: random.Random, expected: dict[str, str], *, bench: bool, workers: int = 2
) -> Iterator[Scene]:
    """A running cluster and a recipe; afterwards no process may be left."""
    shutil.rmtree(work, ignore_errors=True)
    recipe = recipe_of(work / "recipe", bench=bench)
    # The scheduler waits ten seconds, not five minutes, for a worker that says nothing.
    short = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s"}
    with running_cluster(work / "cluster", workers=workers, environment=short) as cluster:
        watch = Watch(cluster)
        with watch.looking():
            made = Scene(cluster, work, recipe, watch, chance, expected)
            yield made
        for member in [one for one in cluster.workers.values() if one.alive]:
            try:
                code = member.stop()
            except Exception as error:
                made.problems.append(f"{member.name} does not end: {error}")
                continue
            if code not in (0, 143, -15):
                made.problems.append(f"{member.name} ended with {code}: {member.said()[-1500:]}")
        assert cluster.scheduler is not None
        cluster.scheduler.stop()
        if not await_true(lambda: not cluster.left(), 20):
            made.problems.append(f"left: {[(one.pid, one.cmdline()[:6]) for one in cluster.left()]}")


def recipe_of(folder: Path, *, bench: bool = False) -> Path:
    """Write the recipe of all faults."""
    return write_recipe(folder, samples=100, pause_s=0.03, bench=bench, weights=_WEIGHTS)


def kill_worker(one: Scene, kind: str) -> None:
    """A worker is killed in the middle of a stage: another does it."""
    client, name = one.middle(kind)
    one.cluster.workers[name].kill()
    one.expect(client.wait())
    one.look()


def kill_child(one: Scene, kind: str) -> None:
    """The process of a stage is killed: the run goes on, or ends with a sentence; the next one goes on."""
    client, name = one.middle(kind)
    children = one.cluster.workers[name].children()
    for child in children:
        child.kill()
    one.seen.append(f"{len(children)} processes killed")
    said = client.wait()
    one.no_traceback(said)
    if said.code:
        one.seen.append("ended with a sentence")
        one.expect(run_once(one.cluster, one.recipe, one.out))
    one.look()


def scheduler_between(one: Scene) -> None:
    """The scheduler is killed and started again between two runs: nothing is done again."""
    one.expect(run_once(one.cluster, one.recipe, one.out))
    before = one.watch.times()
    restart(one)
    one.expect(run_once(one.cluster, one.recipe, one.out))
    one.expect(run_once(one.cluster, one.recipe, one.work / "elsewhere"))
    if one.watch.times() != before:
        one.problems.append(f"carried out again: {before} became {one.watch.times()}")
    one.look(one.out, one.work / "elsewhere")


def scheduler_middle(one: Scene) -> None:
    """The scheduler is killed in the middle of a run: the client says so; the next run goes on."""
    client, _ = one.middle("calibrate")
    assert one.cluster.scheduler is not None
    one.cluster.scheduler.kill()
    said = client.wait(120)
    one.expect(said, 1, text="scheduler")
    restart(one)
    one.expect(run_once(one.cluster, one.recipe, one.out))
    one.look()


def restart(one: Scene) -> None:
    """Kill the scheduler and start it again on its port, and the workers that ended with it."""
    assert one.cluster.scheduler is not None
    one.cluster.scheduler.kill()
    one.cluster.start_scheduler()
    time.sleep(5)
    ended = [name for name, member in one.cluster.workers.items() if not member.alive]
    for name in ended:
        one.cluster.start_worker(name)
    one.seen.append(f"{len(ended)} workers ended with the scheduler" if ended else "the workers came back")
    one.cluster.wait()


def full_disk(one: Scene) -> None:
    """A worker's disk has less room than the model needs: it is said, and another does the work."""
    with ExitStack() as held:
        # Below its store alone: its log lies elsewhere.
        place = held.enter_context(mounted(one.cluster.store("full"), 2048))
        one.cluster.start_worker("full", store=place)
        one.cluster.wait("full")
        one.cluster.workers["w1"].stop()
        said = run_once(one.cluster, one.recipe, one.out)
        one.expect(said)
        one.seen.append("said" if "full" in said.text else "not said: the worker had nothing to do")
        one.look()
        one.cluster.workers["full"].stop()


def small_files(one: Scene) -> None:
    """A worker may write no file of the model's size, as with a quota."""
    one.cluster.start_worker("limited", prefix=with_small_files(1 << 20))
    one.cluster.wait("limited")
    one.cluster.workers["w1"].stop()
    said = run_once(one.cluster, one.recipe, one.out)
    one.expect(said)
    one.seen.append("said" if "limited" in said.text else "not said: the worker had nothing to do")
    one.look()


def other_version(one: Scene, package: str) -> None:
    """A worker has another version: it is refused by name with both; the others go on."""
    folder = one.work / "other"
    if package == "qcompile":
        variables = another_qcompile(folder, "0.0.9")
    else:
        variables = another_version(folder, package, "0.0.9")
    one.cluster.start_worker("other", environment=variables)
    one.cluster.wait("other")
    said = run_once(one.cluster, one.recipe, one.out)
    one.expect(said, text="0.0.9")
    if package not in said.text or "other" not in said.text:
        one.problems.append(f"the worker or the package is not named: {said.text[-1500:]}")
    for name in ("w1", "w2"):
        one.cluster.workers[name].stop()
    alone = run_once(one.cluster, one.recipe, one.work / "alone")
    one.expect(alone, 1, text="0.0.9")
    if (one.work / "alone").exists() and finished(one.work / "alone"):
        one.problems.append("a refused worker carried out a stage")
    one.look()


def frozen(one: Scene) -> None:
    """A worker stands still in the middle of a stage: another does it; when it goes on, nothing breaks."""
    client, name = one.middle("calibrate")
    one.cluster.workers[name].freeze()
    said = client.wait()
    one.cluster.workers[name].thaw()
    one.expect(said)
    time.sleep(5)
    one.look()


def client_killed(one: Scene) -> None:
    """The client is killed: after a while the workers do nothing; the next run goes on."""
    client, _ = one.middle("calibrate")
    began = time.monotonic()
    client.process.kill()
    client.process.wait(30)
    if await_true(lambda: not busy(one.cluster), 60):
        one.seen.append(f"workers at rest after {time.monotonic() - began:.0f} s")
    else:
        one.problems.append(f"a minute after the client, these still work: {busy(one.cluster)}")
    one.expect(run_once(one.cluster, one.recipe, one.out))
    one.look()


def two_clients(one: Scene) -> None:
    """Two clients run the same recipe at once, into folders of their own."""
    clients = [Client(one.cluster, one.recipe, one.work / name) for name in ("first", "second")]
    for client in clients:
        one.expect(client.wait())
    one.at_once = 2
    one.look(one.work / "first", one.work / "second")


KINDS: dict[str, tuple[Callable[[Scene], None], bool]] = {
    "worker killed in a calibration": (lambda one: kill_worker(one, "calibrate"), False),
    "worker killed in a build": (lambda one: kill_worker(one, "build"), False),
    "worker killed in a bench": (lambda one: kill_worker(one, "bench"), True),
    "stage's process killed in a calibration": (lambda one: kill_child(one, "calibrate"), False),
    "stage's process killed in a build": (lambda one: kill_child(one, "build"), False),
    "stage's process killed in a bench": (lambda one: kill_child(one, "bench"), True),
    "scheduler restarted between runs": (scheduler_between, False),
    "scheduler killed in a run": (scheduler_middle, False),
    "full disk": (full_disk, False),
    "limit on the size of files": (small_files, False),
    "another ONNX Runtime": (lambda one: other_version(one, "onnxruntime"), False),
    "another qcompile": (lambda one: other_version(one, "qcompile"), False),
    "worker stands still": (frozen, False),
    "client killed": (client_killed, False),
    "two clients at once": (two_clients, False),
}
"""Fault to what it does, and whether it needs a bench."""
