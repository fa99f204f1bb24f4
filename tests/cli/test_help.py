"""Help texts: `-h` shows the usual options, `--help` all of them, both by the groups of `spec/groups.py`."""

from __future__ import annotations

import re

import click
import pytest
from commands import Qc
from reference_pages import verbs

from qcompile.cli.verb import Verb
from qcompile.spec.groups import GROUPS, group_of
from qcompile.spec.option import options_of

VERBS = dict(verbs())


def flags(verb: Verb) -> list[str]:
    params = verb.get_params(click.Context(verb))
    return [max(param.opts, key=len) for param in params if isinstance(param, click.Option)]


def test_every_option_has_one_group_and_every_named_option_exists() -> None:
    named = [flag for usual, further in GROUPS.values() for flag in (*usual.split(), *further.split())]
    assert len(named) == len(set(named))
    assert set(named) <= {flag for verb in VERBS.values() for flag in flags(verb)}
    for name, verb in VERBS.items():
        declared = {option.flag: option for option in options_of(verb.spec)}
        assert not [flag for flag in flags(verb) if not group_of(flag, declared.get(flag))[0]], name


@pytest.mark.parametrize("name", VERBS)
def test_the_long_help_has_every_option_and_the_short_one_fewer(qc: Qc, name: str) -> None:
    words = name.split()[1:]
    short, full = (qc(*words, option).out.partition("  Examples:")[0] for option in ("-h", "--help"))
    for flag in flags(VERBS[name]):
        assert re.search(rf"^  .*{re.escape(flag)}\b", full, re.M), flag
    required = [param for param in VERBS[name].params if param.required]
    assert all(max(param.opts, key=len).upper() in short.upper() for param in required)
    for rare in ("--tls-", "--insecure", "--untrusted", "--memory-limit-gb", "--timing-cache"):
        assert rare not in short
    omitted = len(full.split("\n  -")) - len(short.split("\n  -"))
    assert (f"{omitted} more options: {name} --help" in short) is (omitted > 0)
    assert "more options" not in full
    headings = re.findall(r"^(\w[\w ]*):$", full, re.M)
    assert headings == [title for title in ("Arguments", *GROUPS) if title in headings]
    assert {title for title in headings if title in short} >= {"Every command"}
