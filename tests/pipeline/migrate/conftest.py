"""The model that the migrated commands name, and what becomes of these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from issue_models import assert_keys_are_there, issue_model, write_cache, write_loader

import qcompile
from qcompile.pipeline.migrate.migration import Migration
from qcompile.pipeline.recipe import Recipe, read_recipe

Migrated = Callable[..., tuple[Recipe, Migration]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with `m.onnx`: image [batch,3,h,w], ids [batch,16] of int64, flag [2]."""
    monkeypatch.chdir(tmp_path)
    inputs = {"image": ("batch", 3, "h", "w"), "ids": ("batch", 16), "flag": (2,)}
    onnx.save(issue_model(inputs, types={"ids": "int64"}, layers=["/a/Conv", "/b[0]/Conv"]), "m.onnx")
    np.savez("samples.npz", image=np.ones((2, 3, 4, 4), np.float32), flag=np.ones((2, 2), np.float32))
    return tmp_path


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with `m.onnx`: image [batch,3,8,8], ids [batch,16] of int64."""
    monkeypatch.chdir(tmp_path)
    model = issue_model({"image": ("batch", 3, 8, 8), "ids": ("batch", 16)}, types={"ids": "int64"})
    onnx.save(model, "m.onnx")
    write_loader(model, tmp_path / "loader.py")
    write_cache(model, tmp_path / "m.cache")
    return tmp_path


def migrated(command: str, target: str = "tensorrt", **more: Any) -> tuple[Recipe, Migration]:
    """The recipe of a command, read back, and what became of its options."""
    done = qcompile.migrate(command, target=target, **more)
    assert_keys_are_there(done)
    return read_recipe(done.recipe), done


@pytest.fixture
def trtexec(folder: Path) -> Migrated:
    """`trtexec(OPTIONS)` migrates a command of trtexec over `m.onnx`."""
    assert folder
    return lambda options, *more, **given: migrated(f"trtexec --onnx=m.onnx {options}", *more, **given)


@pytest.fixture
def polygraphy(small: Path) -> Migrated:
    """`polygraphy(COMMAND)` migrates a command of Polygraphy."""
    assert small
    return lambda command, *more, **given: migrated(f"polygraphy {command}", *more, **given)
