"""Fuzz our parsers by coverage, with atheris: `fuzz.py TARGET --executions 1000000 --corpus FOLDER`.

An input is parsed in this process. A parser returns, raises one of qcompile's errors, or has a defect, whose
input is kept; a hang or a crash ends the run. `fuzz.py --list` names the targets. `fuzz.py TARGET --replay`
parses the inputs that are kept in `corpus/`, without atheris. `--minimize` adds what runs have found, and
keeps the fewest that reach the same lines. Counts go to STATE/TARGET.PROCESS.json; inputs that show a defect,
the shortest of each place, to STATE/defects/TARGET.

atheris 3.0.0 has wheels for CPython 3.11: `pip install atheris`, in an environment of its own.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
sys.path.insert(0, str(HERE / "parser_targets"))
_SECONDS_A_LINE = 2.0


def main() -> None:
    """Fuzz, replay, or list."""
    asked = _arguments()
    if asked.list:
        from catalogue import TARGETS

        print("\n".join(TARGETS))
    elif asked.replay:
        sys.exit(replay(asked.target, asked.corpus))
    elif asked.minimize:
        minimize(asked.target, asked.corpus, asked.state, asked.most_bytes)
    else:
        fuzz(asked)


def replay(name: str, corpus: Path) -> int:
    """Parse every kept input; returns how many show a defect."""
    from catalogue import TARGETS
    from target import defect, place_of

    found = 0
    for path in sorted((corpus / name).glob("*")):
        error = defect(TARGETS[name], path.read_bytes())
        if error is not None:
            found += 1
            print(f"{path}: {place_of(error)}: {error}")
    return found


def fuzz(asked: argparse.Namespace) -> None:
    """Run atheris; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=["qcompile"]):
        from catalogue import TARGETS

    from inputs import mutated

    target = TARGETS[asked.target]
    count = _Count(target, asked.state)
    corpus = asked.state / "corpus" / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    for content in target.seeds:
        (corpus / _name(content)).write_bytes(content)

    def mutate(content: bytes, longest: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.randrange(3) or not content:
            return mutated(target, content or chance.choice(target.seeds), chance, longest)
        return bytes(atheris.Mutate(content, longest))

    options = [
        sys.argv[0], str(corpus), str(asked.corpus / target.name), f"-runs={asked.executions}",
        f"-max_total_time={asked.seconds}", f"-max_len={target.longest}", f"-seed={asked.seed}",
        "-timeout=60", "-rss_limit_mb=4096", "-verbosity=0", f"-artifact_prefix={asked.state}/{target.name}-",
    ]  # fmt: skip
    (asked.corpus / target.name).mkdir(parents=True, exist_ok=True)
    atexit.register(count.say)
    atheris.Setup(options, count.one, custom_mutator=mutate)
    atheris.Fuzz()


class _Count:
    """Parses inputs, counts them, and keeps the first input of each defect."""

    def __init__(self, target: Any, state: Path) -> None:
        self._target, self._state = target, state
        self._state.mkdir(parents=True, exist_ok=True)
        self._line = self._state / f"{target.name}.{os.getpid()}.json"
        self._begin = self._said = time.time()
        self._executions = 0
        self._defects: dict[str, int] = {}

    def one(self, content: bytes) -> None:
        """Parse one input."""
        from target import defect, place_of

        error = defect(self._target, content)
        self._executions += 1
        if error is not None:
            self._keep(place_of(error), content)
        if not self._executions & 63 and time.time() - self._said > _SECONDS_A_LINE:
            self.say()

    def say(self) -> None:
        """Write the counts of this run."""
        self._said = time.time()
        said = {"target": self._target.name, "executions": self._executions, "defects": self._defects}
        self._line.write_text(json.dumps({**said, "seconds": round(self._said - self._begin, 1)}))

    def _keep(self, place: str, content: bytes) -> None:
        first = place not in self._defects
        self._defects[place] = self._defects.get(place, 0) + 1
        if first:
            folder = self._state / "defects" / self._target.name
            folder.mkdir(parents=True, exist_ok=True)
            name = hashlib.sha256(place.encode()).hexdigest()[:8]
            path = folder / name
            if not path.exists() or len(content) < path.stat().st_size:
                path.write_bytes(content)
                path.with_suffix(".txt").write_text(place + "\n")
            self.say()


def minimize(name: str, corpus: Path, state: Path, most_bytes: int) -> None:
    """Keep the fewest inputs that reach the same steps from line to line, the shortest first.

    Inputs are those that are kept and those that runs have found.
    """
    from catalogue import TARGETS

    found = {*TARGETS[name].seeds}
    found |= {
        path.read_bytes() for folder in (corpus, state / "corpus") for path in (folder / name).glob("*")
    }
    chosen: list[bytes] = []
    reached: set[tuple[str, int, int]] = set()
    left = most_bytes
    for content in sorted(found, key=lambda content: (len(content), content)):
        steps = _steps(TARGETS[name], content)
        if steps - reached and len(content) <= left:
            reached |= steps
            left -= len(content)
            chosen.append(content)
    (corpus / name).mkdir(parents=True, exist_ok=True)
    for path in (corpus / name).glob("*"):
        path.unlink()
    for content in chosen:
        (corpus / name / _name(content)).write_bytes(content)
    print(f"{name}: {len(chosen)} of {len(found)} inputs, {most_bytes - left} bytes")


def _steps(target: Any, content: bytes) -> set[tuple[str, int, int]]:
    """The steps from line to line within qcompile that an input takes."""
    from target import defect

    steps: set[tuple[str, int, int]] = set()
    last: dict[int, int] = {}

    def trace(frame: Any, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if "qcompile" not in name or "site-packages" in name:
            return None
        if event == "line":
            steps.add((name, last.get(id(frame), 0), frame.f_lineno))
            last[id(frame)] = frame.f_lineno
        elif event == "call":
            last.pop(id(frame), None)
        return trace

    sys.settrace(trace)
    try:
        defect(target, content)
    finally:
        sys.settrace(None)
    return steps


def _name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", nargs="?")
    parser.add_argument("--executions", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=0, help="end after so long; 0: no limit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder of folders of inputs")
    parser.add_argument("--state", type=Path, default=Path("build/fuzz"), help="what a run finds and counts")
    parser.add_argument("--list", action="store_true", help="name the targets")
    parser.add_argument("--replay", action="store_true", help="parse the kept inputs alone")
    parser.add_argument("--minimize", action="store_true")
    parser.add_argument("--most-bytes", type=int, default=8000, help="of a minimized corpus")
    asked = parser.parse_args()
    if asked.target is None and not asked.list:
        parser.error("a target is required; --list names them")
    return asked


if __name__ == "__main__":
    main()
