"""Where the files of a command lie: its paths, as they are here, and as a recipe spells them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from ...errors import InvalidOption
from .command_line import Invocation

_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


class Places:
    """The folders of a command and of its recipe.

    Args:
        call: Says where relative paths begin, and what a container sees of this machine.
        renamed: `OLD=NEW`: how folders or files of the command are named here; they come first.
        recipe: The recipe to write.

    Raises:
        InvalidOption: If one of `renamed` is not OLD=NEW.
    """

    def __init__(self, call: Invocation, renamed: Sequence[str], recipe: Path) -> None:
        self.recipe = recipe
        given: dict[str, str] = {}
        for text in renamed:
            old, equals, new = text.partition("=")
            if not (old and equals and new):
                raise InvalidOption(f"`paths` {text!r}: OLD=NEW is required", option="paths")
            given[old] = new
        self._folders: Mapping[str, str] = {**given, **call.mounts}
        self._start = call.folder

    def find(self, text: str) -> Path:
        """Return a path of the command as it is here."""
        path = os.path.expanduser(text) if text.startswith("~") else text
        for candidate in (path, str(PurePosixPath(self._start) / path) if self._start else path):
            for old, new in sorted(self._folders.items(), key=lambda pair: -len(pair[0])):
                bare = old.rstrip("/\\")
                if candidate == bare or candidate.startswith((f"{bare}/", f"{bare}\\")):
                    rest = candidate[len(bare) :].replace("\\", "/").lstrip("/")
                    return Path(os.path.expanduser(new)) / rest
        if _DRIVE.match(path):
            return Path(path)
        return Path(self._start) / path if self._start else Path(path)

    def spell(self, path: Path) -> str:
        """Return a path as the recipe spells it: relative to the recipe, unless it was absolute."""
        if path.is_absolute() or _DRIVE.match(str(path)):
            return str(path)
        return Path(os.path.relpath(path, self.recipe.parent)).as_posix()

    def find_data(self, text: str) -> str:
        """Return samples of the command as they are here: a file, or file.py:function."""
        script, function = _function(text)
        return f"{self.find(script)}{function}"

    def spell_data(self, text: str) -> str:
        """Return samples as the recipe spells them."""
        script, function = _function(text)
        return f"{self.spell(Path(script))}{function}"


def _function(text: str) -> tuple[str, str]:
    """A file, and ":function" or nothing."""
    script, colon, function = text.rpartition(":")
    if colon and script and function.isidentifier():
        return script, f":{function}"
    return text, ""
