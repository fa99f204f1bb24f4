"""Give every verb a disk that is full, read-only or forbidden, and inputs that are no files.

    sudo python benchmarks/reliability/disk.py            # all kinds; small disks are mounted (tmpfs)
    python benchmarks/reliability/disk.py --kinds size,nofile,inputs,removed    # those that need no root

| kind    | what                                                                                       |
|---------|--------------------------------------------------------------------------------------------|
| full    | the output lies on a disk of some kilobytes                                                |
| temp    | temporary files lie on one                                                                 |
| size    | no file may be larger (`ulimit -f`)                                                        |
| nofile  | few files may be open (`ulimit -n`)                                                        |
| readonly| the output lies on a read-only disk                                                        |
| denied  | no permission to write the output, or to read an input (root without its privilege)        |
| inputs  | a folder, a dangling link, a circle of links, a pipe, a socket, a device, /proc/self/mem   |
| removed | the input, the output's folder or the temporary folder is removed after a random moment    |

Each trial is a process of its own, forked after the imports. It must end within 120 s with exit code 0, 1 or
2, without a traceback or "a defect of qcompile"; where it fails, it says why; and what lies under a final
name is whole.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import small_road
from scarcity import drop_capabilities, limit, mounted, set_temporary
from small_road import broken, carry_out, command, write_road

SIZES_KB = (4, 64, 512, 4096)
NOFILE = (8, 16, 32)
KINDS = ("full", "temp", "size", "nofile", "readonly", "denied", "inputs", "removed")
_LIMIT_S = 120.0


class Road:
    """The files that the verbs take, and their command lines.

    Args:
        folder: Where the files lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_road(folder)
        onnx.save(small_road.model(1 << 20), str(folder / "model.onnx"))
        (folder / "net.py").write_text(
            "import torch\n"
            "def build():\n"
            "    torch.manual_seed(0)\n"
            "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1024, 256)).eval()\n"
        )
        model, built = folder / "model.onnx", folder / "built.onnx"
        for words in (
            ["calibrate", model, "--data", folder / "calibration.npz", "-o", folder / "m.ranges"],
            ["build", model, "--target", "onnxruntime", "-o", built],
            ["bench", built, "--baseline", model, *self._short(), "-o", folder / "results.json"],
        ):
            code, said = carry_out(command(*words))
            if code:
                raise SystemExit(said)

    def verbs(self, out: Path) -> dict[str, list[object]]:
        """Verb to its words, with outputs in a folder."""
        f, o = self.folder, out
        model, data = f / "model.onnx", f / "calibration.npz"
        return {
            "export": ["export", f"{f}/net.py:build", "-i", "x:[batch,4,16,16]", "-o", o / "e.onnx"],
            "simplify": ["simplify", model, "-o", o / "s.onnx"],
            "calibrate": ["calibrate", model, "--data", data, "-o", o / "c.ranges"],
            "quantize": ["quantize", model, "--ranges", f / "m.ranges", "-o", o / "q.onnx"],
            "build": ["build", model, "--target", "onnxruntime", "-o", o / "b.onnx"],
            "torchscript": ["build", f"{f}/net.py:build", "-i", "x:2,4,16,16", "--target", "torchscript",
                            "-o", o / "b.pt"],
            "openvino": ["build", model, "--target", "openvino", "-o", o / "o.onnx"],
            "rtx": ["build", model, "--target", "tensorrt-rtx", "--gpu", "sm86", "-o", o / "t.engine"],
            "bench": ["bench", f / "built.onnx", "--baseline", model, *self._short(), "-o", o / "r.json"],
            "diff": ["diff", model, f / "built.onnx", "--layers", "-o", o / "d.json"],
            "report": ["report", f / "results.json", "-o", out / "report.html"],
            "run": ["run", f / "recipe.toml", "-o", out / "out"],
        }  # fmt: skip

    def taking(self, path: Path, out: Path) -> dict[str, list[object]]:
        """Verb and input to words in which that input is a path."""
        f = self.folder
        return {
            "simplify model": ["simplify", path, "-o", out / "s.onnx"],
            "inspect": ["inspect", path],
            "calibrate data": ["calibrate", f / "model.onnx", "--data", path, "-o", out / "c.ranges"],
            "calibrate model": ["calibrate", path, "--data", f / "calibration.npz", "-o", out / "c.ranges"],
            "quantize ranges": ["quantize", f / "model.onnx", "--ranges", path, "-o", out / "q.onnx"],
            "ranges": ["ranges", path],
            "build": ["build", path, "--target", "onnxruntime", "-o", out / "b.onnx"],
            "bench": ["bench", path, "--baseline", f / "model.onnx", *self._short()],
            "diff": ["diff", f / "model.onnx", path],
            "report": ["report", path, "-o", out / "report.html"],
            "run": ["run", path, "-o", out / "out"],
            "output": ["simplify", f / "model.onnx", "-o", path],
        }

    @staticmethod
    def _short() -> list[object]:
        return ["--max-time", "0.2", "--threads", "1"]


