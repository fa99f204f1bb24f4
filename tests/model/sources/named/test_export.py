"""Models by name become ONNX without any input given, and compute what their packages compute.

Weights of named models come from the local caches, and from nowhere else.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file

from qcompile.compiler.export import export
from qcompile.core.artifact import Artifact
from qcompile.core.installation import install_hint
from qcompile.core.progress import quiet
from qcompile.errors import EngineUnavailable, InvalidOption, ModelError
from qcompile.model.sources import load as loading
from qcompile.model.sources.load import load_torch
from qcompile.model.sources.named.description import declare_torchvision_operators
from qcompile.model.sources.preprocessing import TextPreprocessing, preprocessing_of
from qcompile.model.sources.pytorch import LoadedModel
from qcompile.model.sources.source import digest_source, parse_source

slow = pytest.mark.slow
Folder = Callable[[str], Path]


def exported(spec: str, path: Path) -> tuple[Artifact, Any]:
    """The artifact, and a session of its file."""
    artifact = export(spec, path)
    return artifact, onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def spelled(artifact: Artifact) -> tuple[list[str], list[str]]:
    assert artifact.manifest.io is not None
    io = artifact.manifest.io
    return list(map(str, io.inputs)), list(map(str, io.outputs))


def original(model: str, folder: Path) -> Any:
    """The model as a user of transformers loads it: the oracle."""
    declare_torchvision_operators()
    import transformers

    with quiet():
        return getattr(transformers, model).from_pretrained(folder).eval()


TEXT = ["input_ids:[batch,length]:int64", "attention_mask:[batch,length]:int64"]
TYPED = [*TEXT, "token_type_ids:[batch,length]:int64"]
IMAGE = ["pixel_values:[batch,3,32,32]:float32"]

CASES = [
    ("bert", "BertForSequenceClassification",
     ["input_ids:[batch,length]:int64", "token_type_ids:[batch,length]:int64",
      "attention_mask:[batch,length]:int64"], ["logits:[batch,3]:float32"], {"length": 9}),
    *(pytest.param(*case, marks=slow) for case in [
        ("vit", "ViTForImageClassification", IMAGE, ["logits:[batch,2]:float32"], {}),
        ("encoder", "BertModel", TYPED,
         ["last_hidden_state:[batch,length,32]:float32", "pooler_output:[batch,32]:float32"], {"length": 40}),
        ("masked", "BertForMaskedLM", TYPED, ["logits:[batch,length,64]:float32"], {"length": 3}),
        ("gpt2", "GPT2LMHeadModel", TEXT, ["logits:[batch,length,64]:float32"], {"length": 39}),
        ("llama", "LlamaForCausalLM", TEXT, ["logits:[batch,length,64]:float32"], {"length": 5}),
        ("roberta", "RobertaForTokenClassification", TEXT, ["logits:[batch,length,2]:float32"],
         {"length": 11}),
        ("answers", "DistilBertForQuestionAnswering", TEXT,
         ["start_logits:[batch,length]:float32", "end_logits:[batch,length]:float32"], {"length": 7}),
        ("resnet", "ResNetForImageClassification", ["pixel_values:[batch,3,224,224]:float32"],
         ["logits:[batch,5]:float32"], {}),
        ("segformer", "SegformerForSemanticSegmentation", ["pixel_values:[batch,3,64,64]:float32"],
         ["logits:[batch,4,16,16]:float32"], {}),
        ("yolos", "YolosForObjectDetection", IMAGE,
         ["logits:[batch,5,4]:float32", "pred_boxes:[batch,5,4]:float32"], {}),
        ("speech", "Wav2Vec2ForCTC", ["input_values:[batch,samples]:float32"], None, {"samples": 3210}),
        ("sounds", "Wav2Vec2ForSequenceClassification", ["input_values:[batch,samples]:float32"],
         ["logits:[batch,4]:float32"], {"samples": 1234}),
        ("spectrogram", "ASTForAudioClassification", ["input_values:[batch,64,32]:float32"],
         ["logits:[batch,4]:float32"], {}),
        ("whisper_sounds", "WhisperForAudioClassification", ["input_features:[batch,16,32]:float32"],
         ["logits:[batch,2]:float32"], {}),
        ("clip", "CLIPModel", [*TEXT, *IMAGE],
         ["logits_per_image:[batch,batch]:float32", "logits_per_text:[batch,batch]:float32",
          "text_embeds:[batch,16]:float32", "image_embeds:[batch,16]:float32"], {"length": 6}),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "model", "inputs", "outputs", "extents"), CASES)
def test_a_folder_becomes_onnx(
    name: str, model: str, inputs: list[str], outputs: list[str] | None, extents: dict[str, int],
    folder_of: Folder, tmp_path: Path,
) -> None:  # fmt: skip
    folder = folder_of(name)
    artifact, session = exported(f"hf:{folder}", tmp_path / "m.onnx")
    assert spelled(artifact)[0] == inputs
    assert outputs is None or spelled(artifact)[1] == outputs
    feeds = _feeds(artifact, {"batch": 3, **extents})
    actual = dict(zip([one.name for one in session.get_outputs()], session.run(None, feeds), strict=True))
    with torch.no_grad():
        expected = original(model, folder)(**{key: torch.from_numpy(value) for key, value in feeds.items()})
    for key, value in actual.items():
        np.testing.assert_allclose(value, expected[key].numpy(), atol=2e-4, rtol=1e-3)


def _feeds(artifact: Artifact, extents: dict[str, int]) -> dict[str, Any]:
    random, feeds = np.random.default_rng(7), {}
    assert artifact.manifest.io is not None
    for one in artifact.manifest.io.inputs:
        shape = tuple(dim if isinstance(dim, int) else extents[dim] for dim in one.shape)
        if one.name == "attention_mask":
            feeds[one.name] = (np.arange(shape[1]) < np.array([[shape[1]], [2], [3]])).astype(np.int64)
        elif one.name == "token_type_ids":
            feeds[one.name] = random.integers(0, 2, shape)
        elif one.dtype == "int64":
            feeds[one.name] = random.integers(4, 60, shape)
        else:
            feeds[one.name] = random.standard_normal(shape).astype(np.float32)
    return feeds


@slow
@pytest.mark.parametrize(
    ("name", "output"),
    [("t5", "last_hidden_state:[batch,length,32]:float32"),
     ("whisper", "last_hidden_state:[batch,16,32]:float32")],
)  # fmt: skip
def test_the_encoder_alone_of_a_model_that_generates(
    name: str, output: str, folder_of: Folder, tmp_path: Path
) -> None:
    artifact, _ = exported(f"hf:{folder_of(name)}?task=embedding", tmp_path / "m.onnx")
    assert spelled(artifact)[1] == [output]


@pytest.mark.parametrize(
    ("spec", "x", "outputs"),
    [
        ("timm:test_resnet?size=32&classes=7", "3,32,32", ["logits:[batch,7]"]),
        ("torchvision:squeezenet1_1?size=32&classes=7", "3,32,32", ["logits:[batch,7]"]),
        *(pytest.param(*case, marks=slow) for case in [
            ("timm:mobilenetv3_small_050?size=64", "3,64,64", ["logits:[batch,1000]"]),
            ("timm:vit_tiny_patch16_224?size=64&classes=7", "3,64,64", ["logits:[batch,7]"]),
            ("timm:test_vit?task=embedding", "3,160,160", ["features:[batch,64]"]),
            ("torchvision:vit_b_16?size=32&classes=7", "3,32,32", ["logits:[batch,7]"]),
            ("torchvision:googlenet?size=64&classes=7", "3,64,64", ["logits:[batch,7]"]),
            ("torchvision:lraspp_mobilenet_v3_large?size=64&classes=4", "3,64,64", ["out:[batch,4,64,64]"]),
            ("torchvision:r3d_18?size=32&classes=7", "3,16,32,32", ["logits:[batch,7]"]),
            ("torchvision:ssdlite320_mobilenet_v3_large?classes=4", "3,320,320",
             ["boxes:[batch,3234,4]", "scores:[batch,3234,4]"]),
        ]),
    ],
)  # fmt: skip
def test_a_name_becomes_onnx(spec: str, x: str, outputs: list[str], tmp_path: Path) -> None:
    """The export compares the file with PyTorch; two loads of one seed are one model."""
    artifact, session = exported(f"{spec}&weights=random", tmp_path / "m.onnx")
    assert spelled(artifact) == ([f"x:[batch,{x}]:float32"], [f"{output}:float32" for output in outputs])
    assert all(check.passed for check in artifact.manifest.checks)
    assert any("weights are random" in text for text in artifact.manifest.warnings)
    assert artifact.manifest.io is not None
    if "r3d" not in spec:
        said = preprocessing_of(artifact.manifest.io.inputs)
        assert said is not None
        assert said.source == spec.partition("?")[0]
    assert [one.name for one in session.get_inputs()] == ["x"]


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


@pytest.mark.parametrize(
    ("package", "message", "hint"),
    [("no_such_package", "no_such_package is not installed", install_hint("models")),
     ("broken_package", r"cannot be imported \(of another time\)", "into a separate environment")],
)  # fmt: skip
def test_a_package_that_is_not_there_or_does_not_load_is_named(
    package: str, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('of another time')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(loading._PACKAGES, "timm", package)
    with pytest.raises(EngineUnavailable, match=message) as caught:
        load("timm:test_resnet?weights=random")
    assert hint in caught.value.hint


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


@pytest.mark.parametrize("given", ["cache", "file"])
def test_a_trained_body_gets_a_new_head(caches: Path, tmp_path: Path, given: str) -> None:
    declare_torchvision_operators()
    from torchvision.models import squeezenet1_1

    values = squeezenet1_1(weights=None).state_dict()
    path = (
        caches / "torch/hub/checkpoints/squeezenet1_1-b8a52dc0.pth"
        if given == "cache"
        else tmp_path / "w.pth"
    )
    torch.save(values, path)
    weights = "" if given == "cache" else f"&weights={path}"
    model = load(f"torchvision:squeezenet1_1?classes=10{weights}")
    loaded = model.module.state_dict()
    head = {"classifier.1.weight", "classifier.1.bias"}
    assert len(loaded["classifier.1.weight"]) == 10
    assert all(torch.equal(loaded[name], value) for name, value in values.items() if name not in head)
    [warning] = [text for text in model.warnings if "new head" in text]
    assert all(name in warning for name in head)
    torch.save({name: value for name, value in values.items() if name != "features.0.bias"}, path)
    with pytest.raises(ModelError, match=r"missing: features\.0\.bias"):
        load(f"torchvision:squeezenet1_1?classes=10{weights}")


OF_FILE = """
import torch, torchvision

