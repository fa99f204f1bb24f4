"""Folders of small transformers models with random weights, a tokenizer and processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from qcompile.model.sources.named.description import declare_torchvision_operators

WORDS = "the a cat dog house tree runs sleeps sees red blue small big and or in on under over not".split()
SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 2,
    "eos_token_id": 3,
}  # fmt: skip
VIT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
SPEECH: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "vocab_size": 8, "conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2],
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2,
    "pad_token_id": 0,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 40, "pad_token_id": 0,
    "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
WHISPER: dict[str, Any] = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 16,
    "max_source_positions": 16, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "classifier_proj_size": 16,
}  # fmt: skip
PAIR = {"text_config": {**SMALL, "projection_dim": 16}, "vision_config": {**VIT, "projection_dim": 16},
        "projection_dim": 16}  # fmt: skip
IMAGES: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 32, "width": 32},
    "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
    "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4],
}  # fmt: skip
SOUNDS: dict[str, Any] = {
    "feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 16000, "do_normalize": True,
    "feature_size": 1, "padding_value": 0.0, "return_attention_mask": False,
}  # fmt: skip
LETTERS = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, "a": 5, "b": 6, "c": 7}


def make_folder(path: Path, family: str, model: str, options: dict[str, Any]) -> Path:
    """Write a model of transformers with random weights, by the names of its classes."""
    declare_torchvision_operators()
    import transformers

    config = getattr(transformers, f"{family}Config")(**options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        getattr(transformers, model)(config).save_pretrained(path)
    return path


def add_tokenizer(path: Path, *, inputs: tuple[str, ...] = ()) -> None:
    """Write a WordPiece tokenizer of a few words, as BERT's."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: index for index, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=32,
        model_input_names=list(inputs or ("input_ids", "token_type_ids", "attention_mask")), **named,
    )  # fmt: skip
    fast.save_pretrained(path)


def add_json(path: Path, name: str, values: dict[str, Any]) -> None:
    """Write a processor's file."""
    (path / name).write_text(json.dumps(values))


def _with(make: Any, *more: Any) -> Any:
    def made(path: Path) -> Path:
        folder = make(path)
        for one in more:
            one(folder)
        return Path(folder)

    return made


def _model(family: str, model: str, options: dict[str, Any], *more: Any) -> Any:
    return _with(lambda path: make_folder(path, family, model, options), *more)


def _json(name: str, values: dict[str, Any]) -> Any:
    return lambda path: add_json(path, name, values)


FOLDERS: dict[str, Any] = {
    "bert": _model("Bert", "BertForSequenceClassification", {**SMALL, "num_labels": 3}, add_tokenizer),
    "encoder": _model("Bert", "BertModel", SMALL),
    "masked": _model("Bert", "BertForMaskedLM", SMALL),
    "gpt2": _model("GPT2", "GPT2LMHeadModel", GPT2),
    "llama": _model("Llama", "LlamaForCausalLM", {**SMALL, "num_key_value_heads": 1}),
    "roberta": _model(
        "Roberta", "RobertaForTokenClassification", {**SMALL, "pad_token_id": 1, "type_vocab_size": 1},
        lambda path: add_tokenizer(path, inputs=("input_ids", "attention_mask"))),
    "answers": _model(
        "DistilBert", "DistilBertForQuestionAnswering",
        {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64,
         "max_position_embeddings": 40}),
    "t5": _model(
        "T5", "T5ForConditionalGeneration",
        {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 2,
         "decoder_start_token_id": 0}),
    "vit": _model(
        "ViT", "ViTForImageClassification",
        {**VIT, "id2label": {0: "cat", 1: "dog"}, "label2id": {"cat": 0, "dog": 1}},
        _json("preprocessor_config.json", IMAGES)),
    "resnet": _model(
        "ResNet", "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic",
         "num_labels": 5}),
    "segformer": _model(
        "Segformer", "SegformerForSemanticSegmentation",
        {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16,
         "num_attention_heads": [1, 2, 2, 4], "num_labels": 4, "image_size": 64}),
    "yolos": _model(
        "Yolos", "YolosForObjectDetection",
        {**VIT, "image_size": [32, 32], "num_detection_tokens": 5, "num_labels": 3}),
    "speech": _model(
        "Wav2Vec2", "Wav2Vec2ForCTC", SPEECH, _json("preprocessor_config.json", SOUNDS),
        _json("vocab.json", LETTERS), _json("tokenizer_config.json", {"word_delimiter_token": "|"})),
    "sounds": _model("Wav2Vec2", "Wav2Vec2ForSequenceClassification", {**SPEECH, "num_labels": 4}),
    "spectrogram": _model(
        "AST", "ASTForAudioClassification",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
         "patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 64, "num_mel_bins": 32,
         "num_labels": 4}),
    "clip": _model("CLIP", "CLIPModel", PAIR),
    "whisper": _model("Whisper", "WhisperForConditionalGeneration", WHISPER),
    "whisper_sounds": _model("Whisper", "WhisperForAudioClassification", WHISPER),
}  # fmt: skip
"""Name to what makes the folder of a model."""
