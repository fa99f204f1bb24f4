"""SKILL.md, which programs read: its commands are those that the README's tests run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
from readme_walk import block

from qcompile.cli.main import group
from qcompile.cli.verb import Verb

ROOT = Path(__file__).parents[2]
SKILL = (ROOT / "SKILL.md").read_text(encoding="utf-8")


def test_its_commands_are_run() -> None:
    [commands] = re.findall(r"```console\n(.*?)```", SKILL, re.S)
    run = [*block("example", "console").splitlines(), *block("walk", "console").splitlines()]
    assert set(commands.splitlines()) <= set(run)
    assert len(commands.splitlines()) == 10


def test_it_says_of_itself_when_to_use_it() -> None:
    head = re.match(r"---\nname: qcompile\ndescription: (.+)\n---\n", SKILL)
    assert head is not None
    assert len(head[1]) <= 1024, "what programs read of it before they choose it"


def test_its_verbs_and_options_exist() -> None:
    context = click.Context(group)
    for command in re.findall(r"`qcompile ([^`]+)`", SKILL):
        verb = group.get_command(context, shlex.split(command)[0])
        assert isinstance(verb, Verb), command
        flags = {flag for one in verb.get_params(context) for flag in one.opts}
        assert set(re.findall(r"--[a-z-]+", command)) <= flags, command
    prose = re.sub(r"```.*?```", "", SKILL, flags=re.S)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", prose)) - {"--threads"}  # of a group, bench
    verbs = [group.get_command(context, name) for name in group.list_commands(context)]
    every = {flag for verb in verbs if verb for one in verb.get_params(context) for flag in one.opts}
    assert named <= every, named - every
