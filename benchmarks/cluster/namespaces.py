"""Run a recipe on hosts of their own: scheduler, client, workers in network namespaces joined by a bridge.

    python benchmarks/cluster/namespaces.py --megabytes 64      # Linux, as root, with iproute2 and openssl

Three things are looked at:

| part | what must hold |
|------|----------------|
| tls  | The recipe runs over tls:// between hosts; its artifacts equal those of one process by digest. |
| bytes| The scheduler's interface carries less than 2% of the files' bytes; a worker gets each file once. |
| tcp  | tcp:// to another host is refused. Said once, it is refused. Said twice for every host, it runs. |

The bytes are those that the kernel counted at each host's interface, in both directions. Prints a table as
Markdown. Exit code 1: something did not hold. Without root or the tools it says so, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "benchmarks/reliability")]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from certificates import HAS_OPENSSL, make_certificates  # noqa: E402
from clusters import Cluster, end_on_sigterm  # noqa: E402
from hosts import Hosts, why_not  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from small_road import command, contents, model, write_road  # noqa: E402

_HOSTS = ("scheduler", "client", "w1", "w2")
_SHARE = 0.02
"""Of the files' bytes: what the scheduler may carry, which are messages and heartbeats."""


class Proof:
    """Hosts, a recipe, and what one process makes of it.

    Args:
        work: Folder for everything.
        hosts: The hosts.
        megabytes: Size of the model's weights.
    """

    def __init__(self, work: Path, hosts: Hosts, megabytes: int) -> None:
        self.work, self.hosts, self.problems = work, hosts, list[str]()
        self.recipe = write_road(work / "road", bench=False)
        onnx.save(heavy_model(megabytes << 20), str(work / "road/model.onnx"))
        self._run([], work / "one")
        self.expected = contents(work / "one")

    def tls(self) -> list[str]:
        """Run over TLS; return the rows of the table of bytes."""
        security = make_certificates(self.work / "certificates", *self.hosts.addresses.values())
        words = [f"--tls-{name}={path}" for name, path in security.items()]
        with _cluster(self.work / "tls", self.hosts, security=security) as cluster:
            before = self.hosts.carried()
            self._run(["--scheduler", cluster.address, *words], self.work / "tls/out")
            after = self.hosts.carried()
            self._same(self.work / "tls/out")
            carried = {name: [after[name][way] - before[name][way] for way in (0, 1)] for name in _HOSTS}
            plain = [*self.hosts.on("client"), *command("run", self.recipe, "-o", self.work / "tls/none")]
            plain += ["--scheduler", cluster.address.replace("tls://", "tcp://")]
            said = [word for one in self.hosts.addresses.values() for word in ("--insecure", one)]
            self._refused([*plain, *said, *said], "a TLS scheduler spoken to in plain text, said twice")
            self._refused([*plain[:-1], cluster.address], "a TLS scheduler without a certificate")
        return self._rows(carried)

    def tcp(self) -> None:
        """Speak without TLS to other hosts: not, unless it is said twice."""
        addresses = list(self.hosts.addresses.values())
        once = [word for one in addresses for word in ("--insecure", one)]
        with _cluster(self.work / "tcp", self.hosts, arguments=[*once, *once]) as cluster:
            words = [*self.hosts.on("client"), *command("run", self.recipe, "-o", self.work / "tcp/none")]
            words += ["--scheduler", cluster.address]
            self._refused(words, "tcp:// to another host")
            self._refused([*words, *once], "tcp:// to another host, said once")
            worker = [*self.hosts.on("w1"), *command("worker", cluster.address), "--store"]
            self._refused([*worker, str(self.work / "tcp/none")], "a worker of a tcp:// scheduler")
            self._run(["--scheduler", cluster.address, *once, *once], self.work / "tcp/out")
            self._same(self.work / "tcp/out")

    def _rows(self, carried: dict[str, list[int]]) -> list[str]:
        made = sum(path.stat().st_size for path in (self.work / "tls/out").glob("*") if path.is_file())
        given = sum(path.stat().st_size for path in (self.work / "road").glob("*") if path.is_file())
        rows = [
            "| what | received MB | sent MB |", "|---|---:|---:|",
            f"| files given (one copy) | – | {given / 1e6:.2f} |", f"| files made | {made / 1e6:.2f} | – |",
        ]  # fmt: skip
        rows += [f"| {name} | {one[0] / 1e6:.2f} | {one[1] / 1e6:.2f} |" for name, one in carried.items()]
        if max(carried["scheduler"]) > _SHARE * (given + made):
            self.problems.append(f"the scheduler carried {carried['scheduler']} bytes of {given + made}")
        for name in ("w1", "w2"):
            most = 1.1 * (given + made) + 1e6
            if carried[name][0] > most:
                self.problems.append(f"{name} received {carried[name][0]} bytes: more than every file once")
        return rows

    def _run(self, more: Sequence[str], output: Path) -> None:
        words = [
            *(self.hosts.on("client") if more else []),
            *command("run", self.recipe, "-o", output),
            *more,
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=1800, cwd=self.work)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}\n{done.stdout}{done.stderr}")

    def _refused(self, words: Sequence[str], what: str) -> None:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=self.work)
        said = done.stdout + done.stderr
        if done.returncode == 0 or "Traceback" in said:
            self.problems.append(f"{what}: exit code {done.returncode}\n{said[-1500:]}")
        else:
            told = next((line for line in said.splitlines() if line.startswith("error")), said.strip())
            print(f"{what}: exit code {done.returncode}: {told}", flush=True)

    def _same(self, output: Path) -> None:
        made = contents(output)
        names = {*made, *self.expected}
        if differ := sorted(name for name in names if made.get(name) != self.expected.get(name)):
            self.problems.append(f"{output.parent.name}: not what one process makes: {', '.join(differ)}")


