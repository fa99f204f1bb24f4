"""Run a model that a server holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...tensors import Feeds, ModelIO, check_feeds
from ..base import Runner
from .address import ServedAddress
from .connect import connect
from .served_model import Call, ServedModel
from .statistics import ServerTimes


class ServedRunner(Runner):
    """A connection to a model; every latency is from arrays here to arrays here.

    Args:
        model: The connection.
        io: What the model takes, for a server that does not say it.

    Raises:
        DataError: If nobody says it.
    """

    contains = "request to answer, with the network and the server's queue"
    can_be_shared = True
    calls_at_once = 16  # connections: what is behind the server decides how many of them it serves at once
    rest_s = 0.1

    def __init__(self, model: ServedModel, io: ModelIO | None = None) -> None:
        self._model, self._given = model, io
        self.io = model.io if model.io.inputs or io is None else io
        if not self.io.inputs:
            raise DataError(
                f"{model.address.spec}: the server does not say what the model takes",
                hint="give `inputs` NAME:SHAPE",
            )
        self.notes = (
            f"is served at {model.address.server} by {model.facts.text}, over {model.carried}: a latency is "
            "from request to answer; size, memory and precision are the server's, and not known here",
        )
        self._before: ServerTimes | None = None
        self._is_counting = False

    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        call = self.prepare(feeds)
        return call()

    def prepare(self, feeds: Feeds) -> Call:
        check_feeds(self.io.inputs, feeds, "feeds")
        call = self._model.call(feeds)
        self._model.refresh()
        return call

    def time(self, feeds: Feeds, iterations: int) -> NDArray[np.int64]:
        if not self._is_counting:
            self._is_counting, self._before = True, self._statistics()
        return super().time(feeds, iterations)

    def server_times(self) -> str:
        """Return what the server says of the requests since the first timed one; empty where it does not."""
        after = self._statistics() if self._before is not None else None
        return after.since(self._before) if after is not None and self._before is not None else ""

    def share(self) -> ServedRunner:
        """Return another client of the model, with a connection of its own."""
        return ServedRunner(connect(self._model.address), self._given)

    def close(self) -> None:
        self._model.close()

    def _statistics(self) -> ServerTimes | None:
        return self._model.statistics() if self._model.address.kind == "triton" else None


def open_served(address: ServedAddress, io: ModelIO | None = None) -> ServedRunner:
    """Return a runner for a served model.

    Raises:
        EngineUnavailable, ModelError: If it cannot be reached, or is not there.
        DataError: If nobody says what it takes.
    """
    model = connect(address)
    try:
        return ServedRunner(model, io)
    except BaseException:
        model.close()
        raise
