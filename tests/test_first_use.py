"""The guide for newcomers: its commands, as they are written there, in a folder with such models and data."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from named_models import SMALL, WORDS, add_tokenizer, make_folder

from qcompile.cli import main
from qcompile.pipeline.recipe import read_recipe

GUIDE = (Path(__file__).parents[1] / "docs/first_use.md").read_text(encoding="utf-8")
MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, stride=2), nn.Linear(8, 4)

    def forward(self, image):
        return self.head(self.conv(image).relu().mean((2, 3)))

def build():
    torch.manual_seed(0)
    return Net()
"""


def commands(walk: str) -> list[list[str]]:
    match = re.search(rf"<!-- walk: {walk} -->\n```console\n(.*?)```", GUIDE, re.S)
    assert match, f"the guide has no walk {walk!r}"
    return [shlex.split(line) for line in match[1].strip().splitlines()]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command of the guide; returns its exit code and what it prints."""

    def call(words: list[str], *more: str) -> tuple[int, str]:
        assert words[0] == "qcompile"
        with pytest.raises(SystemExit) as done:
            main([*words[1:], *more])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert "error:" not in err, err
        return int(done.value.code or 0), out

    return call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def images(folder: Path) -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (36, 40, 48, 3), dtype=np.uint8)
    for index, values in enumerate(pixels):
        path = folder / "images" / ("ant", "bee", "cat")[index % 3] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(path)


@pytest.fixture
def texts(folder: Path) -> None:
    import json

    options = {**SMALL, "num_labels": 2}
    add_tokenizer(make_folder(folder / "reviews", "Bert", "BertForSequenceClassification", options))
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, size=random.integers(3, 20))) for _ in range(60)]
    rows = [{"text": text, "label": int(random.integers(2))} for text in texts]
    (folder / "reviews.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture
def arrays(folder: Path) -> None:
    random = np.random.default_rng(0)
    (folder / "model.py").write_text(MODEL)
    image = random.standard_normal((64, 3, 16, 16)).astype(np.float32)
    np.savez(folder / "data.npz", image=image, labels=random.integers(0, 4, 64))


@pytest.mark.usefixtures("images")
def test_the_recipe_of_images_and_its_stages(folder: Path, typed: Callable[..., tuple[int, str]]) -> None:
    init, plan, run = commands("images")
    assert typed(init)[0] == 0
    recipe = read_recipe(folder / "images.toml")
    assert recipe.data.calibration == "images?part=calibration"
    assert recipe.data.calibration in GUIDE
    assert recipe.bench is not None
    assert recipe.bench.metric == "top1"
    code, printed = typed(plan)
    assert code == 0
    assert "bench" in printed
    assert "nothing was run" in printed
    assert run == ["qcompile", "run", "images.toml"]
    assert not (folder / "out").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("images", "short_blocks")
def test_the_walk_of_images(typed: Callable[..., tuple[int, str]], folder: Path) -> None:
    init, _, run = commands("images")
    assert typed(init, "--max-time", "1")[0] == 0
    assert typed(run)[0] == 0
    assert (folder / "out/report.html").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("texts", "short_blocks")
def test_the_walk_of_texts(typed: Callable[..., tuple[int, str]], folder: Path) -> None:
    (auto,) = commands("texts")
    code, printed = typed(auto, "--max-time", "1")
    assert code in (0, 1), "random labels need not be within the budget"
    sentence, *where = printed.strip().splitlines()[-4 if code == 0 else -3 :]
    assert sentence.startswith("Use " if code == 0 else "No ")
    assert where[-1] == "recipe:   reviews-compiled/recipe.toml"
    assert read_recipe(folder / "reviews-compiled/recipe.toml").data.calibration.endswith("part=calibration")


@pytest.mark.usefixtures("arrays")
def test_the_recipe_of_arrays(typed: Callable[..., tuple[int, str]], folder: Path) -> None:
    assert typed(commands("arrays")[0])[0] == 0
    assert read_recipe(folder / "recipe.toml").model.inputs == ("image:[batch,3,16,16]",)


@pytest.mark.usefixtures("texts")
def test_the_recipe_of_texts(typed: Callable[..., tuple[int, str]], folder: Path) -> None:
    (auto,) = commands("texts")
    init = ["qcompile", "init", *auto[2:-1], "recipe.toml"]
    assert typed(init)[0] == 0
    recipe = read_recipe(folder / "recipe.toml")
    assert recipe.model.source == "hf:./reviews"
    assert recipe.budget.max_drop == 2
    assert [one.name for one in recipe.artifact] == ["onnx-fp32", "onnx-int8", "onnx-int8-dynamic"]


@pytest.mark.slow
@pytest.mark.usefixtures("arrays", "short_blocks")
def test_the_walk_of_arrays(typed: Callable[..., tuple[int, str]], folder: Path) -> None:
    init, run = commands("arrays")
    assert typed(init, "--max-time", "0.5")[0] == 0
    code, printed = typed(run)
    assert code in (0, 1)  # a budget that nothing keeps is 1
    assert "onnx-int8" in printed
    assert (folder / "out/onnx-int8.onnx").is_file()
