"""What a kind of data needs is imported when it is read, and named with its extra where it is missing."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qcompile.data.batches import Data
from qcompile.errors import EngineUnavailable
from qcompile.model.preprocessing import AudioPreprocessing, ImagePreprocessing, TextPreprocessing, as_json
from qcompile.tensors import TensorInfo

HEAVY = ("PIL", "transformers", "datasets", "soundfile", "scipy", "torch", "onnx", "pyarrow")


def test_data_is_spelled_and_digested_without_heavy_packages(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0.png").write_bytes(b"x")
    (tmp_path / "a.txt").write_text("a\n")
    code = f"""
import sys
from qcompile.data.batches import Data
for spec in ("photos?preprocessing=imagenet", "a.txt"):
    Data(spec, (), base=__import__("pathlib").Path({str(tmp_path)!r})).digest()
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "package", "name", "said"),
    [
        ("PIL", "pillow", "0.png", ImagePreprocessing(input="x", height=4, width=4)),
        ("transformers", "transformers", "a.txt", TextPreprocessing(tokenizer="t", inputs=("x",))),
        ("soundfile", "soundfile", "0.wav", AudioPreprocessing(inputs=("x",))),
        ("transformers", "transformers", "0.wav", AudioPreprocessing(inputs=("x",), extractor="e")),
        ("datasets", "datasets", "a.parquet", ImagePreprocessing(input="x", height=4, width=4)),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    package: str,
    name: str,
    said: ImagePreprocessing | TextPreprocessing | AudioPreprocessing,
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_text(json.dumps("x"))
    spec = str(tmp_path / "set" / (name if name.endswith(("txt", "parquet")) else ""))
    imported = importlib.import_module

    def refuse(name: str, *arguments: Any) -> Any:
        if name == module:
            raise ImportError(f"No module named {name!r}")
        return imported(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", refuse)
    axes = ("n", 3, 4, 4) if isinstance(said, ImagePreprocessing) else ("n", "t")
    info = TensorInfo("x", "float32", axes, preprocessing=as_json(said))
    with pytest.raises(EngineUnavailable, match=rf"{package} .*\n  hint: pip install 'qcompile\[data\]'"):
        list(Data(spec, [info]))
