"""KerasHub's calls and lmzoo's: the rows of the tables in `docs/coming_from/keras_hub.md`.

To add a row, add a `Call` and run `python -m tests.coming_from.calls`. `test_keras_hub_calls.py` runs both sides and
defines names such as `classifier`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.coming_from.calls import Call
from tests.reference.weights import padded_batch, run, to_numpy

Values = tuple[Any, Any]

# === Comparisons ===


def hidden_states(theirs: Any, ours: Any) -> Values:
    """Return the hidden states of real tokens."""
    batch = padded_batch(lengths=(11, 7))
    real = batch["padding_mask"] > 0
    their_outputs, our_outputs = (run(model, {name: batch[name] for name in model.input}) for model in (theirs, ours))
    return their_outputs["sequence_output"][real], our_outputs["sequence_output"][real]


def logits(theirs: Any, ours: Any) -> Values:
    """Return the outputs of tasks for token features."""
    batch = {**padded_batch(lengths=(11, 7), width=11), "mask_positions": np.array([[3, 5], [1, 6]], "int32")}
    real = batch["padding_mask"] > 0
    their_outputs, our_outputs = (run(model, {name: batch[name] for name in model.input}) for model in (theirs, ours))
    return (
        (their_outputs[real], our_outputs[real])
        if their_outputs.shape[:2] == real.shape
        else (their_outputs, our_outputs)
    )


def sizes(theirs: Any, ours: Any) -> Values:
    """Return the numbers of parameters."""
    return theirs.count_params(), ours.count_params()


def dtypes(theirs: Any, ours: Any) -> Values:
    """Return the types that models compute in."""
    return theirs.compute_dtype, ours.compute_dtype


def adapters(theirs: Any, ours: Any) -> Values:
    """Return the numbers of adapters among trained variables."""
    their_count, our_count = (sum("lora" in variable.path for variable in variables) for variables in (theirs, ours))
    return their_count or "no adapters", our_count


def vocabularies(theirs: Any, ours: Any) -> Values:
    """Return the tokens of tokenizers."""
    return list(theirs.get_vocabulary()), list(ours.vocabulary)


def real_tokens(theirs: Any, ours: Any) -> Values:
    """Return features without padding."""
    unpadded = []
    for features in (theirs, ours):
        arrays = {name: np.asarray(value) for name, value in features.items()}
        real = arrays["padding_mask"].astype(bool)
        unpadded.append({name: value[real] for name, value in arrays.items()})
    return unpadded[0], unpadded[1]


def lists(theirs: Any, ours: Any) -> Values:
    """Return ragged tensors and lists of lists as lists of arrays."""
    return [np.asarray(row) for row in theirs], [np.asarray(row) for row in ours]


def log_probabilities(theirs: Any, ours: Any) -> Values:
    """Return the log-probabilities of the tokens of texts, of losses and of scores."""
    values = [np.array([token["log_probability"] for token in text]) for text in ours]
    return [-row[: len(text)] for row, text in zip(to_numpy(theirs), values, strict=True)], values


def losses(theirs: Any, ours: Any) -> Values:
    """Return the losses of epochs."""
    return theirs.history["loss"], ours.history["loss"]


# === Rows ===

CALLS = {
    "Load": [
        Call("BertBackbone.from_preset(preset)", compare=hidden_states),
        Call("Backbone.from_preset(preset)", compare=hidden_states, slow=True),
        Call("Backbone.from_preset(preset, load_weights=False)", compare=sizes, slow=True),
        Call('Backbone.from_preset(preset, dtype="bfloat16")', compare=dtypes, slow=True),
        Call(
            "BertTextClassifier.from_preset(preset)",
            "TextClassifier.from_preset(preset)",
            "the same; one class for all families, since the preset knows its family",
            logits,
        ),
        Call(
            "BertTextClassifier.from_preset(preset, num_classes=2)",
            "TextClassifier.from_preset(preset, num_classes=2)",
            "a new head; lmzoo warns if the preset has one",
            sizes,
            slow=True,
        ),
        Call(
            "BertMaskedLM.from_preset(masked_lm_preset)",
            "MaskedLM.from_preset(masked_lm_preset)",
            compare=logits,
            slow=True,
        ),
        Call(
            "GPT2CausalLM.from_preset(causal_lm_preset)",
            "CausalLM.from_preset(causal_lm_preset)",
            compare=logits,
            slow=True,
        ),
        Call(
            "BertTokenizer.from_preset(preset)",
            "Tokenizer.from_preset(preset)",
            "the same tokens; `lmzoo.text.Tokenizer` and `Preprocessor` read the presets of all families",
            vocabularies,
            slow=True,
        ),
        Call("backbone.hidden_dim, backbone.num_layers, backbone.num_heads"),
        Call(
            "backbone.token_embedding.embeddings.shape, len(backbone.transformer_layers)",
            result="the same; families with learned positions also have `position_embedding`",
            compare=lambda a, b: ([*a[0], a[1]], [*b[0], b[1]]),
        ),
        Call(
            "backbone.enable_lora(rank=4); backbone.trainable_variables",
            result="updates of the same kernels (queries and values); KerasHub also trains the biases of these layers",
            compare=adapters,
            changes=True,
            slow=True,
        ),
        Call(
            "backbone.enable_lora(rank=4); backbone.save_lora_weights(lora_file)",
            result="a file that holds only the updates; neither library reads the other's files",
            compare=None,
            changes=True,
            slow=True,
        ),
        Call('backbone.quantize("int8"); backbone', compare=dtypes, changes=True, slow=True),
        Call(
            '"bert_base_en_uncased" in BertBackbone.presets',
            result="the same names; `lmzoo.list_presets()` lists all families",
        ),
    ],
    "Tokenize": [
        Call("tokenizer(texts)", result="the same ids; lmzoo returns lists, KerasHub tensors", compare=lists),
        Call("tokenizer(texts[0])", result="the same ids; `tokenize` always takes a list of texts"),
        Call("tokenizer.detokenize(ids)"),
        Call(
            "tokenizer.vocabulary_size()",
            "tokenizer.vocabulary_size",
            "the same number; in lmzoo, it is an attribute",
        ),
        Call("tokenizer.get_vocabulary()", compare=lambda a, b: (list(a), list(b))),
        Call('tokenizer.token_to_id("film"), tokenizer.id_to_token(5)'),
        Call("tokenizer.pad_token_id, tokenizer.mask_token_id"),
        Call("", "tokenizer.tokenize_with_offsets(texts)", "ids, tokens, and their characters in the texts", None),
        Call(
            "preprocessor(texts)",
            result="the same tokens; KerasHub pads them to `sequence_length`, lmzoo to the longest text",
            compare=real_tokens,
        ),
        Call(
            "preprocessor(x=(texts, second_texts))",
            "preprocessor((texts, second_texts))",
            "the same tokens; without `x=` KerasHub takes `second_texts` for labels. Tasks of both take this tuple",
            real_tokens,
        ),
        Call(
            "preprocessor(texts, labels)[1]",
            result="the same: features and labels, and sample weights if there are any",
        ),
        Call(
            "next(iter(dataset.map(preprocessor)))[0]",
            result="the same tokens; lmzoo computes them in Python",
            compare=real_tokens,
            slow=True,
        ),
        Call(
            "preprocessor.sequence_length",
            result="the same number; KerasHub pads to this length, lmzoo truncates to it",
        ),
    ],
    "Train and predict": [
        Call("classifier.predict(texts)", result="the same logits, in the order of the texts"),
        Call("classifier.predict((texts, second_texts))", result="the same logits, for pairs"),
        Call(
            "",
            "classifier.classify(texts)",
            "labels and scores; other tasks have `tag`, `answer`, `choose`, `fill`, `score` or `embed`",
            None,
        ),
        Call(
            "classifier.compile(optimizer, loss); classifier.fit(texts, labels, batch_size=2, shuffle=False)",
            result="the same losses; lmzoo tokenizes the texts once, and pads each batch to its longest text",
            compare=losses,
            changes=True,
            slow=True,
        ),
        Call(
            "classifier.fit(texts, labels)",
            result="other defaults: AdamW with warm-up, decay and clipping, at the learning rate that [the "
            "preset recommends](../guides/defaults.md), instead of Adam at 5e-5",
            compare=None,
            changes=True,
            slow=True,
        ),
        Call(
            "classifier.compile(optimizer, loss); classifier.fit(dataset, shuffle=False)",
            result="the same losses, for a `tf.data.Dataset` of texts and labels",
            compare=losses,
            changes=True,
            slow=True,
        ),
        Call("classifier.evaluate(texts, labels)", result="the same loss and accuracy"),
        Call("classifier.summary()", result="layers, parameters and the tokenizer", compare=None, slow=True),
        Call("embedder.encode_text(texts)", "embedder.embed(texts)"),
        Call("masked_lm(features)", result="the same logits, for token features"),
        Call(
            "",
            'masked_lm.fill(["the plot was [MASK] ."])',
            "the words that fill the mask; KerasHub's tokenizers split masks in texts",
            None,
        ),
    ],
    "Generate": [
        Call(
            'causal_lm.generate("good film", max_length=9, strip_prompt=True)',
            'causal_lm.add_start_token = True; causal_lm.generate("good film", max_new_tokens=3)',
            "the same; KerasHub puts a start token before each prompt by default, and `max_length` counts all tokens",
            changes=True,
        ),
        Call(
            'causal_lm.generate(["good film"], max_length=9)',
            'causal_lm.add_start_token = True; causal_lm.generate(["good film"], max_new_tokens=3)',
            "the same; KerasHub returns prompt and continuation, lmzoo the continuation",
            lambda theirs, ours: (theirs[0].removeprefix("good film"), ours[0]),
            changes=True,
            slow=True,
        ),
        Call(
            "causal_lm.preprocessor = None; causal_lm.generate(prompts, stop_token_ids=None)",
            "causal_lm.preprocessor = None; causal_lm.generate(prompts, max_new_tokens=3)",
            "the same ids; KerasHub fills the padding of `prompts`, a dict of `token_ids` and `padding_mask`, and "
            "returns such a dict; lmzoo returns lists of the new ids",
            lambda theirs, ours: (theirs["token_ids"][:, 2:].tolist(), ours),
            changes=True,
        ),
        Call(
            'causal_lm.compile(sampler="top_k"); causal_lm.generate(texts, max_length=13)',
            'causal_lm.generate(texts, max_new_tokens=3, sampler="top_k")',
            'random; the default is `"top_k"` in KerasHub, `"greedy"` in lmzoo',
            None,
            changes=True,
            slow=True,
        ),
        Call(
            "causal_lm.compile(sampler=TopKSampler(k=3)); causal_lm.generate(texts, max_length=13)",
            "causal_lm.generate(texts, max_new_tokens=3, sampler=TopKSampler(k=3))",
            "random; lmzoo takes KerasHub's samplers",
            None,
            changes=True,
            slow=True,
        ),
        Call(
            'causal_lm.score(token_ids, scoring_mode="loss", target_ids=targets)',
            "causal_lm.score(texts)",
            "the same numbers: losses at every position in KerasHub; in lmzoo log-probabilities of the texts' tokens, "
            "with the tokens and their characters",
            log_probabilities,
        ),
    ],
    "Save": [
        Call(
            "classifier.save_to_preset(folder); TextClassifier.from_preset(folder)",
            result="the same layout; lmzoo reads KerasHub's folders as well as its own",
            compare=logits,
            slow=True,
        ),
        Call(
            "classifier.save_to_preset(folder, max_shard_size=10)",
            "classifier.save_to_preset(folder)",
            "several files of weights in KerasHub, always one in lmzoo",
            None,
            slow=True,
        ),
        Call(
            "backbone.save_to_preset(folder)",
            'lmzoo.save_checkpoint(backbone, folder, to="keras_hub")',
            "a folder that KerasHub reads",
            None,
        ),
        Call(
            "classifier.save(file); keras.saving.load_model(file).predict(texts)",
            result="the same logits; lmzoo's file also restores the compile and optimizer state. Neither library reads "
            "the other's files",
            slow=True,
        ),
        Call("", "classifier.export(folder)", "a SavedModel: strings in, labels and scores out", None, slow=True),
    ],
}
