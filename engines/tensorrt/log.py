"""TensorRT's log: one logger for the whole process, and what it said while somebody listened.

TensorRT keeps one logger. Another one that a builder, runtime or refitter is given while any of them lives
is ignored with a warning, and what is said goes to the first (NVIDIA/TensorRT issue 1475). The library of
plugins keeps the pointer that `init_libnvinfer_plugins` was given (plugin/api/inferPlugin.cpp of release/8.6,
`nvinfer1::plugin::gLogger`), and its Python binding keeps nothing alive (python/src/infer/pyPlugin.cpp). So
the logger must be one, and must outlive everything.

Messages of objects that are used at the same time, in several threads, reach all who listen.
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

_NO_ERRORS = ("catchCudaError", "Thread context has not been set")
"""Logged as errors beside what is said of a configuration: the first where no GPU is, of the message's own
bookkeeping; the second by TensorRT-RTX 1.7.1, of its logging."""

_NO_WARNINGS = (
    "model has been generated with INT64 weights",
    "getProfileDimensions: bindingIndex",
    "If this is not the desired behavior, please modify the weights",
    "Check verbose logs for the list of affected weights",
)
"""What 8.5.3.1 said on an H200 (2026-11-28) and means nothing for the model: of the shapes that every graph
holds as INT64 (values that do not fit have a warning of their own, onnx2trt_utils.cpp), of its own way to
find a tensor's extents in a second profile, and two lines of advice behind a warning that stands alone."""

_CONSEQUENCES = ("Assertion engine != nullptr failed", "the engine could not be initialized")
"""What it said last there, whatever had failed."""

_KEPT = 1000
"""Messages of a kind that are kept, the last ones: a runner may listen for months."""

_loggers: dict[Any, Any] = {}
"""TensorRT module to its logger; never freed."""
_making = threading.Lock()


class Log:
    """What TensorRT says as long as this object lives: errors in order, warnings each once; the `ILogger` to
    give to TensorRT is the same for every `Log` of a module."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def add(self, message: str, *, is_error: bool) -> None:
        messages = self.errors if is_error else self.warnings
        if not is_error and any(text in message for text in _NO_WARNINGS):
            return
        if is_error or message not in messages:
            messages.append(message)
            del messages[:-_KEPT]


def make_log(module: Any) -> Log:
    """Begin to listen to a TensorRT module, until the returned object is let go."""
    with _making:
        if module not in _loggers:
            _loggers[module] = _make_logger(module)
        log = Log(_loggers[module])
    log.logger.listen(log)
    return log


def _make_logger(module: Any) -> Any:
    severities = module.ILogger.Severity

    class Logger(module.ILogger):  # type: ignore[misc]
        """Hands messages to all who listen; called from any of TensorRT's threads, also while Python
        collects garbage: it takes no lock, and reads a tuple that is only ever replaced."""

        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self._listeners: tuple[weakref.ref[Log], ...] = ()
            self._changing = threading.Lock()

        def listen(self, log: Log) -> None:
            with self._changing:
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
    """Hear in the block what is said in it; the outer log hears it too."""
    heard = Log(log.logger)
    log.logger.listen(heard)
    yield heard


@contextmanager
def setting(log: Log, option: str, name: str) -> Iterator[None]:
    """Tell TensorRT an option in the block; what it then only complains about is an error.

    Its setters return normally when they refuse: `setFlag: Error Code 3: API Usage Error (...)`.
    """
    try:
        with listening(log) as heard:
            yield
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidOption(f"{option}: {name} refuses it: {error}", option=option.split()[0]) from error
    complaints = [text for text in heard.errors if not any(word in text for word in _NO_ERRORS)]
    complaints += [text for text in heard.warnings if any(word in text.lower() for word in _IGNORED)]
    if complaints:
        raise InvalidOption(f"{option}: {name} refuses it: {plain(complaints[0])}", option=option.split()[0])


def last_error(log: Log, otherwise: str) -> str:
    """Return the last error that is a cause, without the place in TensorRT's source."""
    causes = [text for text in log.errors if not any(word in text for word in _CONSEQUENCES)]
    return plain((causes or log.errors)[-1]) if log.errors else otherwise


