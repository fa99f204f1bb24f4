"""TensorRT's log: one logger for each TensorRT module, and `Log` objects that collect the logger's messages.

While a builder, runtime or refitter lives, TensorRT ignores other loggers with a warning, and sends all
messages to the first logger (NVIDIA/TensorRT issue 1475). The plugin library stores the pointer given to
`init_libnvinfer_plugins` (plugin/api/inferPlugin.cpp of release/8.6, `nvinfer1::plugin::gLogger`), and the
Python binding of that function holds no reference to the logger (python/src/infer/pyPlugin.cpp). So only one
logger is made, and it is never freed. If several threads use TensorRT at once, every `Log` receives the
messages of all threads.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...errors import BuildError, InvalidOption

_IGNORED = ("unsupported", "not supported", "will not be used", "is disabled", "no-op")
"""Texts of TensorRT's warnings that mean it ignored a setting."""

_UNRELATED_ERRORS = ("catchCudaError", "Thread context has not been set")
"""Errors that do not concern the option in `setting`. The first appears without a GPU, when TensorRT records
messages; the second comes from the logging of TensorRT-RTX 1.7.1."""

_UNRELATED_WARNINGS = (
    "model has been generated with INT64 weights",
    "getProfileDimensions: bindingIndex",
    "If this is not the desired behavior, please modify the weights",
    "Check verbose logs for the list of affected weights",
)
"""Warnings of TensorRT 8.5.3.1 on an H200 (2026-11-28) without meaning for the model. The first concerns
shapes, which all graphs hold as INT64 (values out of range have another warning, onnx2trt_utils.cpp). The
second concerns TensorRT's search for a tensor's extents in a second profile. The last two only add advice
to a previous warning."""

_CONSEQUENCES = ("Assertion engine != nullptr failed", "the engine could not be initialized")
"""Errors that TensorRT 8.5.3.1 logs last, after any cause; `last_error` skips them."""

_MAX_MESSAGES = 1000
"""Maximum of errors, and of warnings, in a `Log`: the newest. A runner may listen for months."""

_loggers: dict[Any, Any] = {}
"""Maps a TensorRT module to its logger, which is never freed."""
_creation_lock = threading.Lock()


class Log:
    """TensorRT's messages during the life of this object: errors in order, each warning once. `logger` is the
    `ILogger` to give to TensorRT, the same for every `Log` of a module."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def add(self, message: str, *, is_error: bool) -> None:
        messages = self.errors if is_error else self.warnings
        if not is_error and any(text in message for text in _UNRELATED_WARNINGS):
            return
        if is_error or message not in messages:
            messages.append(message)
            del messages[:-_MAX_MESSAGES]


def make_log(module: Any) -> Log:
    """Return a Log that receives the messages of a TensorRT module until it is deleted."""
    with _creation_lock:
        if module not in _loggers:
            _loggers[module] = _make_logger(module)
        log = Log(_loggers[module])
    log.logger.listen(log)
    return log


def _make_logger(module: Any) -> Any:
    severities = module.ILogger.Severity

    class Logger(module.ILogger):  # type: ignore[misc]
        """Sends messages to every Log. TensorRT calls `log` from any thread, also during Python's garbage
        collection, so `log` takes no lock, and reads a tuple that is replaced but never changed."""

        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self._listeners: tuple[weakref.ref[Log], ...] = ()
            self._lock = threading.Lock()

        def listen(self, log: Log) -> None:
            with self._lock:
                present = tuple(listener for listener in self._listeners if listener() is not None)
                self._listeners = (*present, weakref.ref(log))

        def log(self, severity: Any, message: str) -> None:
            if severity > severities.WARNING:
                return
            for listener in self._listeners:
                listening = listener()
                if listening is not None:
                    listening.add(message, is_error=severity <= severities.ERROR)

    return Logger()


@contextmanager
def listening(log: Log) -> Iterator[Log]:
    """Yield a Log of the messages in the block; `log` receives them, too."""
    block_log = Log(log.logger)
    log.logger.listen(block_log)
    yield block_log


@contextmanager
def setting(log: Log, option: str, name: str) -> Iterator[None]:
    """Raise InvalidOption if TensorRT refuses an option that the block sets. TensorRT's setters may return
    normally and only log the refusal: `setFlag: Error Code 3: API Usage Error (...)`."""
    try:
        with listening(log) as block_log:
            yield
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidOption(f"{option}: {name} refuses it: {error}", option=option.split()[0]) from error
    complaints = [text for text in block_log.errors if not any(word in text for word in _UNRELATED_ERRORS)]
    complaints += [text for text in block_log.warnings if any(word in text.lower() for word in _IGNORED)]
    if complaints:
        raise InvalidOption(f"{option}: {name} refuses it: {plain(complaints[0])}", option=option.split()[0])


def last_error(log: Log, otherwise: str) -> str:
    """Return the last error that is not in `_CONSEQUENCES`, else the last error, else `otherwise`; without
    locations in TensorRT's source."""
    causes = [text for text in log.errors if not any(word in text for word in _CONSEQUENCES)]
    return plain((causes or log.errors)[-1]) if log.errors else otherwise


