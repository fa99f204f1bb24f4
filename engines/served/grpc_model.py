"""A model behind gRPC, by the messages of `tritonclient`, which are those of the Open Inference Protocol."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import EngineUnavailable, ModelError
from ...tensors import Feeds
from .address import ServedAddress
from .datatypes import TO_NUMPY, dtype_of, from_bytes, to_bytes
from .http_channel import ANSWER_S, CONNECT_S, MOST_BYTES, unreachable
from .messages import datatype_of
from .metadata import CONFIGURATION, ServerFacts, model_io
from .served_model import Call, ServedModel, no_such_model, not_ready, refused
from .statistics import ServerTimes, server_times

_CONTENTS = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
_OPTIONS = [
    ("grpc.enable_http_proxy", 0),  # the user has named this server, and no other
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", min(MOST_BYTES, 2**31 - 1)),
    ("grpc.max_send_message_length", 2**31 - 1),
]


class GrpcModel(ServedModel):
    """A model and the channel to it.

    Args:
        address: Where it is.

    Raises:
        EngineUnavailable: If tritonclient is missing, the server cannot be reached, or the model is not
            there, or not ready.
    """

    carried = "gRPC, tensors in binary"

    def __init__(self, address: ServedAddress) -> None:
        self.address = address
        try:
            self._grpc: Any = importlib.import_module("grpc")
            self._messages: Any = importlib.import_module("tritonclient.grpc.service_pb2")
            stubs: Any = importlib.import_module("tritonclient.grpc.service_pb2_grpc")
        except ImportError as error:
            raise EngineUnavailable(
                f"{address.spec}: tritonclient cannot be imported ({error})",
                hint="pip install 'qcompile[triton]', or give the server's http:// address",
                engine=address.kind,
                reason="no tritonclient",
            ) from error
        self._channel = self._grpc.insecure_channel(address.server, options=_OPTIONS)
        self._stub = stubs.GRPCInferenceServiceStub(self._channel)
        try:
            self._describe()
        except BaseException:
            self.close()
            raise

    def call(self, feeds: Feeds) -> Call:
        self._request(feeds)  # what cannot be sent is said before calls are timed
        infer = self._stub.ModelInfer

        def called() -> dict[str, NDArray[Any]]:
            with self._told():
                answer = infer(self._request(feeds), timeout=ANSWER_S)
            return _outputs(answer, self.address.spec)

        return called

    def refresh(self) -> None:
        pass  # the channel keeps its connection alive itself

    def statistics(self) -> ServerTimes | None:
        convert = importlib.import_module("google.protobuf.json_format").MessageToDict
        request = self._messages.ModelStatisticsRequest(**self._which)
        try:
            answer = self._stub.ModelStatistics(request, timeout=CONNECT_S)
        except self._grpc.RpcError:
            return None  # figures beside the measurement: they are no reason to fail
        value: dict[str, Any] = convert(answer, preserving_proto_field_name=True)
        return server_times(value, self.address.version)

    def close(self) -> None:
        self._channel.close()

    @property
    def _which(self) -> dict[str, str]:
        return {"name": self.address.model, "version": self.address.version}

    def _describe(self) -> None:
        messages, stub = self._messages, self._stub
        with self._told():
            server = stub.ServerMetadata(messages.ServerMetadataRequest(), timeout=CONNECT_S)
        self.facts = ServerFacts(server.name[:80], server.version[:80], tuple(server.extensions))
        try:
            told = stub.ModelMetadata(messages.ModelMetadataRequest(**self._which), timeout=CONNECT_S)
        except self._grpc.RpcError as error:
            raise no_such_model(self.address, error.code().name, _said(error)) from error
        listed = {
            key: [
                {"name": one.name, "datatype": one.datatype, "shape": list(one.shape)}
                for one in getattr(told, key)
            ]
            for key in ("inputs", "outputs")
        }
        self.io = model_io(listed, self.address.spec)
        try:
            ready = stub.ModelReady(messages.ModelReadyRequest(**self._which), timeout=CONNECT_S).ready
        except self._grpc.RpcError as error:
            raise not_ready(self.address, _said(error)) from error
        if not ready:
            raise not_ready(self.address, "")
        if CONFIGURATION in self.facts.extensions:
            with contextlib.suppress(self._grpc.RpcError):
                request = messages.ModelConfigRequest(**self._which)
                self.largest_batch = (
                    stub.ModelConfig(request, timeout=CONNECT_S).config.max_batch_size or None
                )

    def _request(self, feeds: Feeds) -> Any:
        request = self._messages.ModelInferRequest(
            model_name=self.address.model, model_version=self.address.version
        )
        for name, array in feeds.items():
            request.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
            request.raw_input_contents.append(to_bytes(array))
        for tensor in self.io.outputs:
            request.outputs.add(name=tensor.name)
        return request

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Translate what gRPC raises."""
        try:
            yield
        except self._grpc.RpcError as error:
            code, said = error.code().name, _said(error)
            if code == "UNAVAILABLE":
                hint = "start the server, or correct host and port: Triton has gRPC on 8001"
                raise unreachable(self.address, f"cannot be reached ({said})", hint) from error
            if code == "DEADLINE_EXCEEDED":
                raise unreachable(self.address, "gave no answer in time", "is it a gRPC port?") from error
            if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
                raise unreachable(
                    self.address, f"requires a login ({code}), which is not supported"
                ) from error
            raise refused(self.address, code, said) from error


def _said(error: Any) -> str:
    return " ".join(str(error.details() or "").split())[:300]


def _outputs(answer: Any, subject: str) -> dict[str, NDArray[Any]]:
    """The tensors of an answer: raw, as Triton sends them, or as lists of numbers."""
    raws, outputs = list(answer.raw_output_contents), {}
    if raws and len(raws) != len(answer.outputs):
        raise ModelError(f"{subject}: answers {len(answer.outputs)} outputs with {len(raws)} tensors")
    for index, one in enumerate(answer.outputs):
        about, shape = f"{subject}: output {one.name!r}", tuple(one.shape)
        if one.datatype not in TO_NUMPY or any(extent < 0 for extent in shape):
            raise ModelError(f"{about}: {one.datatype!r} {list(shape)} is no tensor of the protocol")
        if raws:
            outputs[one.name] = from_bytes(memoryview(raws[index]), one.datatype, shape, about)
        else:
            outputs[one.name] = _listed(one, shape, about)
    return outputs


def _listed(one: Any, shape: tuple[int, ...], about: str) -> NDArray[Any]:
    if one.datatype not in _CONTENTS:
        raise ModelError(f"{about}: {one.datatype} travels as raw bytes alone, and there are none")
    values = list(getattr(one.contents, _CONTENTS[one.datatype]))
    if one.datatype == "BYTES":
        values = [value.decode(errors="replace") for value in values]
    dtype = np.dtype(object) if one.datatype == "BYTES" else dtype_of(one.datatype)
    try:
        return np.array(values, dtype).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise ModelError(f"{about}: {len(values)} values are no {one.datatype} {list(shape)}") from error
