"""The guides: their commands are run, and the messages that they quote are those of the product."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from qcompile.cli import main
from qcompile.spec.words import BuildPrecision

ROOT = Path(__file__).parents[2]
ROOMS = [path for path in ROOT.iterdir() if (path / "__init__.py").is_file() and path.name != "tests"]
LEAST_LITERAL, LEAST_TELLING, LEAST_SHARE = 12, 15, 0.3
FILLED_IN = "\0"


GUIDES = ("debugging", "precision")
_STEP = re.compile(
    r"<!-- run(?P<how>[\w, ]*) -->\n```console\n(?P<commands>.*?)```\n"
    r"(?:\n<!-- output -->\n```text\n(?P<output>.*?)\n?```\n<!-- end of output -->\n)?"
    r"|```python\n# (?P<file>[\w.]+)\n(?P<source>.*?)```\n",
    re.S,
)


@dataclass(frozen=True)
class Step:
    """A block of a guide: a file, or commands that `<!-- run -->` marks, with words: slow, quiet, fails."""

    file: str
    text: str
    output: str = ""
    how: str = ""

    @property
    def commands(self) -> list[str]:
        """The commands; a line that ends with a backslash goes on."""
        return self.text.replace("\\\n", " ").strip().splitlines()


def steps(text: str) -> Iterator[Step]:
    for match in _STEP.finditer(text):
        part = match.groupdict()
        if part["file"]:
            yield Step(part["file"], part["source"])
        else:
            yield Step("", part["commands"], part["output"] or "", part["how"])


def run(step: Step, folder: Path) -> str:
    """Run the commands of a step; return standard output, then warnings and errors."""
    printed = []
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in step.commands:
        done = subprocess.run(
            ["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=False, timeout=300,
            env=os.environ | {"COLUMNS": "110", "NO_COLOR": "1", "PATH": path},
        )  # fmt: skip
        assert bool(done.returncode) is ("fails" in step.how), f"{command}\n{done.stdout}{done.stderr}"
        printed += [done.stdout, done.stderr]
    return "" if "quiet" in step.how else "\n".join(printed)


def page(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")


def telling(output: str) -> list[str]:
    """The lines that tell what went wrong, without figures: those differ from machine to machine."""
    lines = [
        line for line in output.splitlines() if re.match(r"error: |  hint: |first bad tensor|  proof: ", line)
    ]
    return [re.sub(r"\d+(?:[.,]\d+)*", "#", line) for line in lines]


@pytest.mark.parametrize("name", GUIDES)
def test_the_quick_commands_of_a_guide_print_what_it_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    for step in steps(page(name)):
        if step.file:
            (tmp_path / step.file).write_text(step.text, encoding="utf-8")
        elif "slow" not in step.how:
            printed = ""
            for command in step.commands:
                _, *words = shlex.split(command)
                with pytest.raises(SystemExit) as done:
                    main(words)
                out, err = capsys.readouterr()
                printed += f"{out}\n{err}\n"
                assert bool(done.value.code) is ("fails" in step.how), f"{command}\n{out}{err}"
            if "quiet" not in step.how:
                assert telling(printed) == telling(step.output)


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDES)
def test_all_commands_of_a_guide_print_what_it_shows(name: str, tmp_path: Path) -> None:
    for example in ("digits", "qat"):
        shutil.copytree(ROOT / "examples" / example, tmp_path / example)
    for step in steps(page(name)):
        if step.file:
            (tmp_path / step.file).write_text(step.text, encoding="utf-8")
        else:
            assert telling(run(step, tmp_path)) == telling(step.output)


def test_a_command_that_is_run_shows_what_it_printed() -> None:
    for name in GUIDES:
        for step in steps(page(name)):
            assert step.file or "quiet" in step.how or step.output, f"{name}: {step.text}"


@cache
def templates() -> list[tuple[list[str], str]]:
    """Every text of the source but docstrings: its fixed parts, and a pattern with anything between them."""
    found = []
    sources = [path for room in ROOMS for path in room.rglob("*.py")] + list(ROOT.glob("*.py"))
    for path in sources:
        parts = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):  # parents before their parts
            if isinstance(node, ast.JoinedStr):
                parts |= {id(part) for part in node.values}
            elif isinstance(node, ast.Expr):
                parts.add(id(node.value))
            if isinstance(node, ast.JoinedStr):
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else FILLED_IN for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                text = node.value
            else:
                continue
            # `option` of the source is spelled --option by the command line.
            fixed = re.sub(f"`[\\w {FILLED_IN}]+`", FILLED_IN, text).split(FILLED_IN)
            if sum(map(len, fixed)) >= LEAST_LITERAL:
                found.append((fixed, ".*?".join(map(re.escape, fixed))))
    return found


def is_a_message(text: str) -> bool:
    """Whether a text of the source can become this one, or a part of it that is long enough to tell."""
    return any(
        (sum(map(len, fixed)) >= LEAST_TELLING or sum(map(len, fixed)) >= LEAST_SHARE * len(text))
        and all(piece in text for piece in fixed)
        and re.search(pattern, text)
        for fixed, pattern in templates()
    )


def quoted(text: str) -> list[str]:
    """Messages that a guide quotes: errors in outputs, block quotes, first cells of tables of messages."""
    lines = re.findall(r"^(?:error|warning|  hint): (.*)$", text, re.M)
    lines += re.findall(r"^> (.*)$", text, re.M)
    for table in re.findall(r"^\| (?:message|warning) \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M):
        lines += [row.split(" | ")[0].strip("| `") for row in table.splitlines()]
    return [re.sub(r"^noisy: ", "", line) for line in lines]


@pytest.mark.parametrize("name", GUIDES)
def test_every_message_that_a_guide_quotes_is_one_of_the_product(name: str) -> None:
    unknown = [line for line in quoted(page(name)) if not is_a_message(line)]
    assert not unknown


def test_a_message_that_is_made_up_is_found() -> None:
    assert len(quoted(page("debugging"))) > 25
    assert is_a_message("input 'image': opt shape 8x3x32x32 is above max 4x3x32x32")
    assert is_a_message("raise --max-shapes or lower --opt-shapes")
    assert not is_a_message("input 'image': opt shape 8x3x32x32 exceeds max 4x3x32x32")
    assert not is_a_message("lower --opt-shapes or raise --max-shapes")


def test_the_table_of_precisions_has_what_can_be_built_and_nothing_else() -> None:
    table = page("precision").split("## By precision")[1].split("## 1.")[0]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)
    }
    buildable = {name for one in get_args(BuildPrecision) for name in (get_args(one) or (one,))}
    assert named == buildable
    tree = page("precision").split("```")[3]
    assert set(re.findall(r"\b(?:fp|bf|tf|int|nvfp|mxfp)\d+\b", tree)) <= buildable


GUIDE = (ROOT / "docs/tensorrt.md").read_text(encoding="utf-8")
FILES = ("tensorrt-8.5.3.1", "tensorrt-10.16.1.11", "tensorrt-11.4.0.106", "tensorrt_rtx-1.7.1.116")
ROWS = re.findall(r"^\| `([\w.]+)` \| (yes|–) \| (yes|–) \| (yes|–) \| (yes|–) \|", GUIDE, re.M)


@pytest.mark.parametrize(("column", "file"), list(enumerate(FILES)), ids=FILES)
def test_a_version_has_the_names_that_the_guide_says(column: int, file: str) -> None:
    assert len(ROWS) == 20
    names = json.loads((ROOT / f"tests/support/trt_api/{file}.json").read_text(encoding="utf-8"))["names"]
    wrong = []
    for name, *said in ROWS:
        owner, _, member = name.partition(".")
        entry = names.get(owner)
        there = entry is not None and (
            not member or member in [*entry.get("members", []), *entry.get("enum", [])]
        )
        if there != (said[column] == "yes"):
            wrong.append(name)
    assert not wrong, f"{file}: {wrong}"


def test_the_gpus_of_tensorrt_rtx_are_those_of_its_builder() -> None:
    rtx = pytest.importorskip("tensorrt_rtx")
    members = {name.lower() for name in rtx.ComputeCapability.__members__ if name.startswith("SM")}
    table = GUIDE.partition("| `--gpu` |")[2].partition("\n\n")[0]
    row = next(line for line in (ROOT / "README.md").read_text().splitlines() if "| `tensorrt-rtx` |" in line)
    described = (
        (ROOT / "docs/recipe.schema.json").read_text().partition("Compute capability to build for:")[2]
    )
    for text in (table, row, described.partition(";")[0]):
        assert set(re.findall(r"\bsm\d+", text)) == members
