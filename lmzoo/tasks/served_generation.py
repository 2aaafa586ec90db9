"""Generating text in exported models: strings in, strings out.

Letters in shape comments: B prompts, T tokens of the longest, L positions of prompts and new tokens, V tokens of the
tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from lmzoo.common.tensor_types import Tensor, Tensors
from lmzoo.serving.export import signature, strings, tokens_signature
from lmzoo.serving.served_model import Signatures
from lmzoo.tasks.generation import Sampler, TokenGenerator, sampler_called
from lmzoo.text import Preprocessor

if TYPE_CHECKING:
    import tensorflow as tf

    from lmzoo.tasks.base.task import Task

# Each has a signature, next to that of greedy search.
SAMPLERS = ("random", "top_k", "top_p")


def generation_signatures(task: Task, preprocessor: Preprocessor, new: int, start_ids: list[int]) -> Signatures:
    """Return the signatures of a model that continues texts: see `CausalLM.signatures`.

    Args:
        task: a task on a causal backbone.
        preprocessor: the preprocessor of prompts.
        new: the most tokens that are added to a prompt.
        start_ids: what stands for the empty prompt, if anything.
    """
    import tensorflow as tf

    from lmzoo.text.graphs.preprocessor import PromptGraph

    pack = PromptGraph(preprocessor, task.served_length, start_ids)

    def served(prompts: tf.Tensor, **drawn: Any) -> dict[str, tf.Tensor]:
        features = pack(prompts)
        truncated = features.pop("truncated")
        return {"text": generated(task, features, new, **drawn), "truncated": truncated}

    def drawing(name: str) -> Callable[..., dict[str, tf.Tensor]]:
        sampler = sampler_called(name)  # here, since it has variables, though they are not used

        def from_strings(text: tf.Tensor, seed: tf.Tensor, temperature: tf.Tensor) -> dict[str, tf.Tensor]:
            checks = [
                tf.debugging.assert_positive(temperature, "`temperature` must be positive"),
                tf.debugging.assert_non_negative(seed, "`seed` must not be negative"),
            ]
            with tf.control_dependencies(checks):
                return served(tf.identity(text), sampler=sampler, seed=seed, temperature=temperature)

        return from_strings

    numbers = [tf.TensorSpec([None], tf.int64, "seed"), tf.TensorSpec([None], tf.float32, "temperature")]
    return pack, {
        "serving_default": signature(lambda text: served(text), strings("text")),
        **{name: signature(drawing(name), [*strings("text"), *numbers]) for name in SAMPLERS},
        "tokens": tokens_signature(task),
    }


def without_end(features: dict[str, tf.Tensor], preprocessor: Preprocessor) -> dict[str, tf.Tensor]:
    """Return features of texts, int32 (B, T), as prompts: without the end token that the preprocessor adds."""
    import tensorflow as tf

    ids, mask = features["token_ids"], features["padding_mask"]
    *_, end = preprocessor.special_ids()
    if not end:
        return features
    length = tf.reduce_sum(mask, axis=1)[:, None]  # (B, 1)
    place = tf.range(tf.shape(ids)[1])  # (T,)
    added = (place == length - 1) & (length > 1) & (ids == end[0])  # (B, T); the only token of "" begins it
    return {**features, "padding_mask": tf.where(added, 0, mask)}


def generated(
    task: Task,
    features: dict[str, tf.Tensor],
    new: int,
    sampler: Sampler = "greedy",
    seed: tf.Tensor | None = None,
    temperature: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return the texts that follow prompts, in TensorFlow ops.

    Args:
        task: the model.
        features: `token_ids` and `padding_mask`, int32 (B, T), of prompts.
        new: the most tokens that are added to a prompt.
        sampler: a sampler of KerasHub or its name.
        seed: int64 (B,), which determines the samples of each text; None for samplers without random numbers.
        temperature: float32 (B,), what logits are divided by; 1 by default.

    Returns:
        `tf.string` (B,).
    """
    import tensorflow as tf

    from lmzoo.text.graphs import graph_detokenizer

    tokenizer, most = task.text_preprocessor.tokenizer, task.served_length
    size, end_token = tokenizer.vocabulary_size, tokenizer.end_token
    ids, length = features["token_ids"], tf.reduce_sum(features["padding_mask"], axis=1)  # (B, T), (B,)
    longest = tf.reduce_max(tf.concat([length, [1]], axis=0))
    room = f"A prompt may have {most} tokens, so that {new} more fit into the model."
    with tf.control_dependencies([tf.debugging.assert_less_equal(longest, most, room)]):
        first = tf.maximum(length, 1)  # an empty prompt stays empty: nothing begins it
    made = TokenGenerator(task, size).generate_in_graph(
        _ServedSampler(sampler, seed, first),
        prompt=tf.pad(ids, [[0, 0], [0, new]]),
        read=ids,
        length=first,
        limit=tf.where(length > 0, length + new, first),
        start=tf.reduce_min(tf.concat([first, longest[None]], axis=0)),
        end=longest + new,
        stops=tf.constant([size if end_token is None else tokenizer.token_to_id(end_token)]),
        temperature=tf.constant(1.0) if temperature is None else temperature[:, None],
    )  # (B, L)
    place = tf.range(tf.shape(made)[1])  # (L,)
    after = (place >= first[:, None]) & (place < length[:, None] + new)  # (B, L)
    ended = (made == size) if end_token is None else (made == size) | (made == tokenizer.token_to_id(end_token))
    kept = after & (tf.cumsum(tf.cast(ended & after, tf.int32), axis=1) == 0)
    text_of = graph_detokenizer(tokenizer)
    before = tf.sequence_mask(length, tf.shape(made)[1])  # (B, L)
    whole, given = (text_of(tf.ragged.boolean_mask(made, mask)) for mask in (before | kept, before))  # (B,)
    # What a token means may depend on those before it.
    skipped = tf.minimum(tf.strings.length(given, "UTF8_CHAR"), tf.strings.length(whole, "UTF8_CHAR"))  # (B,)
    return tf.strings.substr(whole, skipped, tf.fill(tf.shape(skipped), 2**31 - 1), "UTF8_CHAR")


