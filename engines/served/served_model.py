"""The interface of a served model, whatever carries its messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from ...errors import EngineUnavailable, ModelError
from ...tensors import Feeds, ModelIO
from .address import ServedAddress
from .metadata import ServerFacts
from .statistics import ServerTimes

Call = Callable[[], dict[str, NDArray[Any]]]


class ServedModel(ABC):
    """A connection to one model. Only one thread uses it at a time.

    Attributes:
        address: Where it is.
        facts: What its server says of itself.
        io: What it takes and returns; empty where the server does not say.
        carried: How tensors travel, in words.
        largest_batch: Most samples in a request; None where the server does not say.
    """

    address: ServedAddress
    facts: ServerFacts
    io: ModelIO
    carried: str
    largest_batch: int | None = None

    @abstractmethod
    def call(self, feeds: Feeds) -> Call:
        """Return what sends these feeds and returns the answer's outputs, each time from arrays to arrays."""

    @abstractmethod
    def refresh(self) -> None:
        """Make sure that there is a connection, before calls are timed."""

    @abstractmethod
    def statistics(self) -> ServerTimes | None:
        """Return what the server has counted so far; None where it tells nothing."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


def refused(address: ServedAddress, status: str, said: str) -> ModelError:
    """Return the error about a request that a server did not carry out."""
    words = f": {said}" if said else ""
    return ModelError(f"{address.spec}: the server refuses the request ({status}){words}")


def not_ready(address: ServedAddress, said: str) -> EngineUnavailable:
    """Return the error about a model that is there and takes no requests."""
    words = f" ({said})" if said else ""
    return EngineUnavailable(
        f"{address.spec}: model {address.model!r} is not ready{words}",
        hint="wait until it is loaded, or look into the server's log",
        engine=address.kind,
        reason="not ready",
    )


def no_such_model(address: ServedAddress, status: str, said: str) -> EngineUnavailable:
    """Return the error about a server that does not describe the model."""
    which = f"model {address.model!r}" + (f", version {address.version}" if address.version else "")
    words = f": {said}" if said else ""
    return EngineUnavailable(
        f"{address.spec}: {address.server} does not describe {which} ({status}){words}",
        hint="correct the name or version; the server's log lists its models",
        engine=address.kind,
        reason=f"no {which}",
    )
