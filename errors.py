"""Every error qcompile raises on purpose.

    QCompileError
    ├── UsageError              the request itself is wrong (exit code 2)
    │   ├── InvalidOption       an option's value
    │   ├── MissingFile         a file that is not there
    │   └── RecipeError         a key of a recipe
    ├── ModelError              a model that cannot be loaded, is damaged or fails its checks
    │   ├── ExportError         PyTorch code that cannot become ONNX
    │   └── UnsupportedOperator an operator nothing on this road can take
    ├── DataError               samples that do not fit, are empty, or hold NaN or infinity
    ├── CalibrationError        ranges that cannot be made or do not belong to the model
    ├── QuantizationError       a placement that cannot be made or was not reached
    ├── BuildError              an engine that could not be built
    │   └── IntentNotReached    an engine that is not what was asked for
    ├── EngineUnavailable       a runtime that is missing here, with the reason
    ├── ArtifactError           an artifact that is damaged or belongs elsewhere
    ├── OutOfMemory             memory or address space that a step needs and does not get
    ├── StorageError            a file that cannot be written or read: disk full, permission, read-only
    ├── ClusterError            a scheduler or workers that cannot be used, or were lost
    └── WorkerError             a worker process that died, hung or answered nonsense

A message says *subject: found; required*; the hint is the next step. Only `cli/` presents errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping


class QCompileError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: Subject, what was found, what is required.
        hint: The way out, one sentence; empty when there is none.
        data: The values behind the message (tensor, node, file, ...), for `--json`.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", **data: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data: Mapping[str, object] = data

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    def as_json(self) -> dict[str, object]:
        """Return the error as the `--json` object: type, message, hint and data."""
        return {
            "error": type(self).__name__,
            "message": self.message,
            "hint": self.hint,
            "data": {key: _plain(value) for key, value in self.data.items()},
        }


class UsageError(QCompileError):
    """The request itself is wrong; nothing was tried."""

    exit_code = 2


class InvalidOption(UsageError):
    """An option has a value that cannot be used. Data: `option`, the field of `spec/` that declares it.

    Messages name an option by its field between backticks; the command line spells it as it is typed.
    """

    def __init__(self, message: str, *, hint: str = "", **data: object) -> None:
        if "option" in data:
            data["option"] = str(data["option"]).partition(" ")[0].strip("`")
        super().__init__(message, hint=hint, **data)


class MissingFile(UsageError):
    """A named file or folder does not exist. Data: `file`."""


class RecipeError(UsageError):
    """A recipe has an unknown key or a wrong value. Data: `file`, `key`."""


class ModelError(QCompileError):
    """A model cannot be loaded, is damaged, or fails a check. Data: `file`."""


class ExportError(ModelError):
    """PyTorch code cannot become ONNX. Data: `operator`, `module`."""


class UnsupportedOperator(ModelError):
    """An operator cannot be taken further. Data: `operator`, `node`."""


class DataError(QCompileError):
    """Samples do not fit the model, are missing, or hold NaN or infinity. Data: `tensor`, `sample`."""


class CalibrationError(QCompileError):
    """Ranges cannot be made, or do not belong to the model. Data: `tensor`."""


class QuantizationError(QCompileError):
    """Quantization is impossible or fell short of its plan. Data: `nodes`."""


class BuildError(QCompileError):
    """A runtime refused to build an engine. Data: `node`, `operator`."""


class IntentNotReached(BuildError):
    """The built engine is not what was asked for. Data: `proof`, `wrong_layer` (empty: none is known)."""


class EngineUnavailable(QCompileError):
    """A runtime cannot work here. Data: `engine`, `reason`."""


class ArtifactError(QCompileError):
    """An artifact is damaged, or its manifest does not belong to it. Data: `file`."""


class StorageError(QCompileError):
    """A file cannot be written or read: the disk is full, a permission is missing. Data: `file`."""


class OutOfMemory(QCompileError):
    """A step needs more memory, or address space, than it gets. Data: `step`, `address_space_bytes`."""


class WorkerError(QCompileError):
    """A worker process died, hung, or answered nonsense. Data: `artifact`, `output`; `died`, of what."""


def first_line(error: BaseException) -> str:
    """Return the first line that a third-party error says, or its type when it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@contextlib.contextmanager
def translated(
    message: str,
    kind: type[QCompileError],
    *,
    errors: tuple[type[Exception], ...] = (Exception,),
    hint: str = "",
    **data: object,
) -> Iterator[None]:
    """Raise what a package raises as an error of ours; its first line follows in parentheses, or a colon."""
    try:
        yield
    except QCompileError:
        raise
    except errors as error:
        words = f" {first_line(error)}" if message.endswith(":") else f" ({first_line(error)})"
        raise kind(message + words, hint=hint, **data) from error


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those behind it; twenty at most, since they may lie in a circle."""
    seen: BaseException | None = error
    for _ in range(20):
        if seen is not None:
            yield seen
            seen = seen.__cause__ or seen.__context__


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)


class ClusterError(QCompileError):
    """A scheduler or workers on other machines cannot be used, or were lost. Data: `address`, `worker`."""
