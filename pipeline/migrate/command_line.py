"""Read a command line of trtexec or Polygraphy as a shell would, without running any of it.

Quotes, line continuations (of sh, cmd and PowerShell), comments, assignments of variables, paths to the
program, `python -m polygraphy`, and what stands in front of it: sudo, time, bash -c, docker run. Of `docker
run` the volumes and the working folder are read, so that paths inside the container become paths here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath, PureWindowsPath

from ...errors import InvalidOption
from .intent import Tool

_OPERATORS = "|&;<>"
_PROGRAMS: dict[str, Tool] = {"trtexec": "trtexec", "polygraphy": "polygraphy"}
_CONTINUED = re.compile(r"[ \t]*[\\^`][ \t]*\r?\n[ \t]*")
_WINDOWS = re.compile(r"(?<![A-Za-z0-9/])[A-Za-z]:\\|\.exe\b")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_PROMPT = re.compile(
    r"\s*(?:!|(?:\([\w.-]+\)\s*)?(?:\$\s+|>+\s+|(?:PS )?[A-Za-z]:\\[^>\"]*>\s*|[\w.-]+@[^$#]*[$#]\s+))"
)
"""In front of what was typed: `$ `, `>>> `, `D:\\work>`, `root@host:/work# `, a notebook's `!`."""
_STREAM = re.compile(r"(?<=\s)\d(?=>)")
"""The number in 2>&1."""
_HERE = re.compile(r"\$\(pwd\)|\$\{PWD\}|\$PWD(?!\w)|%cd%", re.IGNORECASE)


@dataclass(frozen=True)
class Invocation:
    """One call of a tool.

    Attributes:
        words: What follows the name of the program.
        wrapper: What stands in front of it, such as "sudo" or "docker run ...".
        mounts: Folder inside a container to the folder here.
        folder: Folder that relative paths begin at, as the command says it; empty for the present one.
        text: The whole command in one line.
    """

    tool: Tool
    words: tuple[str, ...]
    wrapper: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    text: str = ""


def read_command(text: str) -> Invocation:
    """Return the one call of trtexec or Polygraphy that a text holds."""
    calls: list[Invocation] = []
    variables: dict[str, str] = {}
    folder = ""
    for words in _commands(text):
        words = [word for word in words if word != "export"] if words[0] == "export" else words
        while words and (match := _ASSIGNED.fullmatch(words[0])):
            variables[match[1]] = match[2]
            words = words[1:]
        if len(words) == 2 and words[0] == "cd":
            folder = words[1]
        elif words and (call := _call(words, dict(variables), folder)):
            calls.append(call)
    if not calls:
        raise InvalidOption(
            "`command`: no call of trtexec or polygraphy", hint="quote the whole command line"
        )
    if len(calls) > 1:
        raise InvalidOption(f"`command`: {len(calls)} calls; one is required", hint="migrate one at a time")
    return calls[0]


def _commands(text: str) -> list[list[str]]:
    """The words of each command; what is piped or redirected is cut off."""
    windows = bool(_WINDOWS.search(text))
    joined = _CONTINUED.sub(" ", text.replace("\ufeff", ""))
    commands: list[list[str]] = []
    for line in joined.splitlines():
        line = _PROMPT.sub("", line, count=1) if _PROMPT.match(line) else line
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        line = _STREAM.sub("", _HERE.sub(".", line))
        lexer = shlex.shlex(line, posix=True, punctuation_chars=_OPERATORS)
        lexer.whitespace_split, lexer.commenters = True, ""
        if windows:
            lexer.escape = ""
        try:
            commands += _split(list(lexer))
        except ValueError as error:
            raise InvalidOption(f"`command`: {error} in {line.strip()!r}", option="command") from error
    return commands


def _split(words: Sequence[str]) -> list[list[str]]:
    commands: list[list[str]] = [[]]
    cut = False
    for word in words:
        if word and not set(word) - set(_OPERATORS):
            if set(word) & set("<>|"):
                cut = cut or word != "||"  # what follows is a file, or another program's
            if word in (";", "&&", "||", "&") and not (cut and word == "&"):
                commands.append([])
                cut = False
        elif not cut:
            commands[-1].append(word)
    return [command for command in commands if command]


def _call(words: Sequence[str], variables: dict[str, str], folder: str) -> Invocation | None:
    for index, word in enumerate(words):
        path = PureWindowsPath(word) if "\\" in word else PurePosixPath(word)
        tool = _PROGRAMS.get(path.name.lower().removesuffix(".exe"))
        if tool is None or (index and words[index - 1].lstrip("-") in ("v", "name", "cd")):
            continue
        front, rest = list(words[:index]), words[index + 1 :]
        if front[-2:] and front[-1:] == ["-m"]:
            front = front[:-2]
        mounts, inside = _container(front, variables)
        expanded = tuple(_expanded(text, variables) for text in rest)
        return Invocation(
            tool, expanded, " ".join(front), variables, mounts, inside or folder, shlex.join(words)
        )
    return _inner_call(words, variables, folder)


def _inner_call(words: Sequence[str], variables: dict[str, str], folder: str) -> Invocation | None:
    """The call in what another shell is given: `bash -c "trtexec ..."`."""
    for index, word in enumerate(words[1:], 1):
        if words[index - 1] not in ("-c", "-lc", "-ic") or not any(name in word for name in _PROGRAMS):
            continue
        mounts, inside = _container(words[:index], variables)
        inner = read_command(word)
        return replace(
            inner,
            words=tuple(_expanded(text, variables) for text in inner.words),
            wrapper=" ".join([*words[:index], inner.wrapper]).strip(),
            variables={**variables, **inner.variables},
            mounts={**mounts, **inner.mounts},
            folder=inner.folder or inside or folder,
        )
    return None


def _container(front: Sequence[str], variables: dict[str, str]) -> tuple[dict[str, str], str]:
    """The mounts and the working folder of `docker run`; variables that it sets are noted."""
    mounts: dict[str, str] = {}
    folder = ""
    words = iter(front)
    for word in words:
        option, equals, value = word.partition("=")
        name = option.lstrip("-") if option.startswith("-") else ""
        if name in ("v", "volume", "w", "workdir", "e", "env", "mount") and not equals:
            value = next(words, "")
        if name in ("v", "volume"):
            here, _, there = value.partition(":")
            mounts[there.partition(":")[0]] = _expanded(here, variables)
        elif name == "mount":
            parts = dict(part.partition("=")[::2] for part in value.split(","))
            there = parts.get("target") or parts.get("dst") or parts.get("destination", "")
            mounts[there] = _expanded(parts.get("source") or parts.get("src", ""), variables)
        elif name in ("w", "workdir"):
            folder = value
        elif name in ("e", "env"):
            variable, _, text = value.partition("=")
            variables[variable] = text
    return {there: here for there, here in mounts.items() if there and here}, folder


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """The word with the variables that the command itself sets; those of another shell are not known."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in variables:
            raise InvalidOption(
                f"`command` {word!r}: the value of ${name} is not known",
                hint=f"write it out, or put {name}=VALUE in front",
                option="command",
            )
        return _expanded(variables[name], {k: v for k, v in variables.items() if k != name})

    return _VARIABLE.sub(value, word)
