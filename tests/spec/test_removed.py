"""What went says so in one sentence with what to use instead: a command, an option, a key, a Python name."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import qcompile
from qcompile.cli.main import group
from qcompile.spec.decode import Refused, decode
from qcompile.spec.measure import BenchCommand
from qcompile.spec.removed import COMMANDS, OPTIONS, SOURCES, removed_option, removed_source


@pytest.mark.parametrize("name", [name for name in COMMANDS if " " not in name])
def test_a_command_says_what_to_use_instead(name: str) -> None:
    result = CliRunner().invoke(group, [name])
    assert result.exit_code == 2
    assert f"{name} went with 0.3.0: {COMMANDS[name]}" in result.output
    with pytest.raises(AttributeError, match=r"went with 0\.3\.0"):
        getattr(qcompile, name)


def test_a_name_that_never_was_is_unknown_only() -> None:
    assert "went with" not in CliRunner().invoke(group, ["frobnicate"]).output
    with pytest.raises(AttributeError, match="has no attribute 'frobnicate'"):
        _ = qcompile.frobnicate


@pytest.mark.parametrize("name", OPTIONS)
def test_a_key_of_a_recipe_says_what_to_use_instead(name: str) -> None:
    with pytest.raises(Refused) as refused:
        decode(BenchCommand, {name.rpartition(".")[2]: 1})
    if removed_option(name.rpartition(".")[2]):
        assert OPTIONS[name] in refused.value.hint


@pytest.mark.parametrize("prefix", SOURCES)
def test_a_prefix_says_what_to_use_instead(prefix: str) -> None:
    assert SOURCES[prefix] in removed_source(f"{prefix}:anything")