def plain(message: str) -> str:
    """Return a message on one line, without TensorRT's error code and source locations."""
    text = " ".join(str(message).split())
    text = text.split("]: ", 1)[-1] if "]: " in text else re.sub(r"^\d+: (?:\[[^]]*\] )?", "", text)
    text = re.sub(r" In \w+ at /_src/\S+|\(In \w+ at /_src/\S+ |^\w+\.cpp:\d+: ", "", text)
    bare = re.sub(r"^(?:\w+::\w+: )?Error Code \d+: [\w ]+ \(", "", text)
    return (bare.removesuffix(")") if bare != text and bare.count(")") > bare.count("(") else bare).strip()


_SKIPPED_TACTIC = re.compile(r"Skipping tactic \S+ due to exception (.+)")
"""A warning that can explain a missing kernel: "cuBLASLt error 1 querying major version." in an installation
without cuBLAS (also of TensorRT 8.5.3.1)."""

_EXPLANATIONS: Sequence[tuple[str, str, str]] = (
    (r"out of memory|outofmemory|requested amount of gpu memory", "the GPU has too little memory",
     "lower `max_shapes` or `workspace`, end other programs on the GPU, or use a GPU with more memory"),
    (r"violate shape constraints", "the graph does not take the extents of a profile",
     "give extents that it takes: `min_shapes`, `opt_shapes` and `max_shapes`, or `profiles`"),
    (r"pluginV2Runner\S*::allocateResources", "a plugin cannot allocate its resources",
     "plugins of TensorRT 8 call cuBLAS and cuDNN: install both, or write the operator with other operators"),
    (r"workspace limit|insufficient workspace|increase the (allowed )?workspace",
     "no kernel fits the workspace",
     "raise `workspace`, or leave it out"),
    (r"could not find any implementation for node", "it has no kernel for a layer",
     "raise `workspace` or `optimization_level`, or keep the layer in another precision with `layers`"),
    (r"check\(status == cuda_success\) failed", "it needs a GPU to compile with these options",
     "leave `refit` and `strip_weights` out, or build on a machine with the GPU"),
    (r"hw-specific datatypes", "one of the GPUs does not support a type of the graph",
     "FP8 begins with sm89, NVFP4 and MXFP8 with sm100: name other `gpus`, or another `precision`"),
    (r"fp32 gemm is not supported", "one of the GPUs has no kernel for products of float32",
     "choose `precision` fp16, or int8 with `float_precision` fp16; or leave sm75 out of `gpus`"),
    (r"sm_vers_\.size\(\) == 1", "with these options an engine is for one GPU",
     "build a separate engine for each of `gpus`"),
    (r"libnvinfer_lean|libnvinfer_dispatch",
     "the lean runtime that `version_compatible` puts into an engine is not installed",
     "install it (tensorrt-lean), give `exclude_lean_runtime`, or leave `version_compatible` out"),
    (r"K exceeds the maximum", "the k of a TopK is too large", "lower its k in the model"),
    (r"must have inputs with equal ranks", "the branches of an If differ in rank",
     "let both branches return tensors of one rank, or export the branch that is taken (`freeze_branches`)"),
    (r"has no runners that implement it", "it has no kernel for a layer",
     "leave the layer out of the model, or build for another target, such as tensorrt or onnxruntime"),
)  # fmt: skip
"""Pattern in TensorRT's errors, its meaning, and the hint."""


def build_failure(log: Log, subject: str, otherwise: str) -> BuildError:
    for pattern, meaning, hint in _EXPLANATIONS:  # causes first: the last error is often a consequence
        for message in log.errors:
            if re.search(pattern, message, re.IGNORECASE):
                reasons = [match[1] for text in log.warnings if (match := _SKIPPED_TACTIC.search(text))]
                skipped = f"; kernels were left out: {reasons[0]}" if reasons and "kernel" in meaning else ""
                problem = f"{subject} cannot build it: {meaning}: {plain(message)}{skipped}"
                return BuildError(problem, hint=hint)
    return BuildError(f"{subject} cannot build it: {last_error(log, 'it gave no reason')}", hint=otherwise)
