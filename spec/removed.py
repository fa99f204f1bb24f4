"""What earlier versions had, and what to use instead: a sentence each, said until 0.4.0.

The tag v0.2.0 has the code. docs/compatibility.md and CHANGELOG.md list the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = "0.3.0"
"""The version that took them out."""

_SIGNED = "`minisign` or `cosign` signs the manifest, which holds the file's digest"

COMMANDS: Mapping[str, str] = {
    "completion": "`_QCOMPILE_COMPLETE=bash_source qcompile` prints the script (zsh_source, fish_source)",
    "balance": "`quantize` balances channels by itself where it has data",
    "sign": _SIGNED,
    "verify": _SIGNED,
}
"""Command, or name of the Python package, to what to use instead."""

_LOAD = (
    "`perf_analyzer` or MLPerf LoadGen let requests arrive by themselves; `--clients` measures calls at once"
)

_CIFAR = "read parquet files of CIFAR (`datasets:FOLDER`), an image folder, or an .npz of arrays"
_SERVER = "`perf_analyzer` measures what a server holds; `bench` and `diff` take its file"

OPTIONS: Mapping[str, str] = {
    "calibrate.balance": "`quantize` balances channels by itself; its option is `balance`",
    "data.labels": "put metadata.csv (file_name,label) into the folder, or labels into a column",
    **dict.fromkeys(("rate", "rates", "p99_below", "p99_below_ms"), _LOAD),
    "verify_key": _SIGNED,
    "written": "leave it out; the text of a recipe is that of its `path`",
}
"""Option, as its key in a recipe, to what to use instead; "TABLE.KEY" where another table keeps it."""

SOURCES: Mapping[str, str] = {
    **dict.fromkeys(("cifar10", "cifar100"), _CIFAR),
    **dict.fromkeys(("kserve", "triton"), _SERVER),
}
"""Prefix of a model, artifact or reader ("kserve") to what to use instead."""


def removed_command(name: str) -> str:
    """Return what to say of a command or a Python name that went; empty where there was none."""
    return _sentence(name, COMMANDS.get(name))


def removed_option(name: str) -> str:
    """Return what to say of an option that went, by its flag or its key ("bench.rate"); else nothing."""
    key = name.removeprefix("--").removeprefix("no-").replace("-", "_")
    return _sentence(name, OPTIONS.get(key) or OPTIONS.get(key.rpartition(".")[2]))


def removed_source(text: str) -> str:
    """Return what to say of `PREFIX:...` whose prefix went; empty where none did."""
    prefix = text.partition(":")[0]
    return _sentence(f"{prefix}:", SOURCES.get(prefix)) if ":" in text else ""


def _sentence(name: str, instead: str | None) -> str:
    return f"{name} went with {VERSION}: {instead}" if instead else ""
