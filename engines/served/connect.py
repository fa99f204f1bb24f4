"""Connect to a served model, and look at what it takes."""

from __future__ import annotations

from ...tensors import ModelIO
from .address import ServedAddress
from .grpc_model import GrpcModel
from .http_model import HttpModel
from .served_model import ServedModel


def connect(address: ServedAddress) -> ServedModel:
    """Return a model with a connection of its own.

    Raises:
        EngineUnavailable: If the server cannot be reached, or the model is not there, or not ready.
        ModelError: If the server talks another protocol.
    """
    return GrpcModel(address) if address.scheme == "grpc" else HttpModel(address)


def look_at(address: ServedAddress) -> tuple[ModelIO | None, int | None]:
    """Return what a model takes and returns, and its largest batch; None for what its server does not say.

    Raises:
        EngineUnavailable, ModelError: As `connect`.
    """
    model = connect(address)
    model.close()
    return model.io if model.io.inputs else None, model.largest_batch
