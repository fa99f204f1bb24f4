"""The steps of the day as processes: each is ended in time, and what it saw is kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
_LINES, _CHARACTERS = 200, 8000


def read_index(folder: Path) -> dict[str, Any]:
    """Return the kit's index; ValueError if a file is missing or was changed on the way."""
    index: dict[str, Any] = json.loads((folder / "kit.json").read_text())
    for name, about in index["files"].items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != about["sha256"]:
            raise ValueError(f"{path}: missing, or not the file that was prepared")
    return index


def ended(
    name: str, command: Sequence[str], limit_s: float, folder: Path, *, record: bool = False
) -> dict[str, Any]:
    """Run a step to its end, or end it, and return what came of it."""
    start, variables = time.monotonic(), environment(folder)
    if record:
        variables["QCOMPILE_TENSORRT_RECORD"] = str(folder / "recordings" / f"{name}.jsonl")
        variables["PYTHONPATH"] = f"{ROOT / 'tests/support/recording'}{os.pathsep}{variables['PYTHONPATH']}"
    said = folder / f"{name}.log"
    with said.open("w") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env=variables, start_new_session=True)
        try:
            code: int | None = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(child)
    notes = folder / f"{name}.json"
    outcome: dict[str, Any] = json.loads(notes.read_text()) if notes.is_file() else {}
    if code is None:
        outcome |= {"result": "timed out", "limit_s": round(limit_s, 1)}
    elif code < 0:
        outcome |= {"result": "crashed", "signal": signal.Signals(-code).name}
    else:
        outcome.setdefault("result", "passed" if code == 0 else "failed")
    outcome |= {
        "seconds": round(time.monotonic() - start, 1),
        "output": said.read_text(errors="replace")[-_CHARACTERS:],
    }
    return outcome | (recorded(folder, name) if record else {})


def append(folder: Path, line: dict[str, Any]) -> None:
    """Write one line of the results, at once."""
    with (folder / "gpu-day.jsonl").open("a") as file:
        file.write(json.dumps(line, default=str) + "\n")
        file.flush()
        os.fsync(file.fileno())


def missing(engine: str, python: str, folder: Path, pythonpath: str) -> dict[str, str]:
    """Return what `preflight` says of an interpreter."""
    variables = environment(folder, pythonpath)
    command = [python, str(Path(__file__).with_name("preflight.py")), engine]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        reason = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1]
        return dict.fromkeys(("start", "build", "run", "tests"), f"{python}: {reason}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a step and what it started."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def recorded(folder: Path, name: str) -> dict[str, Any]:
    """Return what TensorRT said in a step, and the call that had not returned when a recording ended."""
    files = sorted((folder / "recordings").glob(f"{name}.jsonl*"))
    said: dict[str, None] = {}
    died_in = ""
    for path in files:
        under_way: dict[int, str] = {}
        for event in _events(path):
            if "call" in event:
                under_way[event["n"]] = event["call"]
            elif "gives" in event or "raises" in event:
                under_way.pop(event["n"], None)
            if event.get("callback") == "ILogger.log":
                severity, text = event["args"]
                said[f"{severity['enum'].removeprefix('Severity.')}: {text}"] = None
        died_in = next(reversed(under_way.values()), died_in)
    kept = [line for line in said if line.startswith(("ERROR", "WARNING", "INTERNAL_ERROR"))]
    return {"recordings": [path.name for path in files], "tensorrt_said": kept[:_LINES], "died_in": died_in}


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a recording after its header, of which the last may be cut short."""
    for line in path.read_text(errors="replace").splitlines()[1:]:
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def environment(folder: Path, pythonpath: str | None = None) -> dict[str, str]:
    """The environment of a step, in which `import qcompile` is this repository."""
    others = os.environ.get("PYTHONPATH", "") if pythonpath is None else pythonpath
    path = os.pathsep.join([str(home(folder)), *filter(None, [others])])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def home(folder: Path) -> Path:
    """A folder that holds this repository under its package's name."""
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "qcompile").exists():
        (home / "qcompile").symlink_to(ROOT)
    return home.resolve()


def headline(folder: Path) -> Iterator[str]:
    """Yield the ratios to PyTorch FP32 of each network and batch that was measured."""
    lines = map(json.loads, (folder / "gpu-day.jsonl").read_text().splitlines())
    rows = {(line["network"], line["batch"], line["row"]): line for line in lines if "speedup" in line}
    for network, batch in dict.fromkeys(key[:2] for key in rows):
        ratios = [
            f"{key[2]} {row['speedup']:.2f}x" for key, row in rows.items() if key[:2] == (network, batch)
        ]
        yield f"{network}, batch {batch}, against PyTorch FP32: {', '.join(ratios)}"
    if rows:
        yield "published for ResNet-50, batch 1, on a V100: TensorRT FP32 2.0x, FP16 3.2x, INT8 4.7x"
