"""Kill `run`, `calibrate` and writes to a store at random moments, and look at what is left.

    python benchmarks/reliability/kills.py --kills 200
    python benchmarks/reliability/kills.py --kills 50 --signal TERM

After every kill: no file under a final name is partial, and every file with a manifest or a record is the
one that it describes. The next process goes on, and is killed too, until one comes to its end: its artifacts
equal those of an undisturbed run byte for byte (but for names of nodes that ONNX Runtime's optimizer added).
Then all begins anew. With TERM, the exit code is 143 (or 0 where the end was reached before), and no process
and no temporary folder may be left.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
from small_road import broken, command, contents, environment, leftovers, write_road

_CALIBRATE = """
import sys, time
from qcompile.calibration import calibrate
from qcompile.calibration.workers import Workers
from qcompile.cli import main
calibrate_module = sys.modules["qcompile.calibration.calibrate"]
calibrate_module.observe.__kwdefaults__["checkpoint_every_s"] = 0.02
submit = Workers.submit
def slower(self, batch):
    submit(self, batch)
    time.sleep(0.004)
Workers.submit = slower
main(sys.argv[1:])
"""
"""A checkpoint every 20 ms in place of 10 s, and samples that take 4 ms: what else takes hours."""

_STORE = """
import sys
from pathlib import Path
import numpy as np
from qcompile.pipeline.store import Store
def work(number):
    def write(folder):
        for part in range(3):
            values = np.full(1 << 19, number * 3 + part, "<u4")
            (folder / f"{number}.{part}.data").write_bytes(values.tobytes())
    return write
store = Store(Path(sys.argv[1]))
with store.locked():
    for number in range(30):
        store.run("stage", {"number": number}, work(number))
"""


class Campaign:
    """Kills one command again and again.

    Args:
        name: For the summary.
        words: The command.
        output: The folder that it fills.
        temporary: Its TMPDIR.
        number: The signal.
    """

    def __init__(
        self, name: str, words: Sequence[str], output: Path, temporary: Path, number: signal.Signals
    ) -> None:
        self.name, self.words, self.output, self.temporary, self.number = (
            name,
            words,
            output,
            temporary,
            number,
        )
        self.seen: Counter[str] = Counter()
        self.problems: list[str] = []
        temporary.mkdir(parents=True, exist_ok=True)

    def undisturbed(self) -> float:
        """Carry it out once; keep what it made, and return the seconds it took."""
        began = time.monotonic()
        code, said = self._run(None)
        if code:
            raise SystemExit(f"{self.name} fails undisturbed:\n{said}")
        took_s = time.monotonic() - began
        self.expected = self._made()
        shutil.rmtree(self.output)
        return took_s

    def kill(self, after_s: float) -> None:
        """Start it, kill it after some seconds, and look."""
        self.seen["started"] += 1
        code, said = self._run(after_s)
        ended = code == 0
        self.seen["came to its end" if ended else "killed"] += 1
        self.problems += broken(self.output)
        if "Traceback" in said:
            self.problems.append(f"traceback: {said[-2000:]}")
        if self.number == signal.SIGTERM:
            # Before Python runs our code, the system ends the process.
            if code not in (0, 143, -signal.SIGTERM):
                self.problems.append(f"exit code {code}: {said[-2000:]}")
            if code == -signal.SIGTERM:
                self.seen["ended by the system, before or after our code"] += 1
            elif left := leftovers(self.temporary, self.output):
                self.problems.append(f"left after exit code {code}: {left}")
        if ended:
            self._compare()
            shutil.rmtree(self.output, ignore_errors=True)

    def finish(self) -> None:
        """Let it come to its end; nothing unfinished may be left then."""
        code, said = self._run(None)
        if code:
            self.problems.append(f"the last one fails: {said[-2000:]}")
        self._compare()
        if left := leftovers(self.temporary, self.output):
            self.problems.append(f"left at the end: {left}")

    def _compare(self) -> None:
        self.seen["compared"] += 1
        made = self._made()
        differ = sorted(name for name in {*made, *self.expected} if made.get(name) != self.expected.get(name))
        if differ:
            self.problems.append(f"not what the undisturbed one made: {', '.join(differ)}")

    def _made(self) -> dict[str, str]:
        return contents(self.output)

    def _run(self, kill_after_s: float | None) -> tuple[int, str]:
        log = self.temporary.parent / f"{self.name}.log"
        with log.open("w+b") as said:
            process = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=environment(TMPDIR=str(self.temporary)),
                start_new_session=True,
            )
            children: list[psutil.Process] = []
            try:
                process.wait(kill_after_s)
            except subprocess.TimeoutExpired:
                children = psutil.Process(process.pid).children(recursive=True)
                process.send_signal(self.number)
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                self.problems.append("did not end within 120 s of its signal")
                process.kill()
            _, alive = psutil.wait_procs(children, timeout=10)
            self.problems += [f"left process {one}" for one in alive if one.status() != psutil.STATUS_ZOMBIE]
            said.seek(0)
            return process.wait(), said.read().decode(errors="replace")


def campaigns(work: Path, number: signal.Signals) -> list[Campaign]:
    """The three: `run`, `calibrate` with checkpoints, and a store."""
    recipe = write_road(work / "run", bench=False)
    write_road(work / "calibrate", samples=400)
    temporary = work / "tmp"
    folder = work / "calibrate"
    calibrate = [
        sys.executable, "-P", "-c", _CALIBRATE, "calibrate", f"{folder}/model.onnx", "--data",
        f"{folder}/calibration.npz", "-o", f"{folder}/out/model.ranges", "--threads", "1",
    ]  # fmt: skip
    store = [sys.executable, "-P", "-c", _STORE, str(work / "store/out")]
    return [
        Campaign("run", command("run", recipe), work / "run/out", temporary / "run", number),
        Campaign("calibrate", calibrate, folder / "out", temporary / "calibrate", number),
        Campaign("store", store, work / "store/out", temporary / "store", number),
    ]


def main() -> None:
    """Print what was seen, as JSON; exit 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="in all, a third for each of the three")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--signal", choices=["KILL", "TERM", "HUP"], default="KILL")
    parser.add_argument("--only", choices=["run", "calibrate", "store"])
    parser.add_argument("--work", type=Path, help="folder to work in; a temporary one by default")
    given = parser.parse_args()
    work = given.work or Path(tempfile.mkdtemp(prefix="qcompile-kills-"))
    moments = random.Random(given.seed)
    chosen = [
        one for one in campaigns(work, signal.Signals[f"SIG{given.signal}"]) if given.only in (None, one.name)
    ]
    summary = {}
    for index, one in enumerate(chosen):
        kills = given.kills // len(chosen) + (index < given.kills % len(chosen))
        took_s = one.undisturbed()
        while one.seen["killed"] < kills and not one.problems:
            one.kill(moments.uniform(0, took_s))
        one.finish()
        summary[one.name] = {"undisturbed_s": round(took_s, 1), **one.seen, "problems": one.problems}
        print(json.dumps({one.name: summary[one.name]}), flush=True)
    if given.work is None:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(any(one.problems for one in chosen))


if __name__ == "__main__":
    main()
