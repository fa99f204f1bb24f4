"""The exceptions that qcompile raises on purpose.

    QCompileError
    ├── UsageError              the request itself is wrong (exit code 2)
    │   ├── InvalidOption       an option has a wrong value
    │   ├── MissingFile         a file does not exist
    │   └── RecipeError         a recipe has an unknown key or a wrong value
    ├── ModelError              a model cannot be loaded, is damaged or fails its checks
    │   ├── ExportError         PyTorch code that cannot become ONNX
    │   └── UnsupportedOperator an operator that the target cannot execute
    ├── DataError               samples that do not fit, are empty, or hold NaN or infinity
    ├── CalibrationError        ranges that cannot be computed or do not belong to the model
    ├── QuantizationError       quantization that is impossible or loses too much accuracy
    ├── BuildError              an engine that could not be built
    │   └── IntentNotReached    a built engine that differs from the request
    ├── EngineUnavailable       a runtime that cannot be used on this machine, with the reason
    ├── ArtifactError           an artifact that is damaged or belongs to another machine or model
    ├── OutOfMemory             memory or address space that a step could not allocate
    ├── StorageError            a file that cannot be written or read: disk full, permission, read-only
    ├── ClusterError            a scheduler or workers that cannot be used, or were lost
    └── WorkerError             a worker process that died, hung or sent an invalid reply

Messages have the form *subject: found; required*; the hint is the next step. Only `cli/` prints errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping


class QCompileError(Exception):
    """Base class of all errors raised on purpose.

    Args:
        message: Subject, found value, required value.
        hint: Next step for the user, one sentence; may be empty.
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
    """The request itself is wrong; no work was done."""

    exit_code = 2


class InvalidOption(UsageError):
    """An option has an unusable value. Data: `option`, the field of `spec/` that declares it.

    Messages name an option by its field in backticks; the command line replaces it by the flag.
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
    """An operator cannot be converted or executed. Data: `operator`, `node`."""


class DataError(QCompileError):
    """Samples do not fit the model, are missing, or hold NaN or infinity. Data: `tensor`, `sample`."""


class CalibrationError(QCompileError):
    """Ranges cannot be computed, or do not belong to the model. Data: `tensor`."""


class QuantizationError(QCompileError):
    """Quantization is impossible, or its result is too inaccurate. Data: `nodes`."""


class BuildError(QCompileError):
    """A runtime refused to build an engine. Data: `node`, `operator`."""


class IntentNotReached(BuildError):
    """The built engine differs from the request. Data: `proof`, `wrong_layer` (empty: not identified)."""


class EngineUnavailable(QCompileError):
    """A runtime cannot be used on this machine. Data: `engine`, `reason`."""


class ArtifactError(QCompileError):
    """An artifact is damaged, or its manifest does not belong to it. Data: `file`."""


class StorageError(QCompileError):
    """A file cannot be written or read: the disk is full, a permission is missing. Data: `file`."""


class OutOfMemory(QCompileError):
    """A step needs more memory, or address space, than it can get. Data: `step`, `address_space_bytes`."""


class WorkerError(QCompileError):
    """A worker process died, hung, or sent an invalid reply. Data: `artifact`, `output`, `died` (cause)."""


def first_line(error: BaseException) -> str:
    """Return the first line of a third-party error's message, or its type if the message is empty."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@contextlib.contextmanager
def translate_errors(
    message: str,
    kind: type[QCompileError],
    *,
    errors: tuple[type[Exception], ...] = (Exception,),
    hint: str = "",
    **data: object,
) -> Iterator[None]:
    """Translate `errors` raised in the block to `kind`; append the first line of the original error."""
    try:
        yield
    except QCompileError:
        raise
    except errors as error:
        words = f" {first_line(error)}" if message.endswith(":") else f" ({first_line(error)})"
        raise kind(message + words, hint=hint, **data) from error


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its chain of causes, at most 20 of them because the chain may be circular."""
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
