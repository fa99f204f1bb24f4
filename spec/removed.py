"""What earlier versions had, and what to use instead: a sentence each, said until 0.4.0.

docs/compatibility.md lists the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = "0.3.0"
"""The version that took them out."""

_SIGNED = "`minisign` or `cosign` signs the manifest, which holds the file's digest"

_BALANCED = "`quantize` balances channels by itself where it has data"

COMMANDS: Mapping[str, str] = {
    "balance": _BALANCED,
    "sign": _SIGNED,
    "verify": _SIGNED,
    "completion": "`_QCOMPILE_COMPLETE=bash_source qcompile` prints the script (zsh_source, fish_source)",
}
"""Command, or name of the Python package, to what to use instead."""

_LOAD = (
    "`perf_analyzer` or MLPerf LoadGen let requests arrive by themselves; `--clients` measures calls at once"
)

_CIFAR = "read parquet files of CIFAR (`datasets:FOLDER`), an image folder, or an .npz of arrays"
_SERVER = "`perf_analyzer` measures what a server holds; `bench` and `diff` take its file"

_INSPECT = "a column of `--nodes` has the advice; `doctor --gpu` says what a GPU takes"

OPTIONS: Mapping[str, str] = {
    "calibrate.balance": _BALANCED,
    "calibrator=ours": "its name is ranges",
    "data.labels": "put metadata.csv (file_name,label) into the folder, or labels into a column",
    "form": "its name is `quant_format`",
    "inspect.gpu": _INSPECT,
    "inspect.i": _INSPECT,
    "inspect.input": _INSPECT,
    "memory": "leave it out; `--slots` of `worker` says how many stages run at a time",
    "processor": "its name is `isa`",
    "pythons": "its name is `python`",
    **dict.fromkeys(("rate", "rates", "p99_below", "p99_below_ms"), _LOAD),
    "rest": "its name is `float_precision`",
    "scores": "leave it out; `bench` evaluates the accuracy itself",
    "tensor_cores": _INSPECT,
    "verify_key": _SIGNED,
    "written": "leave it out; the text of a recipe is that of its `path`",
}
"""Option, as its key in a recipe, to what to use instead; "TABLE.KEY" or "COMMAND.KEY" where others keep it,
"KEY=VALUE" where a value went."""

SOURCES: Mapping[str, str] = {
    **dict.fromkeys(("cifar10", "cifar100"), _CIFAR),
    **dict.fromkeys(("kserve", "triton"), _SERVER),
}
"""Prefix of a model, artifact or reader ("kserve") to what to use instead."""


def removed_command(name: str) -> str:
    """Return what to say of a command or a Python name that went; empty where there was none."""
    return _sentence(name, COMMANDS.get(name))


def removed_option(name: str, command: str = "") -> str:
    """Return what to say of an option that went, by flag or key ("bench.rates"), or an empty text."""
    key = name.lstrip("-").removeprefix("no-").replace("-", "_")
    keys = (f"{command}.{key}", key, key.rpartition(".")[2])
    return _sentence(name, next((OPTIONS[option] for option in keys if option in OPTIONS), None))


def removed_source(text: str) -> str:
    """Return what to say of `PREFIX:...` whose prefix went; empty where none did."""
    prefix = text.partition(":")[0]
    return _sentence(f"{prefix}:", SOURCES.get(prefix)) if ":" in text else ""


def _sentence(name: str, instead: str | None) -> str:
    return f"{name} went with {VERSION}: {instead}" if instead else ""
