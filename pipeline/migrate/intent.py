"""The options of trtexec and Polygraphy, from `options.toml`: what becomes of each.

What a command line holds; what it asks for, in the words of neither tool; and what became of its options.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal

from ...errors import InvalidOption, UsageError
from ...tensors import parse_shape
from ..recipe import tomllib

Tool = Literal["trtexec", "polygraphy"]
TOOLS: tuple[Tool, ...] = ("trtexec", "polygraphy")
Fate = Literal["kept", "missing", "unneeded"]
"""What becomes of an option: it has an equal, it has none, or nothing depends on it."""

RTX = "tensorrt-rtx"
_FATES: dict[str, Fate] = {"to": "kept", "lacks": "missing", "idle": "unneeded"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Flag:
    """One option of another tool: a row of the table, whose head says what its keys mean.

    `note` says why it has no equal and what to do, why nothing depends on it, or what to know of its equal.
    """

    name: str
    source: str
    versions: str
    fate: Fate
    note: str
    rtx_fate: Fate | None
    rtx_note: str
    also: tuple[str, ...] = ()
    takes: str = ""
    to: str = ""
    by: str = ""
    sets: Any = None
    choices: Mapping[str, Any] | None = None
    only: Sequence[str] = ()
    otherwise: str = ""
    same: str = ""
    default: str = ""


def dashed(name: str) -> str:
    """Return an option as it is typed: one letter has one dash."""
    return f"-{name}" if len(name) == 1 else f"--{name}"


@functools.cache
def flags_of(tool: Tool) -> dict[str, Flag]:
    """Return every spelling of a tool's options, without dashes, to its row of the table."""
    table = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))[tool]
    spelled: dict[str, Flag] = {}
    for name, row in table["options"].items():
        kind = next(kind for kind in _FATES if kind in row)
        note = row.pop("note", "") if kind == "to" else row.pop(kind)
        rtx, _, rtx_note = row.pop("rtx", "").partition(": ")
        source, also = f"{table['source']}/{row.pop('file', '')}".rstrip("/"), tuple(row.pop("also", ()))
        flag = Flag(
            name=name, source=source, versions=row.pop("in"), fate=_FATES[kind], note=note,
            rtx_fate=_FATES.get(rtx), rtx_note=rtx_note, also=also, **row,
        )  # fmt: skip
        spelled |= dict.fromkeys((name, *also), flag)
    return spelled


def find_flag(tool: Tool, name: str, *, prefixes: bool = False) -> Flag:
    """Return an option by its name without dashes, or refuse it with the nearest one.

    With `prefixes` the beginning of a name will do, where only one begins so, as argparse allows.
    """
    flags = flags_of(tool)
    if name in flags:
        return flags[name]
    begun = {flag.name for spelling, flag in flags.items() if spelling.startswith(name)}
    if prefixes and len(name) > 1 and len(begun) == 1:
        return flags[begun.pop()]
    lower = {spelling.lower(): spelling for spelling in flags}
    near = difflib.get_close_matches(name, flags, n=1, cutoff=0.5)
    nearest = lower.get(name.lower()) or "".join(near)
    hint = f"did you mean {dashed(nearest)}?" if nearest else ""
    raise InvalidOption(f"{tool} has no option {dashed(name)}", hint=hint, flag=dashed(name))


Shape = tuple[int, ...]
Kind = Literal["min", "opt", "max"]
KINDS: tuple[Kind, ...] = ("min", "opt", "max")
Profile = dict[Kind, dict[str, Shape]]
"""Which of the three, to input, to shape. A name may hold one `*`, which stands for any text."""


@dataclass
class Outcome:
    """What became of an option, or of a variable, which has no name; `to` is a key or a command."""

    name: str
    flag: str
    fate: Fate
    to: str = ""
    note: str = ""

    def as_json(self) -> dict[str, str]:
        return {key: value for key, value in asdict(self).items() if key != "name"}


