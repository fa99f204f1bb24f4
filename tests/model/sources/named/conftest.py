"""Folders of small transformers models, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from named_models import FOLDERS

from qcompile.core.progress import quiet


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes the folder of a model of `named_models.FOLDERS`, once."""
    root = tmp_path_factory.mktemp("named")

    @cache
    def folder(name: str) -> Path:
        with quiet():
            return FOLDERS[name](root / name)

    return folder
