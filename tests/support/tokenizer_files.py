"""A small tokenizer saved as transformers does."""

from __future__ import annotations

from pathlib import Path

WORDS = "the cat sat on a mat dog ran far away and back again now".split()


def save_tokenizer(folder: Path, *, side: str = "right", pad: bool = True) -> Path:
    """Write a WordPiece tokenizer: [CLS] a [SEP] b [SEP]; unknown words become their letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    letters = [mark + chr(code) for code in range(97, 123) for mark in ("", "##")]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS, *letters])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    known = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "eos_token": "[SEP]"}
    if pad:
        known["pad_token"] = "[PAD]"
    PreTrainedTokenizerFast(tokenizer_object=made, padding_side=side, **known).save_pretrained(folder)
    return folder
