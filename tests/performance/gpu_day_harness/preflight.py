"""Say what an interpreter lacks to build and run for an engine, and the command that brings it.

    python preflight.py tensorrt | tensorrt-rtx | pytorch

It imports nothing that can be missing before it has looked for it.
"""

from __future__ import annotations

import importlib.util
import json
import sys

PACKAGES = ("numpy", "onnx", "msgspec")
TESTS = ("pytest", "pytest_timeout", "onnxruntime", "safetensors")


def look(name: str) -> dict[str, str]:
    """Return what is in the way of "start", "build", "run" and "tests", with the way out; "" for nothing."""
    lacking = {}
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except Exception as error:  # one that is broken, too
            lacking[package] = f"{package} ({error})"
    if lacking:
        reason = f"{sys.executable} lacks {', '.join(lacking.values())}"
        way = f"{sys.executable} -m pip install {' '.join(lacking)}"
        return dict.fromkeys(("start", "build", "run", "tests"), f"{reason}; {way}")
    from qcompile.engines.registry import engine

    chosen = engine(name)
    reasons = {"build": chosen.why_not_build(), "run": chosen.why_not_run_on_gpu()}
    ways = {key: "; ".join(filter(None, [text, text and chosen.fix()])) for key, text in reasons.items()}
    absent = [package for package in TESTS if importlib.util.find_spec(package) is None]
    lacking = f"no {', '.join(absent)}; {sys.executable} -m pip install {' '.join(absent)}" if absent else ""
    return {"start": "", **ways, "tests": ways["run"] or lacking}


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1])))
