"""Decoders, and encoders with decoders, of transformers: one step over a whole text, without a cache."""

from __future__ import annotations

from typing import Any

from architecture import Input, integers, padded_mask, text
from transformers_models import SMALL, row

_DECODER = {**SMALL, "use_cache": False}
_GROUPED = {**_DECODER, "num_key_value_heads": 2}
_DECODERS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    # name, class without Config, model, options
    ("gpt2", "GPT2", "GPT2LMHeadModel",
     {**_DECODER, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    ("gpt_neo", "GPTNeo", "GPTNeoForCausalLM",
     {**_DECODER, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8}),
    ("gpt_neox", "GPTNeoX", "GPTNeoXForCausalLM", _DECODER),
    ("gptj", "GPTJ", "GPTJForCausalLM",
     {**_DECODER, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 8}),
    ("opt", "OPT", "OPTForCausalLM", {**_DECODER, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    ("bloom", "Bloom", "BloomForCausalLM", {**_DECODER, "n_layer": 2, "n_head": 4}),
    ("llama", "Llama", "LlamaForCausalLM", _GROUPED),
    ("mistral", "Mistral", "MistralForCausalLM", {**_GROUPED, "sliding_window": 8}),
    ("mixtral", "Mixtral", "MixtralForCausalLM", {**_GROUPED, "num_local_experts": 4}),
    ("qwen2", "Qwen2", "Qwen2ForCausalLM", _GROUPED),
    ("qwen3", "Qwen3", "Qwen3ForCausalLM", {**_GROUPED, "head_dim": 16}),
    ("gemma", "Gemma", "GemmaForCausalLM", {**_GROUPED, "head_dim": 16}),
    ("gemma2", "Gemma2", "Gemma2ForCausalLM", {**_GROUPED, "head_dim": 16, "sliding_window": 8}),
    ("phi", "Phi", "PhiForCausalLM", _DECODER),
    ("phi3", "Phi3", "Phi3ForCausalLM", _GROUPED),
    ("falcon", "Falcon", "FalconForCausalLM", _DECODER),
    ("stablelm", "StableLm", "StableLmForCausalLM", _GROUPED),
    ("olmo2", "Olmo2", "Olmo2ForCausalLM", _GROUPED),
    ("granite", "Granite", "GraniteForCausalLM", _GROUPED),
    ("cohere", "Cohere", "CohereForCausalLM", _GROUPED),
    ("starcoder2", "Starcoder2", "Starcoder2ForCausalLM", _GROUPED),
    ("smollm3", "SmolLM3", "SmolLM3ForCausalLM", _GROUPED),
    ("codegen", "CodeGen", "CodeGenForCausalLM",
     {**_DECODER, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_ctx": 64, "rotary_dim": 8}),
    ("biogpt", "BioGpt", "BioGptForCausalLM", _DECODER),
    ("mamba", "Mamba", "MambaForCausalLM", {**_DECODER, "state_size": 8, "time_step_rank": 4}),
)  # fmt: skip
_BOTH = (
    *text(),
    Input("decoder_input_ids", ("batch", "target"), integers(200, least=4)),
    Input("decoder_attention_mask", ("batch", "target"), padded_mask),
)
_SEQ2SEQ = {
    **_DECODER, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "decoder_start_token_id": 2,
}  # fmt: skip
_T5 = {"vocab_size": 200, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
       "use_cache": False, "decoder_start_token_id": 0}  # fmt: skip
_TRANSLATORS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("t5", "T5", "T5ForConditionalGeneration", _T5),
    ("mt5", "MT5", "MT5ForConditionalGeneration", _T5),
    ("longt5", "LongT5", "LongT5ForConditionalGeneration", {**_T5, "local_radius": 4}),
    ("bart", "Bart", "BartForConditionalGeneration", _SEQ2SEQ),
    ("mbart", "MBart", "MBartForConditionalGeneration", _SEQ2SEQ),
    ("pegasus", "Pegasus", "PegasusForConditionalGeneration", _SEQ2SEQ),
    ("marian", "Marian", "MarianMTModel", _SEQ2SEQ),
    ("m2m100", "M2M100", "M2M100ForConditionalGeneration", _SEQ2SEQ),
    ("blenderbot", "Blenderbot", "BlenderbotForConditionalGeneration", _SEQ2SEQ),
    ("prophetnet", "ProphetNet", "ProphetNetForConditionalGeneration",
     {"vocab_size": 200, "hidden_size": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "use_cache": False,
      "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
      "num_decoder_attention_heads": 4, "max_position_embeddings": 64}),
)  # fmt: skip

ARCHITECTURES = (
    *(
        row(name, "text generation", config, model, text(), options)
        for name, config, model, options in _DECODERS
    ),
    *(
        row(name, "translation", config, model, _BOTH, options)
        for name, config, model, options in _TRANSLATORS
    ),
)
