"""docs/gate.md and the templates beside it: their commands are ours, their YAML is what the forges read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from qcompile.cli.main import group

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs/gate.md").read_text(encoding="utf-8")
TEMPLATES = ROOT / "docs/ci"


def load(name: str) -> dict[Any, Any]:
    loaded = yaml.safe_load((TEMPLATES / name).read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def commands(script: str) -> Iterator[list[str]]:
    """The qcompile commands of a script, as words."""
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["qcompile"]:
            yield words[1:]


def parse(words: list[str]) -> None:
    """Parse a command line as it is typed; raises a usage error where it is wrong."""
    verb, *arguments = words
    command = group.get_command(click.Context(group), verb)
    assert command is not None, verb
    command.make_context(verb, arguments)


def test_the_jobs_of_github_have_the_shape_of_a_workflow() -> None:
    workflow = load("github.yml")
    assert set(workflow) == {"name", True, "permissions", "jobs"}, "YAML 1.1 reads `on` as true"
    assert set(workflow[True]) == {"push", "pull_request"}
    jobs = workflow["jobs"]
    assert jobs["gate"]["needs"] == "build"
    run: list[list[str]] = []
    for job in jobs.values():
        assert set(job) <= {"if", "needs", "runs-on", "steps"}
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert set(step) <= {"name", "if", "uses", "with", "env", "run"}
            run += commands(step.get("run", ""))
    assert [words[0] for words in run] == ["run", "gate"]
    for words in run:
        parse(words)


def test_the_artifacts_of_github_are_found_again() -> None:
    jobs = load("github.yml")["jobs"]
    [uploaded] = [step["with"] for step in jobs["build"]["steps"] if "upload" in step.get("uses", "")]
    [downloaded] = [step["with"] for step in jobs["gate"]["steps"] if "download" in step.get("uses", "")]
    [script] = [step["run"] for step in jobs["gate"]["steps"] if "gh run download" in step.get("run", "")]
    assert uploaded["name"] == downloaded["name"]
    assert f"--name {uploaded['name']} --dir old" in script
    [gate] = [
        words for step in jobs["gate"]["steps"] for words in commands(step.get("run", "")) if "old" in words
    ]
    assert gate[:3] == ["gate", "old", downloaded["path"]]
    written = next(step["with"]["path"] for step in jobs["gate"]["steps"][::-1] if "with" in step)
    assert set(written.split()) == {gate[gate.index("--junit") + 1], gate[gate.index("--markdown") + 1]}


def test_the_jobs_of_gitlab_have_the_shape_of_a_pipeline() -> None:
    pipeline = load("gitlab.yml")
    assert set(pipeline) == {"stages", "default", "build", "gate"}
    run: list[list[str]] = []
    for name in ("build", "gate"):
        job = pipeline[name]
        assert set(job) <= {"stage", "rules", "needs", "script", "artifacts"}
        assert job["stage"] in pipeline["stages"]
        assert all(isinstance(line, str) for line in job["script"])
        run += [words for line in job["script"] for words in commands(line)]
    assert [words[0] for words in run] == ["run", "gate"]
    for words in run:
        parse(words)
    gate, artifacts = run[1], pipeline["gate"]["artifacts"]
    assert pipeline["build"]["artifacts"]["paths"] == [f"{gate[2]}/"]
    assert gate[1] == f"old/{gate[2]}"
    assert artifacts["reports"] == {"junit": gate[gate.index("--junit") + 1]}
    assert artifacts["paths"] == [gate[gate.index("--markdown") + 1]]
    assert artifacts["when"] == "always"


def test_the_commands_of_the_guide_are_parsed() -> None:
    shown = list(commands("\n".join(re.findall(r"^    (qcompile .*)$", GUIDE, re.M))))
    assert len(shown) == 2
    for words in shown:
        parse(words)


def test_the_defaults_of_the_guide_are_those_of_the_command() -> None:
    from qcompile.bench.gate_checks import FEWEST_LAUNCHES, MOST_LAUNCHES
    from qcompile.spec.measure import GateCommand

    given = GateCommand(old="a", new="b")
    rows = dict(re.findall(r"^\| (latency|size|outputs) \| .* \| (\w+) \|$", GUIDE, re.M))
    assert rows == {
        "latency": f"{given.max_slower:g}", "size": f"{given.max_larger:g}", "outputs": given.outputs,
    }  # fmt: skip
    assert f"`--max-time` ({given.max_time_s:g} s" in GUIDE
    assert (FEWEST_LAUNCHES, MOST_LAUNCHES) == (3, 12)
    assert "up to twelve" in GUIDE


@pytest.mark.usefixtures("short_blocks")
def test_the_python_of_the_guide_works(
    tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_file("mlp", file="old.onnx").parent
    tiny_file("mlp", file="new.onnx")
    monkeypatch.chdir(folder)
    shown = re.search(r"```python\n(.*?)```", GUIDE, re.S)
    assert shown
    exec(compile(shown[1], "docs/gate.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "new.onnx Slowdown(value=" in printed
    assert printed.endswith("passed\n"), "one file against itself"
