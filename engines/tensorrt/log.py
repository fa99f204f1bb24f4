"""TensorRT's log, kept instead of printed: errors end up in ours, warnings in the manifest."""

from __future__ import annotations

from typing import Any


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


def last_error(log: Any, otherwise: str) -> str:
    """Return what TensorRT said last, without its source file prefix."""
    if not log.errors:
        return otherwise
    text = str(log.errors[-1]).strip()
    return text.split("]: ", 1)[-1] if "]: " in text else text
