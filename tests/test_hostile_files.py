"""Files of strangers whose payload would write a mark: no verb runs it, whatever else it says of the file.

Programs in `.pt2` archives: tests/model/sources/test_archives.py. Code in Keras files:
tests/compiler/export/test_tensorflow_source.py.

JSON nested too deeply, cut off, or of another type is refused with the file's name, by every reader.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import MakePath
from hostile_pickle import Evil, torch_saved

from qcompile.bench.diff.layers.outcome import load_layers
from qcompile.bench.report.inspection import inspect
from qcompile.bench.results.results import load_results
from qcompile.calibration.tensorrt_cache import read_cache
from qcompile.cli import main
from qcompile.core.artifact import is_manifest, read_manifest
from qcompile.core.files import absolute_path, read_json
from qcompile.data.arrays import load_polygraphy
from qcompile.errors import ArtifactError, QCompileError
from qcompile.model.sources.load import find_preprocessing
from qcompile.model.sources.named import hf_configuration

Ask = Callable[..., str]


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What is there afterwards if a payload ran."""
    return tmp_path / "ran"


@pytest.fixture
def refused(mark: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """`refused("inspect", path)` runs a command, which must say what is wrong and run no payload."""

    def ask(*words: object) -> str:
        with pytest.raises(SystemExit) as done:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert not mark.exists(), words
        assert done.value.code in (1, 2), (words, said)
        assert "defect" not in said.err
        assert "Traceback" not in said.err
        assert said.err.startswith("error: "), said.err
        return said.err

    return ask


def test_the_payload_runs_where_it_is_unpickled(mark: Path) -> None:
    """Else the tests below would show nothing."""
    pickle.loads(pickle.dumps(Evil(mark)))
    assert mark.exists()


NETWORK = "import torch\n\ndef build():\n    return torch.nn.Linear(4, 3)\n"


def _torch_saved(mark: Path) -> bytes:
    return torch_saved({"weight": torch.zeros(3, 4), "bias": Evil(mark)})


@pytest.mark.parametrize(
    ("how", "name"), [("zip", "w.pt"), ("pickle", "w.pt"), ("zip", "w.safetensors"), ("pickle", "w.bin")]
)
def test_pickled_weights_are_not_unpickled(
    how: str, name: str, tmp_path: Path, mark: Path, refused: Ask
) -> None:
    weights = tmp_path / name
    weights.write_bytes(_torch_saved(mark) if how == "zip" else pickle.dumps(Evil(mark)))
    (tmp_path / "model.py").write_text(NETWORK)
    model, output = f"{tmp_path / 'model.py'}:build", tmp_path / "m.onnx"
    refused("export", model, "--weights", weights, "-i", "x:1x4", "-o", output)


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.torchscript", "m.pt2"])
def test_a_pickled_model_is_no_model(name: str, tmp_path: Path, mark: Path, refused: Ask) -> None:
    (tmp_path / name).write_bytes(_torch_saved(mark))
    refused("export", tmp_path / name, "-i", "x:1x4", "-o", tmp_path / "m.onnx")
    refused("init", tmp_path / name, "-i", "x:1x4", "-o", tmp_path / "r.toml")


def _polygraphy(mark: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Evil(mark)]), allow_pickle=True)
    text = base64.b64encode(file.getvalue()).decode()
    array = {"array": text, "polygraphy_class": "__numpy__"}
    tensor = {"tensor": base64.b64encode(_torch_saved(mark)).decode(), "polygraphy_class": "__tensor__"}
    return json.dumps([{"x": array}, {"x": tensor}, {"polygraphy_class": "Evil"}]).encode()


@pytest.mark.parametrize("name", ["d.npz", "d.npy", "d.json", "folder"])
def test_pickled_samples_are_not_unpickled(
    name: str, tmp_path: Path, mark: Path, refused: Ask, tiny_file: MakePath
) -> None:
    path = tmp_path / name
    evil = np.array([Evil(mark)] * 4)
    if name == "d.npz":
        np.savez(path, x=evil)
    elif name == "d.npy":
        np.save(path, evil, allow_pickle=True)
    elif name == "d.json":
        path.write_bytes(_polygraphy(mark))
    else:
        path.mkdir()
        np.savez(path / "0.npz", x=evil)
    model = tiny_file("mlp")
    refused("calibrate", model, "--data", path, "-o", tmp_path / "m.ranges", "--threads", 1)


