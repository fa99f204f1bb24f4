"""The day on a GPU: everything that only a GPU can tell, in ten minutes, in one JSON file.

    python benchmarks/gpu_day.py prepare     # where ONNX Runtime is: writes build/gpu-day, about 50 MB
    python benchmarks/gpu_day.py run         # on the GPU host; `make gpu-day` does the same

The GPU host needs a driver, TensorRT (8.5 to 11, or TensorRT-RTX), cuda-bindings or PyCUDA, numpy, onnx and
msgspec; no network and no installation of qcompile. Where PyTorch is there too, or in the interpreter that
--torch-python names, a kit prepared with --table makes the table of PyTorch against TensorRT as well.

Each check runs in a process of its own with a time limit, and the next one follows whatever comes of it.
After each, gpu-day.json is written anew in a new folder of --results, so that it is whole after Ctrl-C; the
recordings of every use of TensorRT lie beside it. Without a GPU, `--target tensorrt-rtx --gpu sm86` does
what needs none.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "gpu_day_harness"))

from steps import ended, environment, home  # noqa: E402

FORMAT = 1
KIT, RESULTS = ROOT / "build/gpu-day", ROOT / "build/gpu-day-results"
BUDGET_S = 600
LEAST_S = 5
NEEDED = ("numpy", "onnx", "msgspec")
"""What the harness itself imports; without TensorRT or a package for CUDA the checks say so one by one."""
TABLE_BATCHES = ("1", "32")


def main() -> int:
    """Carry out one step."""
    options = _options()
    if options.step == "check":
        return _check_here(options)
    if options.step == "prepare":
        return _prepare(options)
    return _run(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("step", choices=["prepare", "run", "check"])
    parser.add_argument("name", nargs="?", default="", help="of `check`: which one, in this process")
    parser.add_argument("--kit", type=Path, default=KIT)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--target", default="tensorrt", choices=["tensorrt", "tensorrt-rtx"])
    parser.add_argument("--gpu", default="", help="GPUs to build for, such as sm86, where none is here")
    parser.add_argument("--only", nargs="+", default=[], metavar="CHECK")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS")
    parser.add_argument(
        "--table", nargs="*", default=[], metavar="MODEL", help="of `prepare`, such as resnet18"
    )
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter with PyTorch")
    parser.add_argument("--simulated", default="", help=argparse.SUPPRESS)  # for the tests of this file
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _prepare(options: argparse.Namespace) -> int:
    sys.path.insert(0, str(home(Path(tempfile.mkdtemp()))))
    from kit import prepare

    start = time.perf_counter()
    prepare(options.kit, lambda text: print(f"{time.perf_counter() - start:6.1f} s  {text}", flush=True))
    if options.table:
        step = [sys.executable, str(HERE / "gpu.py"), "prepare", *options.table, "--folder",
                str(options.kit / "table"), "--batches", *TABLE_BATCHES]  # fmt: skip
        subprocess.run(step, check=True, env=environment(options.kit))
    size = sum(path.stat().st_size for path in options.kit.rglob("*") if path.is_file())
    print(f"{options.kit}: {size / 1e6:.0f} MB; carry it with the repository")
    return 0


# The day


def _run(options: argparse.Namespace) -> int:
    problem = _why_not(options)
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    folder = options.results / time.strftime("%Y%m%d-%H%M%S")
    (folder / "recordings").mkdir(parents=True)
    (folder / "kit").mkdir()
    found: dict[str, Any] = {
        "gpu_day": FORMAT,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "target": options.target,
        "gpus": options.gpu,
        "simulated": options.simulated,
        "checks": {},
    }
    deadline = time.monotonic() + options.budget
    try:
        found["kit"] = _unpack(options, folder)
        for name, command, limit in _steps(options, folder):
            left = deadline - time.monotonic()
            print(f"{name} ...", end=" ", flush=True)
            if left < LEAST_S:
                outcome: dict[str, Any] = {"result": "not run", "reason": "the time was up"}
            else:
                outcome = ended(name, command, min(limit, left), folder)
            found["checks"][name] = outcome
            _write(folder, found)
            print(_line(outcome), flush=True)
    except KeyboardInterrupt:
        found["interrupted"] = True
        print("interrupted", flush=True)
    found["seconds"] = round(options.budget - (deadline - time.monotonic()), 1)
    _write(folder, found)
    print(f"{folder / 'gpu-day.json'}: {_summary(found)}")
    failed = any(one["result"] not in ("passed", "built", "not run") for one in found["checks"].values())
    return 130 if found.get("interrupted") else int(failed)


def _why_not(options: argparse.Namespace) -> str:
    """Why the day cannot begin, and the way out; empty where it can."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        way = "carry it for this Python, or name another with GPU_PYTHON"
        return f"{sys.executable} has no {', '.join(missing)}; {way}"
    from kit import read_index

    try:
        read_index(options.kit)
    except (OSError, ValueError) as error:
        return f"{options.kit}: no whole kit ({error}); `make gpu-day-kit` prepares one"
    return ""


