"""What a served model says it takes and returns, as `ModelIO`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ModelError
from ...tensors import Dim, ModelIO, TensorInfo
from .datatypes import TO_NUMPY

BINARY = "binary_tensor_data"
CONFIGURATION = "model_configuration"


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself; empty where it does not.

    Attributes:
        name: Such as "triton".
        version: Of the server.
        extensions: Of the protocol, by their names there.
    """

    name: str = ""
    version: str = ""
    extensions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The server in words."""
        return f"{self.name} {self.version}".strip() or "a server that tells no name"


def server_facts(value: Mapping[str, Any]) -> ServerFacts:
    """Read the answer to `GET /v2`."""
    extensions = value.get("extensions")
    texts = [str(one) for one in extensions] if isinstance(extensions, list) else []
    name, version = (str(value.get(key) or "")[:80] for key in ("name", "version"))
    return ServerFacts(name, version, tuple(texts))


def model_io(value: Mapping[str, Any], subject: str) -> ModelIO:
    """Read a model's metadata; a server may leave its inputs and outputs out.

    A first axis of -1 is the batch; others have no name.

    Raises:
        ModelError: If an entry is none of the protocol.
    """
    return ModelIO(
        *(tuple(_tensor(entry, subject) for entry in value.get(key) or ()) for key in ("inputs", "outputs"))
    )


def _tensor(entry: Any, subject: str) -> TensorInfo:
    if isinstance(entry, Mapping):
        name, datatype, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
        is_shape = isinstance(shape, list) and all(isinstance(one, int) and one >= -1 for one in shape)
        if isinstance(name, str) and datatype in TO_NUMPY and is_shape:
            return TensorInfo(name, TO_NUMPY[str(datatype)], _axes(shape or []))
    raise ModelError(f"{subject}: its metadata is none of the protocol: {str(entry)[:80]}")


def _axes(shape: list[int]) -> tuple[Dim, ...]:
    return tuple(
        extent if extent >= 0 else "batch" if axis == 0 else "?" for axis, extent in enumerate(shape)
    )
