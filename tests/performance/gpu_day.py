"""The day on a GPU: PyTorch against TensorRT, and everything else that only a GPU can tell, in 15 minutes.

    python tests/performance/gpu_day.py prepare       # where ONNX Runtime is: writes build/gpu-day
    python tests/performance/gpu_day.py run           # on the GPU host; `make gpu-day` does the same
    python tests/performance/gpu_day.py run --more    # GPU tests, torch.compile, calibrators, MobileNetV2

The GPU host needs a driver, TensorRT (8.5 to 11, or TensorRT-RTX), numpy, onnx and msgspec; no network and
no installation of qcompile. PyTorch may be in another interpreter, which --torch-python names; that one needs
numpy, onnx and msgspec too.

    a   2 min   the environment; a small engine is built, run, closed, and loaded twice in a fresh process
    b   9 min   ResNet-50 and BERT-base in FP32, FP16 and INT8 + FP16 against PyTorch; nothing is recorded
    c           other checks, with a recording of every use of TensorRT, as far as time goes

What a step needs is looked for first. Each step runs in a process of its own with a time limit, and the
next one follows whatever comes of it. Each result is one line of gpu-day.jsonl in a new folder of --results,
written at once. Without a GPU, `--target tensorrt-rtx --gpu sm86` does what needs none.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE / "gpu_day_harness"))

from steps import append, ended, headline, home, missing, read_index  # noqa: E402

FORMAT = 2
KIT, RESULTS = ROOT / "build/gpu-day", ROOT / "build/gpu-day-results"
ENDS = {"a": 120.0, "b": 660.0, "c": 900.0, "more": 3600.0}
"""When a part ends, in seconds from the start; what one leaves is for the next."""
LEAST_S = 5
BUILD_S, MEASURE_S = {"fp32": 40.0, "fp16": 90.0, "int8": 90.0}, {"b": 40.0, "more": 240.0}
"""An engine of a network, and its rows. ResNet-50 on an H200, 8.5.3.1: 32, 83, 81, and 23 s for batch 1."""
OTHER_BUILD_S = 120.0
VARIANTS, MORE_VARIANTS = ("fp32", "fp16", "int8"), ("tf32", "int8-ranges", "int8-native")
FIRST = {"environment": ("start", 40), "tiny": ("build", 50), "tiny_loaded": ("run", 30)}
"""Check to what it needs, and its share of part a."""
CHECKS = {
    "bert": 120, "group_norm": 60, "group_norm_fresh": 40, "int64_calibration": 60, "shape_tensor": 60,
    "two_runners": 60, "cuda_graphs": 60, "refit": 60, "version_compatible": 60, "hardware_compatible": 60,
    "timing_cache": 60, "two_profiles": 60, "residual_qdq": 180,
}  # fmt: skip
"""Check of part c to its limit in seconds."""


class Step(NamedTuple):
    """One process of the day.

    Attributes:
        part: "a", "b", "c" or "more".
        needs: What `preflight` must find: "start", "build", "run" or "tests".
        seconds: Its share of the part's time; in part c and in `more` its limit.
    """

    part: str
    name: str
    needs: str
    seconds: float
    command: Sequence[str]

    def limit_s(self, left_s: float, later: Sequence[Step]) -> float:
        """Return its limit, of what is left for its part: the limits of parts a and b fit into their time."""
        if self.part not in "ab":
            return min(self.seconds, left_s)
        return left_s * self.seconds / sum(step.seconds for step in (self, *later) if step.part == self.part)


def main() -> int:
    """Carry out one step."""
    options = _options()
    return {"check": _check_here, "prepare": _prepare, "run": _run}[options.step](options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("step", choices=["prepare", "run", "check"])
    parser.add_argument("name", nargs="?", default="", help="of `check`: which one, in this process")
    parser.add_argument("--kit", type=Path, default=KIT)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--target", default="tensorrt", choices=["tensorrt", "tensorrt-rtx"])
    parser.add_argument("--gpu", default="", help="GPUs to build for, such as sm86, where none is here")
    parser.add_argument("--more", action="store_true", help="what the 15 minutes have no time for")
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="of `prepare`: networks")
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter with PyTorch")
    parser.add_argument("--torch-path", help="its PYTHONPATH, where it is another interpreter")
    parser.add_argument("--simulated", default="", help=argparse.SUPPRESS)  # for the tests of this file
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch_path is None:
        same = options.torch_python == sys.executable
        options.torch_path = os.environ.get("PYTHONPATH", "") if same else ""
    return options


def _prepare(options: argparse.Namespace) -> int:
    sys.path[:0] = [str(home(Path(tempfile.mkdtemp()))), str(HERE)]
    from kit import NETWORKS, prepare

    prepare(options.kit, options.only or NETWORKS, lambda text: print(text, flush=True))
    size = sum(path.stat().st_size for path in options.kit.rglob("*") if path.is_file())
    print(f"{options.kit}: {size / 1e6:.1f} MB; carry it with the repository")
    return 0


# The day


def _run(options: argparse.Namespace) -> int:
    try:
        networks = list(read_index(options.kit)["networks"])
    except (OSError, ValueError, KeyError) as error:
        print(
            f"error: {options.kit}: no whole kit ({error}); `make gpu-day-kit` prepares one", file=sys.stderr
        )
        return 2
    folder = options.results / time.strftime("%Y%m%d-%H%M%S")
    (folder / "recordings").mkdir(parents=True)
    lacking, results = _preflight(options, folder), []
    began, steps = time.monotonic(), _steps(options, folder, networks)
    try:
        for number, step in enumerate(steps):
            print(f"{step.part} {step.name} ...", end=" ", flush=True)
            left_s = began + ENDS[step.part] - time.monotonic()
            outcome = _outcome(step, lacking, step.limit_s(left_s, steps[number + 1 :]), folder)
            append(folder, {"part": step.part, "step": step.name, **outcome})
            results.append(outcome["result"])
            print(_line(outcome), flush=True)
            if step.name.startswith("build.") and outcome["result"] not in ("passed", "built"):
                _, network, variant = step.name.split(".")
                row = {"network": network, "row": f"TensorRT {variant}", "result": "not run"}
                append(folder, row | {"reason": f"the build: {_line(outcome)}"})
    except KeyboardInterrupt:
        append(folder, {"interrupted": True})
        print("interrupted", flush=True)
        return 130
    for line in headline(folder):
        print(line)
    counts = ", ".join(f"{results.count(kind)} {kind}" for kind in dict.fromkeys(results))
    print(f"{folder / 'gpu-day.jsonl'}: {counts}")
    return 2 if {*results} == {"not run"} else int(not {*results} <= {"passed", "built", "not run"})


def _preflight(options: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Look for what the steps need, say what is missing, and return it for TensorRT."""
    lacking = missing(options.target, sys.executable, folder, os.environ.get("PYTHONPATH", ""))
    if options.simulated:
        lacking = dict.fromkeys(lacking, "")
    torch = missing("pytorch", options.torch_python, folder, options.torch_path)["run"]
    append(folder, {
        "gpu_day": FORMAT, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "target": options.target, "gpus": options.gpu, "simulated": options.simulated,
        "lacking": {**lacking, "pytorch": torch},
    })  # fmt: skip
    for what, reason in {f"{options.target} to build": lacking["build"], "to run": lacking["run"],
                         "PyTorch": torch}.items():  # fmt: skip
        print(f"{what}: {reason or 'ready'}", flush=True)
    return lacking


