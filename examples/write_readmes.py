"""Run the commands that READMEs of examples name, and write their output there.

    python examples/write_readmes.py                    # every example, one after the other
    python examples/write_readmes.py lstm segmenter     # these

A README marks what a command printed; the command is run from the repository's root:

    <!-- output of: qcompile run examples/lstm/recipe.toml -->
    (replaced)
    <!-- end of output -->

`qcompile run` and `qcompile bench` give the Markdown table of their results, and `run` measures again. Any
other command gives what it prints, tables of Markdown as they are. Use a machine that does nothing else: a
table says if it was disturbed. A block that says `Not run yet.` waits for this script.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

_BLOCK = re.compile(r"<!-- output of: (.+?) -->\n(.*?)<!-- end of output -->", re.S)
_MEASURING = ("run", "bench")
NOT_RUN = "Not run yet.\n"


def blocks(text: str) -> list[tuple[str, str]]:
    """Return each command that a README marks, and the output that stands there."""
    return _BLOCK.findall(text)


def written(text: str, outputs: dict[str, str]) -> str:
    """Return a README with the output of its commands replaced; those without one stay as they are."""

    def replaced(found: re.Match[str]) -> str:
        command, old = found.groups()
        return f"<!-- output of: {command} -->\n{outputs.get(command, old)}<!-- end of output -->"

    return _BLOCK.sub(replaced, text)


def output_of(command: str) -> str:
    """Run a command from the repository's root and return its output as Markdown.

    Raises:
        SystemExit: If the command fails, with what it printed.
    """
    program, *arguments = shlex.split(command)
    measures = program == "qcompile" and arguments[0] in _MEASURING
    words = {"qcompile": ["-P", "-m", "qcompile"], "python": []}.get(program)
    if words is None:
        raise SystemExit(f"{command}: qcompile or python is required")
    again = ["--again", "bench"] if arguments[0] == "run" else []
    extra = [*again, "--json"] if measures else []
    done = subprocess.run(
        [sys.executable, *words, *arguments, *extra],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "110"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stdout}")
    if measures:
        return _table(done.stdout)
    printed = done.stdout.strip()
    return f"{printed}\n" if printed.startswith("| ") else f"```text\n{printed}\n```\n"


def _table(printed: str) -> str:
    from qcompile.bench.results.export import markdown
    from qcompile.bench.results.results import read_results

    value = json.loads(printed)
    return markdown(read_results(value.get("results", value))) + _budget(value.get("budget") or {})


def _budget(reasons: dict[str, str]) -> str:
    """What keeps the recipe's budget, and what speaks against each of the others."""
    if not reasons:
        return ""
    kept = ", ".join(name for name, reason in reasons.items() if not reason)
    others = [f"- not {name}: {reason}" for name, reason in reasons.items() if reason]
    return "\n".join(["", f"- within the budget: {kept or 'no artifact'}", *others, ""])


def main() -> None:
    """Write the READMEs of the named examples, or of all that mark an output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="folders of examples/")
    given = parser.parse_args()
    for readme in sorted(EXAMPLES.glob("*/README.md")):
        if given.names and readme.parent.name not in given.names:
            continue
        for command, _ in blocks(readme.read_text(encoding="utf-8")):
            print(f"{readme.parent.name}: {command}", flush=True)
            output = output_of(command)
            text = readme.read_text(encoding="utf-8")  # again: minutes have passed
            readme.write_text(written(text, {command: output}), encoding="utf-8")


if __name__ == "__main__":
    main()
