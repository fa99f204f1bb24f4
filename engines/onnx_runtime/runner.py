"""Run an ONNX model with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from ...errors import ModelError, first_line
from ...tensors import Dim, Feeds, ModelIO, TensorInfo, check_feeds
from ..base import Runner

_DTYPES = {"float": "float32", "double": "float64"}


class OnnxRuntimeRunner(Runner):
    """A session; every latency is host to host: arrays in memory go in, and come out."""

    contains = "host to host: one session.run()"

    def __init__(self, session: Any) -> None:
        self._session = session
        self.io = ModelIO(
            tuple(_tensor(value) for value in session.get_inputs()),
            tuple(_tensor(value) for value in session.get_outputs()),
        )
        self._names = [tensor.name for tensor in self.io.outputs]

    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        run = self.prepare(feeds)
        try:
            return dict(zip(self._names, run(), strict=True))
        except Exception as error:  # its exceptions share no narrower base
            raise ModelError(f"ONNX Runtime fails on the feeds: {first_line(error)}") from error

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        check_feeds(self.io.inputs, feeds, "feeds")
        session, names = self._session, self._names
        return lambda: session.run(names, feeds)

    def close(self) -> None:
        self._session = None


def _tensor(value: Any) -> TensorInfo:
    kind = value.type.removeprefix("tensor(").removesuffix(")")
    shape: tuple[Dim, ...] = tuple(dim if isinstance(dim, int) else dim or "?" for dim in value.shape)
    return TensorInfo(value.name, _DTYPES.get(kind, kind), shape)
