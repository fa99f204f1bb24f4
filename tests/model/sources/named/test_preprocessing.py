"""What named models say of images is what their packages do, to the last bit.

What an export says of how samples become inputs reaches every artifact that is made of it.

Detectors of torchvision: the boxes of all anchors, among which are those that torchvision chooses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from named_models import FOLDERS, PAIR, VIT
from PIL import Image
from written_models import model_of

from qcompile import build, calibrate, quantize, simplify
from qcompile.compiler.export import export
from qcompile.core.artifact import load_artifact
from qcompile.core.progress import quiet
from qcompile.data.images import to_input_array
from qcompile.data.processors import load_processor
from qcompile.errors import DataError, InvalidOption
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.source_paths import map_folder
from qcompile.model.sessions.random_input import random_feeds
from qcompile.model.sources.example import shapes_at, traced_extents
from qcompile.model.sources.load import describe_named, find_preprocessing, load_torch
from qcompile.model.sources.named.description import declare_torchvision_operators, suppress
from qcompile.model.sources.preprocessing import (
    PRESETS,
    AudioPreprocessing,
    ImagePreprocessing,
    Preprocessing,
    TextPreprocessing,
    preprocessing_of,
)
from qcompile.model.sources.source import parse_source

SIZES = [(100, 75), (300, 400)]


def picture(width: int, height: int) -> Image.Image:
    random = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    return Image.fromarray(random).resize((width, height), Image.Resampling.BICUBIC)


def said_of(spec: str, name: str = "") -> Any:
    inputs = describe_named(parse_source(spec))[0].inputs
    return preprocessing_of([one for one in inputs if name in (one.name, "")])


def transform_of(spec: str) -> Any:
    """What the model's package does to an image."""
    package, _, name = spec.partition(":")
    if package == "torchvision":
        from torchvision.models import get_model_weights

        return get_model_weights(name).DEFAULT.transforms()  # type: ignore[attr-defined]
    from timm import get_pretrained_cfg
    from timm.data import create_transform, resolve_data_config

    return create_transform(**resolve_data_config({}, pretrained_cfg=get_pretrained_cfg(name).to_dict()))


TIMM = "resnet18 convnext_tiny vit_tiny_patch16_224 inception_v3 mobilenetv3_small_050"
TORCHVISION = "resnet50 vit_b_16 efficientnet_b0 inception_v3"


@pytest.mark.parametrize(
    ("spec", "first"),
    [*((f"timm:{name}", "n01440764") for name in TIMM.split()),
     *((f"torchvision:{name}", "tench") for name in TORCHVISION.split())],
)  # fmt: skip
def test_images_are_prepared_as_by_the_package(spec: str, first: str) -> None:
    preprocessing, theirs = said_of(spec), transform_of(spec)
    for size in SIZES:
        np.testing.assert_array_equal(
            to_input_array(picture(*size), preprocessing), theirs(picture(*size)).numpy()
        )
    assert preprocessing.classes[0] == first


