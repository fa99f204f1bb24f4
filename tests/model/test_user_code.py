"""A user's file imports what lies beside it, whatever this process has imported under the same names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from qcompile.data.batches import Data
from qcompile.model.source import parse_source
from qcompile.model.user_code import call, load_function
from qcompile.tensors import TensorInfo

NAME = "sizes_of_a_project"
INPUTS = (TensorInfo("x", "float32", ("batch", 1)),)


@pytest.fixture(params=["module", "package"])
def here(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """A module of this process, NAME.WIDTH == 1; the folder `project` beside it has one of 2."""
    for folder, width in (("process", 1), ("project", 2)):
        is_package = request.param == "package"
        path = tmp_path / folder / (f"{NAME}/__init__.py" if is_package else f"{NAME}.py")
        path.parent.mkdir(parents=True)
        path.write_text(f"WIDTH = {width}\n")
        if is_package:
            (path.parent / "part.py").write_text(f"WIDTH = {width}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "process"))
    yield importlib.import_module(NAME)
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def function(folder: Path, text: str, file: str = "code.py") -> str:
    """The spelling of `make` in a file of the project."""
    (folder / "project" / file).write_text(text)
    return f"{folder / 'project' / file}:make"


def width(spec: str) -> int:
    source = parse_source(spec)
    return int(call(load_function(source), source))


TOP = f"from {NAME} import WIDTH\n\ndef make():\n    return WIDTH\n"
LATER = f"def make():\n    from {NAME} import WIDTH\n    return WIDTH\n"


@pytest.mark.parametrize("text", [TOP, LATER], ids=["top", "function"])
def test_a_module_of_this_process_does_not_stand_in_for_the_one_beside(
    here: ModuleType, text: str, tmp_path: Path
) -> None:
    assert width(function(tmp_path, text)) == 2
    assert sys.modules[NAME] is here  # which this process goes on with
    assert sys.path[0] == str(tmp_path / "process")


def test_parts_of_a_package_are_those_of_the_package_beside(here: ModuleType, tmp_path: Path) -> None:
    if not hasattr(here, "__path__"):
        pytest.skip("a module has no parts")
    importlib.import_module(f"{NAME}.part")
    text = f"def make():\n    import {NAME}.part\n    return {NAME}.part.WIDTH\n"
    assert width(function(tmp_path, text)) == 2
    assert sys.modules[f"{NAME}.part"].WIDTH == here.WIDTH == 1  # type: ignore[attr-defined]


@pytest.mark.usefixtures("here")
def test_what_lies_beside_is_imported_once(tmp_path: Path) -> None:
    text = f"import {NAME}\nBEFORE = {NAME}\n\ndef make():\n    import {NAME}\n    return {NAME} is BEFORE\n"
    assert width(function(tmp_path, text)) == 1


@pytest.mark.usefixtures("here")
def test_a_generator_imports_what_lies_beside_it(tmp_path: Path) -> None:
    text = (
        "import numpy as np\n\ndef make():\n"
        f"    from {NAME} import WIDTH\n"
        "    yield {'x': np.full((1, 1), WIDTH, np.float32)}\n"
        f"    import {NAME}\n"
        f"    yield {{'x': np.full((1, 1), {NAME}.WIDTH, np.float32)}}\n"
    )
    read = [batch.feeds["x"].item() for batch in Data(function(tmp_path, text), INPUTS)]
    assert read == [2, 2]


def test_a_generator_imports_a_file_that_nothing_has_imported(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "only_beside_a_generator.py").write_text("WIDTH = 3\n")
    text = (
        "import numpy as np\n\ndef make():\n    from only_beside_a_generator import WIDTH\n"
        "    yield {'x': np.full((1, 1), WIDTH, np.float32)}\n"
    )
    (batch,) = Data(function(tmp_path, text), INPUTS)
    np.testing.assert_array_equal(batch.feeds["x"], [[3]])


def test_a_file_does_not_replace_what_is_installed(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    for name in ("numpy", "json"):
        (tmp_path / "project" / f"{name}.py").write_text("raise RuntimeError('read')\n")
    text = "import json\nimport numpy\n\ndef make():\n    return len(json.dumps(numpy.ones(1).tolist()))\n"
    assert width(function(tmp_path, text)) == 5