@pytest.mark.parametrize("name", ["m.ranges", "m.cache"])
def test_ranges_and_caches_are_not_unpickled(
    name: str, tmp_path: Path, mark: Path, refused: Ask, tiny_file: MakePath
) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Evil(mark)))
    refused("quantize", tiny_file("mlp"), "--ranges", tmp_path / name, "-o", tmp_path / "q.onnx")
    refused("ranges", "show", tmp_path / name)
    refused("ranges", "merge", tmp_path / name, "-o", tmp_path / "merged.ranges")
    refused("report", tmp_path / name, "-o", tmp_path / "r.html")


def test_a_checkpoint_of_a_calibration_is_not_unpickled(tmp_path: Path, mark: Path) -> None:
    from qcompile.calibration.ranges_file import load_checkpoint

    (tmp_path / "c.checkpoint").write_bytes(pickle.dumps(Evil(mark)))
    with contextlib.suppress(QCompileError):
        assert load_checkpoint(tmp_path / "c.checkpoint", {}) is None
    assert not mark.exists()


def marking(folder: Path, mark: Path, modules: str) -> Path:
    """A folder of modules that make the mark when they are imported."""
    folder.mkdir()
    for name in modules.split():
        (folder / f"{name}.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    return folder


def test_a_module_beside_a_named_model_of_hugging_face_does_not_run(
    tmp_path: Path, mark: Path, refused: Ask
) -> None:
    modules = "modeling_evil configuration_evil tokenization_evil processing_evil custom"
    folder = marking(tmp_path / "network", mark, modules)
    classes = {
        "AutoConfig": "configuration_evil.Config",
        "AutoModel": "modeling_evil.Model",
        "AutoModelForSequenceClassification": "modeling_evil.Model",
        "AutoTokenizer": ["tokenization_evil.Slow", "tokenization_evil.Fast"],
        "AutoImageProcessor": "processing_evil.P",
        "AutoFeatureExtractor": "processing_evil.P",
    }
    about = {"model_type": "evil", "architectures": ["EvilModel"], "auto_map": classes}
    (folder / "config.json").write_text(json.dumps(about))
    for name in ("tokenizer_config.json", "preprocessor_config.json", "processor_config.json"):
        (folder / name).write_text(
            json.dumps({**about, "tokenizer_class": "Slow", "trust_remote_code": True})
        )
    (folder / "pytorch_model.bin").write_bytes(_torch_saved(mark))
    refused("export", f"hf:{folder}", "-o", tmp_path / "m.onnx")
    refused("export", f"hf:{folder}?weights=random", "-o", tmp_path / "m.onnx")
    about["model_type"] = "bert"
    (folder / "config.json").write_text(json.dumps(about | {"hidden_size": 8, "num_hidden_layers": 1}))
    refused("export", f"hf:{folder}", "-o", tmp_path / "m.onnx")


def test_a_script_in_a_folder_of_data_sets_does_not_run(
    tmp_path: Path, mark: Path, refused: Ask, tiny_file: MakePath
) -> None:
    pytest.importorskip("datasets")
    folder = marking(tmp_path / "reviews", mark, "reviews dataset __init__ conftest")
    (folder / "dataset_info.json").write_text(
        json.dumps({"builder_name": "reviews", "features": {"x": {"_type": "Evil", "dtype": "object"}}})
    )
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../../etc/passwd"}]}))
    refused("calibrate", tiny_file("mlp"), "--data", f"datasets:{folder}", "-o", tmp_path / "m.ranges")
    (folder / "state.json").unlink()
    refused("calibrate", tiny_file("mlp"), "--data", folder, "-o", tmp_path / "m.ranges")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_types_that_arrow_would_unpickle_are_not(
    suffix: str, tmp_path: Path, mark: Path, refused: Ask, tiny_file: MakePath
) -> None:
    pytest.importorskip("datasets")
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    about = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Evil(mark)),
    }
    schema = arrow.schema([arrow.field("x", arrow.string(), metadata=about)])
    table = arrow.table([arrow.array(["a", "b"])], schema=schema)
    path = tmp_path / f"d.{suffix}"
    if suffix == "parquet":
        parquet.write_table(table, path)
    else:
        with arrow.ipc.new_stream(path, schema) as writer:
            writer.write_table(table)
    refused("calibrate", tiny_file("mlp"), "--data", path, "-o", tmp_path / "m.ranges")


