"""What docs/first_use.md, docs/gate.md (with its templates) and docs/data.md show is run as it is shown."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import soundfile
import yaml
from named_models import SMALL, WORDS, add_tokenizer, make_folder
from PIL import Image
from tokenizer_files import save_tokenizer

from qcompile.cli import main
from qcompile.cli.main import group
from qcompile.data.batches import Data
from qcompile.data.spelling import KEYS, parse_spelling
from qcompile.model.sources.preprocessing import (
    AudioPreprocessing,
    ImagePreprocessing,
    TextPreprocessing,
    as_json,
)
from qcompile.pipeline.recipe.recipe import read_recipe
from qcompile.spec.tensors import TensorInfo

FIRST_USE = (Path(__file__).parents[1] / "docs/first_use.md").read_text(encoding="utf-8")
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


def walk_of(walk: str) -> list[list[str]]:
    match = re.search(rf"<!-- walk: {walk} -->\n```console\n(.*?)```", FIRST_USE, re.S)
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
    init, plan, run = walk_of("images")
    assert typed(init)[0] == 0
    recipe = read_recipe(folder / "images.toml")
    assert recipe.data.calibration == "images?part=calibration"
    assert recipe.data.calibration in FIRST_USE
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
    init, _, run = walk_of("images")
    assert typed(init, "--max-time", "1")[0] == 0
    assert typed(run)[0] == 0
    assert (folder / "out/report.html").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("texts", "short_blocks")
def test_the_walk_of_texts(typed: Callable[..., tuple[int, str]], folder: Path) -> None:
    (auto,) = walk_of("texts")
    code, printed = typed(auto, "--max-time", "1")
    assert code in (0, 1), "random labels need not be within the budget"
    sentence, *where = printed.strip().splitlines()[-4 if code == 0 else -3 :]
    assert sentence.startswith("Use " if code == 0 else "No ")
    assert where[-1] == "recipe:   reviews-compiled/recipe.toml"
    assert read_recipe(folder / "reviews-compiled/recipe.toml").data.calibration.endswith("part=calibration")


@pytest.mark.usefixtures("arrays")
def test_the_recipe_of_arrays(typed: Callable[..., tuple[int, str]], folder: Path) -> None:
    assert typed(walk_of("arrays")[0])[0] == 0
    assert read_recipe(folder / "recipe.toml").model.inputs == ("image:[batch,3,16,16]",)


@pytest.mark.usefixtures("texts")
def test_the_recipe_of_texts(typed: Callable[..., tuple[int, str]], folder: Path) -> None:
    (auto,) = walk_of("texts")
    init = ["qcompile", "init", *auto[2:-1], "recipe.toml"]
    assert typed(init)[0] == 0
    recipe = read_recipe(folder / "recipe.toml")
    assert recipe.model.source == "hf:./reviews"
    assert recipe.budget.max_drop == 2
    assert [one.name for one in recipe.artifact] == ["onnx-fp32", "onnx-int8", "onnx-int8-dynamic"]


@pytest.mark.slow
@pytest.mark.usefixtures("arrays", "short_blocks")
def test_the_walk_of_arrays(typed: Callable[..., tuple[int, str]], folder: Path) -> None:
    init, run = walk_of("arrays")
    assert typed(init, "--max-time", "0.5")[0] == 0
    code, printed = typed(run)
    assert code in (0, 1)  # a budget that nothing keeps is 1
    assert "onnx-int8" in printed
    assert (folder / "out/onnx-int8.onnx").is_file()


ROOT = Path(__file__).parents[1]
GATE = (ROOT / "docs/gate.md").read_text(encoding="utf-8")
TEMPLATES = ROOT / "docs/ci"


def load(name: str) -> dict[Any, Any]:
    loaded = yaml.safe_load((TEMPLATES / name).read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def commands(script: str) -> Iterator[list[str]]:
    """The qcompile commands of a script, as words."""
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["qcompile"]:
            yield words[1:]


def parse(words: list[str]) -> None:
    """Parse a command line as it is typed; raises a usage error where it is wrong."""
    verb, *arguments = words
    command = group.get_command(click.Context(group), verb)
    assert command is not None, verb
    command.make_context(verb, arguments)


def test_the_jobs_of_github_have_the_shape_of_a_workflow() -> None:
    workflow = load("github.yml")
    assert set(workflow) == {"name", True, "permissions", "jobs"}, "YAML 1.1 reads `on` as true"
    assert set(workflow[True]) == {"push", "pull_request"}
    jobs = workflow["jobs"]
    assert jobs["gate"]["needs"] == "build"
    run: list[list[str]] = []
    for job in jobs.values():
        assert set(job) <= {"if", "needs", "runs-on", "steps"}
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert set(step) <= {"name", "if", "uses", "with", "env", "run"}
            run += commands(step.get("run", ""))
    assert [words[0] for words in run] == ["run", "gate"]
    for words in run:
        parse(words)


def test_the_artifacts_of_github_are_found_again() -> None:
    jobs = load("github.yml")["jobs"]
    [uploaded] = [step["with"] for step in jobs["build"]["steps"] if "upload" in step.get("uses", "")]
    [downloaded] = [step["with"] for step in jobs["gate"]["steps"] if "download" in step.get("uses", "")]
    [script] = [step["run"] for step in jobs["gate"]["steps"] if "gh run download" in step.get("run", "")]
    assert uploaded["name"] == downloaded["name"]
    assert f"--name {uploaded['name']} --dir old" in script
    [gate] = [
        words for step in jobs["gate"]["steps"] for words in commands(step.get("run", "")) if "old" in words
    ]
    assert gate[:3] == ["gate", "old", downloaded["path"]]
    written = next(step["with"]["path"] for step in jobs["gate"]["steps"][::-1] if "with" in step)
    assert set(written.split()) == {gate[gate.index("--junit") + 1], gate[gate.index("--markdown") + 1]}


def test_the_jobs_of_gitlab_have_the_shape_of_a_pipeline() -> None:
    pipeline = load("gitlab.yml")
    assert set(pipeline) == {"stages", "default", "build", "gate"}
    run: list[list[str]] = []
    for name in ("build", "gate"):
        job = pipeline[name]
        assert set(job) <= {"stage", "rules", "needs", "script", "artifacts"}
        assert job["stage"] in pipeline["stages"]
        assert all(isinstance(line, str) for line in job["script"])
        run += [words for line in job["script"] for words in commands(line)]
    assert [words[0] for words in run] == ["run", "gate"]
    for words in run:
        parse(words)
    gate, artifacts = run[1], pipeline["gate"]["artifacts"]
    assert pipeline["build"]["artifacts"]["paths"] == [f"{gate[2]}/"]
    assert gate[1] == f"old/{gate[2]}"
    assert artifacts["reports"] == {"junit": gate[gate.index("--junit") + 1]}
    assert artifacts["paths"] == [gate[gate.index("--markdown") + 1]]
    assert artifacts["when"] == "always"


def test_the_commands_of_the_guide_are_parsed() -> None:
    shown = list(commands("\n".join(re.findall(r"^    (qcompile .*)$", GATE, re.M))))
    assert len(shown) == 2
    for words in shown:
        parse(words)


def test_the_defaults_of_the_guide_are_those_of_the_command() -> None:
    from qcompile.bench.gate.checks import FEWEST_LAUNCHES, MOST_LAUNCHES
    from qcompile.spec.measure import GateCommand

    given = GateCommand(old="a", new="b")
    rows = dict(re.findall(r"^\| (latency|size|outputs) \| .* \| (\w+) \|$", GATE, re.M))
    assert rows == {
        "latency": f"{given.max_slower:g}", "size": f"{given.max_larger:g}", "outputs": given.outputs,
    }  # fmt: skip
    assert f"`--max-time` ({given.max_time_s:g} s" in GATE
    assert (FEWEST_LAUNCHES, MOST_LAUNCHES) == (3, 12)
    assert "up to twelve" in GATE


@pytest.mark.usefixtures("short_blocks")
def test_the_python_of_the_guide_works(
    tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_file("mlp", file="old.onnx").parent
    tiny_file("mlp", file="new.onnx")
    monkeypatch.chdir(folder)
    shown = re.search(r"```python\n(.*?)```", GATE, re.S)
    assert shown
    exec(compile(shown[1], "docs/gate.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "new.onnx Slowdown(value=" in printed
    assert printed.endswith("passed\n"), "one file against itself"


DATA_GUIDE = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
BLOCKS = {
    name: [line.partition("  #")[0].strip() for line in lines.strip().splitlines()]
    for name, lines in re.findall(r"<!-- spellings: (\w+) -->\n```\n(.*?)```", DATA_GUIDE, re.DOTALL)
}
RNG = np.random.default_rng(0)
PIXELS = TensorInfo(
    "x", "float32", ("n", 3, 8, 8), preprocessing=as_json(ImagePreprocessing(input="x", height=8, width=8))
)
WAVES = TensorInfo(
    "x", "float32", ("n", "t"), preprocessing=as_json(AudioPreprocessing(inputs=("x",), rate_hz=8000))
)


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (9, 11, 3), np.uint8)).save(path)


def make_images(folder: Path) -> list[TensorInfo]:
    for number in range(8):
        picture(folder / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg")
        picture(folder / "flat" / f"{number}.png")
        picture(folder / "splits" / ("train", "val")[number % 2] / f"{number}.png")
        picture(folder / "labelled" / f"{number}.png")
    rows = "".join(f"{number}.png,{number % 2}\n" for number in range(8))
    (folder / "labelled" / "metadata.csv").write_text(f"file_name,label\n{rows}")
    picture(folder / "scenes" / "images" / "1.png")
    (folder / "scenes" / "masks").mkdir()
    Image.fromarray(RNG.integers(0, 3, (9, 11), np.uint8)).save(folder / "scenes" / "masks" / "1.png")
    boxes = {
        "images": [{"id": 1, "file_name": "images/1.png"}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [1, 1, 5, 5]}],
    }
    (folder / "scenes" / "boxes.json").write_text(json.dumps(boxes))
    return [PIXELS]


def make_rows(folder: Path) -> list[TensorInfo]:
    import datasets

    rows = [{"text": "the cat", "label": "good"}, {"text": "a dog ran", "label": "bad"}]
    pairs = [{"premise": "the cat sat", "hypothesis": "a cat", "label": 1}]
    tags = [{"tokens": ["cat", "sat"], "ner_tags": [1, 0]}]
    for name, content in (("reviews", rows), ("pairs", pairs), ("tags", tags)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    (folder / "lines.txt").write_text("the cat\n\na dog ran\n")
    (folder / "reviews.csv").write_text("review,stars\nthe cat,4\na dog,2\n")
    for number in range(4):
        picture(folder / "files" / f"{number}.png")
    paths = [str(path) for path in sorted((folder / "files").iterdir())]
    rows = datasets.Dataset.from_dict({"image": paths, "label": [0, 1, 0, 1]})
    rows = rows.cast_column("image", datasets.Image())
    rows.save_to_disk(folder / "saved")
    rows.to_parquet(folder / "parquet" / "test-00000-of-00001.parquet")
    for name in ("said/yes/1.wav", "said/no/2.flac", "spoken/1.wav"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / name, RNG.uniform(-1, 1, 800), 8000)
    (folder / "spoken" / "metadata.csv").write_text("file_name,label\n1.wav,go on\n")
    names = ("input_ids", "attention_mask")
    said = TextPreprocessing(tokenizer=str(save_tokenizer(folder / "tokenizer")), inputs=names)
    return [TensorInfo(name, "int64", ("n", "t"), preprocessing=as_json(said)) for name in names]


def make_arrays(folder: Path) -> list[TensorInfo]:
    from polygraphy.json import save_json

    x = RNG.standard_normal((12, 3, 8, 8)).astype(np.float32)
    np.savez(folder / "arrays.npz", x=x, labels=np.arange(12))
    np.save(folder / "x.npy", x)
    (folder / "folder").mkdir()
    np.save(folder / "folder" / "0.npy", x)
    save_json([{"x": x}], str(folder / "inputs.json"))
    (folder / "samples.py").write_text(
        "import numpy as np\ndef load():\n    yield np.zeros((2, 3, 8, 8), np.float32)\n"
    )
    return [PIXELS]


MAKERS: dict[str, Callable[[Path], list[TensorInfo]]] = {
    "images": make_images,
    "rows": make_rows,
    "arrays": make_arrays,
}
UNLABELLED = {
    "flat", "lines.txt", "reviews.jsonl?column=text", "vocabulary:tokenizer?samples=32", "x.npy", "folder",
    "inputs.json",
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_every_spelling_of_the_guide_is_read(tmp_path: Path, name: str) -> None:
    made = MAKERS[name](tmp_path)
    for spec in BLOCKS[name]:
        inputs = [WAVES] if spec in ("said", "audio:spoken") else made
        inputs = [PIXELS] if spec.startswith(("saved", "parquet")) else inputs
        data = Data(spec, inputs, base=tmp_path)
        batches = list(data)
        assert data.total in (None, sum(one.samples for one in batches)), spec
        assert data.digest() == Data(spec, (), base=tmp_path).digest(), spec
        labelled = spec not in UNLABELLED and not spec.endswith("py:load")
        assert all((one.labels is not None) == labelled or "split" in spec for one in batches), spec


def test_the_guide_shows_every_block_and_every_key() -> None:
    assert set(BLOCKS) == set(MAKERS)
    shown: set[Any] = {parse_spelling(spec).kind for lines in BLOCKS.values() for spec in lines}
    assert shown
    for key in {key for keys in KEYS.values() for key in keys}:
        assert f"{key}=" in DATA_GUIDE, key
