"""Text generation in exported models, from strings to strings.

Letters in shapes: B prompts, T tokens of the longest prompt, L positions of prompts and new tokens, V tokens of the
tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from lmzoo.common.tensor_types import Tensor, Tensors
from lmzoo.serving.export import signature, strings, tokens_signature
from lmzoo.serving.served_model import Signatures
from lmzoo.tasks.generation import Sampler, TokenGenerator, get_sampler
from lmzoo.text import Preprocessor

if TYPE_CHECKING:
    import tensorflow as tf

    from lmzoo.tasks.base.task import Task

# Samplers with their own signatures; the default signature is greedy.
SAMPLERS = ("random", "top_k", "top_p")


def make_generation_signatures(
    task: Task, preprocessor: Preprocessor, max_new_tokens: int, start_ids: list[int]
) -> Signatures:
    """Return the signatures of an exported model that continues texts.

    Args:
        task: task on a causal backbone.
        preprocessor: preprocessor of prompts.
        max_new_tokens: int, maximum number of tokens to add to each prompt.
        start_ids: token ids that stand for an empty prompt; an empty list if the family has no start token.
    """
    import tensorflow as tf

    from lmzoo.text.graphs.preprocessor import PromptGraph

    pack = PromptGraph(preprocessor, task.served_length, start_ids)

    def serve(prompts: tf.Tensor, **sampling: Any) -> dict[str, tf.Tensor]:
        features = pack(prompts)
        is_truncated = features.pop("truncated")
        return {"text": generate_in_ops(task, features, max_new_tokens, **sampling), "truncated": is_truncated}

    def make_sampling_function(name: str) -> Callable[..., dict[str, tf.Tensor]]:
        sampler = get_sampler(name)  # outside of the graph, since it creates variables, even though they are unused

        def generate_from_strings(text: tf.Tensor, seed: tf.Tensor, temperature: tf.Tensor) -> dict[str, tf.Tensor]:
            assertions = [
                tf.debugging.assert_positive(temperature, "`temperature` must be positive"),
                tf.debugging.assert_non_negative(seed, "`seed` must not be negative"),
            ]
            with tf.control_dependencies(assertions):
                return serve(tf.identity(text), sampler=sampler, seed=seed, temperature=temperature)

        return generate_from_strings

    number_specs = [tf.TensorSpec([None], tf.int64, "seed"), tf.TensorSpec([None], tf.float32, "temperature")]
    return pack, {
        "serving_default": signature(lambda text: serve(text), strings("text")),
        **{name: signature(make_sampling_function(name), [*strings("text"), *number_specs]) for name in SAMPLERS},
        "tokens": tokens_signature(task),
    }


def mask_end_token(features: dict[str, tf.Tensor], preprocessor: Preprocessor) -> dict[str, tf.Tensor]:
    """Return features in which the end token that the preprocessor appended to each text is masked, like padding.

    Args:
        features: dict of `token_ids` and `padding_mask`, int32 (B, T).
        preprocessor: preprocessor that made the features.
    """
    import tensorflow as tf

    ids = features["token_ids"]
    mask = features["padding_mask"]
    *_, end_ids = preprocessor.special_ids()
    if not end_ids:
        return features
    lengths = tf.reduce_sum(mask, axis=1)[:, None]  # (B, 1)
    positions = tf.range(tf.shape(ids)[1])  # (T,)
    # (B, T); the only token of an empty text is its start token, even if start and end tokens are the same.
    is_end = (positions == lengths - 1) & (lengths > 1) & (ids == end_ids[0])
    return {**features, "padding_mask": tf.where(is_end, 0, mask)}


def generate_in_ops(
    task: Task,
    features: dict[str, tf.Tensor],
    max_new_tokens: int,
    sampler: Sampler = "greedy",
    seed: tf.Tensor | None = None,
    temperature: tf.Tensor | None = None,
) -> tf.Tensor:
    """Generate continuations of prompts with TensorFlow ops.

    Args:
        task: task on a causal backbone.
        features: dict of the prompts' `token_ids` and `padding_mask`, int32 (B, T).
        max_new_tokens: int, maximum number of tokens to add to each prompt.
        sampler: a sampler of KerasHub or its name.
        seed: int64 (B,), a seed for each text; None for samplers without random numbers.
        temperature: float32 (B,), divisor of the logits; 1 by default.

    Returns:
        The text that follows each prompt, `tf.string` (B,), empty for an empty prompt.

    Raises:
        tf.errors.InvalidArgumentError: If a prompt is longer than `task.served_length`; raised when the graph runs.
    """
    import tensorflow as tf

    from lmzoo.text.graphs import graph_detokenizer

    tokenizer = task.text_preprocessor.tokenizer
    max_length = task.served_length
    vocabulary_size = tokenizer.vocabulary_size
    end_token = tokenizer.end_token
    ids = features["token_ids"]  # (B, T)
    prompt_lengths = tf.reduce_sum(features["padding_mask"], axis=1)  # (B,)
    max_prompt_length = tf.reduce_max(tf.concat([prompt_lengths, [1]], axis=0))
    message = f"A prompt may have {max_length} tokens, so that {max_new_tokens} more fit into the model."
    with tf.control_dependencies([tf.debugging.assert_less_equal(max_prompt_length, max_length, message)]):
        first_new_positions = tf.maximum(prompt_lengths, 1)  # an empty prompt has no token to continue, and stays empty
    tokens = TokenGenerator(task, vocabulary_size).generate_in_graph(
        _ServedSampler(sampler, seed, first_new_positions),
        prompt=tf.pad(ids, [[0, 0], [0, max_new_tokens]]),
        read=ids,
        length=first_new_positions,
        limit=tf.where(prompt_lengths > 0, prompt_lengths + max_new_tokens, first_new_positions),
        start=tf.reduce_min(tf.concat([first_new_positions, max_prompt_length[None]], axis=0)),
        end=max_prompt_length + max_new_tokens,
        stops=tf.constant([vocabulary_size if end_token is None else tokenizer.token_to_id(end_token)]),
        temperature=tf.constant(1.0) if temperature is None else temperature[:, None],
    )  # (B, L)
    positions = tf.range(tf.shape(tokens)[1])  # (L,)
    in_continuation = (positions >= first_new_positions[:, None]) & (
        positions < prompt_lengths[:, None] + max_new_tokens
    )  # (B, L)
    is_end = (
        (tokens == vocabulary_size)
        if end_token is None
        else (tokens == vocabulary_size) | (tokens == tokenizer.token_to_id(end_token))
    )
    is_new = in_continuation & (tf.cumsum(tf.cast(is_end & in_continuation, tf.int32), axis=1) == 0)
    detokenize = graph_detokenizer(tokenizer)
    in_prompt = tf.sequence_mask(prompt_lengths, tf.shape(tokens)[1])  # (B, L)
    # A token's text may depend on the tokens before it, so detokenize the whole text and cut off the prompt.
    text, prompt = (
        detokenize(tf.ragged.boolean_mask(tokens, mask)) for mask in (in_prompt | is_new, in_prompt)
    )  # (B,)
    prompt_text_lengths = tf.minimum(
        tf.strings.length(prompt, "UTF8_CHAR"), tf.strings.length(text, "UTF8_CHAR")
    )  # (B,)
    return tf.strings.substr(text, prompt_text_lengths, tf.fill(tf.shape(prompt_text_lengths), 2**31 - 1), "UTF8_CHAR")


class _RowSeed(keras.random.SeedGenerator):
    """A settable seed for drawing one token of one text."""

    def __init__(self) -> None:  # the base class would create a variable
        self.value: Any = None  # uint32 (2,)

    def next(self, ordered: bool = True) -> Any:
        """Return the current seed."""
        return self.value


class _ServedSampler:
    """A sampler of KerasHub for exported graphs, without variables and with a seed for each text.

    The random numbers for a text are the same as in a call of `generate` with this text alone and the same seed.

    Args:
        sampler: sampler of KerasHub or its name.
        seed: int64 (B,), a seed for each text, or None.
        first_new: int32 (B,), position of each text's first new token.
    """

    def __init__(self, sampler: Sampler, seed: tf.Tensor | None, first_new: tf.Tensor) -> None:
        self.sampler: Sampler = get_sampler(sampler)
        self.seed = seed
        self.first_new = first_new
        self.row_seed = _RowSeed()
        if seed is not None:
            self.sampler.seed_generator = self.row_seed

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
        """Continue prompts, with the interface of `keras_hub.samplers.Sampler`."""
        import tensorflow as tf

        positions = tf.range(tf.shape(prompt)[1])  # (L,)

        def is_unfinished(index: tf.Tensor, prompt: tf.Tensor, cache: Tensors) -> tf.Tensor:
            is_stop = (prompt == stop_token_ids[0]) & ~mask  # (B, L)
            return (index < tf.shape(prompt)[1]) & ~tf.reduce_all(tf.reduce_any(is_stop, axis=1))

        def body(index: tf.Tensor, prompt: tf.Tensor, cache: Tensors) -> tuple[tf.Tensor, tf.Tensor, Tensors]:
            logits, _, cache = next(prompt, cache, index)  # (B, V + 1)
            tokens = tf.cast(
                self._choose_next_tokens(self.sampler.compute_probabilities(logits), index), prompt.dtype
            )  # (B,)
            prompt = tf.where((positions == index) & ~mask, tokens[:, None], prompt)
            return index + 1, prompt, cache

        return tf.while_loop(is_unfinished, body, (index, prompt, cache))[1]

    def _choose_next_tokens(self, probabilities: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        """Return the next token of each text, int (B,), from probabilities (B, V + 1); id V marks the end."""
        import tensorflow as tf

        if self.seed is None:
            return self.sampler.get_next_token(probabilities)
        new_token_index = tf.maximum(index - self.first_new, 0)  # (B,)
        seeds = tf.stack([tf.cast(self.seed, tf.uint32), tf.cast(new_token_index, tf.uint32)], axis=1)  # (B, 2)

        def sample_row(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            self.row_seed.value = row[1]
            return tf.cast(self.sampler.get_next_token(row[0][None])[0], tf.int32)

        return tf.map_fn(sample_row, (probabilities, seeds), fn_output_signature=tf.int32)
