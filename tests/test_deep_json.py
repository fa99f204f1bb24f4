"""JSON nested too deeply, cut off, or of another type is refused with the file's name, by every reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qcompile.artifact import is_manifest, read_manifest
from qcompile.bench.results.results import load_results
from qcompile.calibration.tensorrt_cache import read_cache
from qcompile.comparison.layers.outcome import load_layers
from qcompile.data.arrays import load_polygraphy
from qcompile.errors import ArtifactError, QCompileError
from qcompile.files import absolute_path, read_json
from qcompile.model.load import find_preprocessing
from qcompile.model.named import hf_configuration
from qcompile.reporting.inspection import inspect

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
