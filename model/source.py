"""What MODEL may be, and how it is loaded.

| spelling                   | is                                                         |
|----------------------------|------------------------------------------------------------|
| `model.py:build`           | a function in a file, returning an `nn.Module`             |
| `package.module:function`  | a function in an installed package                         |
| `model.pt2`                | a program saved by `torch.export.save`                     |
| `model.pt`, `.torchscript` | a TorchScript archive (`torch.jit.save`)                   |
| `model.onnx`               | an ONNX file                                               |

The function takes no argument and returns the module, or `(module, example)` where the example is a
tuple or a dict of tensors. Nothing here unpickles a checkpoint: a file of pickled weights is refused.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..artifact import digest_files, nearest_name, require_file
from ..errors import InvalidOption, MissingFile, ModelError, QCompileError, first_line

if TYPE_CHECKING:
    import torch

SourceKind = Literal["file", "module", "pt2", "torchscript", "onnx"]

_TORCHSCRIPT_SUFFIXES = (".pt", ".pth", ".ts", ".jit", ".torchscript")
_KEYED_SUFFIXES = (
    ".py",
    ".safetensors",
    ".pt",
    ".pth",
    ".pt2",
    ".bin",
    ".npz",
    ".npy",
    ".onnx",
    ".json",
    ".yaml",
    ".yml",
    ".txt",
    ".csv",
)


@dataclass(frozen=True)
class Source:
    """A parsed MODEL or data spelling.

    Attributes:
        spec: As the user wrote it.
        kind: What it is.
        path: The file, absent for "module".
        module: The dotted module of "module".
        function: The function of "file" and "module".
    """

    spec: str
    kind: SourceKind
    path: Path | None = None
    module: str = ""
    function: str = ""

    @property
    def absolute(self) -> str:
        """The spelling with an absolute path, for another process or another working folder."""
        if self.path is None:
            return self.spec
        return f"{self.path.resolve()}:{self.function}" if self.function else str(self.path.resolve())

    @property
    def file(self) -> Path:
        """The file of a source that is one."""
        if self.path is None:
            raise InvalidOption(f"{self.spec!r} is not a file")
        return self.path


@dataclass(frozen=True)
class LoadedModel:
    """A PyTorch module in evaluation mode, with the example its function gave, if any."""

    module: torch.nn.Module
    example: tuple[Any, ...] | dict[str, Any] | None


def parse_source(spec: str, *, base: Path | None = None) -> Source:
    """Read a MODEL spelling; relative paths are taken from `base`.

    Raises:
        InvalidOption: If the spelling is none of the known ones.
        MissingFile: If it names a file that is not there.
    """
    head, colon, function = spec.rpartition(":")
    if colon and function.isidentifier() and head:
        if head.endswith(".py"):
            path = require_file(_absolute(head, base), what="model file")
            return Source(spec, "file", path, function=function)
        if all(part.isidentifier() for part in head.split(".")):
            return Source(spec, "module", module=head, function=function)
    path = _absolute(spec, base)
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        return Source(spec, "onnx", require_file(path, what="model"))
    if suffix == ".pt2":
        return Source(spec, "pt2", require_file(path, what="model"))
    if suffix in _TORCHSCRIPT_SUFFIXES:
        return Source(spec, "torchscript", require_file(path, what="model"))
    if suffix == ".py":
        require_file(path, what="model file")
        raise InvalidOption(
            f"model {spec!r} names a file but no function",
            hint=f"write {spec}:FUNCTION, a function that returns the nn.Module",
        )
    if not path.exists() and ("/" in spec or "." in spec):
        raise MissingFile(f"model {spec} does not exist", hint=nearest_name(path), file=path)
    raise InvalidOption(
        f"model {spec!r} is none of: file.py:function, package.module:function, .pt2, TorchScript "
        "(.pt, .torchscript), .onnx"
    )


def load_torch(source: Source) -> LoadedModel:
    """Load a PyTorch source, in evaluation mode.

    Raises:
        EngineUnavailable: If PyTorch is not installed.
        ModelError: If the file is damaged, or the function raises or returns something else.
    """
    torch = import_torch()
    if source.kind == "onnx":
        raise ModelError(
            f"{source.spec}: an ONNX file cannot be run by PyTorch",
            hint="give the PyTorch model it was exported from",
        )
    if source.kind == "pt2":
        return LoadedModel(_load_pt2(source.file), None)
    if source.kind == "torchscript":
        return LoadedModel(_load_torchscript(source.file), None)
    result = call(load_function(source), source)
    example = None
    if isinstance(result, tuple) and len(result) == 2:
        result, example = result
        if not isinstance(example, dict | tuple):
            example = (example,)
    if not isinstance(result, torch.nn.Module):
        raise ModelError(
            f"{source.spec}: returned {type(result).__name__}; an nn.Module is required",
            hint="return the module, or (module, example inputs)",
        )
    return LoadedModel(result.eval(), example)


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
    own = [frame for frame in frames if path and Path(frame.filename) == path]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    return f" ({Path(frame.filename).name}, line {frame.lineno})"


def digest_source(source: Source, *, depends: Sequence[Path] = ()) -> str:
    """Return a digest that changes when the source may have changed.

    A function can read anything. Files beside it with code, weights or settings in them count, not only
    its own: making a stage again once too often is better than once too seldom. What lies elsewhere is
    named with `depends`.

    Raises:
        MissingFile: If a file of `depends` is not there.
    """
    files: list[Path] = [require_file(path, what="depends: file") for path in depends]
    if source.kind == "module":
        spec = importlib.util.find_spec(source.module.split(".")[0])
        origin = Path(spec.origin) if spec and spec.origin else None
        version = hashlib.sha256(_package_version(source.module).encode()).hexdigest()
        files += _keyed_files(origin.parent) if origin and not _installed(origin) else []
        return f"{digest_files(files)}:{version[:16]}:{source.spec}"
    if source.kind == "file":
        files += _keyed_files(source.file.parent)
        return f"{digest_files(files)}:{source.function}"
    return digest_files([source.file, *files])


def import_torch() -> Any:
    """Import PyTorch.

    Raises:
        EngineUnavailable: If it is not installed.
    """
    from ..errors import EngineUnavailable

    try:
        import torch
    except ImportError as error:
        raise EngineUnavailable(
            f"PyTorch cannot be imported ({error})",
            hint="pip install 'qcompile[torch]'",
            engine="pytorch",
        ) from error
    return torch


def _absolute(text: str, base: Path | None) -> Path:
    path = Path(text).expanduser()
    return path if path.is_absolute() else (base or Path.cwd()) / path


def _import_file(source: Source) -> Any:
    path = source.file.resolve()
    # The name is unique to the file, so two model.py in one process do not meet in sys.modules.
    name = f"qcompile_source_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path}: cannot be imported as Python", file=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))  # so that it can import what lies beside it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ModelError(
            f"{source.spec}: importing it raised {type(error).__name__}: {error}{where_raised(error, path)}",
            file=path,
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _import_module(source: Source) -> Any:
    try:
        return importlib.import_module(source.module)
    except Exception as error:
        raise ModelError(
            f"{source.spec}: importing {source.module} raised {type(error).__name__}: {error}",
            hint="install the package, or write file.py:function",
        ) from error


def _load_pt2(path: Path) -> torch.nn.Module:
    torch = import_torch()
    try:
        return torch.export.load(path).module()  # type: ignore[no-any-return]
    except Exception as error:
        raise ModelError(
            f"{path}: not a program saved by torch.export.save ({first_line(error)})",
            hint="save it with torch.export.save, with a PyTorch no newer than this one",
            file=path,
        ) from error


def _load_torchscript(path: Path) -> torch.nn.Module:
    torch = import_torch()
    if not _is_torchscript(path):
        raise ModelError(
            f"{path}: not a TorchScript archive; a checkpoint of pickled weights is never unpickled",
            hint="write a function that builds the module and loads the weights: model.py:build",
            file=path,
        )
    try:
        return torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-any-return]
    except RuntimeError as error:
        raise ModelError(f"{path}: PyTorch cannot load it ({first_line(error)})", file=path) from error


def _is_torchscript(path: Path) -> bool:
    """TorchScript archives are zip files with a `code/` folder; checkpoints have none."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())


def _keyed_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in _KEYED_SUFFIXES)


def _installed(origin: Path) -> bool:
    return "site-packages" in origin.parts


def _package_version(module: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(module.split(".")[0])
    except PackageNotFoundError:
        return ""
