"""KServe's Python server around an ONNX file: kserve_server.py MODEL HTTP_PORT GRPC_PORT"""

import sys

import onnxruntime
from kserve import InferOutput, InferResponse, Model, ModelServer

TYPES = {"tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(int64)": "INT64"}


class OnnxModel(Model):
    """An ONNX file under a name."""

    def __init__(self, name, path):
        super().__init__(name)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options)
        self.ready = True

    async def get_input_types(self):
        """What it takes."""
        return [described(one) for one in self.session.get_inputs()]

    async def get_output_types(self):
        """What it returns."""
        return [described(one) for one in self.session.get_outputs()]

    def predict(self, payload, headers=None, response_headers=None):
        """Answer one request."""
        feeds = {one.name: one.as_numpy() for one in payload.inputs}
        values = self.session.get_outputs()
        outputs = []
        arrays = self.session.run([one.name for one in values], feeds)
        for value, array in zip(values, arrays, strict=True):
            output = InferOutput(name=value.name, shape=list(array.shape), datatype=TYPES[value.type])
            output.set_data_from_numpy(array, binary_data=True)
            outputs.append(output)
        return InferResponse(response_id=payload.id or "", model_name=self.name, infer_outputs=outputs)


def described(value):
    """Return an input or output as the protocol's metadata has it."""
    shape = [extent if isinstance(extent, int) else -1 for extent in value.shape]
    return {"name": value.name, "datatype": TYPES[value.type], "shape": shape}


if __name__ == "__main__":
    path, http_port, grpc_port = sys.argv[1:]
    ModelServer(http_port=int(http_port), grpc_port=int(grpc_port)).start([OnnxModel("digits", path)])
