"""Look at the order in which files are written, synced and named, and kill between any two of these calls.

    python benchmarks/reliability/power.py          # needs strace

A power loss may take everything that was not synced. So of each file that gets a final name: all writes to it
come before its fsync, that before its rename, and the rename before an fsync of its folder; and the manifest
is renamed last, after an fsync of the folder that holds its artifact. `--kill` starts a writer of artifacts
again and again, and kills it at each call that changes a name or syncs: what is found then is the
former pair, the new one, or a file without manifest.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from small_road import broken, command, environment, write_road

_CALLS = "openat,write,pwrite64,writev,fsync,fdatasync,link,linkat,rename,renameat,renameat2"
_NAMES = "rename,renameat,renameat2,unlink,unlinkat,fsync,fdatasync,rmdir"
_TEMPORARY = ".qcompile-tmp-"
_WRITER = """
import sys
from pathlib import Path
from qcompile.artifact import commit
from qcompile.files import writing
from qcompile.artifact.manifest import Manifest
for version, side in ((1, True), (2, True), (3, False), (4, True)):
    with writing(Path(sys.argv[1])) as path:
        path.write_bytes(bytes([version]) * 5000)
        if side:
            path.with_name(path.name + ".data").write_bytes(bytes([version]) * 9000)
        commit(path, Manifest("engine", "build"))
"""


def violations(log: Path, folder: Path) -> Iterator[str]:
    """What a power loss could spoil, from the calls that strace saw."""
    synced: set[str] = set()
    waiting: dict[str, str] = {}
    named: set[str] = set()
    for line in log.read_text(errors="replace").splitlines():
        call = re.search(r"\b(\w+)\((.*)\)\s+= (\S+)", line)
        if call is None or call[3].startswith("-"):
            continue
        name, arguments = call[1], call[2]
        handle = re.match(r"\d+<([^>]*)>", arguments)
        if name in ("write", "pwrite64", "writev") and handle:
            synced.discard(handle[1])
            if handle[1] in named:
                yield f"{handle[1]}: written to under its final name"
        elif name in ("fsync", "fdatasync") and handle:
            synced.add(handle[1])
            for path in [path for path, parent in waiting.items() if parent == handle[1]]:
                del waiting[path]
        elif name.startswith(("rename", "link")):
            source, target = re.findall(r'"([^"]*)"', arguments)[:2]
            # What is synced stays so under another name, and in a folder of another name.
            below = [path for path in synced if path == source or path.startswith(f"{source}/")]
            synced |= {target + path.removeprefix(source) for path in below}
            if name.startswith("link"):
                continue
            if _TEMPORARY in target or not target.startswith(str(folder)):
                continue
            if not below:
                yield f"{target}: named before it was synced"
            artifact = target.removesuffix(".json")
            if target.endswith(".json") and artifact in waiting:
                yield f"{target}: named before its artifact was sure to be there"
            waiting[target] = str(Path(target).parent)
            named.add(target)
    yield from (f"{path}: its folder was not synced after it was named" for path in waiting)
    if not named:
        yield "nothing got a name: strace saw nothing"


def ordered(work: Path) -> dict[str, list[str]]:
    """Verb to the violations in its calls."""
    road = work / "road"
    write_road(road, bench=False)
    out = work / "out"
    model, data = road / "model.onnx", road / "calibration.npz"
    found = {}
    for name, words in {
        "simplify": ["simplify", model, "-o", out / "s.onnx"],
        "calibrate": ["calibrate", model, "--data", data, "-o", out / "c.ranges"],
        "quantize": ["quantize", model, "--ranges", out / "c.ranges", "-o", out / "q.onnx"],
        "build": ["build", model, "--target", "onnxruntime", "-o", out / "b.onnx"],
        "build again": ["build", model, "--target", "onnxruntime", "-o", out / "b.onnx"],
        "rtx": ["build", model, "--target", "tensorrt-rtx", "--gpu", "sm86", "-o", out / "t.engine"],
        "run": ["run", road / "recipe.toml", "-o", out / "run"],
    }.items():
        log = work / "calls"
        traced = ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-e", f"trace={_CALLS}", "-o", str(log)]
        done = subprocess.run(
            [*traced, *command(*words)], capture_output=True, text=True, env=environment(), timeout=600
        )
        found[name] = [] if done.returncode == 0 else [done.stderr[-500:]]
        found[name] += sorted(violations(log, out))
        print(json.dumps({name: found[name]}), flush=True)
    return found


def killed(work: Path) -> dict[str, object]:
    """What is found after a kill at each call that changes a name or syncs."""
    problems: list[str] = []
    moments = Counter[str]()
    for name in _NAMES.split(","):
        while _killed_at(work, name, moments[name] + 1, problems):
            moments[name] += 1
    return {"moments": sum(moments.values()), **moments, "problems": problems}


def _killed_at(work: Path, name: str, count: int, problems: list[str]) -> bool:
    """Whether the writer was killed; strace counts each call by itself."""
    out = work / "killed"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    inject = f"inject={name}:signal=SIGKILL:when={count}"
    traced = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={name}", "-e", inject]
    words = [*traced, sys.executable, "-P", "-c", _WRITER, str(out / "m.engine")]
    done = subprocess.run(words, env=environment(), timeout=120)
    problems += [f"{name} {count}: {one}" for one in broken(out)]
    main, side = out / "m.engine", out / "m.engine.data"
    if main.is_file() and side.is_file() and main.read_bytes()[0] != side.read_bytes()[0]:
        problems.append(f"{name} {count}: a file beside another's side file")
    return done.returncode != 0


def main() -> None:
    """Print what was seen, as JSON; exit 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--kill", action="store_true", help="kill between the calls in place of looking at them"
    )
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="qcompile-power-"))
    if given.kill:
        seen = killed(work)
        print(json.dumps(seen))
        failed = bool(seen["problems"])
    else:
        failed = any(ordered(work).values())
    shutil.rmtree(work, ignore_errors=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
