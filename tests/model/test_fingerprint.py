"""The fingerprint of a model: the digest of its files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from weightless_models import (
    assert_weightless,
    large,
    sha256,
)

from qcompile.errors import ModelError
from qcompile.model.weightless import fingerprint, read_weightless


def test_the_fingerprint_is_the_digest_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(large(), path)
    assert read_weightless(path).fingerprint() == fingerprint(path) == sha256(path.read_bytes())


def test_the_fingerprint_is_the_digest_of_the_file_with_its_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = large()
    for tensor, name in zip(model.graph.initializer, ("z.bin", "a.bin", "z.bin"), strict=True):
        offset = (tmp_path / name).stat().st_size if (tmp_path / name).exists() else 0
        with (tmp_path / name).open("ab") as data:
            data.write(tensor.raw_data)
        onnx.external_data_helper.set_external_data(tensor, name, offset, len(tensor.raw_data))
        tensor.ClearField("raw_data")
    model.graph.initializer.append(numpy_helper.from_array(np.arange(2000), "in_the_file"))
    path.write_bytes(model.SerializeToString())
    assert {t.name for t in onnx.load(path).graph.initializer} == {"w1", "b1", "w2", "in_the_file"}
    expected = sha256(*((tmp_path / name).read_bytes() for name in ("m.onnx", "a.bin", "z.bin")))
    assert read_weightless(path).fingerprint() == fingerprint(path) == expected
    assert_weightless(read_weightless(path), onnx.load(path, load_external_data=False))


def test_the_fingerprint_hardly_depends_on_the_name_and_wholly_on_every_byte(tmp_path: Path) -> None:
    one, two = tmp_path / "one.onnx", tmp_path / "two.onnx"
    onnx.save(large(), one)
    shutil.copy(one, two)
    assert read_weightless(two).fingerprint() == read_weightless(one).fingerprint()
    content = bytearray(two.read_bytes())
    content[content.index(large().graph.initializer[0].raw_data) + 7] ^= 1
    two.write_bytes(content)
    assert read_weightless(two).fingerprint() != read_weightless(one).fingerprint()


def test_external_data_that_is_missing_is_named(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    model = onnx.load(tiny_file("mlp"))
    path = tmp_path / "ext.onnx"
    onnx.save(model, path, save_as_external_data=True, location="ext.bin", size_threshold=0)
    digest = read_weightless(path).fingerprint()
    (tmp_path / "links").mkdir()
    (tmp_path / "links/other.onnx").symlink_to(path)
    assert read_weightless(tmp_path / "links/other.onnx").fingerprint() == digest
    (tmp_path / "ext.bin").unlink()
    with pytest.raises(ModelError, match=r"external data .*ext\.bin does not exist"):
        read_weightless(path).fingerprint()
