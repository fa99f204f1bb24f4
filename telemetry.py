"""Runtimes that report their use to their makers are kept from it, before anything imports them.

| package            | what it would do                                                                      |
|--------------------|---------------------------------------------------------------------------------------|
| ONNX Runtime 1.31  | a device id and graph names under `~/.cache/Microsoft`, sent after about 8 seconds    |
| OpenVINO           | its import sends an event by `openvino_telemetry`, with an id under `~/intel`         |
| huggingface_hub    | names of libraries and versions with every download                                   |
"""

from __future__ import annotations

import os
import sys


def switch_off() -> None:
    """Switch the telemetry of runtimes off, for this process and its children.

    ONNX Runtime reads its variable at its first import. OpenVINO has no switch in code; it does without
    `openvino_telemetry` where that cannot be imported.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # whatever it was: nothing of ours reports
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # importing it fails
