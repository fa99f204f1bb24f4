"""The name that a user's file is imported by: no two files share it, and a shipped model does not tell it.

qcompile_source_3f9c01ab77de_net     /home/ann/net.py, with this content
net                                  what an exported model says in its place
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

PREFIX = "qcompile_source_"
_NAME = re.compile(rf"\b{PREFIX}[0-9a-f]{{12}}_(\w+)")
_NO_WORD = re.compile(r"\W")


def module_name(path: Path) -> str:
    """Return a name for the module of a file: two `net.py` do not meet, and an edited one is read again."""
    digest = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:12]
    return f"{PREFIX}{digest}_{_NO_WORD.sub('_', path.stem)}"


def with_file_names(text: str) -> str:
    """Return a text in which such modules have the names of their files."""
    return _NAME.sub(r"\1", text) if PREFIX in text else text
