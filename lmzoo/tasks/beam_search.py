"""Beam search that matches transformers, as a sampler with KerasHub's interface.

Letters in shapes: B prompts, K beams, C candidates, L positions, S stop ids, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.common.tensor_types import Tensor, Tensors
from lmzoo.layers.position_cache import write_positions
from lmzoo.layers.rows import gather_positions

_NEVER = -1e9  # score of a beam that must not be chosen


class BeamSampler:
    """Beam search with a length penalty, equivalent to transformers' beam search with `early_stopping=False`.

    It has the interface of KerasHub's samplers. In addition, `stop_token_ids` may be a tensor, int (S,), and there is
    an argument `limits`.

    `keras_hub.samplers.BeamSampler` differs in three ways. It has no length penalty. It keeps a text that has ended
    among its beams, where the text continues and displaces other beams. And inside a prompt, it adds the scores of the
    tokens that it would have chosen, so that results depend on the lengths of the other prompts.

    Args:
        num_beams: int, number of beams, the texts that are continued at the same time.
        length_penalty: float; the log-probability of a text is divided by its number of tokens to this power.

    Raises:
        ValueError: If `num_beams` is not a positive integer, or `length_penalty` is not a number.

    Example:

    ```python
    from lmzoo.tasks.beam_search import BeamSampler

    sampler = BeamSampler(num_beams=8)  # model.generate(prompts, sampler=sampler)
    ```
    """

    def __init__(self, num_beams: int = 4, length_penalty: float = 1.0) -> None:
        require(is_integer(num_beams, 1), "num_beams", "a positive integer", num_beams)
        require(is_number(length_penalty), "length_penalty", "a number", length_penalty)
        self.num_beams = int(num_beams)
        self.length_penalty = float(length_penalty)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"num_beams": self.num_beams, "length_penalty": self.length_penalty}

    def __call__(
        self,
        next: Callable[[Tensor, Tensors, Tensor], tuple[Tensor, Tensor, Tensors]],
        prompt: Tensor,
        cache: Tensors = None,
        index: int | Tensor = 0,
        mask: Tensor | None = None,
        stop_token_ids: Any = None,
        hidden_states: Tensor | None = None,
        model: keras.Model | None = None,
        limits: Tensor | None = None,
    ) -> Tensor:
        """Return the best continuation of each prompt.

        Args:
            next: function from token ids, int (B·K, L), a cache and a position to three outputs: the logits of the
                token at that position, float (B·K, V); hidden states, which are ignored; and the new cache.
            prompt: int (B, L), padded prompts.
            cache: cache for `next`, tensors of shape (B, ...).
            index: int or int tensor (), the first position at which a token is chosen.
            mask: bool (B, L), True at the tokens of each prompt; all False by default.
            stop_token_ids: ids of the tokens that end a text.
            hidden_states: ignored.
            model: ignored.
            limits: int (B,), maximum number of tokens of each prompt including its continuation; L by default.

        Returns:
            int (B, L), the prompts and their best continuations.
        """
        num_beams = self.num_beams
        width = ops.shape(prompt)[1]
        mask = ops.zeros_like(prompt, "bool") if mask is None else mask
        stop_token_ids = [-1] if stop_token_ids is None else stop_token_ids
        stop_ids = ops.cast(ops.convert_to_tensor(stop_token_ids), prompt.dtype)  # (S,)
        prompt_lengths = ops.sum(ops.cast(mask, "int32"), axis=1)  # (B,)
        limits = ops.full_like(prompt_lengths, width) if limits is None else limits  # (B,)
        index = ops.cast(index, "int32")
        prompt_count = ops.shape(prompt)[0]
        beams = ops.repeat(ops.expand_dims(prompt, 1), num_beams, axis=1)  # (B, K, L)
        # All beams are equal at first, so only the first one may be continued.
        is_first_beam = ops.cast(ops.arange(num_beams) == 0, "float32")  # (K,)
        scores = ops.zeros((prompt_count, 1)) + (1 - is_first_beam) * _NEVER  # (B, K)
        cache = keras.tree.map_structure(lambda x: ops.repeat(x, num_beams, axis=0), cache)
        ended_scores = ops.full((prompt_count, num_beams), _NEVER)
        has_ended = ops.zeros((prompt_count, num_beams), "bool")
        is_unfinished = ops.ones((prompt_count,), "bool")

        def body(index: Tensor, cache: Tensors, state: tuple[Tensor, ...]) -> tuple[Tensors, ...]:
            beams, scores, ended_texts, ended_scores, has_ended, is_unfinished = state
            logits, _, cache = next(ops.reshape(beams, (-1, width)), cache, index)
            candidate_scores, origins, tokens = _find_candidates(logits, scores, stop_ids)  # (B, C)
            at_limit = index + 1 >= limits  # (B,)
            is_stop_token = ops.any(ops.expand_dims(tokens, -1) == stop_ids, axis=-1)  # (B, C)
            is_stopping = is_stop_token | ops.expand_dims(at_limit, 1)  # (B, C)

            # The beams of the next step are the best candidates that continue.
            continuing_scores = candidate_scores + ops.where(is_stopping, _NEVER, 0.0)  # (B, C)
            next_scores, best_indices = ops.top_k(continuing_scores, num_beams)  # (B, K)
            next_origins = gather_positions(origins, best_indices)  # (B, K)
            next_tokens = gather_positions(tokens, best_indices)  # (B, K)
            next_beams = _append_token(beams, next_origins, next_tokens, index)  # (B, K, L)

            # Candidates that end a text are kept if they are among the best K and their row could still improve.
            token_counts = ops.cast(ops.maximum(index + 1 - prompt_lengths, 1), "float32")  # (B,)
            penalties = ops.expand_dims(token_counts**self.length_penalty, 1)  # (B, 1)
            is_new = is_stopping[:, :num_beams] & ops.expand_dims(is_unfinished, 1)  # (B, K)
            new_scores = candidate_scores[:, :num_beams] / penalties + ops.where(is_new, 0.0, _NEVER)  # (B, K)
            new_texts = _append_token(beams, origins[:, :num_beams], tokens[:, :num_beams], index)  # (B, K, L)
            next_ended_texts = _keep_best((ended_texts, ended_scores, has_ended), (new_texts, new_scores, is_new))
            can_improve = _can_improve(next_scores[:, :1] / penalties, *next_ended_texts[1:])  # (B,)

            # Rows still inside their prompt keep their state. All their beams are equal, so any order suits the cache.
            is_in_prompt = ops.take(mask, index, axis=1)  # (B,)
            cache = keras.tree.map_structure(lambda x: _select_beams(x, next_origins), cache)
            updated_state = (next_beams, next_scores, *next_ended_texts, is_unfinished & can_improve & ~at_limit)
            return index + 1, cache, _keep_rows(is_in_prompt, state, updated_state)

        state = (beams, scores, beams, ended_scores, has_ended, is_unfinished)
        _, _, (beams, _, ended_texts, _, has_ended, _) = ops.while_loop(
            lambda index, cache, state: (index < width) & ops.any(state[-1]),
            body,
            (index, cache, state),
            maximum_iterations=width,
        )
        return ops.where(has_ended[:, :1], ended_texts[:, 0], beams[:, 0])


def _find_candidates(logits: Tensor, scores: Tensor, stop_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores, beam indices and next tokens of each prompt's best candidates, best first, each (B, C).

    C is large enough for K candidates that do not end their text.

    Args:
        logits: float (B·K, V), logits of the next token of each beam.
        scores: float (B, K), log-probabilities of the beams.
        stop_ids: int (S,), ids of the tokens that end a text.
    """
    num_beams, vocabulary_size = scores.shape[1], logits.shape[-1]
    log_probabilities = ops.reshape(ops.log_softmax(logits), (-1, num_beams, vocabulary_size))  # (B, K, V)
    log_probabilities = log_probabilities + ops.expand_dims(scores, 2)
    # At most S candidates of each beam end a text.
    candidate_count = min(num_beams * (1 + stop_ids.shape[0]), num_beams * vocabulary_size)
    flat_scores = ops.reshape(log_probabilities, (-1, num_beams * vocabulary_size))
    candidate_scores, flat_indices = ops.top_k(flat_scores, candidate_count)  # (B, C)
    return candidate_scores, flat_indices // vocabulary_size, ops.cast(flat_indices % vocabulary_size, stop_ids.dtype)


