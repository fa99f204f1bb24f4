"""Run ONNX files on ONNX Runtime: `emulated_child.py SITE [MODEL FEEDS OUTPUTS]...`.

`emulated.py` starts it on an emulated processor. It imports numpy and onnxruntime alone: nothing else is
installed for that processor. SITE is the folder that has them, or empty where Python finds them by itself.
FEEDS and OUTPUTS are .npz files.
"""

import os
import sys

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
if sys.argv[1]:
    sys.path.insert(0, sys.argv[1])

import numpy as np
import onnxruntime


def run(model: str, feeds: str, outputs: str) -> None:
    """Run a file with the graph optimizations that are on by default, in one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = 4, 1, 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    with np.load(feeds) as arrays:
        values = session.run(names, dict(arrays))
    np.savez(outputs, **dict(zip(names, values, strict=True)))


for model, feeds, outputs in zip(sys.argv[2::3], sys.argv[3::3], sys.argv[4::3], strict=True):
    try:
        run(model, feeds, outputs)
    except Exception as error:
        raise SystemExit(f"{model}: {type(error).__name__}: {error}") from error