@pytest.mark.skipif(sys.platform == "win32", reason="a program of POSIX")
def test_a_picture_that_another_program_would_draw_is_refused(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow tells formats by content, and runs Ghostscript for PostScript, whatever the file is called."""
    from PIL import EpsImagePlugin

    from qcompile.data.images import decode, read_mask
    from qcompile.model.sources.preprocessing import ImagePreprocessing

    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nmkdir -p {mark}\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", str(program))
    picture = tmp_path / "cat.jpg"
    picture.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(QCompileError, match="cannot be decoded"):
        decode(picture, "RGB", "cat.jpg")
    with pytest.raises(QCompileError, match="cannot be decoded"):
        read_mask(picture, (8, 8), ImagePreprocessing(height=8, width=8))
    assert not mark.exists()


NAMES = ["../up", "/tmp/absolute", "a/b", "a\\b", "..", ".hidden", "", "a\0b", "a\nb\0"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", ["name", "artifact"])
def test_names_of_a_recipe_that_lead_out_of_its_folder_are_refused(
    where: str, name: str, tmp_path: Path, refused: Ask, tiny_file: MakePath
) -> None:
    folder = tmp_path / "recipe"
    folder.mkdir()
    tiny_file("mlp", file="recipe/m.onnx")
    names = {"name": "m", "artifact": "a", where: name}
    (folder / "recipe.toml").write_text(
        f"version = 1\nname = {json.dumps(names['name'])}\n[model]\nsource = 'm.onnx'\n"
        f"[[artifact]]\nname = {json.dumps(names['artifact'])}\ntarget = 'onnxruntime'\n"
    )
    refused("run", folder / "recipe.toml")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["m.onnx", "recipe", "recipe.toml"]


DEEP = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"[" * 900 + b"]" * 900,
    b'{"kind": ' + b"[" * 600 + b"]" * 600 + b"}",
]
READERS: dict[str, Callable[[Path], Any]] = {
    "results": load_results,
    "layers": load_layers,
    "inspect": inspect,
    "preprocessing": lambda path: find_preprocessing(str(path)),
    "polygraphy": load_polygraphy,
    "cache": lambda path: read_cache(path, path),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "content", [*DEEP, b"{", b"", b"\xff\xfe", b"9" * 5000, b"null", b'"\\ud800"'], ids=range(10)
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, reader: str, content: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(QCompileError) as caught:
        READERS[reader](path)
    assert len(str(caught.value)) < 2000
    assert "file.json" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", DEEP[0], b'{"a": "\xff"}'], ids=range(5))
def test_what_is_no_json_is_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"m\.json: not results"):
        read_json(path, what="results")


@pytest.mark.parametrize("content", DEEP[:2], ids=range(2))
def test_deep_files_of_other_tools_are_refused_or_none(tmp_path: Path, content: bytes) -> None:
    for name in ("config.json", "m.onnx.json", "plain.json"):
        (tmp_path / name).write_bytes(content)
    assert not is_manifest(tmp_path / "plain.json")
    with pytest.raises(QCompileError):
        hf_configuration.read_json(tmp_path, "config.json")
    (tmp_path / "m.onnx").write_bytes(b"")
    with pytest.raises(QCompileError, match=r"m\.onnx\.json"):
        read_manifest(tmp_path / "m.onnx")


@pytest.mark.parametrize("text", ["a\0b", "~no-such-user-here/x", "x" * 5000, "\ud800"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(QCompileError, match="cannot be a path"):
        absolute_path(text)


def test_a_path_is_absolute_and_keeps_its_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    assert absolute_path("link", tmp_path) == tmp_path / "link"
    assert absolute_path(str(tmp_path / "x"), Path("/other")) == tmp_path / "x"
    assert absolute_path("~") == Path.home()
    assert absolute_path("a", Path("b")) == Path.cwd() / "b" / "a"
