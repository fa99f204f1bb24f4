"""Weights of named models come from the local caches, and from nowhere else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from qcompile.errors import InvalidOption, ModelError
from qcompile.model.named.torchvision_import import declare_torchvision_operators
from qcompile.model.preprocessing import TextPreprocessing, preprocessing_of
from qcompile.model.pytorch import LoadedModel, load_torch
from qcompile.model.source import digest_source, parse_source


def load(spec: str) -> LoadedModel:
    return load_torch(parse_source(spec))


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches of PyTorch and of Hugging Face."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "torch/hub/checkpoints").mkdir(parents=True)
    return tmp_path


def snapshot(hub: Path, name: str) -> Path:
    """The folder of a model in the layout of huggingface_hub's cache."""
    folder = hub / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("c0ffee")
    made = folder / "snapshots/c0ffee"
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize(
    ("spec", "cache"),
    [("torchvision:squeezenet1_1", "torch"), ("timm:test_resnet", "hub"), ("hf:org/model", "hub")],
)
def test_what_is_not_cached_is_refused_with_three_ways_out(spec: str, cache: str, caches: Path) -> None:
    with pytest.raises(ModelError, match="is not in the local cache") as caught:
        load(spec)
    assert str(caches / cache) in caught.value.message
    assert all(way in caught.value.hint for way in ("`download`", "`weights` random", "`weights` FILE"))


def test_torchvision_reads_its_cache_without_unpickling(caches: Path) -> None:
    declare_torchvision_operators()
    from torchvision.models import squeezenet1_1

    values = squeezenet1_1(weights=None).state_dict()
    path = caches / "torch/hub/checkpoints/squeezenet1_1-b8a52dc0.pth"
    torch.save(values, path)
    loaded = load("torchvision:squeezenet1_1").module.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in values.items())
    torch.save({"features.0.weight": Path("code")}, path)
    with pytest.raises(ModelError, match="without unpickling code"):
        load("torchvision:squeezenet1_1")


def test_timm_reads_the_cache_of_the_hub(caches: Path) -> None:
    declare_torchvision_operators()
    import timm

    values = timm.create_model("test_resnet", pretrained=False).state_dict()
    folder = snapshot(caches / "hub", "timm/test_resnet.r160_in1k")
    save_file({name: value.contiguous() for name, value in values.items()}, folder / "model.safetensors")
    loaded = load("timm:test_resnet").module.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in values.items())


def test_a_name_of_the_hub_is_its_snapshot(folder_of: Callable[[str], Path], caches: Path) -> None:
    folder = folder_of("bert")
    there = snapshot(caches / "hub", "org/bert")
    shutil.copytree(folder, there, dirs_exist_ok=True)
    by_name, by_folder = load("hf:org/bert"), load(f"hf:{folder}")
    assert _equal(by_name, by_folder)
    said = preprocessing_of(by_name.inputs)
    assert isinstance(said, TextPreprocessing)
    assert Path(said.tokenizer) == there.resolve()
    before = digest_source(parse_source("hf:org/bert"))
    (there.parents[1] / "refs/main").write_text("other")
    assert digest_source(parse_source("hf:org/bert")) != before


def _equal(one: LoadedModel, other: LoadedModel) -> bool:
    first, second = one.module.state_dict(), other.module.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_file_fits_or_is_refused(caches: Path) -> None:
    random = load("timm:test_resnet?weights=random&classes=5")
    save_file(dict(random.module.state_dict()), caches / "w.safetensors")
    again = load(f"timm:test_resnet?weights={caches}/w.safetensors&classes=5")
    assert _equal(random, again)
    with pytest.raises(ModelError, match=r"of another shape: fc\.weight \(5x\d+ in place of 1000x"):
        load(f"timm:test_resnet?weights={caches}/w.safetensors")


def test_random_weights_are_those_of_their_seed() -> None:
    state = torch.get_rng_state()
    first, same, other = (load(f"timm:test_resnet?weights=random&seed={seed}") for seed in (1, 1, 2))
    assert _equal(first, same)
    assert not _equal(first, other)
    assert torch.equal(torch.get_rng_state(), state), "the caller's own numbers go on"


def test_own_weights_have_their_own_classes() -> None:
    with pytest.raises(InvalidOption, match="its own weights are for its own classes"):
        load("timm:test_resnet?classes=5")


def change(folder: Path, made: Path, **values: Any) -> Path:
    """A copy of a folder with another configuration."""
    import json

    shutil.copytree(folder, made)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, **values}))
    return made


def test_what_a_folder_lacks_is_named(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = folder_of("encoder")
    with pytest.raises(ModelError, match="lack classifier") as caught:
        load(f"hf:{folder}?task=text-classification")
    assert "never trained" in caught.value.hint
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        load(f"hf:{empty}")
    without = change(folder, tmp_path / "without")
    (without / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="holds no weights") as caught:
        load(f"hf:{without}")
    assert "`weights` random" in caught.value.hint
    assert load(f"hf:{without}?weights=random").inputs
    with pytest.raises(ModelError, match="cannot read its configuration"):
        load(f"hf:{change(folder, tmp_path / 'unknown', model_type='brt')}")
    with pytest.raises(ModelError, match="has no class BrtModel"):
        load(f"hf:{change(folder, tmp_path / 'class', architectures=['BrtModel'])}")
    code = change(folder, tmp_path / "code", auto_map={"AutoModel": "modeling.Net"}, model_type="own")
    (code / "modeling.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    with pytest.raises(ModelError):
        load(f"hf:{code}")
    assert not (tmp_path / "sprung").exists()


def test_tasks_and_names_are_checked(folder_of: Callable[[str], Path]) -> None:
    with pytest.raises(InvalidOption, match="task 'text-clasification' is none of") as caught:
        load(f"hf:{folder_of('encoder')}?task=text-clasification")
    assert "'text-classification'" in caught.value.hint
    with pytest.raises(InvalidOption, match="has no AutoModelForCTC for BertConfig"):
        load(f"hf:{folder_of('encoder')}?task=speech-recognition")
    with pytest.raises(ModelError, match="generates with a decoder") as other:
        load(f"hf:{folder_of('whisper')}")
    assert "?task=embedding" in other.value.hint
    for spec, near in (("timm:resnet181", "resnet18"), ("torchvision:resnet_18", "resnet18")):
        with pytest.raises(InvalidOption, match="has no model") as caught:
            load(spec)
        assert near in caught.value.hint
