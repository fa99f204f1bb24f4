"""Graphs that write files are refused, files of weights are strict, code imports what lies beside it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from qcompile.data.batches import Data
from qcompile.errors import ModelError
from qcompile.model.sources.archives import trust_files
from qcompile.model.sources.load import load_torch
from qcompile.model.sources.pytorch import load_weights, read_weights
from qcompile.model.sources.source import digest_source, parse_source
from qcompile.model.sources.user_code import call, load_function
from qcompile.spec.tensors import TensorInfo

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


class Named(torch.nn.Module):
    """The identity, with the name of a file."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.sum, self.training = name, 0.0, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Writes(Named):
    """On the way it fills the file."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        content = torch.from_file(self.name, shared=True, size=4, dtype=torch.float32)
        content.fill_(1.0)
        return x + content.sum() * 0  # what is not used is not run


class Restores(Named):
    """It does so while it is loaded, without being called."""

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.name, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.name, self.training = state[0], state[1]
        content = torch.from_file(self.name, shared=True, size=4, dtype=torch.float32)
        self.sum = float(content.fill_(1.0).sum())  # what is not used is not run


@pytest.mark.parametrize("kind", [Writes, Restores])
def test_a_torchscript_is_refused_without_trust_and_has_not_run(
    kind: type[torch.nn.Module], tmp_path: Path
) -> None:
    target, path = tmp_path / "made", tmp_path / "m.pt"
    torch.jit.script(kind(str(target))).save(str(path))
    target.unlink(missing_ok=True)
    with pytest.raises(ModelError, match=r"may run code .* `trust` is required") as refused:
        load_torch(parse_source(str(path)))
    assert "give `trust`" in refused.value.hint
    assert not target.exists()
    with trust_files([path]):
        module = load_torch(parse_source(str(path))).module
    assert module(torch.zeros(2)).shape == (2,)
    assert target.exists(), "else this test shows nothing"


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


NET = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))\n"


def trained() -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return dict(network().state_dict())


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth", "w.ckpt", "parallel.pth"])
def test_a_function_takes_a_file_of_weights(name: str, tmp_path: Path) -> None:
    values, path = trained(), tmp_path / name
    (tmp_path / "net.py").write_text(NET)
    if name.endswith(".safetensors"):
        save_file(values, path)
    elif name.endswith(".ckpt"):
        torch.save({"epoch": 3, "state_dict": values}, path)
    else:
        beginning = "module." if name.startswith("parallel") else ""
        torch.save({beginning + key: value for key, value in values.items()}, path)
    loaded = load_torch(parse_source(f"net.py:build?weights={name}", base=tmp_path))
    assert all(torch.equal(value, values[key]) for key, value in loaded.module.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.bias": None}, "missing: 0.bias"),
        ({"head.weight": torch.ones(1)}, "unexpected: head.weight"),
        ({"1.weight": torch.ones(5, 3)}, "of another shape: 1.weight (5x3 in place of 1x3)"),
        ({f"x{i}": torch.ones(1) for i in range(5)}, "unexpected: x0, x1, x2 and 2 more"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    values = {key: value for key, value in {**trained(), **change}.items() if value is not None}
    torch.save(values, tmp_path / "w.pth")
    with pytest.raises(ModelError, match=re.escape(message)):
        load_weights(network(), tmp_path / "w.pth", "net")


def test_tied_weights_may_be_stored_once(tmp_path: Path) -> None:
    module = nn.ModuleDict({"table": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    module["head"].weight = module["table"].weight
    table = torch.arange(12.0).reshape(4, 3)
    save_file({"table.weight": table}, tmp_path / "w.safetensors")
    load_weights(module, tmp_path / "w.safetensors", "net")
    assert torch.equal(module["head"].weight, table)


@pytest.mark.parametrize("content", [b"", b"no file of weights", b"\x80\x02N."])
def test_what_holds_no_weights_is_refused(content: bytes, tmp_path: Path) -> None:
    for name in ("w.pth", "w.safetensors"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=name):
            read_weights(tmp_path / name)
    torch.save({"0.weight": 3}, tmp_path / "w.pth")
    with pytest.raises(ModelError, match=r"'0\.weight' is int; a state dict"):
        read_weights(tmp_path / "w.pth")


NAME = "sizes_of_a_project"
INPUTS = (TensorInfo("x", "float32", ("batch", 1)),)


@pytest.fixture(params=["{}.py", "{}/__init__.py"], ids=["module", "package"])
def here(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """A module of this process, NAME.WIDTH == 1; the folder `project` beside it has one of 2."""
    for folder, width in (("process", 1), ("project", 2)):
        path = tmp_path / folder / request.param.format(NAME)
        path.parent.mkdir(parents=True)
        path.write_text(f"WIDTH = {width}\n")
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


@pytest.mark.parametrize(
    "text",
    [
        f"from {NAME} import WIDTH\n\ndef make():\n    return WIDTH\n",
        f"def make():\n    from {NAME} import WIDTH\n    return WIDTH\n",
        f"import {NAME}\nTOP = {NAME}\n\ndef make():\n    import {NAME}\n    return 2 * ({NAME} is TOP)\n",
    ],
    ids=["top", "function", "once"],
)
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
def test_a_generator_imports_what_lies_beside_it(tmp_path: Path) -> None:
    text = f"""
