"""Collect TensorRT's log: errors become exceptions, warnings go to the manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import InvalidOption

_IGNORED = ("unsupported", "not supported", "will not be used", "is disabled", "no-op")
"""Texts of TensorRT's warnings that mean it ignored a setting."""

_NO_DEVICE = "catchCudaError"
"""Follows each error of a configuration where no GPU is: about the message's own bookkeeping."""


def make_log(module: Any) -> Any:
    """Return an `ILogger` with lists `errors` and `warnings` of what was said."""

    class Log(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity <= module.ILogger.Severity.ERROR:
                self.errors.append(message)
            elif severity == module.ILogger.Severity.WARNING and message not in self.warnings:
                self.warnings.append(message)

    return Log()


@contextmanager
def setting(log: Any, option: str, name: str) -> Iterator[None]:
    """Tell TensorRT an option in the block; what it then only complains about is an error.

    Its setters return normally when they refuse: `setFlag: Error Code 3: API Usage Error (...)`.

    Args:
        log: From `make_log`.
        option: The option, for the message.
        name: TensorRT's name and version.

    Raises:
        InvalidOption: With TensorRT's words.
    """
    errors, warnings = len(log.errors), len(log.warnings)
    try:
        yield
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidOption(f"{option}: {name} refuses it: {error}", option=option.split()[0]) from error
    said = [text for text in log.errors[errors:] if _NO_DEVICE not in text]
    said += [text for text in log.warnings[warnings:] if any(word in text.lower() for word in _IGNORED)]
    if said:
        raise InvalidOption(f"{option}: {name} refuses it: {plain(said[0])}", option=option.split()[0])


def last_error(log: Any, otherwise: str) -> str:
    """Return what TensorRT said last, without its source file prefix."""
    return plain(log.errors[-1]) if log.errors else otherwise


def plain(message: str) -> str:
    """Return a message without the places in TensorRT's source."""
    text = " ".join(str(message).split())
    text = text.split("]: ", 1)[-1] if "]: " in text else text
    return re.sub(r" In \w+ at /_src/\S+|\(In \w+ at /_src/\S+ ", "", text)
