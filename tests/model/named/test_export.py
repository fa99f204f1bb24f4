"""Models by name become ONNX without any input given, and compute what their packages compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from qcompile.artifact import Artifact
from qcompile.compiler.export import export
from qcompile.model.named.torchvision_import import declare_torchvision_operators
from qcompile.model.preprocessing import preprocessing_of
from qcompile.progress import quiet

slow = pytest.mark.slow
Folder = Callable[[str], Path]


def exported(spec: str, path: Path) -> tuple[Artifact, Any]:
    """The artifact, and a session of its file."""
    artifact = export(spec, path)
    return artifact, onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def spelled(artifact: Artifact) -> tuple[list[str], list[str]]:
    assert artifact.manifest.io is not None
    return [str(one) for one in artifact.manifest.io.inputs], [
        str(one) for one in artifact.manifest.io.outputs
    ]


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
    ("vit", "ViTForImageClassification", IMAGE, ["logits:[batch,2]:float32"], {}),
    *(pytest.param(*case, marks=slow) for case in [
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


@pytest.mark.parametrize(
    ("name", "output"),
    [
        pytest.param("t5", "last_hidden_state:[batch,length,32]:float32", marks=slow),
        pytest.param("whisper", "last_hidden_state:[batch,16,32]:float32", marks=slow),
    ],
)
def test_the_encoder_alone_of_a_model_that_generates(
    name: str, output: str, folder_of: Folder, tmp_path: Path
) -> None:
    artifact, _ = exported(f"hf:{folder_of(name)}?task=embedding", tmp_path / "m.onnx")
    assert spelled(artifact)[1] == [output]


@pytest.mark.parametrize(
    ("spec", "inputs", "outputs"),
    [
        ("timm:test_resnet?size=32&classes=7", ["x:[batch,3,32,32]:float32"], ["logits:[batch,7]:float32"]),
        pytest.param("timm:mobilenetv3_small_050?size=64", ["x:[batch,3,64,64]:float32"],
                     ["logits:[batch,1000]:float32"], marks=slow),
        pytest.param("timm:vit_tiny_patch16_224?size=64&classes=7", ["x:[batch,3,64,64]:float32"],
                     ["logits:[batch,7]:float32"], marks=slow),
        pytest.param("timm:test_vit?task=embedding", ["x:[batch,3,160,160]:float32"],
                     ["features:[batch,64]:float32"], marks=slow),
        ("torchvision:squeezenet1_1?size=32&classes=7", ["x:[batch,3,32,32]:float32"],
         ["logits:[batch,7]:float32"]),
        pytest.param("torchvision:vit_b_16?size=32&classes=7", ["x:[batch,3,32,32]:float32"],
                     ["logits:[batch,7]:float32"], marks=slow),
        pytest.param("torchvision:googlenet?size=64&classes=7", ["x:[batch,3,64,64]:float32"],
                     ["logits:[batch,7]:float32"], marks=slow),
        pytest.param("torchvision:lraspp_mobilenet_v3_large?size=64&classes=4", ["x:[batch,3,64,64]:float32"],
                     ["out:[batch,4,64,64]:float32"], marks=slow),
        pytest.param("torchvision:r3d_18?size=32&classes=7", ["x:[batch,3,16,32,32]:float32"],
                     ["logits:[batch,7]:float32"], marks=slow),
        pytest.param("torchvision:ssdlite320_mobilenet_v3_large?classes=4", ["x:[batch,3,320,320]:float32"],
                     ["boxes:[batch,3234,4]:float32", "scores:[batch,3234,4]:float32"], marks=slow),
    ],
)  # fmt: skip
def test_a_name_becomes_onnx(spec: str, inputs: list[str], outputs: list[str] | None, tmp_path: Path) -> None:
    """The export compares the file with PyTorch; two loads of one seed are one model."""
    artifact, session = exported(f"{spec}&weights=random", tmp_path / "m.onnx")
    assert spelled(artifact)[0] == inputs
    assert outputs is None or spelled(artifact)[1] == outputs
    assert all(check.passed for check in artifact.manifest.checks)
    assert any("weights are random" in text for text in artifact.manifest.warnings)
    assert artifact.manifest.io is not None
    if "r3d" not in spec:
        said = preprocessing_of(artifact.manifest.io.inputs)
        assert said is not None
        assert said.source == spec.partition("?")[0]
    assert [one.name for one in session.get_inputs()] == [inputs[0].partition(":")[0]]