@dataclass
class Intent:
    """What is to be built, from what, and what is done with it.

    Attributes:
        model, engine, cache, data: Files, as the command names them; `function` is that of `data`.
        strong: Whether the types of the graph decide.
        random: What the tool calibrates on where it has neither data nor a cache.
        constraints: Whether `layers` bind, and how.
        layers: Name of a layer and its precision; a later one overrides. One `*` stands for any text.
        profiles: Shapes to build for; inference runs at `runs_at`.
        ranks: (dtype, format) of the inputs and of the outputs by their position, each empty or complete.
        compares: Options of the comparison with ONNX Runtime's outputs; None without one.
    """

    model: str = ""
    engine: str = ""
    cache: str = ""
    data: str = ""
    function: str = ""
    precisions: set[str] = field(default_factory=set)
    best: bool = False
    tf32: bool = False
    strong: bool = False
    method: str = ""
    random: str = ""
    constraints: Literal["", "prefer", "obey"] = ""
    layers: list[tuple[str, str]] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    runs_at: dict[str, Shape] = field(default_factory=dict)
    ranks: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    formats: dict[str, tuple[str, str]] = field(default_factory=dict)
    tensorrt: dict[str, Any] = field(default_factory=dict)
    bench: dict[str, Any] = field(default_factory=dict)
    gpus: list[str] = field(default_factory=list)
    runs_tensorrt: bool = False
    runs_onnx: bool = False
    skips: bool = False
    measures: bool = False
    compares: list[str] | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    def settle(self, name: str, fate: Fate, to: str = "", note: str = "") -> None:
        """Say what became of an option, once other options are known."""
        for outcome in self.outcomes:
            if outcome.name == name:
                outcome.fate, outcome.to, outcome.note = fate, to if fate == "kept" else "", note

    def revise(self, to: str, fate: Fate, note: str, *, key: str = "") -> None:
        """Say the same of all options that were to become a key, or now become another one."""
        for outcome in self.outcomes:
            if outcome.to == to and outcome.fate == "kept":
                self.settle(outcome.name, fate, key or to, note)

    def flags_of(self, key: str) -> str:
        """Return the options that became a key, as they were typed."""
        return " ".join(item.flag for item in self.outcomes if item.fate == "kept" and item.to == key)

    @property
    def missing(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.fate == "missing"]


_DTYPES = {
    "fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16",
}  # fmt: skip
"""Names that TensorRT's tools give to types, to the names here; others are the same."""


def wrong(flag: str, problem: str, hint: str = "") -> InvalidOption:
    """Return the error for the value of another tool's option."""
    return InvalidOption(f"{flag}: {problem}", hint=hint, flag=flag)


def dtype_of(name: str) -> str:
    """Return the name of a type here, as "float16" for "fp16"."""
    return _DTYPES.get(name.lower(), name.lower())


def trtexec_pairs(flag: str, text: str) -> list[tuple[str, str]]:
    """Read `NAME:VALUE,...`; a name may be quoted, and hold colons (splitNameAndValue)."""
    pairs = []
    for part in filter(None, text.split(",")):
        if part.count("'") == 2:
            before, name, after = part.split("'")
            pairs.append((before + name, after.removeprefix(":")))
        else:
            name, colon, value = part.rpartition(":")
            if not colon or "'" in part:
                raise wrong(flag, f"{part!r} is not NAME:VALUE")
            pairs.append((name, value))
    return pairs


def trtexec_shapes(flag: str, text: str) -> dict[str, Shape]:
    """Read `NAME:1x3x224x224,...`."""
    if "[" in text or "]" in text:
        raise wrong(flag, f"{text!r}: trtexec reads no brackets", "it writes NAME:1x3x224x224,NAME:1x10")
    shapes = {}
    for name, value in trtexec_pairs(flag, text):
        if not re.fullmatch(r"|scalar|[0-9]{1,18}(x[0-9]{1,18})*", value):
            raise wrong(flag, f"{value!r} of {name!r} is no shape", "it writes NAME:1x3x224x224")
        shapes[name] = tuple(map(int, re.findall("[0-9]+", value)))
    return shapes


