"""Links and pipes that others plant under well-known names in a folder are neither followed nor emptied."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from qcompile.cli import main
from qcompile.core.files import open_lock, temporary_folder
from qcompile.engines.tensorrt.builder.configure import CacheFile, _merge_into_file

if TYPE_CHECKING:
    from qcompile.engines.tensorrt.log import Log

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that somebody wants emptied."""
    path = tmp_path / "precious"
    path.write_text("of the user")
    return path


def test_the_lock_of_a_timing_cache_follows_no_link(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "t.cache.lock").symlink_to(precious)
    config, log = SimpleNamespace(get_timing_cache=object), cast("Log", None)
    with pytest.raises(OSError, match="is a link"):
        _merge_into_file(config, log, CacheFile(tmp_path / "t.cache", is_ours=True))
    assert precious.read_text() == "of the user"


def test_a_lock_keeps_what_is_in_the_file_and_needs_a_file(tmp_path: Path, precious: Path) -> None:
    with open_lock(precious) as held:
        assert held.read() == "of the user"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_lock(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match="is a link"):
        open_lock(tmp_path / "dangling")
    assert not (tmp_path / "nowhere").exists()


def test_temporary_folders_are_of_the_user_alone() -> None:
    with temporary_folder("test") as folder:
        assert folder.stat().st_mode & 0o077 == 0


def test_verbs_replace_a_link_under_their_outputs_name(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path, precious: Path
) -> None:
    model, data = tiny_file("mlp"), samples("mlp", 8)
    ranges = tmp_path / "m.ranges"
    for output, words in {
        ranges: ["calibrate", model, "--data", data, "--threads", "1"],
        tmp_path / "cache": ["ranges", "cache", ranges, "--tensorrt", "8.5.3"],
        tmp_path / "merged": ["ranges", "merge", ranges],
        tmp_path / "int8.onnx": ["quantize", model, "--ranges", ranges],
        tmp_path / "ort.onnx": ["build", model, "--target", "onnxruntime"],
        tmp_path / "rtx.engine": ["build", model, "--target", "tensorrt-rtx", "--gpu", "sm86"],
    }.items():
        for suffix in ("", ".json", ".data"):
            output.with_name(output.name + suffix).symlink_to(precious)
        with pytest.raises(SystemExit) as done:
            main([*map(str, words), "-o", str(output), "-q"])
        assert precious.read_text() == "of the user", words
        assert done.value.code in (0, 1), words
        assert not output.is_symlink(), words