def plain(message: str) -> str:
    """Return a message without the places in TensorRT's source."""
    text = " ".join(str(message).split())
    text = text.split("]: ", 1)[-1] if "]: " in text else re.sub(r"^\d+: (?:\[[^]]*\] )?", "", text)
    text = re.sub(r" In \w+ at /_src/\S+|\(In \w+ at /_src/\S+ |^\w+\.cpp:\d+: ", "", text)
    said = re.sub(r"^(?:\w+::\w+: )?Error Code \d+: [\w ]+ \(", "", text)
    return (said.removesuffix(")") if said != text and said.count(")") > said.count("(") else said).strip()


_LEFT_OUT = re.compile(r"Skipping tactic \S+ due to exception (.+)")
"""A warning that can be why there is no kernel, such as "cuBLASLt error 1 querying major version." of an
installation without cuBLAS (there, too)."""

_EXPLANATIONS: Sequence[tuple[str, str, str]] = (
    (r"out of memory|outofmemory|requested amount of gpu memory", "the GPU's memory does not suffice",
     "lower `max_shapes` or `workspace`, end what else uses the GPU, or build where it has more memory"),
    (r"violate shape constraints", "the graph does not take the extents of a profile",
     "give extents that it takes: `min_shapes`, `opt_shapes` and `max_shapes`, or `profiles`"),
    (r"pluginV2Runner\S*::allocateResources", "a plugin does not get what it needs",
     "plugins of TensorRT 8 call cuBLAS and cuDNN: install both, or write the operator in others"),
    (r"workspace limit|insufficient workspace|increase the (allowed )?workspace",
     "no kernel fits the workspace",
     "raise `workspace`, or leave it out"),
    (r"could not find any implementation for node", "it has no kernel for a layer",
     "raise `workspace` or `optimization_level`, or keep the layer in another precision with `layers`"),
    (r"check\(status == cuda_success\) failed", "it needs a GPU to compile with these options",
     "leave `refit` and `strip_weights` out, or build on a machine with the GPU"),
    (r"hw-specific datatypes", "one of the GPUs does not have a type of the graph",
     "FP8 begins with sm89, NVFP4 and MXFP8 with sm100: name other `gpus`, or another `precision`"),
    (r"fp32 gemm is not supported", "one of the GPUs has no kernel for products of float32",
     "choose `precision` fp16, or int8 with `float_precision` fp16; or leave sm75 out of `gpus`"),
    (r"sm_vers_\.size\(\) == 1", "with these options an engine is for one GPU",
     "name one of `gpus` for each engine that takes new weights"),
    (r"libnvinfer_lean|libnvinfer_dispatch",
     "the lean runtime that `version_compatible` puts into an engine is not installed",
     "install it (tensorrt-lean), give `exclude_lean_runtime`, or leave `version_compatible` out"),
    (r"K exceeds the maximum", "a TopK takes more than it can", "lower its k in the model"),
    (r"must have inputs with equal ranks", "the branches of an If differ in rank",
     "let both branches return tensors of one rank, or export the branch that is taken (`freeze_branches`)"),
    (r"has no runners that implement it", "it has no kernel for a layer",
     "leave the layer out of the model, or build for another target, such as tensorrt or onnxruntime"),
)  # fmt: skip
"""Pattern of what TensorRT logs, what it means, and the way out."""


def build_failure(log: Log, subject: str, otherwise: str) -> BuildError:
    for pattern, meaning, hint in _EXPLANATIONS:  # causes first: the last error is often a consequence
        for message in log.errors:
            if re.search(pattern, message, re.IGNORECASE):
                left_out = [found[1] for text in log.warnings if (found := _LEFT_OUT.search(text))]
                of_kernels = (
                    f"; kernels were left out: {left_out[0]}" if left_out and "kernel" in meaning else ""
                )
                problem = f"{subject} cannot build it: {meaning}: {plain(message)}{of_kernels}"
                return BuildError(problem, hint=hint)
    return BuildError(f"{subject} cannot build it: {last_error(log, 'it gave no reason')}", hint=otherwise)