class Trials:
    """Carries out trials and counts how they end."""

    def __init__(self, work: Path, sizes_kb: Sequence[int], count: int) -> None:
        self.work, self.sizes_kb, self.count = work, sizes_kb, count
        self.seen, self.problems = Counter[str](), list[str]()
        self.slowest_s = 0.0

    def run(
        self, name: str, words: list[object], out: Path, before: Callable[[], object], **look: Any
    ) -> None:
        """One trial: `before` is called in the new process, which then is the command line."""
        log = self.work / "said"
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _become(words, log, before)
        code = _wait(child, _LIMIT_S)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        said = log.read_text(errors="replace")
        self.seen[f"exit code {code}"] += 1
        wrong = [] if look.get("unseen") else broken(out)
        if code not in (0, 1, 2):
            wrong.append("its exit code")
        wrong += [text for text in ("Traceback", "defect", "unexpected", "Exception ignored") if text in said]
        if code and not said.strip():
            wrong.append("it says nothing")
        if look.get("fails") and code == 0:
            wrong.append("it succeeds")
        if wrong:
            self.problems.append(f"{name}: {code}: {wrong}: {said[-1500:]}")
        last = said.strip().splitlines()[-2:]
        took_s = time.monotonic() - began
        print(f"{name}: {code} {took_s:.1f} s {wrong or ''} {last}", file=sys.stderr, flush=True)


def _become(words: list[object], log: Path, before: Callable[[], object]) -> None:
    """Carry out a command line in this forked process; does not return."""
    from qcompile.cli import main

    code = 99
    try:
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.setsid()
        before()
        main([str(word) for word in words])
    except SystemExit as done:
        code = int(done.code or 0)
    except BaseException:  # what nobody caught is what is looked for
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


def _wait(child: int, limit_s: float) -> int:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def full(road: Road, trials: Trials) -> None:
    """The output lies on a small disk."""
    for size in trials.sizes_kb:
        for name in road.verbs(Path()):
            with mounted(trials.work / "small", size) as out:
                trials.run(f"full {size} {name}", road.verbs(out)[name], out, lambda: None)


def temp(road: Road, trials: Trials) -> None:
    """Temporary files lie on a small disk."""
    for size in trials.sizes_kb:
        for name in road.verbs(Path()):
            out = fresh(trials.work / "out")
            with mounted(trials.work / "small", size) as small:
                trials.run(
                    f"temp {size} {name}", road.verbs(out)[name], out, lambda s=small: set_temporary(s)
                )


def size(road: Road, trials: Trials) -> None:
    """No file may be larger than so many kilobytes."""
    for most in trials.sizes_kb:
        for name in road.verbs(Path()):
            out = fresh(trials.work / "out")
            before = lambda most=most: limit(resource.RLIMIT_FSIZE, most * 1024)  # noqa: E731
            trials.run(f"size {most} {name}", road.verbs(out)[name], out, before)


def nofile(road: Road, trials: Trials) -> None:
    """Few files may be open."""
    for most in NOFILE:
        for name in road.verbs(Path()):
            out = fresh(trials.work / "out")
            before = lambda most=most: limit(resource.RLIMIT_NOFILE, most)  # noqa: E731
            trials.run(f"nofile {most} {name}", road.verbs(out)[name], out, before)


def readonly(road: Road, trials: Trials) -> None:
    """The output lies on a read-only disk."""
    for name in road.verbs(Path()):
        with mounted(trials.work / "small", 1024) as out:
            subprocess.run(["mount", "-o", "remount,ro", str(out)], check=True)
            trials.run(f"readonly {name}", road.verbs(out)[name], out, lambda: None, fails=True)


