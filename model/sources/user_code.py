"""Import and call user code, with errors that name its file and line.

A file can import modules beside it, and relative modules of its package. Files of equal names in different
folders do not collide; an edited file is imported again.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ...errors import ModelError, QCompileError
from ..graph.source_paths import PREFIX, module_name, packages_around
from .named.description import declare_torchvision_operators
from .source import Source, did_you_mean

_Line = TypeVar("_Line", int, str)
T = TypeVar("T")


def load_function(source: Source) -> Callable[[], Any]:
    """Return the function that a source names, from its imported module."""
    try:
        module = _retry_with_torchvision(
            lambda: _import_file(source) if source.path else importlib.import_module(source.module)
        )
    except (Exception, SystemExit) as error:
        message, hint = f"raised {type(error).__name__}: {error}", ""
        if isinstance(error, SystemExit):
            hint = 'move the script code below `if __name__ == "__main__":`'
        if source.path is None:
            hint = hint or "install the package, or write file.py:function"
            raise ModelError(f"{source.spec}: importing {source.module} {message}", hint=hint) from error
        where = where_raised(error, source.path)
        path = source.path.resolve()
        raise ModelError(f"{source.spec}: importing it {message}{where}", hint=hint, file=path) from error
    function = getattr(module, source.function, None)
    if not callable(function):
        names = [name for name, value in names_in(module).items() if callable(value)]
        raise ModelError(
            f"{source.spec}: has no function {source.function!r}", hint=did_you_mean(source.function, names)
        )
    return function  # type: ignore[no-any-return]


def call(function: Callable[[], Any], source: Source) -> Any:
    """Return the result of a user's function; errors name the function and the line that raised."""
    try:
        with import_context(source):
            return _retry_with_torchvision(function)
    except QCompileError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"{source.spec}: raised {type(error).__name__}: {error}{where_raised(error, source.path)}",
            file=source.path,
        ) from error


def _retry_with_torchvision(work: Callable[[], T]) -> T:
    """Return `work()`; if torchvision's operators do not load, declare them and retry."""
    try:
        return work()
    except Exception as error:
        reason: BaseException | None = error
        while reason is not None and "torchvision::" not in str(reason):
            reason = reason.__cause__ or reason.__context__
        if reason is None or not declare_torchvision_operators():
            raise
    return work()


def where_raised(error: BaseException, path: Path | None) -> str:
    """Return " (model.py, line 12)": the deepest line in the user's file, or else as `deepest_line` does."""
    if isinstance(error, SyntaxError):  # its text contains the location
        return ""
    frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    user_frames = [frame for frame in frames if path and Path(frame[0]).resolve() == path.resolve()]
    place = user_frames[-1] if user_frames else deepest_line(frames)
    return f" ({Path(place[0]).name}, line {place[1]})" if place else ""


def deepest_line(places: Sequence[tuple[str, _Line]]) -> tuple[str, _Line] | None:
    """Return the last file and line in user code, else in a model's library; None if there are neither."""
    places = [place for place in places if not _INTERNAL_FILES.search(place[0])]
    places = [place for place in places if not _INSTALLED.search(place[0])] or places
    return places[-1] if places else None


def _import_file(source: Source) -> ModuleType:
    path = source.file.resolve()
    packages = packages_around(path)
    name = module_name(path, packages)
    if name in sys.modules:
        return sys.modules[name]
    parts = name.split(".")
    try:
        with import_context(source):
            for depth, package in enumerate(packages, 1):
                _execute(".".join(parts[:depth]), package / "__init__.py", [str(package)])
            return _execute(name, path)
    except BaseException:
        _remove_modules({parts[0]})
        raise


def _execute(name: str, path: Path, places: list[str] | None = None) -> ModuleType:
    """Return the module of a file, executed on first import; with `places` it is a package."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=places)
    assert spec is not None
    assert spec.loader is not None, "the path ends with .py"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if places is None or path.is_file():
        spec.loader.exec_module(module)
    return module


_IMPORT_FOLDERS: list[str] = []
"""Folders that modules were imported from, the latest last."""
_NAMESAKES: dict[str, dict[str, ModuleType]] = {}
"""By source folder: modules beside the source with names that the rest of the process uses as well."""
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_PACKAGE = __name__.partition(".")[0]
_INTERNAL_FILES = re.compile(
    r"^<|[/\\](site|dist)-packages[/\\](torch|numpy|qcompile)[/\\]|"
    rf"^({re.escape(os.path.dirname(os.__file__))}|{re.escape(str(Path(__file__).parents[2]))})[/\\]"
    r"(?!(site-packages|dist-packages|tests|examples)[/\\])"
)
"""Files of frames to skip: of PyTorch, NumPy, Python and qcompile, and code without a file."""


@contextlib.contextmanager
def import_context(source: Source) -> Iterator[None]:
    """Let a source import modules beside it, in place of modules of the same name elsewhere.

    1. Modules from the folders of other sources are removed from `sys.modules`.
    2. Other modules with the name of one beside the source are set aside and restored at the end.
    3. Modules of Python and installed packages remain.
    """
    if source.path is None:
        yield
        return
    folder = str(source.path.resolve().parent)
    if _IMPORT_FOLDERS[-1:] != [folder]:
        for name, module in list(sys.modules.items()):
            origin = os.path.dirname(names_in(module).get("__file__") or "")
            if origin in _IMPORT_FOLDERS and origin != folder and not name.startswith(PREFIX):
                del sys.modules[name]
        _IMPORT_FOLDERS[:] = [*(other for other in _IMPORT_FOLDERS if other != folder), folder]
    try:
        importable = _list_modules(folder, os.stat(folder).st_mtime_ns)
    except OSError:  # the folder was deleted
        importable = ()
    aside = _remove_modules({name for name in importable if _is_foreign(name, folder)})
    sys.modules.update(_NAMESAKES.pop(folder, {}))
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if aside:
            _NAMESAKES[folder] = _remove_modules({name.partition(".")[0] for name in aside})
            sys.modules.update(aside)


def names_in(module: Any) -> dict[str, Any]:
    """Return a module's attributes without triggering its lazy imports; empty for other objects."""
    return object.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}


@functools.lru_cache(maxsize=64)
def _list_modules(folder: str, _changed_ns: int) -> tuple[str, ...]:
    """Return the names of modules and packages in a folder, cached until the folder changes."""
    with os.scandir(folder) as entries:
        return tuple(
            entry.name.removesuffix(".py")
            for entry in entries
            if entry.name.endswith(".py") or os.path.isfile(os.path.join(entry.path, "__init__.py"))
        )


def _is_foreign(name: str, folder: str) -> bool:
    """Return whether `sys.modules[name]` is not the folder's module and may be set aside."""
    file = names_in(sys.modules.get(name)).get("__file__")
    if not file or name == _PACKAGE or name.startswith("__") or name in sys.stdlib_module_names:
        return False
    places = {os.path.join(folder, f"{name}.py"), os.path.join(folder, name, "__init__.py")}
    return not _INSTALLED.search(file) and os.path.realpath(file) not in places


def _remove_modules(names: set[str]) -> dict[str, ModuleType]:
    """Remove modules of these names and their submodules from `sys.modules`, and return them."""
    if not names:
        return {}
    matching_names = [name for name in sys.modules if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in matching_names}