def make():
    return torchvision.models.squeezenet1_1(weights=None, num_classes=3).eval(), torch.ones(1, 3, 64, 64)
"""
OF_FUNCTION = """
import torch

def make():
    from transformers import ResNetConfig, ResNetForImageClassification  # which imports torchvision

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], num_labels=3)
    return ResNetForImageClassification(config).eval(), torch.ones(1, 3, 64, 64)
"""


@pytest.mark.parametrize("source", [OF_FILE, OF_FUNCTION], ids=["file", "function"])
def test_a_users_code_may_import_torchvision(source: str, tmp_path: Path) -> None:
    """Also where the operators of an installed torchvision do not load beside this PyTorch."""
    file = tmp_path / "mine.py"
    file.write_text(source)
    command = [sys.executable, "-m", "qcompile", "export", f"{file}:make", "-o", str(tmp_path / "m.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_timm_reads_the_cache_of_the_hub(caches: Path) -> None:
    declare_torchvision_operators()
    import timm

    values = timm.create_model("test_resnet", pretrained=False).state_dict()
    folder = snapshot(caches / "hub", "timm/test_resnet.r160_in1k")
    save_file({name: value.contiguous() for name, value in values.items()}, folder / "model.safetensors")
    loaded = load("timm:test_resnet").module.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in values.items())


def test_a_name_of_the_hub_is_its_snapshot(folder_of: Folder, caches: Path) -> None:
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
    with pytest.raises(ModelError, match="of another shape"):
        load(f"timm:test_resnet?weights={caches}/w.safetensors")


def test_random_weights_are_those_of_their_seed() -> None:
    state = torch.get_rng_state()
    first, same, other = (load(f"timm:test_resnet?weights=random&seed={seed}") for seed in (1, 1, 2))
    assert _equal(first, same)
    assert not _equal(first, other)
    assert torch.equal(torch.get_rng_state(), state), "the caller's own numbers go on"


def change(folder: Path, copy: Path, **values: Any) -> Path:
    """A copy of a folder with another configuration."""
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **values}))
    return copy


def test_what_a_folder_lacks_is_named(folder_of: Folder, tmp_path: Path) -> None:
    """Code in such a folder does not run: tests/test_hostile_files.py."""
    folder = folder_of("encoder")
    (tmp_path / "empty").mkdir()
    (change(folder, tmp_path / "without") / "model.safetensors").unlink()
    change(folder, tmp_path / "unknown", model_type="brt")
    change(folder, tmp_path / "class", architectures=["BrtModel"])
    for spec, message, hint in (
        (f"{folder}?task=text-classification", "lack classifier", "never trained"),
        (f"{tmp_path}/empty", r"holds no config\.json", ""),
        (f"{tmp_path}/without", "holds no weights", "`weights` random"),
        (f"{tmp_path}/unknown", "cannot read its configuration", ""),
        (f"{tmp_path}/class", "has no class BrtModel", ""),
        (str(folder_of("whisper")), "generates with a decoder", "?task=embedding"),
    ):
        with pytest.raises(ModelError, match=message) as caught:
            load(f"hf:{spec}")
        assert hint in caught.value.hint
    assert load(f"hf:{tmp_path}/without?weights=random").inputs


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("hf:?task=text-clasification", "task 'text-clasification' is none of", "'text-classification'"),
        ("hf:?task=speech-recognition", "has no AutoModelForCTC for BertConfig", ""),
        ("timm:resnet181", "has no model", "resnet18"),
        ("torchvision:resnet_18", "has no model", "resnet18"),
        ("timm:test_resnet?classes=5", "its trained weights have fixed classes", ""),
    ],
)
def test_tasks_names_and_classes_are_checked(spec: str, message: str, hint: str, folder_of: Folder) -> None:
    with pytest.raises(InvalidOption, match=message) as caught:
        load(spec.replace("hf:", f"hf:{folder_of('encoder')}"))
    assert hint in caught.value.hint