def denied(road: Road, trials: Trials) -> None:
    """Another user's folder, and an input that only its owner reads."""

    def lose_rights() -> None:
        set_temporary(temporary)
        drop_capabilities(1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH

    temporary = fresh(trials.work / "nobody")
    temporary.chmod(0o777)
    for name in road.verbs(Path()):
        out = fresh(trials.work / "out")
        out.chmod(0o555)
        trials.run(f"denied output {name}", road.verbs(out)[name], out, lose_rights, fails=True)
    for kind in ("model.onnx", "calibration.npz", "m.ranges", "results.json", "recipe.toml"):
        secret = trials.work / kind
        shutil.copy(road.folder / kind, secret)
        secret.chmod(0)
        out = fresh(trials.work / "out")
        out.chmod(0o777)
        for name, words in road.taking(secret, out).items():
            if name != "output":
                trials.run(f"denied {kind} {name}", words, out, lose_rights, fails=True)


def inputs(road: Road, trials: Trials) -> None:
    """Inputs and outputs that are no files."""
    out = trials.work / "out"
    for name in road.taking(Path(), out):
        ending = _ENDINGS.get(name, ".onnx")
        for path in _odd(fresh(trials.work / "odd"), ending):
            fresh(out)
            words = road.taking(path, out)[name]
            look = {"fails": name != "output", "unseen": name == "output"}
            kept, link = _fingerprint(path), os.path.islink(path)
            trials.run(f"inputs {path.name[:20]} {name}", words, out, lambda: None, **look)
            if _fingerprint(path) != kept and not link:
                trials.problems.append(f"inputs {path} {name}: replaced")


_ENDINGS = {"calibrate data": ".npz", "quantize ranges": ".ranges", "ranges": ".ranges", "report": ".json"}
_ENDINGS["run"] = ".toml"


def _odd(place: Path, ending: str) -> Iterator[Path]:
    """Make what is no file, with the ending of one; a link to it where it has its own place."""
    (place / f"folder{ending}").mkdir()
    yield place / f"folder{ending}"
    for name, target in (
        ("dangling", place / "nothing"), ("circle", place / f"circle{ending}"), ("memory", "/proc/self/mem"),
        ("null", "/dev/null"), ("zero", "/dev/zero"),
    ):  # fmt: skip
        (place / f"{name}{ending}").symlink_to(target)
        yield place / f"{name}{ending}"
    os.mkfifo(place / f"pipe{ending}")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / f"socket{ending}"))
        yield place / f"socket{ending}"
    yield place / f"pipe{ending}"
    yield place / f"pipe{ending}" / f"below{ending}"
    yield place / f"{'long' * 80}{ending}"
    yield from (Path("/proc/self/mem"), Path("/dev/null"), Path("/dev/zero"), Path("/proc/self/environ"))


def _fingerprint(path: Path) -> object:
    try:
        status = path.lstat()
    except OSError as error:
        return error.errno
    return status.st_mode, status.st_ino


def removed(road: Road, trials: Trials) -> None:
    """What is read or written goes while it is."""
    moments = random.Random(1)
    for name in road.verbs(Path()):
        for what in ("inputs", "output", "temporary"):
            for _ in range(trials.count):
                copy = trials.work / "copy"
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(road.folder, copy)
                moved = object.__new__(Road)
                moved.folder = copy
                out, temporary = fresh(trials.work / "out"), fresh(trials.work / "temporary")
                gone = {"inputs": copy, "output": out, "temporary": temporary}[what]

                def before(gone: Path = gone, temporary: Path = temporary) -> None:
                    set_temporary(temporary)
                    wait_s = moments.uniform(0, 1.5)
                    threading.Timer(wait_s, lambda: shutil.rmtree(gone, ignore_errors=True)).start()

                moments.random()
                trials.run(f"removed {what} {name}", moved.verbs(out)[name], out, before)


def main() -> None:
    """Print what was seen, as JSON; exit 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help="separated by commas")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "qcompile-disk")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES_KB)), help="of small disks, in kilobytes")
    parser.add_argument("--count", type=int, default=4, help="moments at which each thing is removed")
    given = parser.parse_args()
    sizes_kb = [int(text) for text in given.sizes.split(",")]
    road = Road(fresh(given.work / "road"))
    import onnxruntime  # noqa: F401  (each trial forks after the imports)
    import torch  # noqa: F401

    import qcompile.building
    import qcompile.compiler.export.export
    import qcompile.pipeline.run  # noqa: F401

    failed = False
    for kind in given.kinds.split(","):
        trials = Trials(given.work, sizes_kb, given.count)
        globals()[kind](road, trials)
        summary = {
            "trials": sum(trials.seen.values()),
            **trials.seen,
            "slowest_s": round(trials.slowest_s, 1),
        }
        print(json.dumps({kind: summary | {"problems": trials.problems}}, indent=1), flush=True)
        failed = failed or bool(trials.problems)
    shutil.rmtree(given.work, ignore_errors=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
