"""Text encoders of transformers that classify, and some that do not."""

from __future__ import annotations

from typing import Any

from architecture import Input, boxes, integers, text
from transformers_models import SMALL, row

_CLASSIFIERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    # name, class without Config and ForSequenceClassification, options beside SMALL
    ("bert", "Bert", {}),
    ("roberta", "Roberta", {}),
    ("roberta_prelayernorm", "RobertaPreLayerNorm", {}),
    ("xlm_roberta", "XLMRoberta", {}),
    ("xlm_roberta_xl", "XLMRobertaXL", {}),
    ("camembert", "Camembert", {}),
    ("distilbert", "DistilBert", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}),
    ("albert", "Albert", {"embedding_size": 32}),
    ("electra", "Electra", {"embedding_size": 32}),
    ("deberta", "Deberta", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    ("deberta_v2", "DebertaV2", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"],
                                 "position_buckets": 16, "conv_kernel_size": 3}),
    ("mpnet", "MPNet", {}),
    ("convbert", "ConvBert", {"embedding_size": 32}),
    ("squeezebert", "SqueezeBert", {"embedding_size": 64}),
    ("mobilebert", "MobileBert", {"embedding_size": 32, "intra_bottleneck_size": 32, "intermediate_size": 64}),
    ("megatron_bert", "MegatronBert", {}),
    ("ernie", "Ernie", {}),
    ("data2vec_text", "Data2VecText", {}),
    ("rembert", "RemBert", {"input_embedding_size": 32, "output_embedding_size": 32}),
    ("roformer", "RoFormer", {}),
    ("big_bird", "BigBird", {"attention_type": "original_full"}),
    ("funnel", "Funnel", {"d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128, "block_sizes": [1, 1],
                          "num_hidden_layers": None}),
    ("xlm", "XLM", {"emb_dim": 64, "n_layers": 2, "n_heads": 4, "n_words": 200}),
    ("flaubert", "Flaubert", {"emb_dim": 64, "n_layers": 2, "n_heads": 4, "n_words": 200}),
    ("xlnet", "XLNet", {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128,
                         "max_position_embeddings": None}),
    ("ibert", "IBert", {}),
    ("modernbert", "ModernBert", {"num_hidden_layers": 3, "local_attention": 8, "cls_token_id": 1,
                                  "sep_token_id": 2}),
    ("esm", "Esm", {"position_embedding_type": "rotary", "mask_token_id": 3}),
    ("yoso", "Yoso", {"use_expectation": True}),
    ("luke", "Luke", {"entity_vocab_size": 20, "entity_emb_size": 32}),
    ("gpt2_classifier", "GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False}),
    ("llama_classifier", "Llama", {"num_key_value_heads": 2, "use_cache": False}),
)  # fmt: skip
_UNMASKED = (Input("input_ids", ("batch", "length"), integers(200, least=4)),)
_BOXES = (Input("bbox", ("batch", "length", 4), boxes),)
_LAYOUT = {**SMALL, "max_2d_position_embeddings": 1024}


def _classifier(name: str, family: str, options: dict[str, Any]) -> Any:
    model = f"{family}ForSequenceClassification"
    return row(
        name,
        "classifier",
        family,
        model,
        text(),
        {name: value for name, value in {**SMALL, **options}.items() if value is not None},
    )


ARCHITECTURES = (
    *(_classifier(*one) for one in _CLASSIFIERS),
    row("fnet", "classifier", "FNet", "FNetForSequenceClassification", _UNMASKED, SMALL),
    row("longformer", "classifier", "Longformer", "LongformerForSequenceClassification", text(axis=32),
        {**SMALL, "attention_window": [8, 8]}),
    row("canine", "classifier", "Canine", "CanineForSequenceClassification", text(axis=32),
        {**SMALL, "downsampling_rate": 4, "num_hash_buckets": 64, "local_transformer_stride": 16,
         "upsampling_kernel_size": 4, "bos_token_id": 57344, "eos_token_id": 57345}),
    row("layoutlm", "classifier", "LayoutLM", "LayoutLMForSequenceClassification", (*text(), *_BOXES), _LAYOUT),
    row("lilt", "classifier", "Lilt", "LiltForSequenceClassification", (*text(), *_BOXES),
        {**_LAYOUT, "hidden_size": 96}),
    row("bert_tokens", "token classification", "Bert", "BertForTokenClassification", text(), SMALL),
    row("bert_masked", "masked tokens", "Bert", "BertForMaskedLM", text(), SMALL),
    row("bert_answers", "question answering", "Bert", "BertForQuestionAnswering", text(), {**SMALL, "num_labels": 2}),
    row("dpr", "embedding", "DPR", "DPRQuestionEncoder", text(), {**SMALL, "projection_dim": 32}),
    row("clip_text", "embedding", "CLIPText", "CLIPTextModelWithProjection", text(),
        {**SMALL, "projection_dim": 32}),
    row("t5_encoder", "encoder", "T5", "T5EncoderModel", text(),
        {"vocab_size": 200, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}),
)  # fmt: skip