def _can_improve(best_scores: Tensor, ended_scores: Tensor, has_ended: Tensor) -> Tensor:
    """Return whether each prompt's best beam can still become one of its ended texts, bool (B,).

    This is so if the beam's score beats the score of an ended text, or if a place for ended texts is unused.

    Args:
        best_scores: float (B, 1), score of the best beam.
        ended_scores: float (B, K), scores of the ended texts.
        has_ended: bool (B, K), False in unused places.
    """
    worst_scores = ops.where(has_ended, ops.min(ended_scores, axis=1, keepdims=True), _NEVER)  # (B, K)
    return ops.any(best_scores > worst_scores, axis=1)


def _keep_best(ended_texts: tuple[Tensor, ...], candidates: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the K best of the texts that ended at earlier steps or end at this step, in the form of `ended_texts`.

    Args:
        ended_texts: `(texts, scores, has_ended)` for the texts that ended at earlier steps: int (B, K, L), float (B, K)
            and bool (B, K), False in unused places.
        candidates: the same for the texts that end at this step.
    """
    texts, scores, has_ended = (ops.concatenate(pair, axis=1) for pair in zip(ended_texts, candidates, strict=True))
    best_scores, best_indices = ops.top_k(scores, ended_texts[1].shape[1])  # (B, K)
    return gather_positions(texts, best_indices), best_scores, gather_positions(has_ended, best_indices)


def _keep_rows(
    is_kept: Tensor, old_tensors: tuple[Tensor, ...], updated_tensors: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return the updated tensors, but with the values of the old tensors in rows where `is_kept` is True.

    Args:
        is_kept: bool (B,), whether to keep the old values of each row.
        old_tensors: tensors (B, ...).
        updated_tensors: tensors of the same shapes.
    """
    return tuple(
        ops.where(ops.reshape(is_kept, (-1, *[1] * (len(old_tensor.shape) - 1))), old_tensor, updated_tensor)
        for old_tensor, updated_tensor in zip(old_tensors, updated_tensors, strict=True)
    )


def _append_token(beams: Tensor, origins: Tensor, tokens: Tensor, index: Tensor) -> Tensor:
    """Return new beams, int (B, K, L), each a copy of an old beam with a new token at position `index`.

    Args:
        beams: int (B, K, L), token ids of the beams.
        origins: int (B, K), index of the beam to copy for each new beam.
        tokens: int (B, K), ids of the new tokens.
        index: int tensor (), position of the new tokens.
    """
    return write_positions(gather_positions(beams, origins), ops.expand_dims(tokens, 2), index, axis=2)


def _select_beams(x: Tensor, origins: Tensor) -> Tensor:
    """Return the rows of `x` for new beams, each a copy of the row of an old beam of the same prompt.

    Args:
        x: (B·K, ...), a row for each beam.
        origins: int (B, K), index of the old beam among the beams of its prompt.
    """
    rows_by_prompt = ops.reshape(x, (-1, origins.shape[1], *ops.shape(x)[1:]))  # (B, K, ...)
    return ops.reshape(gather_positions(rows_by_prompt, origins), ops.shape(x))