@pytest.mark.parametrize(
    ("family", "head", "options", "processor"),
    [
        ("ViT", "ForImageClassification", VIT, {}),
        ("DeiT", "ForImageClassification", VIT, {"crop_size": {"height": 32, "width": 32}, "size": 40}),
        ("ConvNext", "ForImageClassification", {"hidden_sizes": [8], "depths": [1]},
         {"size": {"shortest_edge": 224}}),
        ("ConvNext", "ForImageClassification", {"hidden_sizes": [8], "depths": [1]}, {}),
        ("MobileNetV2", "ForImageClassification", {}, {}),
        ("EfficientNet", "ForImageClassification", {}, {}),
        ("Levit", "ForImageClassification", {}, {}),
        ("Segformer", "ForSemanticSegmentation", {}, {}),
        ("CLIP", "Model", PAIR, {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}),
    ],
)  # fmt: skip
def test_transformers(
    family: str, head: str, options: dict[str, Any], processor: dict[str, Any], tmp_path: Path
) -> None:
    declare_torchvision_operators()
    import transformers

    with quiet():
        config = getattr(transformers, f"{family}Config")(**options)
        config.architectures = [f"{family}{head}"]
        config.save_pretrained(tmp_path)
        getattr(transformers, f"{family}ImageProcessor")(**processor).save_pretrained(tmp_path)
        theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    said = said_of(f"hf:{tmp_path}", "pixel_values")
    assert isinstance(said, ImagePreprocessing)
    for size in SIZES:
        expected = theirs(picture(*size), return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(to_input_array(picture(*size), said), expected, atol=2e-6)


def test_what_cannot_be_told_is_a_note(tmp_path: Path) -> None:
    declare_torchvision_operators()
    import transformers

    config = transformers.MobileViTConfig()
    config.architectures = ["MobileViTForImageClassification"]
    config.save_pretrained(tmp_path)
    transformers.MobileViTImageProcessor().save_pretrained(tmp_path)
    described, _ = describe_named(parse_source(f"hf:{tmp_path}"))
    assert preprocessing_of(described.inputs) is None
    assert "do_flip_channel_order" in described.notes[0]


def test_texts_and_sounds(folder_of: Any) -> None:
    text = said_of(f"hf:{folder_of('bert')}")
    assert isinstance(text, TextPreprocessing)
    assert text.inputs == ("input_ids", "token_type_ids", "attention_mask")
    assert (text.max_length, text.task) == (32, "text-classification")  # the tokenizer's, not the model's 40
    sound = said_of(f"hf:{folder_of('speech')}")
    assert isinstance(sound, AudioPreprocessing)
    assert (sound.inputs, sound.rate_hz, sound.blank) == (("input_values",), 16000, 0)
    assert sound.vocabulary == ("", "", "", "", " ", "a", "b", "c")


def test_ranges_and_values_suit_the_model(folder_of: Any) -> None:
    described, _ = describe_named(parse_source(f"hf:{folder_of('roberta')}"))
    ids = described.inputs[0]
    [extents] = ids.extents
    assert (extents.axis, extents.minimum, extents.maximum) == (1, 1, 38), "40 less padding's 2"
    shapes = shapes_at(described.inputs, traced_extents(described.inputs)[0])
    feeds = random_feeds(described.inputs, shapes=shapes, domains=described.domains)
    assert feeds["input_ids"].max() < 64
    assert not np.isin(feeds["input_ids"], [1, 2, 3]).any(), "padding, begin and end are no words"
    assert feeds["attention_mask"].tolist() == [[1] * 12 + [0] * 4] * 2


def test_another_size_keeps_the_share_of_the_image_and_a_name_is_a_preprocessing() -> None:
    said = said_of("torchvision:resnet50?size=112")
    assert (said.height, said.width, said.resize) == (112, 112, (116,)), "232 of 224, as 116 of 112"
    assert said_of("torchvision:resnet50?size=112x128").resize == (128,), "the shorter side covers the crop"
    said = find_preprocessing("timm:resnet18")
    assert isinstance(said, ImagePreprocessing)
    assert (said.height, said.interpolation, said.resize) == (224, "bicubic", (235,))


def test_a_tokenizer_of_a_folder_that_moved_is_named_as_there_and_found_here(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    FOLDERS["bert"](there / "net")
    said = find_preprocessing(f"hf:{there}/net")
    assert isinstance(said, TextPreprocessing)
    assert said.tokenizer == f"{there}/net"
    there.rename(here)
    with pytest.raises(DataError, match="cannot be loaded"):
        load_processor("AutoTokenizer", said.tokenizer, "tokenizer")
    with map_folder(str(there), here):
        assert find_preprocessing(f"hf:{here}/net") == said
        assert load_processor("AutoTokenizer", said.tokenizer, "tokenizer")("the")["input_ids"]


def write_convolutions(path: Path) -> Path:
    """Two convolutions over images [batch, 3, 16, 16], and a product: what every target takes."""
    text = """(float[batch, 3, 16, 16] image) => (float[batch, 4] logits) {
        [first] c0 = Conv <pads = [1, 1, 1, 1]> (image, w0, b0)  [relu] r0 = Relu (c0)
        [second] c1 = Conv <pads = [1, 1, 1, 1]> (r0, w1, b1)
        [pool] p = GlobalAveragePool (c1)  [flat] f = Flatten (p)  [head] logits = MatMul (f, w2) }"""
    shapes = {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 8, 3, 3), "b1": (8,), "w2": (8, 4)}
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal(shape, np.float32) / 4 for name, shape in shapes.items()}
    onnx.save(model_of(text, **weights), path)
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file given as MODEL, with `preprocessing` imagenet."""
    folder = tmp_path_factory.mktemp("road")
    write_convolutions(folder / "given.onnx")
    export(str(folder / "given.onnx"), folder / "model.onnx", preprocessing="imagenet")
    np.savez(
        folder / "samples.npz", image=np.random.default_rng(1).standard_normal((4, 3, 16, 16), np.float32)
    )
    return folder / "model.onnx"


def noted(path: Path) -> Preprocessing | None:
    """What a file or its manifest says, which must be one."""
    manifest = load_artifact(path).manifest
    assert manifest.io is not None
    said = preprocessing_of(manifest.io.inputs)
    if path.suffix == ".onnx":
        assert preprocessing_of(model_io(onnx.load(path)).inputs) == said
    return said


def test_a_name_is_fitted_to_the_input_of_an_onnx_file(exported: Path) -> None:
    said = noted(exported)
    assert isinstance(said, ImagePreprocessing)
    usual = PRESETS["imagenet"]
    assert isinstance(usual, ImagePreprocessing)
    assert (said.input, said.height, said.width, said.resize) == ("image", 16, 16, (18,)), "256 of 224"
    assert (said.mean, said.std) == (usual.mean, usual.std)


def test_a_module_of_pytorch_gets_one_too(tmp_path: Path) -> None:
    path, inputs = tmp_path / "m.onnx", ["input:[batch,3,16,16]"]
    export(torch.nn.Conv2d(3, 4, 3), path, inputs=inputs, preprocessing="imagenet")
    said = noted(path)
    assert isinstance(said, ImagePreprocessing)
    assert (said.input, said.height, said.resize) == ("input", 16, (18,))


def test_graphs_keep_it(exported: Path) -> None:
    folder, samples = exported.parent, str(exported.parent / "samples.npz")
    simplify(exported, folder / "simple.onnx")
    calibrate(exported, samples, folder / "m.ranges")
    quantize(exported, folder / "int8.onnx", ranges=folder / "m.ranges")
    quantize(exported, folder / "dynamic.onnx", mode="dynamic")
    quantize(exported, folder / "half.onnx", precision="fp16")
    for name in ("simple", "int8", "dynamic", "half"):
        assert noted(folder / f"{name}.onnx") == noted(exported), name
    export(str(folder / "int8.onnx"), folder / "again.onnx")
    assert noted(folder / "again.onnx") == noted(exported)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("onnxruntime", {}),
        ("onnxruntime", {"precision": "int8", "mode": "dynamic"}),
        ("openvino", {}),
        ("tensorrt-rtx", {"gpus": ("sm86",)}),
        ("tensorrt-rtx", {"gpus": ("sm86",), "precision": "fp16"}),
    ],
)
def test_artifacts_keep_it(exported: Path, target: str, options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip({"openvino": "openvino", "tensorrt-rtx": "tensorrt_rtx"}.get(target, "onnxruntime"))
    suffix = ".engine" if target == "tensorrt-rtx" else ".onnx"
    shapes = {"opt_shapes": ("image:2x3x16x16",), "min_shapes": ("image:1x3x16x16",),
              "max_shapes": ("image:4x3x16x16",)} if suffix == ".engine" else {}  # fmt: skip
    path = tmp_path / f"built{suffix}"
    build(exported, path, target=target, **options, **shapes)  # type: ignore[arg-type]
    manifest = load_artifact(path).manifest
    assert manifest.io is not None
    assert preprocessing_of(manifest.io.inputs) == noted(exported)


def test_a_file_and_a_wrong_name_are_read_and_refused(tmp_path: Path) -> None:
    write_convolutions(tmp_path / "m.onnx")
    (tmp_path / "own.json").write_text(
        '{"kind": "image", "height": 16, "width": 16, "mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}'
    )
    export(str(tmp_path / "m.onnx"), tmp_path / "out.onnx", preprocessing=str(tmp_path / "own.json"))
    said = noted(tmp_path / "out.onnx")
    assert isinstance(said, ImagePreprocessing)
    assert (said.input, said.mean) == ("image", (0.1, 0.2, 0.3))
    (tmp_path / "text.json").write_text('{"kind": "text", "tokenizer": "t", "inputs": ["input_ids"]}')
    for name, message in (("imagnet", "imagenet"), (str(tmp_path / "text.json"), "one of input_ids")):
        with pytest.raises(InvalidOption, match=message):
            export(str(tmp_path / "m.onnx"), tmp_path / "no.onnx", preprocessing=name)
    assert not (tmp_path / "no.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        "torchvision:ssdlite320_mobilenet_v3_large?weights=random&classes=4",
        "torchvision:retinanet_resnet50_fpn?weights=random&classes=4&size=128x160",
        "torchvision:fcos_resnet50_fpn?weights=random&classes=4&size=128x160",
    ],
)
def test_what_torchvision_chooses_is_among_the_boxes(spec: str) -> None:
    loaded = load_torch(parse_source(spec))
    detector = loaded.module.module
    height, width = map(int, loaded.inputs[0].shape[2:])
    detector.transform.min_size, detector.transform.max_size = (height,), width
    detector.score_thresh, detector.topk_candidates, detector.detections_per_img = -1.0, 10, 10
    image = torch.rand(3, height, width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs = detector([image])[0]
        ours = loaded.module(detector.transform([image])[0].tensors)
    boxes, scores = ours["boxes"][0], ours["scores"][0]
    for box, score, label in zip(theirs["boxes"], theirs["scores"], theirs["labels"], strict=True):
        near = (boxes - box).abs().amax(1) + 100 * (scores[:, label] - score).abs()
        assert near.min() < 1e-2


def test_detectors_of_two_stages_are_refused() -> None:
    with pytest.raises(InvalidOption, match="between two stages") as caught:
        load_torch(parse_source("torchvision:fasterrcnn_resnet50_fpn?weights=random"))
    assert "retinanet_resnet50_fpn" in caught.value.message


def test_suppression_keeps_the_best_of_boxes_that_overlap() -> None:
    boxes = torch.tensor([[0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 5], [20, 20, 30, 30.0]])
    scores = torch.tensor([0.5, 0.9, 0.4, 0.1])
    assert suppress(boxes, scores, 0.5).tolist() == [1, 3], "overlaps of 0.9 and of 5/9 with the best"
    assert suppress(boxes, scores, 0.6).tolist() == [1, 2, 3]
    assert suppress(boxes[:0], scores[:0], 0.5).tolist() == []


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchvision_is_scripted_where_its_operators_are_declared() -> None:
    """As detectors of other libraries do on import."""
    declare_torchvision_operators()
    import torch
    from torchvision.ops import box_iou, nms

    @torch.jit.script
    def kept(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return nms(boxes, scores, 0.5)

    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 1.9], [3, 3, 4, 4]])
    assert float(box_iou(boxes, boxes)[0, 1]) > 0.5
    assert kept(boxes, torch.tensor([0.5, 0.9, 0.1])).tolist() == [1, 2]
