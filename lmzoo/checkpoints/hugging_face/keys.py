"""Keys of `config.json` common to all families: keys without effect on hidden states, and keys with fixed values.

The base configuration class of transformers declares the keys without effect, in at least one version from 1 to 5.
"""

from __future__ import annotations

_LIBRARY = {
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "_output_attentions",
    "architectures", "attn_implementation", "chunk_size_feed_forward", "dtype", "gradient_checkpointing", "model_type",
    "name_or_path", "output_attentions", "output_hidden_states", "output_past", "return_dict", "tf_legacy_loss",
    "torch_dtype", "torchscript", "transformers_version", "use_bfloat16", "use_cache", "xla_device",
}  # fmt: skip
# The tensors show whether weights are tied, and cross-attention is an error.
_ARCHITECTURE = {"cross_attention_hidden_size", "tie_encoder_decoder", "tie_word_embeddings"}
_TOKENIZER = {
    "bos_token_id", "eos_token_id", "eos_token_ids", "pad_token_id", "prefix", "sep_token_id", "tokenizer_class",
}  # fmt: skip
_TASK = {
    "_num_labels", "classifier_dropout", "finetuning_task", "id2label", "label2id", "num_labels", "problem_type",
    "task_specific_params",
}  # fmt: skip
# Generation settings, which moved from `config.json` to `generation_config.json`.
GENERATION_KEYS = frozenset({
    "bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "diversity_penalty", "do_sample",
    "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty",
    "return_dict_in_generate", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
})  # fmt: skip

# Generation setting that changes texts and that lmzoo lacks -> the values without effect.
UNSUPPORTED_GENERATION: dict[str, tuple[object, ...]] = {
    "begin_suppress_tokens": (None, []),
    "constraints": (None, []),
    "diversity_penalty": (None, 0.0),
    "do_sample": (None, False),
    "early_stopping": (None, False),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "exponential_decay_length_penalty": (None,),
    "force_words_ids": (None, []),
    "forced_bos_token_id": (None,),
    "guidance_scale": (None, 1.0),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "no_repeat_ngram_size": (None, 0),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "sequence_bias": (None, {}, []),
    "stop_strings": (None, []),
    "suppress_tokens": (None, []),
}

HARMLESS_KEYS = frozenset({*_LIBRARY, *_ARCHITECTURE, *_TOKENIZER, *_TASK, *GENERATION_KEYS})

# Key that may change the hidden states -> the values without effect.
RESTRICTED_KEYS: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False, None),
    "auto_map": (None, {}),
    "is_decoder": (False, None),
    "is_encoder_decoder": (False, None),
    "ln_type": ("postln",),
    "per_layer_config": (None, {}),
    "position_embedding_type": ("absolute", None),
    "pruned_heads": ({}, None),
    "quantization_config": (None, {}),
}