def _outcome(step: Step, lacking: Mapping[str, str], limit_s: float, folder: Path) -> dict[str, Any]:
    if lacking[step.needs]:
        return {"result": "not run", "reason": lacking[step.needs]}
    if limit_s < LEAST_S:
        return {"result": "not run", "reason": "the time was up"}
    return ended(step.name, step.command, limit_s, folder, record=step.part == "c" or step.name == "tests")


def _steps(options: argparse.Namespace, folder: Path, networks: Sequence[str]) -> list[Step]:
    chosen = [
        "--kit", str(options.kit.resolve()), "--results", str(folder.resolve()), "--target", options.target,
        "--gpu", options.gpu, "--simulated", options.simulated, "--torch-python", options.torch_python,
        "--torch-path", options.torch_path,
    ]  # fmt: skip
    here = [sys.executable, str(Path(__file__).resolve()), "check"]
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(ROOT / "tests/engines/gpu")]

    def step(part: str, name: str, needs: str, seconds: float) -> Step:
        notes = str((folder / f"{name}.json").resolve())
        return Step(part, name, needs, seconds, [*here, name, *chosen, "--notes", notes])

    def table(part: str, network: str, variants: Sequence[str], end: str = "") -> list[Step]:
        names = [f"build.{network}.{variant}" for variant in variants]
        return [
            *(
                step(part, name, "build", BUILD_S.get(name.rpartition(".")[2], OTHER_BUILD_S))
                for name in names
            ),
            step(part, f"measure.{network}{end}", "run", MEASURE_S[part]),
        ]

    if options.more:
        steps = [Step("more", "tests", "tests", 600, tests)]
        for network in networks:
            steps += table("more", network, VARIANTS) if network in networks[2:] else []
            steps += table("more", network, MORE_VARIANTS, ".more")
    else:
        steps = [step("a", name, needs, seconds) for name, (needs, seconds) in FIRST.items()]
        for network in networks[:2]:
            steps += table("b", network, VARIANTS)
        steps += [step("c", name, "build", seconds) for name, seconds in CHECKS.items()]
    return [step for step in steps if not options.only or step.name in options.only]


def _line(outcome: Mapping[str, Any]) -> str:
    reason = str(outcome.get("message") or outcome.get("reason") or outcome.get("signal") or "")
    text = f"{outcome['result']} ({outcome.get('seconds', 0)} s)"
    return f"{text}: {reason.splitlines()[0]}" if reason else text


# One check, in its own process


def _check_here(options: argparse.Namespace) -> int:
    import checks
    import headline
    from day import Day, NotRun, described, result_of

    from qcompile.errors import EngineUnavailable

    if options.simulated:
        _simulate(options.simulated, options.results)
    gpus = tuple(filter(None, options.gpu.split(",")))
    day = Day(
        options.kit, options.results, options.target, gpus, options.notes,
        options.torch_python, options.torch_path,
    )  # fmt: skip
    kind, *names = options.name.split(".")
    try:
        if kind == "build":
            headline.build(day, *names)
        elif kind == "measure":
            headline.measure(day, names[0], more="more" in names)
        else:
            getattr(checks, kind)(day)
    except NotRun as reason:
        day.see(result=result_of(reason), reason=str(reason))
    except EngineUnavailable as error:
        day.see(result="not run", reason=str(error))
    except Exception as error:  # a finding, not the end of the day
        day.see(result="failed", **described(error))
        return 1
    else:
        day.see(result="passed")
    return 0


def _simulate(version: str, folder: Path) -> None:
    """Put stand-ins of a TensorRT version, a GPU and workers in place; what they measure means nothing."""
    sys.path.append(str(ROOT / "tests/support"))
    from simulated_whole import install_day as install

    install(folder, version)


if __name__ == "__main__":
    sys.exit(main())
