"""Models of transformers for sounds and for series."""

from __future__ import annotations

from typing import Any

from architecture import Input, integers, normal, ones, waveform
from transformers_models import row

_TIME = {"time": (1600, 3200, 6400)}
_SOUND = (Input("input_values", ("batch", "time"), waveform),)
_SPEECH: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "vocab_size": 32, "num_labels": 5, "conv_dim": [32, 32, 32], "conv_kernel": [10, 3, 3],
    "conv_stride": [5, 4, 4], "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 32, "num_feat_extract_layers": 3, "pad_token_id": 0,
}  # fmt: skip
_CTC = "speech recognition"
_WHISPER: dict[str, Any] = {
    "vocab_size": 200, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "num_mel_bins": 16,
    "max_source_positions": 32, "max_target_positions": 32, "use_cache": False, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": None,
    "begin_suppress_tokens": None, "num_labels": 5, "classifier_proj_size": 32,
}  # fmt: skip
_MEL = (Input("input_features", ("batch", 16, 64), normal),)
_TOKENS = (Input("decoder_input_ids", ("batch", "target"), integers(200, least=4)),)
_FRAMES = (Input("input_features", ("batch", "time", 16), normal),)

ARCHITECTURES = (
    row("wav2vec2", _CTC, "Wav2Vec2", "Wav2Vec2ForCTC", _SOUND, _SPEECH, axes=_TIME),
    row("wav2vec2_layernorm", _CTC, "Wav2Vec2", "Wav2Vec2ForCTC", _SOUND,
        {**_SPEECH, "feat_extract_norm": "layer", "do_stable_layer_norm": True}, axes=_TIME),
    row("hubert", _CTC, "Hubert", "HubertForCTC", _SOUND, _SPEECH, axes=_TIME),
    row("wavlm", _CTC, "WavLM", "WavLMForCTC", _SOUND, {**_SPEECH, "num_buckets": 32}, axes=_TIME),
    row("unispeech", _CTC, "UniSpeech", "UniSpeechForCTC", _SOUND, {**_SPEECH, "num_ctc_classes": 32}, axes=_TIME),
    row("data2vec_audio", _CTC, "Data2VecAudio", "Data2VecAudioForCTC", _SOUND, _SPEECH, axes=_TIME),
    row("sew", _CTC, "SEW", "SEWForCTC", _SOUND, {**_SPEECH, "squeeze_factor": 2}, axes=_TIME),
    row("wav2vec2_classifier", "classifier", "Wav2Vec2", "Wav2Vec2ForSequenceClassification", _SOUND, _SPEECH,
        axes=_TIME),
    row("hubert_classifier", "classifier", "Hubert", "HubertForSequenceClassification", _SOUND, _SPEECH,
        axes=_TIME),
    row("wav2vec2_bert", _CTC, "Wav2Vec2Bert", "Wav2Vec2BertForCTC", _FRAMES,
        {**_SPEECH, "feature_projection_input_dim": 16, "conv_depthwise_kernel_size": 7}),
    row("whisper", _CTC, "Whisper", "WhisperForConditionalGeneration", (*_MEL, *_TOKENS), _WHISPER),
    row("whisper_classifier", "classifier", "Whisper", "WhisperForAudioClassification", _MEL, _WHISPER),
    row("ast", "classifier", "AST", "ASTForAudioClassification",
        (Input("input_values", ("batch", 64, 32), normal),),
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
         "patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 64, "num_mel_bins": 32,
         "num_labels": 5}),
    row("speech_to_text", _CTC, "Speech2Text", "Speech2TextForConditionalGeneration",
        (Input("input_features", ("batch", "time", 16), normal), Input("attention_mask", ("batch", "time"), ones),
         *_TOKENS),
        {**_WHISPER, "input_feat_per_channel": 16, "conv_channels": 32, "max_source_positions": 64}),
    row("clap_audio", "embedding", "ClapAudio", "ClapAudioModelWithProjection",
        (Input("input_features", ("batch", 1, 256, 16), normal),),
        {"spec_size": 64, "num_mel_bins": 16, "patch_size": 4, "patch_stride": [4, 4], "patch_embeds_hidden_size": 16,
         "depths": [2, 2], "num_attention_heads": [2, 4], "hidden_size": 32, "window_size": 4,
         "projection_dim": 32, "enable_fusion": False}),
    row("hifigan", "vocoder", "SpeechT5HifiGan", "SpeechT5HifiGan",
        (Input("spectrogram", ("batch", "time", 16), normal),),
        {"model_in_dim": 16, "upsample_initial_channel": 32, "upsample_rates": [4, 4],
         "upsample_kernel_sizes": [8, 8], "resblock_kernel_sizes": [3, 7],
         "resblock_dilation_sizes": [[1, 3], [1, 3]]}),
    row("dac", "audio codec", "Dac", "DacModel", (Input("input_values", ("batch", 1, 1024), waveform),),
        {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "decoder_hidden_size": 32,
         "upsampling_ratios": [4, 2], "n_codebooks": 2, "codebook_size": 32, "codebook_dim": 4}),
    row("patchtst", "forecasting", "PatchTST", "PatchTSTForPrediction",
        (Input("past_values", ("batch", 32, 3), normal),),
        {"num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8, "d_model": 32,
         "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64, "prediction_length": 8, "loss": "mse",
         "scaling": "std"}),
    row("patchtsmixer", "forecasting", "PatchTSMixer", "PatchTSMixerForPrediction",
        (Input("past_values", ("batch", 32, 3), normal),),
        {"num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8, "d_model": 32,
         "num_layers": 2, "prediction_length": 8, "loss": "mse", "scaling": "std"}),
)  # fmt: skip
