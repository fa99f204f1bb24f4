"""A Python backend of Triton (`model.py` in the folder `onnxruntime`): runs an ONNX file with ONNX Runtime.

The server of the package nvidia-pytriton has no backend for ONNX files. This stands in for it: the server,
its core, its protocols and its batching are the real ones, and read the repository as it is. Triton's
documentation calls it a Python-based backend (python_backend, "Python-based backends").
"""

import json
from pathlib import Path

import onnxruntime
import triton_python_backend_utils as triton


class TritonPythonModel:
    """One instance of a model."""

    @staticmethod
    def auto_complete_config(config):
        """Leave the configuration as it is."""
        return config

    def initialize(self, args):
        """Load the ONNX file of the version."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        file = json.loads(args["model_config"]).get("default_model_filename") or "model.onnx"
        path = Path(args["model_repository"]) / args["model_version"] / file
        self.session = onnxruntime.InferenceSession(str(path), options)
        self.inputs = [one.name for one in self.session.get_inputs()]
        self.outputs = [one.name for one in self.session.get_outputs()]

    def execute(self, requests):
        """Answer each request by itself."""
        answers = []
        for request in requests:
            feeds = {name: triton.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}
            arrays = self.session.run(self.outputs, feeds)
            tensors = [triton.Tensor(name, array) for name, array in zip(self.outputs, arrays, strict=True)]
            answers.append(triton.InferenceResponse(tensors))
        return answers