def _unpack(options: argparse.Namespace, folder: Path) -> str:
    """Check what was carried and lay it out; return the version that made it."""
    from kit import read_index, unpack

    index = read_index(options.kit)
    for path in options.kit.iterdir():
        if path.is_file():
            (folder / "kit" / path.name).symlink_to(path.resolve())
    unpack(options.kit, folder / "kit")
    return str(index["qcompile"])


def _steps(options: argparse.Namespace, folder: Path) -> list[tuple[str, list[str], float]]:
    """The checks, then what needs more than this harness: name, command, limit in seconds."""
    from checks import CHECKS

    here = [sys.executable, str(Path(__file__).resolve())]
    chosen = [
        "--kit", str(folder / "kit"), "--results", str(folder), "--target", options.target,
        "--gpu", options.gpu, "--simulated", options.simulated,
    ]  # fmt: skip
    steps = [
        (name, [*here, "check", name, *chosen, "--notes", str(folder / f"{name}.json")], float(limit))
        for name, (_, limit) in CHECKS.items()
    ]
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(ROOT / "tests/engines/gpu")]
    if not options.simulated and options.target == "tensorrt":
        steps.append(("tests", tests, 240.0))
        steps += _table(options)
    return [step for step in steps if not options.only or step[0] in options.only]


def _table(options: argparse.Namespace) -> list[tuple[str, list[str], float]]:
    folder = options.kit / "table"
    models = sorted(path.stem for path in folder.glob("*.onnx") if "." not in path.stem)
    if not models:
        return []
    common = [
        *models,
        "--folder",
        str(folder),
        "--batches",
        *TABLE_BATCHES,
        "--variants",
        "fp32",
        "fp16",
        "int8",
    ]
    script = str(HERE / "gpu.py")
    build = [sys.executable, script, "build", *common]
    if os.environ.get("QCOMPILE_KIT_SITE"):
        build += ["--tactic-source", "none"]
    measure = [
        *shlex.split(options.torch_python),
        script,
        "measure",
        *common,
        "--tensorrt-python",
        sys.executable,
    ]
    return [("table build", build, 300.0), ("table", measure, 300.0)]


def _write(folder: Path, found: Mapping[str, Any]) -> None:
    partial = folder / "gpu-day.partial"
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.replace(folder / "gpu-day.json")


def _line(outcome: Mapping[str, Any]) -> str:
    reason = str(outcome.get("message") or outcome.get("reason") or outcome.get("signal") or "")
    return f"{outcome['result']} ({outcome.get('seconds', 0)} s)" + (
        f": {reason.splitlines()[0]}" if reason else ""
    )


def _summary(found: Mapping[str, Any]) -> str:
    results = [one["result"] for one in found["checks"].values()]
    return ", ".join(f"{results.count(kind)} {kind}" for kind in dict.fromkeys(results)) or "nothing was run"


# One check, in its own process


def _check_here(options: argparse.Namespace) -> int:
    from checks import CHECKS
    from day import Day, NotRun, described, result_of

    if options.simulated:
        _simulate(options.simulated, options.results)
    gpus = tuple(filter(None, options.gpu.split(",")))
    day = Day(options.kit, options.results, options.target, gpus, options.notes)
    try:
        CHECKS[options.name][0](day)
    except NotRun as reason:
        day.see(result=result_of(reason), reason=str(reason))
    except Exception as error:  # a finding, not the end of the day
        day.see(result="failed", **described(error))
        return 1
    else:
        day.see(result="passed")
    return 0


def _simulate(version: str, folder: Path) -> None:
    """Put a stand-in of a TensorRT version and of a GPU in place; what it measures means nothing."""
    import pytest

    sys.path.append(str(ROOT / "tests/support"))
    from simulated_whole import install

    install(pytest.MonkeyPatch(), folder, version)


if __name__ == "__main__":
    sys.exit(main())
