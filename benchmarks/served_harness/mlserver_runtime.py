"""A runtime of MLServer that runs an ONNX file with ONNX Runtime."""

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse, MetadataTensor

TYPES = {"tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(int64)": "INT64"}


class OnnxModel(MLModel):
    """The file of `parameters.uri`."""

    async def load(self):
        """Load it, and say what it takes."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri, options)
        self.inputs = [described(one) for one in self.session.get_inputs()]
        self.outputs = [described(one) for one in self.session.get_outputs()]
        return True

    async def predict(self, payload):
        """Answer one request."""
        feeds = {one.name: NumpyCodec.decode_input(one) for one in payload.inputs}
        names = [one.name for one in self.session.get_outputs()]
        arrays = self.session.run(names, feeds)
        outputs = [NumpyCodec.encode_output(name, array) for name, array in zip(names, arrays, strict=True)]
        return InferenceResponse(model_name=self.name, outputs=outputs)


def described(value):
    """Return an input or output as the protocol's metadata has it."""
    shape = [extent if isinstance(extent, int) else -1 for extent in value.shape]
    return MetadataTensor(name=value.name, datatype=TYPES[value.type], shape=shape)
