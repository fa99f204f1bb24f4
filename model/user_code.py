"""Import and call a user's own code, with errors that name its file and line.

What lies beside a file can be imported by it; two files of one name do not meet; an edited file is read
again.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import ModelError, QCompileError
from .source import Source
from .source_modules import PREFIX, module_name


def load_function(source: Source) -> Callable[[], Any]:
    """Import the function that a source names.

    Raises:
        ModelError: If importing fails or the function is not there.
    """
    if source.kind == "file":
        module = _import_file(source)
    else:
        module = _import_module(source)
    function = getattr(module, source.function, None)
    if not callable(function):
        import difflib

        names = [name for name in vars(module) if callable(getattr(module, name))]
        near = difflib.get_close_matches(source.function, names, n=1)
        raise ModelError(
            f"{source.spec}: no function {source.function!r} in it",
            hint=f"did you mean {near[0]!r}?" if near else "",
        )
    return function  # type: ignore[no-any-return]


def call(function: Callable[[], Any], source: Source) -> Any:
    """Call a user's function, naming it and the line that raised.

    Raises:
        ModelError: With the cause kept.
    """
    try:
        with _beside(source):
            return function()
    except QCompileError:
        raise
    except Exception as error:
        raise ModelError(
            f"{source.spec}: raised {type(error).__name__}: {error}{where_raised(error, source.path)}",
            file=source.path,
        ) from error


def where_raised(error: BaseException, path: Path | None) -> str:
    """Return " (model.py, line 12)": the deepest line of the user's own file, or of any."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if path and Path(f.filename).resolve() == path.resolve()]
    if not frames or isinstance(error, SyntaxError):  # which names its place itself
        return ""
    frame = (own or frames)[-1]
    return f" ({Path(frame.filename).name}, line {frame.lineno})"


def _import_file(source: Source) -> Any:
    path = source.file.resolve()
    name = module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path}: cannot be imported as Python", file=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _beside(source):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ModelError(
            f"{source.spec}: importing it raised {type(error).__name__}: {error}{where_raised(error, path)}",
            file=path,
        ) from error
    return module


_FOLDERS: set[str] = set()


@contextlib.contextmanager
def _beside(source: Source) -> Iterator[None]:
    """Let a source import what lies beside it, and not a namesake from another source's folder."""
    if source.path is None:
        yield
        return
    folder = str(source.path.resolve().parent)
    for name, module in list(sys.modules.items()):
        origin = os.path.dirname(getattr(module, "__file__", None) or "")
        if origin in _FOLDERS and origin != folder and not name.startswith(PREFIX):
            del sys.modules[name]
    _FOLDERS.add(folder)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _import_module(source: Source) -> Any:
    try:
        return importlib.import_module(source.module)
    except Exception as error:
        raise ModelError(
            f"{source.spec}: importing {source.module} raised {type(error).__name__}: {error}",
            hint="install the package, or write file.py:function",
        ) from error
