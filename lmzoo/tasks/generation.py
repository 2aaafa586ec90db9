"""Token generation: a compiled loop around a sampler, with a cache of keys and values.

Letters in shapes: B sequences, L positions, W positions that are read at once, H width of hidden states, S stop ids, V
tokens of the tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, near_names, require
from lmzoo.common.tensor_types import Tensor
from lmzoo.common.weights_in_place import lock_jax
from lmzoo.tasks.base.arguments import check_arguments
from lmzoo.tasks.base.prediction import suppress_retracing_warnings
from lmzoo.tasks.beam_search import BeamSampler

if TYPE_CHECKING:
    import tensorflow as tf

    from lmzoo.tasks.base.task import Task

# A sampler of `keras_hub.samplers`, or any callable with the same arguments.
Sampler: TypeAlias = Any

SAMPLERS = ("beam", "contrastive", "greedy", "random", "top_k", "top_p")
_WIDTH_FRACTIONS = (1 / 64, 1 / 16, 1 / 4, 1)  # padded lengths of prompts, as fractions of the model's maximum length
_Piece = TypeVar("_Piece")
_TOKENS_PER_CHUNK = 8  # tokens generated at once while streaming
_MAX_COMPILED_LOOPS = 8
NEVER = -1e9  # the logit of a token that must not be generated


def get_sampler(sampler: str | Sampler) -> Sampler:
    """Create a sampler by name, lmzoo's for "beam" and otherwise KerasHub's; return a sampler object unchanged.

    Raises:
        TypeError: If `sampler` is neither a string nor a sampler.
        ValueError: If the name is unknown; the message suggests a similar name.
    """
    if not isinstance(sampler, str):
        if callable(sampler) and not isinstance(sampler, type):
            return sampler
        raise TypeError(f"`sampler` must be a name or a sampler of `keras_hub.samplers`, got {sampler!r:.60}.")
    if sampler not in SAMPLERS:
        suggestion = near_names(sampler, SAMPLERS)
        raise ValueError(f"There is no sampler {sampler!r}.{suggestion} Or pass a sampler of `keras_hub.samplers`.")
    if sampler == "beam":
        return BeamSampler()
    import keras_hub

    return keras_hub.samplers.get(sampler)


def check_sampling(sampler: str | Sampler, temperature: float, seed: int | None, batch_size: int | None) -> None:
    """Check the sampling arguments of the methods that generate text.

    Raises:
        TypeError: If `sampler` is neither a name nor a sampler.
        ValueError: If the sampler is unknown, or `temperature`, `seed` or `batch_size` is out of range.
    """
    check_arguments(batch_size=batch_size)
    require(seed is None or is_integer(seed, 0), "seed", "an integer of at least 0, or None", seed)
    is_valid = is_number(temperature) and 1e-30 <= temperature <= 1e30  # in float32, with room for logits
    require(
        is_valid, "temperature", "a number from 1e-30 to 1e30", temperature, 'The limit of 0 is `sampler="greedy"`.'
    )
    get_sampler(sampler)


def get_prompt_width(length: int, limit: int) -> int:
    """Return the padded length for prompts of up to `length` tokens.

    There are only four padded lengths, the longest of which is `limit`, so that few shapes are compiled.
    """
    return next(width for fraction in _WIDTH_FRACTIONS if (width := max(1, round(limit * fraction))) >= length)


def _pad_rows(x: np.ndarray, row_count: int) -> np.ndarray:
    """Pad `x` from (n, ...) to (row_count, ...) with copies of its first row."""
    return np.concatenate([x, np.repeat(x[:1], row_count - len(x), axis=0)])


def _make_any_shape_spec(x: tf.Tensor) -> tf.TensorSpec:
    """Return a spec for tensors of any shape with the rank and dtype of `x`."""
    import tensorflow as tf

    return tf.TensorSpec([None] * x.ndim, x.dtype)


class TokenGenerator:
    """A token generator for a causal model, which caches its compiled loops for later calls.

    An additional token, with id V, fills sequences that have ended while others in the batch continue. The loop stops
    early once this token is in all sequences.

    Args:
        task: task on a causal backbone.
        vocabulary_size: int, number V of tokens of the tokenizer.
    """

    def __init__(self, task: Task, vocabulary_size: int) -> None:
        self.task = task
        self.vocabulary_size = vocabulary_size
        self._samplers_by_name: dict[str, Sampler] = {}
        self._compiled_loops: dict[tuple[int, str], tuple[Sampler, Callable[..., np.ndarray]]] = {}

    @property
    def compiles_each_shape(self) -> bool:
        """Whether code is compiled for each shape, so that fewer shapes are better than less padding."""
        return keras.backend.backend() != "tensorflow" or bool(self.task.jit_compile)

    def sampler(self, sampler: str | Sampler, seed: int | None) -> Sampler:
        """Return the sampler with its random state set from `seed`, or at random if `seed` is None.

        A sampler object that is passed without a seed keeps its own random state.
        """
        if isinstance(sampler, str):
            if sampler not in self._samplers_by_name:
                self._samplers_by_name[sampler] = get_sampler(sampler)
            sampler = self._samplers_by_name[sampler]
        elif seed is None:
            return sampler
        for index, variable in enumerate(getattr(sampler, "variables", ())):
            state = keras.random.SeedGenerator(None if seed is None else (seed + index) % 2**32).state
            variable.assign(ops.convert_to_numpy(state.value))
        return sampler

    def isolate_random_state(
        self, sampler: str | Sampler, seed: int | None, make_pieces: Callable[[Sampler], Iterator[_Piece]]
    ) -> Iterator[_Piece]:
        """Yield generated pieces that do not depend on other uses of the sampler between two pieces.

        The sampler's random state after each piece is restored before the next piece is generated, unless a sampler
        object is passed without a seed.

        Args:
            sampler: sampler or its name.
            seed: int, seed of the random numbers, or None.
            make_pieces: function from a sampler to an iterator over the pieces generated with it.
        """
        seeded_sampler = self.sampler(sampler, seed)
        keeps_own_state = seed is None and not isinstance(sampler, str)
        variables = [] if keeps_own_state else list(getattr(seeded_sampler, "variables", ()))
        for piece in make_pieces(seeded_sampler):
            states = [ops.convert_to_numpy(variable.value) for variable in variables]
            yield piece
            for variable, state in zip(variables, states, strict=True):
                variable.assign(state)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int | np.ndarray,
        sampler: Sampler,
        stop_ids: Sequence[int],
        temperature: float,
        stream: bool,
        batch_size: int,
        room: int | None = None,
        source: dict[str, np.ndarray] | None = None,
    ) -> Iterator[list[list[int]]]:
        """Yield the new tokens of each prompt in a batch, including the tokens that end a text.

        Args:
            prompts: token ids of n prompts, at least one id each.
            max_new_tokens: int or int (n,), maximum number of tokens to add to each prompt.
            sampler: sampler, as returned by `sampler`.
            stop_ids: ids of the tokens that end a text.
            temperature: float, divisor of the logits.
            stream: whether to yield a few tokens at a time; otherwise all are yielded at once.
            batch_size: int, maximum number of prompts in a batch, at least n.
            room: int, number of positions to reserve for new tokens, so that calls with the same room share compiled
                code; the largest of `max_new_tokens` by default.
            source: for a decoder, dict of the sources' `token_ids` and `padding_mask`, int32 (n, T); or None.
        """
        prompt_lengths = [len(prompt) for prompt in prompts]
        new_token_counts = np.broadcast_to(max_new_tokens, len(prompts)).tolist()
        limits = [length + count for length, count in zip(prompt_lengths, new_token_counts, strict=True)]
        start = min(prompt_lengths)
        max_limit = max(limits)
        max_length = self.task.backbone.config.max_sequence_length
        row_count = len(prompt_lengths)
        prompt_width = max(prompt_lengths)
        if self.compiles_each_shape:
            row_count = min(batch_size, 1 << (row_count - 1).bit_length())
            prompt_width = get_prompt_width(prompt_width, max_length)
        padded_lengths = np.array([*prompt_lengths, *[start] * (row_count - len(prompt_lengths))], "int32")  # (B,)
        width = min(prompt_width + (room or max(new_token_counts)), max_length)
        ids = np.zeros((row_count, width), "int32")
        for row, prompt in zip(ids, prompts, strict=False):
            row[: len(prompt)] = prompt
        run_loop = self._get_loop(sampler)
        padded_stop_ids = self._pad_stop_ids(stop_ids)
        end_ids = {*stop_ids, self.vocabulary_size}
        padded_limits = np.array([*limits, *[0] * (row_count - len(prompt_lengths))], "int32")  # (B,)
        is_done = np.arange(row_count) >= len(prompts)
        chunk_size = _TOKENS_PER_CHUNK if stream and not isinstance(sampler, BeamSampler) else width
        while start < max_limit and not is_done.all():
            end = min(start + chunk_size, max_limit)
            generated_ids = run_loop(
                prompt=ids,
                read=ids if stream else ids[:, :prompt_width],
                length=padded_lengths,
                limit=np.where(is_done, 0, padded_limits),
                start=np.int32(start),
                end=np.int32(end),
                stops=padded_stop_ids,
                temperature=np.float32(temperature),
                **({} if source is None else {"source": {name: _pad_rows(x, row_count) for name, x in source.items()}}),
            )
            new_tokens: list[list[int]] = []
            for row_index, prompt_length in enumerate(prompt_lengths):
                first_position = max(prompt_length, start)
                stop_position = min(limits[row_index], end)
                tokens = [] if is_done[row_index] else generated_ids[row_index, first_position:stop_position].tolist()
                end_index = next((i for i, token in enumerate(tokens) if token in end_ids), None)
                tokens = tokens if end_index is None else tokens[: end_index + 1]
                is_done[row_index] |= end_index is not None or end >= limits[row_index]
                ids[row_index, first_position : first_position + len(tokens)] = tokens
                new_tokens.append([token for token in tokens if token < self.vocabulary_size])
            yield new_tokens
            start = end

    def _pad_stop_ids(self, stop_ids: Sequence[int]) -> np.ndarray:
        """Return the ids that end a text, int32 (S,), padded to a power of two so that few shapes are compiled."""
        padded_stop_ids = np.full(1 << max(len(stop_ids) - 1, 0).bit_length(), self.vocabulary_size, "int32")
        padded_stop_ids[: len(stop_ids)] = stop_ids
        return padded_stop_ids

    def _get_loop(self, sampler: Sampler) -> Callable[..., np.ndarray]:
        """Return the compiled loop for a sampler, compiling it on first use."""
        sampler_config = sampler.get_config() if hasattr(sampler, "get_config") else None
        # Beam samplers with equal settings are interchangeable, but other samplers also have a random state.
        key = 0 if type(sampler) is BeamSampler else id(sampler), repr(sampler_config)
        if key not in self._compiled_loops:
            if type(sampler) is BeamSampler:  # a copy, since the caller may change the settings of the original
                sampler = BeamSampler(**sampler.get_config())
            self._compiled_loops[key] = sampler, self._compile(sampler)
            for oldest_key in [*self._compiled_loops][:-_MAX_COMPILED_LOOPS]:
                del self._compiled_loops[oldest_key]
        return self._compiled_loops[key][1]

    def _compile(self, sampler: Sampler) -> Callable[..., np.ndarray]:
        """Return a function with the arguments of `generate_in_graph`, compiled if the backend compiles."""
        backend = keras.backend.backend()
        if backend == "tensorflow":
            import tensorflow as tf

            compiled_loop = tf.function(
                lambda data: self.generate_in_graph(sampler, **data), jit_compile=self.task.jit_compile, autograph=False
            )

            def run(**data: Any) -> np.ndarray:
                tensors = keras.tree.map_structure(tf.constant, data)
                if self.compiles_each_shape:
                    with suppress_retracing_warnings():
                        return compiled_loop(tensors).numpy()
                # The number of stop ids stays fixed, since it determines how many candidates a beam has.
                specs = {**keras.tree.map_structure(_make_any_shape_spec, tensors), "stops": tensors["stops"]}
                return compiled_loop.get_concrete_function(specs)(tensors).numpy()

            return run
        if backend == "jax":
            return self._compile_for_jax(sampler)
        return lambda **data: ops.convert_to_numpy(
            self.generate_in_graph(sampler, **keras.tree.map_structure(ops.convert_to_tensor, data))
        )

    def _compile_for_jax(self, sampler: Sampler) -> Callable[..., np.ndarray]:
        import jax

        weights = self.task.weights
        sampler_variables = list(getattr(sampler, "variables", ()))

        @jax.jit
        def compiled_loop(weight_values: Any, state_values: Any, data: Any) -> tuple[Tensor, list[Tensor]]:
            state_mapping = [
                *zip(weights, weight_values, strict=True),
                *zip(sampler_variables, state_values, strict=True),
            ]
            with keras.StatelessScope(state_mapping=state_mapping) as scope:
                tokens = self.generate_in_graph(sampler, **data)
            return tokens, [scope.get_current_value(variable) for variable in sampler_variables]

        def run(**data: np.ndarray) -> np.ndarray:
            with lock_jax():
                tokens, new_state_values = compiled_loop(
                    [v.value for v in weights], [v.value for v in sampler_variables], data
                )
                for variable, value in zip(sampler_variables, new_state_values, strict=True):
                    variable.assign(value)
                return np.asarray(tokens)

        return run

    def generate_in_graph(
        self,
        sampler: Sampler,
        prompt: Tensor,
        read: Tensor,
        length: Tensor,
        limit: Tensor,
        start: Tensor,
        end: Tensor,
        stops: Tensor,
        temperature: Tensor,
        source: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Generate the tokens at positions from `start` up to, but not including, `end`, with tensor operations.

        Args:
            sampler: sampler of the tokens.
            prompt: int32 (B, L), padded prompts.
            read: int32 (B, W), the first columns of `prompt`, at least `start` of them, which are read in one call.
            length: int32 (B,), number of tokens in each prompt.
            limit: int32 (B,), maximum number of tokens of each prompt including its new tokens.
            start: int32 (), the first position at which a token is generated.
            end: int32 (), the position after the last generated token.
            stops: int32 (S,), ids of the tokens that end a text.
            temperature: float32 () or (B, 1), divisor of the logits.
            source: dict of the source's `token_ids` and `padding_mask`, or None.

        Returns:
            int32 (B, L), the prompts and the new tokens. Tokens after the end of a text are meaningless.
        """
        backbone = self.task.backbone
        vocabulary_size = self.vocabulary_size
        row_count, width = ops.shape(prompt)
        # All sequences of a prompt share its source, so the source is not part of the cache.
        source_argument = {} if source is None else {"source": backbone.read_source(**source)}
        hidden_states, cache = backbone.call_with_cache(
            read, backbone.empty_cache(row_count, width), 0, **source_argument
        )  # (B, W, H)
        hidden_states = ops.pad(hidden_states, ((0, 0), (0, width - ops.shape(read)[1]), (0, 0)))  # (B, L, H)

        # Some samplers keep several sequences for each prompt and choose among them, so all state of a sequence is part
        # of the cache.
        def next(prompt: Tensor, cache: dict[str, Any], index: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
            last_ids = ops.slice(prompt, (0, index - 1), (ops.shape(prompt)[0], 1))  # (B, 1)
            hidden_states, blocks = backbone.call_with_cache(
                ops.minimum(last_ids, vocabulary_size - 1), cache["blocks"], index - 1, **source_argument
            )
            logits = self.task.next_token_logits(hidden_states)[:, 0, :vocabulary_size]  # (B, V)
            # Relative to the maximum, since a very low temperature could move all logits below `NEVER`.
            logits = (logits - ops.max(logits, axis=1, keepdims=True)) / temperature
            length = cache["length"]  # (B,)
            limit = cache["limit"]  # (B,)
            has_ended = ops.any(last_ids == stops, axis=1) & (index > length)  # (B,)
            limit = ops.where(has_ended, ops.minimum(limit, index), limit)
            if backbone.forces_end:
                at_limit = ops.expand_dims((index >= limit - 1) & (stops[0] < vocabulary_size), 1)  # (B, 1)
                logits = ops.where(at_limit, ops.where(ops.arange(vocabulary_size) == stops[0], 0.0, NEVER), logits)
            is_done = ops.expand_dims(index >= ops.minimum(limit, end), 1)  # (B, 1)
            # XLA of JAX 0.11 cannot compile a concatenation with a column (B, 1) for GPUs, for some V; padding works.
            waiting_logits = ops.where(ops.arange(vocabulary_size + 1) == vocabulary_size, 0.0, NEVER)  # (V + 1,)
            logits = ops.where(
                is_done, waiting_logits, ops.pad(logits, ((0, 0), (0, 1)), constant_values=NEVER)
            )  # (B, V + 1)
            # After the end of a text, equal hidden states keep contrastive search from preferring any token.
            is_waiting = ops.expand_dims(index > ops.minimum(limit, end), 1)  # (B, 1)
            hidden_states = ops.where(is_waiting, ops.ones_like(hidden_states[:, 0]), hidden_states[:, 0])  # (B, H)
            return logits, hidden_states, {"blocks": blocks, "length": length, "limit": limit}

        positions = ops.arange(width, dtype="int32")
        is_beam_search = isinstance(sampler, BeamSampler)
        return sampler(
            next=next,
            prompt=prompt,
            cache={"blocks": cache, "length": length, "limit": limit},
            index=start,
            mask=(positions < ops.expand_dims(length, 1)) & (positions < end),  # (B, L)
            stop_token_ids=stops if is_beam_search else [vocabulary_size],
            hidden_states=hidden_states,
            model=backbone,
            **({"limits": limit} if is_beam_search else {}),
        )


def get_generator(task: Task, vocabulary_size: int, cache: dict[str, Any]) -> TokenGenerator:
    """Return the task's generator from `cache`, so that its loops are compiled only once.

    If `cache` has no entry "generator", or a generator with another vocabulary size, a new generator is stored there.
    """
    generator = cache.get("generator")
    if generator is None or generator.vocabulary_size != vocabulary_size:
        cache["generator"] = generator = TokenGenerator(task, vocabulary_size)
    return generator
