"""A small gRPC server of the Open Inference Protocol around ONNX Runtime, by the messages of `tritonclient`.

The messages are those of github.com/kserve/open-inference-protocol, specification/protocol/
open_inference_grpc.proto, with Triton's statistics. Nothing of it is qcompile's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
from tritonclient.grpc import service_pb2, service_pb2_grpc


class SmallService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Serves one float32 model under the name `digits`; `listed` answers with lists in place of bytes."""

    def __init__(self, model: Path | str, *, ready: bool, listed: bool) -> None:
        self.session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        self.ready, self.listed, self.served = ready, listed, 0

    def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerMetadataResponse(
            name="small", version="1.0", extensions=["statistics", "model_configuration"]
        )

    def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=self.ready)

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.name != "digits":
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model: {request.name}")
        told, session = service_pb2.ModelMetadataResponse(name="digits", versions=["1"]), self.session
        for values, tensors in ((session.get_inputs(), told.inputs), (session.get_outputs(), told.outputs)):
            for one in values:
                shape = [extent if isinstance(extent, int) else -1 for extent in one.shape]
                tensors.add(name=one.name, datatype="FP32", shape=shape)
        return told

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        feeds = {
            one.name: np.frombuffer(raw, np.float32).reshape(one.shape)
            for one, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        if next(iter(feeds.values())).shape[0] > 4:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "batch-size must be <= 4")
        names = [one.name for one in request.outputs]
        answer = service_pb2.ModelInferResponse(model_name="digits", model_version="1")
        for name, array in zip(names, self.session.run(names, feeds), strict=True):
            one = answer.outputs.add(name=name, datatype="FP32", shape=array.shape)
            if self.listed:
                one.contents.fp32_contents.extend(array.ravel().tolist())
            else:
                answer.raw_output_contents.append(array.tobytes())
        self.served += 1
        return answer

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = service_pb2.ModelConfigResponse()
        answer.config.max_batch_size = 4
        return answer

    def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = service_pb2.ModelStatisticsResponse()
        stats = answer.model_stats.add(name="digits", version="1").inference_stats
        for part in (stats.success, stats.queue, stats.compute_infer):
            part.count, part.ns = self.served, self.served * 3_000_000
        return answer


@contextlib.contextmanager
def serving_grpc(model: Path | str, *, ready: bool = True, listed: bool = False) -> Iterator[str]:
    """The address of the model on a running server, without `kserve:`."""
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
            SmallService(model, ready=ready, listed=listed), server
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"grpc://127.0.0.1:{port}/digits"
        finally:
            server.stop(None).wait(10)
