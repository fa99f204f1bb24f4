"""Models that a server holds: `kserve:URL` and `triton:URL`.

The Open Inference Protocol, version 2 (https://github.com/kserve/open-inference-protocol), which KServe,
Triton, MLServer and OpenVINO Model Server speak, with Triton's extensions for binary tensors and statistics
(https://github.com/triton-inference-server/server/tree/main/docs/protocol).

| file            | holds                                                              |
|-----------------|--------------------------------------------------------------------|
| `address`       | the spelling: which server, which model                            |
| `datatypes`     | the protocol's element types, and numpy's                          |
| `messages`      | a request and an answer, as JSON and as binary tensors             |
| `metadata`      | what a model says it takes and returns                             |
| `http_channel`  | one connection: bounded in time and size, no redirects, no proxies |
| `http_model`    | a model behind HTTP                                                |
| `grpc_model`    | a model behind gRPC                                                |
| `statistics`    | what Triton says it spent its time on                              |
| `served_model`, `connect` | the interface of the two, and which one an address needs |
| `runner`, `engine` | as of every runtime                                             |
"""

from .address import SERVED, ServedAddress, is_served, parse_served
from .engine import Kserve, Triton

__all__ = ["SERVED", "Kserve", "ServedAddress", "Triton", "is_served", "parse_served"]
