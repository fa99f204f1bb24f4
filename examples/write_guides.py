"""Run the commands of the guides in docs/, and write what they print there.

    python examples/write_guides.py                      # every guide, one after the other
    python examples/write_guides.py debugging precision  # these

A guide marks a block of commands with `<!-- run -->`, or with `<!-- run, slow -->` where it takes seconds.
Further words: `quiet` shows nothing, `fails` says that the exit code is not 0. What the commands print
stands below, between `<!-- output -->` and `<!-- end of output -->`: standard output, then warnings and
errors. A block of Python whose first line is a comment with a file's name is that file. The commands run in
a temporary folder with copies of two examples.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ("debugging", "precision")
EXAMPLES = ("digits", "mixed_precision")
LONGEST_COMMAND_S = 300

_STEP = re.compile(
    r"<!-- run(?P<how>[\w, ]*) -->\n```console\n(?P<commands>.*?)```\n"
    r"(?:\n<!-- output -->\n```text\n(?P<output>.*?)\n?```\n<!-- end of output -->\n)?"
    r"|```python\n# (?P<file>[\w.]+)\n(?P<source>.*?)```\n",
    re.S,
)
_TOLD = re.compile(r"(?:error|warning): .*|  hint: .*")


@dataclass(frozen=True)
class Step:
    """A file to write, or commands to run.

    Attributes:
        file: Name of the file; empty for commands.
        text: What the file holds, or the commands, one a line.
        output: What the guide shows below the commands.
        how: Words of the mark: slow, quiet, fails.
    """

    file: str
    text: str
    output: str = ""
    how: str = ""

    @property
    def commands(self) -> list[str]:
        """The commands; a line that ends with a backslash goes on."""
        return self.text.replace("\\\n", " ").strip().splitlines()


def steps(page: str) -> Iterator[Step]:
    """Return the steps of a guide, in order."""
    for found in _STEP.finditer(page):
        part = found.groupdict()
        if part["file"]:
            yield Step(part["file"], part["source"])
        else:
            yield Step("", part["commands"], part["output"] or "", part["how"])


def written(page: str, outputs: Iterator[str]) -> str:
    """Return the page with the outputs of its commands, in order."""

    def replaced(found: re.Match[str]) -> str:
        if found["file"]:
            return found.group()
        output = next(outputs)
        block = f"<!-- run{found['how']} -->\n```console\n{found['commands']}```\n"
        return block + (
            f"\n<!-- output -->\n```text\n{output}\n```\n<!-- end of output -->\n" if output else ""
        )

    return _STEP.sub(replaced, page)


def prepare(folder: Path) -> None:
    """Copy the examples into a folder."""
    for name in EXAMPLES:
        leave = shutil.ignore_patterns("out", "__pycache__")
        shutil.copytree(ROOT / "examples" / name, folder / name, ignore=leave)


def told(out: str, err: str) -> str:
    """What a guide shows of an output: no progress."""
    lines = [*out.splitlines(), *filter(_TOLD.match, err.splitlines())]
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def run(step: Step, folder: Path) -> str:
    """Run the commands of a step and return what the guide shows of their output."""
    shown = []
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in step.commands:
        print(f"> {command}", flush=True)
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            env=os.environ | {"COLUMNS": "110", "NO_COLOR": "1", "PATH": here},
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_COMMAND_S,
        )
        if "Traceback" in done.stderr or bool(done.returncode) is not ("fails" in step.how):
            raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        shown.append(told(done.stdout, done.stderr))
        print(shown[-1], flush=True)
    return "" if "quiet" in step.how else "\n".join(filter(None, shown))


def main() -> None:
    """Run the named guides, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="guides of docs/, without .md")
    given = parser.parse_args()
    for name in given.names or GUIDES:
        path = ROOT / f"docs/{name}.md"
        outputs = []
        with tempfile.TemporaryDirectory(prefix="qcompile-") as place:
            prepare(Path(place))
            for step in steps(path.read_text(encoding="utf-8")):
                if step.file:
                    (Path(place) / step.file).write_text(step.text, encoding="utf-8")
                else:
                    outputs.append(run(step, Path(place)))
        page = path.read_text(encoding="utf-8")  # again: minutes have passed
        path.write_text(written(page, iter(outputs)), encoding="utf-8")


if __name__ == "__main__":
    main()