def heavy_model(weights: int) -> onnx.ModelProto:
    """The model of the small road with one large layer in the middle: many weights, few activations.

    Args:
        weights: Bytes of that layer.
    """
    made = model()
    graph = made.graph
    width = math.isqrt(weights // 4)
    rng = np.random.default_rng(0)
    shapes = {"w3": (width, 4), "b3": (width,), "w4": (width, width), "w5": (3, width)}
    kept = [one for one in graph.initializer if one.name not in shapes]
    del graph.initializer[:], graph.node[-1], graph.output[:]
    graph.initializer.extend(kept)
    for name, shape in shapes.items():
        values = (rng.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(values, name))
    graph.node.extend(
        [
            helper.make_node("Gemm", ["f", "w3", "b3"], ["g"], "gemm", transB=1),
            helper.make_node("Gemm", ["g", "w4"], ["h"], "wide", transB=1),
            helper.make_node("Gemm", ["h", "w5"], ["y"], "last", transB=1),
        ]
    )
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3]))
    return made


class _cluster:  # noqa: N801
    """A scheduler and two workers, each on its host."""

    def __init__(self, folder: Path, hosts: Hosts, arguments: Sequence[str] = (), **options: object) -> None:
        self.cluster = Cluster(folder, host=hosts.addresses["scheduler"], **options)
        self.hosts, self.arguments = hosts, arguments

    def __enter__(self) -> Cluster:
        try:
            self.cluster.start_scheduler(prefix=self.hosts.on("scheduler"))
            for name in ("w1", "w2"):
                self.cluster.start_worker(name, prefix=self.hosts.on(name), arguments=self.arguments)
            self.cluster.wait_for_log("scheduler", "Register worker addr", 2)
        except BaseException:
            self.__exit__()
            raise
        return self.cluster

    def __exit__(self, *_: object) -> None:
        print(self.cluster.logs(1500), file=sys.stderr)
        self.cluster.close()


def main() -> int:
    """Print what was seen; 1 where something did not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=64, help="of the model's weights")
    given = parser.parse_args()
    if reason := why_not() or ("" if HAS_OPENSSL else "the command openssl is not here"):
        print(f"skipped: {reason}")
        return 0
    end_on_sigterm()
    work = Path(tempfile.mkdtemp(prefix="qcompile-hosts-"))
    try:
        with Hosts(*_HOSTS) as hosts:
            proof = Proof(work, hosts, given.megabytes)
            print("\n".join(proof.tls()), flush=True)
            proof.tcp()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("\n".join(proof.problems) or "all holds")
    return int(bool(proof.problems))


if __name__ == "__main__":
    sys.exit(main())