import numpy as np

def make():
    from {NAME} import WIDTH
    yield {{'x': np.full((1, 1), WIDTH, np.float32)}}
    import {NAME}
    yield {{'x': np.full((1, 1), {NAME}.WIDTH, np.float32)}}
"""
    read = [batch.feeds["x"].item() for batch in Data(function(tmp_path, text), INPUTS)]
    assert read == [2, 2]


@pytest.mark.usefixtures("here")
def test_a_module_that_imports_lazily_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise ImportError(f"{name}: an optional package is not installed")

    for name in (NAME, "lazy_elsewhere"):  # one has the name of what lies beside the file
        monkeypatch.setitem(sys.modules, name, Lazy(name))
    assert width(function(tmp_path, "def make():\n    return 2\n")) == 2


def test_a_file_does_not_replace_what_is_installed(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    for name in ("numpy", "json"):
        (tmp_path / "project" / f"{name}.py").write_text("raise RuntimeError('read')\n")
    text = "import json\nimport numpy\n\ndef make():\n    return len(json.dumps(numpy.ones(1).tolist()))\n"
    assert width(function(tmp_path, text)) == 5


@pytest.mark.parametrize("marked", [True, False])
def test_a_file_of_a_package_imports_what_is_relative(tmp_path: Path, marked: bool) -> None:
    source = parse_source(f"{tmp_path}/zoo/nets/net.py:build", base=_package(tmp_path / "zoo", marked))
    for width in (3, 40):  # the second time after an edit
        (tmp_path / "zoo/sizes.py").write_text(f"WIDTH = {width}")
        digest = digest_source(source)
        assert load_torch(source).module.out_features == 2 * width
    (tmp_path / "zoo/sizes.py").write_text("WIDTH = 5")
    assert digest_source(source) != digest
    assert not {"zoo", str(tmp_path)} & {*sys.modules, *sys.path}


def _package(folder: Path, marked: bool) -> Path:
    (folder / "nets").mkdir(parents=True)
    (folder / "nets/more.py").write_text("from ..sizes import WIDTH as MORE")
    lines = ["from ..sizes import WIDTH", "from .more import MORE", "import torch"]
    lines += ["def build():", "    return torch.nn.Linear(2, WIDTH + MORE)"]
    (folder / "nets/net.py").write_text("\n".join(lines))
    if marked:
        (folder / "__init__.py").touch()
        (folder / "nets/__init__.py").write_text("from . import net")
    return folder