class _RowSeed(keras.random.SeedGenerator):
    """The seed of the random numbers for one token of one text."""

    def __init__(self) -> None:  # without the variable of a generator
        self.now: Any = None  # uint32 (2,)

    def next(self, ordered: bool = True) -> Any:
        """Return the seed of the next numbers."""
        return self.now


class _ServedSampler:
    """A sampler of KerasHub for exported graphs: without variables, and with a seed for each text.

    A text gets the random numbers that it gets alone in `generate`.
    """

    def __init__(self, sampler: Sampler, seed: tf.Tensor | None, first: tf.Tensor) -> None:
        self.sampler: Sampler = sampler_called(sampler)
        self.seed, self.first, self.rows = seed, first, _RowSeed()
        if seed is not None:
            self.sampler.seed_generator = self.rows

    def __call__(
        self,
        next: Callable[[Tensor, Tensors, Tensor], tuple[Tensor, Tensor, Tensors]],
        prompt: Tensor,
        cache: Tensors,
        index: Tensor,
        mask: Tensor,
        stop_token_ids: list[int],
        **_: Any,
    ) -> tf.Tensor:
        """See `keras_hub.samplers.Sampler`."""
        import tensorflow as tf

        place = tf.range(tf.shape(prompt)[1])  # (L,)

        def unfinished(index: tf.Tensor, prompt: tf.Tensor, cache: Tensors) -> tf.Tensor:
            ended = (prompt == stop_token_ids[0]) & ~mask  # (B, L)
            return (index < tf.shape(prompt)[1]) & ~tf.reduce_all(tf.reduce_any(ended, axis=1))

        def body(index: tf.Tensor, prompt: tf.Tensor, cache: Tensors) -> tuple[tf.Tensor, tf.Tensor, Tensors]:
            logits, _, cache = next(prompt, cache, index)  # (B, V + 1)
            tokens = tf.cast(self._tokens(self.sampler.compute_probabilities(logits), index), prompt.dtype)  # (B,)
            prompt = tf.where((place == index) & ~mask, tokens[:, None], prompt)
            return index + 1, prompt, cache

        return tf.while_loop(unfinished, body, (index, prompt, cache))[1]

    def _tokens(self, probabilities: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        """Return the next token of each text, int (B,), from (B, V + 1)."""
        import tensorflow as tf

        if self.seed is None:
            return self.sampler.get_next_token(probabilities)
        number = tf.maximum(index - self.first, 0)  # (B,), of the new token
        seeds = tf.stack([tf.cast(self.seed, tf.uint32), tf.cast(number, tf.uint32)], axis=1)  # (B, 2)

        def of_row(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            self.rows.now = row[1]
            return tf.cast(self.sampler.get_next_token(row[0][None])[0], tf.int32)

        return tf.map_fn(of_row, (probabilities, seeds), fn_output_signature=tf.int32)
