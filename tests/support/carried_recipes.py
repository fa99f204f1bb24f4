"""Recipes of several kinds with the files that they read, as they are carried to another machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from qcompile.cluster.files.content import ContentStore
from qcompile.cluster.files.parcel import Packed

MODEL = "import torch\n\ndef build():\n    return torch.nn.Linear(4, 2), (torch.zeros(1, 4),)\n"
METRIC = "def accuracy(outputs, labels):\n    return 1.0\n"
DATA = "import numpy as np\n\ndef samples():\n    yield {'x': np.zeros((1, 4), np.float32)}\n"


def bring(packed: Packed, content: ContentStore) -> None:
    """As a transfer does, but for the network."""
    for digest, path in packed.paths.items():
        writer = content.writer(digest, path.stat().st_size)
        writer.write(0, path.read_bytes())
        assert writer.is_whole


def write_images(folder: Path) -> None:
    from PIL import Image

    for name, color in (("cat/1.png", "red"), ("dog/2.png", "blue"), ("dog/deep/3.png", "green")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), color).save(folder / name)
    (folder / "about.txt").write_text("not read")


def write_onnx(path: Path, *, external: bool = False) -> None:
    weight = onnx.numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    x = onnx.helper.make_tensor_value_info("x", 1, ["n", 4])
    y = onnx.helper.make_tensor_value_info("y", 1, ["n", 2])
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [x], [y], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, save_as_external_data=external, location=f"{path.stem}.weights", size_threshold=0)


HEAD = 'version = 1\nname = "tiny"\n'
INT8 = '[[artifact]]\nname = "int8"\ntarget = "onnxruntime"\nprecision = "int8"\n'


def with_images(root: Path, folder: str) -> str:
    write_onnx(root / "recipes" / "net.onnx")
    write_images(root / "data" / "images")
    (root / "data" / "labels.csv").write_text("file,label\ncat/1.png,0\ndog/2.png,1\ndog/deep/3.png,1\n")
    (root / "pre.json").write_text('{"kind": "image"}')
    spelled = f"{folder}data/images?labels={folder}data/labels.csv&preprocessing={folder}pre.json"
    return f'{HEAD}[model]\nsource = "net.onnx"\n[data]\ncalibration = "{spelled}"\n{INT8}'


def with_functions(root: Path, folder: str) -> str:
    (root / "code" / "nets").mkdir(parents=True)
    (root / "code" / "model.py").write_text(MODEL)
    (root / "code" / "nets" / "__init__.py").write_text("")
    (root / "code" / "weights.safetensors").write_bytes(bytes(8))
    (root / "metric").mkdir()
    (root / "metric" / "metric.py").write_text(METRIC)
    (root / "samples").mkdir()
    (root / "samples" / "data.py").write_text(DATA)
    (root / "elsewhere.bin").write_bytes(b"read by the function")
    code = f"{folder}code/model.py:build"
    return (
        f'{HEAD}[model]\nsource = "{code}?weights={folder}code/weights.safetensors"\n'
        f'depends = ["{folder}elsewhere.bin"]\n'
        f'[data]\ncalibration = "{folder}samples/data.py:samples"\n'
        f'depends = ["{folder}elsewhere.bin"]\n{INT8}'
        f'[bench]\nmetric = "{folder}metric/metric.py:accuracy"\nmodels = ["other={code}"]\n'
    )


def with_arrays(root: Path, folder: str) -> str:
    write_onnx(root / "models" / "net.onnx", external=True)
    write_onnx(root / "models" / "other.onnx")
    (root / "arrays").mkdir()
    np.savez(root / "arrays" / "1.npz", x=np.zeros((2, 4), np.float32))
    np.savez(root / "arrays" / "2.npz", x=np.ones((2, 4), np.float32))
    np.savez(root / "test.npz", x=np.zeros((2, 4), np.float32), labels=np.zeros(2, np.int64))
    return (
        f'{HEAD}[model]\nsource = "{folder}models/net.onnx"\n'
        f'[data]\ncalibration = "{folder}arrays"\nevaluation = "npz:{folder}test.npz"\n{INT8}'
        f'[bench]\nmodels = ["other={folder}models/other.onnx"]\n'
    )


def with_hugging_face(root: Path, folder: str) -> str:
    model = root / "hub" / "net"
    model.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "vocab.txt", "spiece.model", "preprocessor_config.json"):
        (model / name).write_text("{}")
    (root / "texts.jsonl").write_text('{"text": "a", "label": 0}\n')
    return (
        f'{HEAD}[model]\nsource = "hf:{folder}hub/net"\npreprocessing = "hf:{folder}hub/net"\n'
        f'[data]\ncalibration = "{folder}texts.jsonl"\n{INT8}'
    )


def with_plugins(root: Path, folder: str) -> str:
    write_onnx(root / "recipes" / "net.onnx")
    (root / "plugin.so").write_bytes(b"native code")
    (root / "timing.cache").write_bytes(b"times")
    np.savez(root / "x.npz", x=np.zeros((2, 4), np.float32))
    return (
        f'{HEAD}[model]\nsource = "net.onnx"\nsimplify = false\n[data]\ncalibration = "{folder}x.npz"\n'
        '[[artifact]]\nname = "gpu"\ntarget = "tensorrt-rtx"\nprecision = "fp16"\ngpus = ["sm86"]\n'
        f'[artifact.tensorrt]\nplugins = ["{folder}plugin.so"]\ntiming_cache = "{folder}timing.cache"\n'
    )


RECIPES: dict[str, Callable[[Path, str], str]] = {
    "images": with_images,
    "functions": with_functions,
    "arrays": with_arrays,
    "hf": with_hugging_face,
    "plugins": with_plugins,
}