def polygraphy_shapes(flag: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Shape]:
    """Read `NAME:[1,3,224,224] ...`."""
    shapes = {}
    for name, value in pairs:
        try:
            shape: Sequence[Any] = parse_shape(value.strip("'\"")) if value not in ("[]", "") else ()
        except UsageError as error:
            raise wrong(flag, f"{value!r} of {name!r} is no shape", "it writes NAME:[1,3,224,224]") from error
        if not name or not all(isinstance(extent, int) and extent >= 0 for extent in shape):
            raise wrong(flag, f"{name}:{value} is not NAME:[1,3,224,224]")
        shapes[name] = tuple(shape)
    return shapes


def read_size(flag: str, text: str, *, unit: str = "") -> str:
    """Read a size: a number, as 1e9 too, with K, M or G behind it.

    Without one it is in bytes for Polygraphy (parse_num_bytes), and in MiB, `unit` "M", for trtexec,
    which has B for bytes (addDefaultUnitSuffixIfNotSpecified).
    """
    number, suffix = text, unit
    if text[-1:].upper() in tuple("BKMG" if unit else "KMG"):
        number, suffix = text[:-1], text[-1:].upper()
    try:
        size = float(number)
    except ValueError:
        raise wrong(flag, f"{text!r} is no size") from None
    if not 0 <= size < math.inf:
        raise wrong(flag, f"{text!r} is no size; a finite number from 0 is required")
    return f"{size:g}{suffix}" if suffix and size < 1e6 else f"{size:.0f}{suffix}"


# A command line is read as a shell would, without running any of it, with what stands in front of the
# program: sudo, time, bash -c, docker run, whose volumes and folder make paths in the container paths here.
_OPERATORS = "|&;<>"
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
    """One call of a tool: the words behind its name, and what stands in front, such as "docker run ...".

    `mounts` is folder inside a container to the folder here; relative paths begin at `folder`, as the command
    says it, empty for the present one; `text` is the whole command in one line.
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
        hint = "quote the whole command line"
        raise InvalidOption("`command`: no call of trtexec or polygraphy", hint=hint)
    if len(calls) > 1:
        raise InvalidOption(f"`command`: {len(calls)} calls; one is required", hint="migrate one at a time")
    return calls[0]


def _commands(text: str) -> list[list[str]]:
    """The words of each command; what is piped or redirected is cut off."""
    windows = bool(_WINDOWS.search(text))
    commands: list[list[str]] = []
    for line in _CONTINUED.sub(" ", text.replace("\ufeff", "")).splitlines():
        line = _PROMPT.sub("", line, count=1) if _PROMPT.match(line) else line
        if line.lstrip()[:1] in ("", "#"):
            continue
        lexer = shlex.shlex(_STREAM.sub("", _HERE.sub(".", line)), posix=True, punctuation_chars=_OPERATORS)
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
    """The call that a command is, or that another shell is given: `bash -c "trtexec ..."`."""
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        path = PureWindowsPath(word) if "\\" in word else PurePosixPath(word)
        name = path.name.lower().removesuffix(".exe")
        if name in TOOLS and before.lstrip("-") not in ("v", "name", "cd"):
            front = words[: index - 1] if before == "-m" and index > 1 else words[:index]
            mounts, inside = _container(front, variables)
            options = tuple(_expanded(text, variables) for text in words[index + 1 :])
            wrapper, text = " ".join(front), shlex.join(words)
            return Invocation(name, options, wrapper, variables, mounts, inside or folder, text)
    for index, word in enumerate(words[1:], 1):
        if words[index - 1] in ("-c", "-lc", "-ic") and any(tool in word for tool in TOOLS):
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
            source, _, target = value.partition(":")
            mounts[target.partition(":")[0]] = _expanded(source, variables)
        elif name == "mount":
            parts = dict(part.partition("=")[::2] for part in value.split(","))
            target = parts.get("target") or parts.get("dst") or parts.get("destination", "")
            mounts[target] = _expanded(parts.get("source") or parts.get("src", ""), variables)
        elif name in ("w", "workdir"):
            folder = value
        elif name in ("e", "env"):
            variable, _, text = value.partition("=")
            variables[variable] = text
    return {target: source for target, source in mounts.items() if target and source}, folder


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
