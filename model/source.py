"""Parse the spellings of MODEL, and compute the digest that detects changes of a model.

| spelling                   | is                                                         |
|----------------------------|------------------------------------------------------------|
| `model.py:build`           | a function in a file, returning an `nn.Module`             |
| `package.module:function`  | a function in an installed package                         |
| `model.pt2`                | a program saved by `torch.export.save`                     |
| `model.pt`, `.torchscript` | a TorchScript archive (`torch.jit.save`)                   |
| `model.onnx`               | an ONNX file                                               |
| `model.keras`, `.h5`       | a Keras model; by tf2onnx                                  |
| `folder`, `folder:name`    | a TensorFlow SavedModel, and its signature; by tf2onnx     |

The function takes no argument and returns the module, or `(module, example)` where the example is a
tuple or a dict of the arguments of `forward`: tensors, or dicts, dataclasses, tuples and lists of them, whose
inputs are then named by path (`batch.image`, `features_0`). Nothing here unpickles a checkpoint: a file of
pickled weights is refused, and so is a `.pt2` that holds more than weights and operators (`pt2_archive`).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..artifact import is_manifest
from ..errors import InvalidOption, MissingFile
from ..files import digest_files, nearest_name, require_file

SourceKind = Literal["file", "module", "pt2", "torchscript", "onnx", "keras", "savedmodel"]
TENSORFLOW_KINDS = ("keras", "savedmodel")
"""What TensorFlow runs, and tf2onnx converts."""

_KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
_TORCHSCRIPT_SUFFIXES = (".pt", ".pth", ".ts", ".jit", ".torchscript")
_KEYED_SUFFIXES = ".py .safetensors .pt .pth .pt2 .bin .npz .npy .onnx .json .yaml .yml .txt .csv".split()


@dataclass(frozen=True)
class Source:
    """A parsed MODEL or data spelling.

    Attributes:
        spec: As the user wrote it.
        kind: What it is.
        path: The file, absent for "module".
        module: The dotted module of "module".
        function: The function of "file" and "module"; the signature of "savedmodel", empty for its own.
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
        if _is_saved_model(_absolute(head, base)):
            return Source(spec, "savedmodel", _absolute(head, base), function=function)
        if all(part.isidentifier() for part in head.split(".")):
            return Source(spec, "module", module=head, function=function)
    path = _absolute(spec, base)
    suffix = path.suffix.lower()
    if _is_saved_model(path):
        return Source(spec, "savedmodel", path)
    if suffix in _KERAS_SUFFIXES:
        return Source(spec, "keras", require_file(path, what="model"))
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
        "(.pt, .torchscript), .onnx, a SavedModel folder, .keras, .h5"
    )


def digest_source(source: Source, *, depends: Sequence[Path] = ()) -> str:
    """Return a digest that changes when the source may have changed.

    A function can read anything. Files beside it with code, weights or settings in them count, not only
    its own: making a stage again once too often is better than once too seldom. Artifacts with a manifest
    do not. What lies elsewhere is named with `depends`.

    Raises:
        MissingFile: If a file of `depends` is not there.
    """
    files: list[Path] = [require_file(path, what="depends: file") for path in depends]
    if source.kind == "module":
        spec = importlib.util.find_spec(source.module.split(".")[0])
        origin = Path(spec.origin) if spec and spec.origin else None
        version = hashlib.sha256(_package_version(source.module).encode()).hexdigest()
        files += _keyed_files(origin.parent) if origin and not _installed(origin) else []
        return f"{digest_files(files)}:{_digest_names(files)}:{version[:16]}:{source.spec}"
    if source.kind == "file":
        files += _keyed_files(source.file.parent)
        return f"{digest_files(files)}:{_digest_names(files)}:{source.function}"
    if source.kind == "savedmodel":
        files += sorted(path for path in source.file.rglob("*") if path.is_file())
        return f"{digest_files(files)}:{_digest_names(files)}:{source.function}"
    return digest_files([source.file, *files])


def _absolute(text: str, base: Path | None) -> Path:
    path = Path(text).expanduser()
    return path if path.is_absolute() else (base or Path.cwd()) / path


def _is_saved_model(path: Path) -> bool:
    return (path / "saved_model.pb").is_file()


def _keyed_files(folder: Path) -> list[Path]:
    files = {path for path in folder.iterdir() if path.is_file() and path.suffix in _KEYED_SUFFIXES}
    # What was written there by other stages is no part of the source: it would change with every run.
    made = {path for path in folder.glob("*.json") if is_manifest(path)}
    return sorted(files - made - {path.with_suffix("") for path in made})


def _digest_names(files: Sequence[Path]) -> str:
    return hashlib.sha256("\n".join(path.name for path in files).encode()).hexdigest()[:16]


def _installed(origin: Path) -> bool:
    return "site-packages" in origin.parts


def _package_version(module: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(module.split(".")[0])
    except PackageNotFoundError:
        return ""
