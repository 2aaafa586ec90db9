"""Generating tokens in a compiled loop around a sampler, with a cache of keys and values.

Letters in shape comments: B sequences, L positions, V tokens of the tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, near_names, require
from lmzoo.common.tensor_types import Tensor
from lmzoo.common.weights_in_place import one_thread
from lmzoo.tasks.base.arguments import check_arguments
from lmzoo.tasks.base.prediction import expected_retracing
from lmzoo.tasks.beam_search import BeamSampler

if TYPE_CHECKING:
    import tensorflow as tf

    from lmzoo.tasks.base.task import Task

# A sampler of `keras_hub.samplers`, or anything that is called like one.
Sampler: TypeAlias = Any

SAMPLERS = ("beam", "contrastive", "greedy", "random", "top_k", "top_p")
_SHARES = (1 / 64, 1 / 16, 1 / 4, 1)  # of a model's positions: the widths to which prompts are padded
_Piece = TypeVar("_Piece")
_CHUNK = 8  # tokens generated at once while streaming
_KEPT = 8  # compiled loops
NEVER = -1e9  # the logit of a token that must not come


def sampler_called(sampler: str | Sampler) -> Sampler:
    """Return the sampler with a name, KerasHub's or, for "beam", ours; a sampler is returned as it is.

    Raises:
        TypeError: for anything else.
        ValueError: for an unknown name, suggesting a similar one.
    """
    if not isinstance(sampler, str):
        if callable(sampler) and not isinstance(sampler, type):
            return sampler
        raise TypeError(f"`sampler` must be a name or a sampler of `keras_hub.samplers`, got {sampler!r:.60}.")
    if sampler not in SAMPLERS:
        known = near_names(sampler, SAMPLERS)
        raise ValueError(f"There is no sampler {sampler!r}.{known} Or pass a sampler of `keras_hub.samplers`.")
    if sampler == "beam":
        return BeamSampler()
    import keras_hub

    return keras_hub.samplers.get(sampler)


def check_sampling(sampler: str | Sampler, temperature: float, seed: int | None, batch_size: int) -> None:
    """Check the arguments that all that generates has.

    Raises:
        TypeError: for a `sampler` that is not one.
        ValueError: for an unknown sampler, and for numbers out of range.
    """
    check_arguments(batch_size=batch_size)
    require(seed is None or is_integer(seed, 0), "seed", "an integer of at least 0, or None", seed)
    valid = is_number(temperature) and 1e-30 <= temperature <= 1e30  # in float32, with room for logits
    require(valid, "temperature", "a number from 1e-30 to 1e30", temperature, 'The limit of 0 is `sampler="greedy"`.')
    sampler_called(sampler)


def prompt_width(length: int, limit: int) -> int:
    """Return the width to which a prompt is padded: one of four, so that prompts of any length share compiled code."""
    return next(width for share in _SHARES if (width := max(1, round(limit * share))) >= length)


def _filled(x: np.ndarray, rows: int) -> np.ndarray:
    """Return `x`, (n, ...), with its first row repeated after the others: (rows, ...)."""
    return np.concatenate([x, np.repeat(x[:1], rows - len(x), axis=0)])


def _open(x: tf.Tensor) -> tf.TensorSpec:
    """Tensors of any shape with as many axes."""
    import tensorflow as tf

    return tf.TensorSpec([None] * x.ndim, x.dtype)


class TokenGenerator:
    """A generator of tokens with a causal model, which keeps the compiled loops of its samplers for later calls.

    Beyond the tokenizer's V tokens there is one more, which follows the last token of a text: it keeps sequences
    waiting for the others of their batch, and ends the loop early.

    Args:
        task: a task on a causal backbone.
        vocabulary_size: V.
    """

    def __init__(self, task: Task, vocabulary_size: int) -> None:
        self.task, self.vocabulary_size = task, vocabulary_size
        self._named: dict[str, Sampler] = {}
        self._compiled: dict[tuple[int, str], tuple[Sampler, Callable[..., np.ndarray]]] = {}

    @property
    def static_shapes(self) -> bool:
        """Whether code is compiled for each shape, so that few shapes are better than small ones."""
        return keras.backend.backend() != "tensorflow" or bool(self.task.jit_compile)

    def sampler(self, sampler: str | Sampler, seed: int | None) -> Sampler:
        """Return the sampler to use, its random numbers determined by a seed; None for others in each call."""
        if isinstance(sampler, str):
            if sampler not in self._named:
                self._named[sampler] = sampler_called(sampler)
            sampler = self._named[sampler]
        elif seed is None:
            return sampler  # with its own random numbers
        for number, variable in enumerate(getattr(sampler, "variables", ())):
            state = keras.random.SeedGenerator(None if seed is None else (seed + number) % 2**32).state
            variable.assign(ops.convert_to_numpy(state.value))
        return sampler

    def undisturbed(
        self, sampler: str | Sampler, seed: int | None, pieces_by: Callable[[Sampler], Iterator[_Piece]]
    ) -> Iterator[_Piece]:
        """Iterate over what the sampler to use makes; whoever uses it in between does not change its random numbers.

        A sampler of the user's without a seed goes on with its own random numbers, whoever used it.
        """
        chosen = self.sampler(sampler, seed)
        own = seed is None and not isinstance(sampler, str)
        variables = [] if own else list(getattr(chosen, "variables", ()))
        for piece in pieces_by(chosen):
            values = [ops.convert_to_numpy(variable.value) for variable in variables]
            yield piece
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        new: int | np.ndarray,
        sampler: Sampler,
        stop_ids: Sequence[int],
        temperature: float,
        stream: bool,
        batch_size: int,
        room: int | None = None,
        source: dict[str, np.ndarray] | None = None,
    ) -> Iterator[list[list[int]]]:
        """Iterate over the new tokens of a batch of prompts, those that end a text included.

        Args:
            prompts: token ids of n prompts, each at least one.
            new: the most tokens that are added to a prompt, or int (n,), to each.
            sampler: see `sampler`.
            stop_ids: tokens that end a text.
            temperature: what logits are divided by.
            stream: whether to return tokens a few at a time; otherwise all at once.
            batch_size: int, at least n.
            room: new tokens that the compiled loop has room for; by default as many as are wanted.
            source: what a decoder writes from, `token_ids` and `padding_mask`, int32 (n, T).
        """
        given, added = [len(prompt) for prompt in prompts], np.broadcast_to(new, len(prompts)).tolist()
        limits = [count + more for count, more in zip(given, added, strict=True)]
        start, last, most = min(given), max(limits), self.task.backbone.config.max_sequence_length
        rows, read = len(given), max(given)
        if self.static_shapes:
            rows, read = min(batch_size, 1 << (rows - 1).bit_length()), prompt_width(read, most)
        length = np.array([*given, *[start] * (rows - len(given))], "int32")  # (B,)
        width = min(read + (room or max(added)), most)
        ids = np.zeros((rows, width), "int32")
        for row, prompt in zip(ids, prompts, strict=False):
            row[: len(prompt)] = prompt
        run, stops, ending = self._loop(sampler), self._padded(stop_ids), {*stop_ids, self.vocabulary_size}
        limit = np.array([*limits, *[0] * (rows - len(given))], "int32")  # (B,)
        done = np.arange(rows) >= len(prompts)
        chunk = _CHUNK if stream and not isinstance(sampler, BeamSampler) else width
        while start < last and not done.all():
            end = min(start + chunk, last)
            made = run(
                prompt=ids,
                read=ids if stream else ids[:, :read],
                length=length,
                limit=np.where(done, 0, limit),
                start=np.int32(start),
                end=np.int32(end),
                stops=stops,
                temperature=np.float32(temperature),
                **({} if source is None else {"source": {name: _filled(x, rows) for name, x in source.items()}}),
            )
            found: list[list[int]] = []
            for k, count in enumerate(given):
                first, after = max(count, start), min(limits[k], end)
                tokens = [] if done[k] else made[k, first:after].tolist()
                ended = next((i for i, token in enumerate(tokens) if token in ending), None)
                tokens = tokens if ended is None else tokens[: ended + 1]
                done[k] |= ended is not None or end >= limits[k]
                ids[k, first : first + len(tokens)] = tokens
                found.append([token for token in tokens if token < self.vocabulary_size])
            yield found
            start = end

    def _padded(self, stop_ids: Sequence[int]) -> np.ndarray:
        """Return the ids that end a text, int32 (S,), padded to a power of two, so that few shapes are compiled."""
        stops = np.full(1 << max(len(stop_ids) - 1, 0).bit_length(), self.vocabulary_size, "int32")
        stops[: len(stop_ids)] = stop_ids
        return stops

    def _loop(self, sampler: Sampler) -> Callable[..., np.ndarray]:
        """Return the compiled loop of a sampler."""
        settings = sampler.get_config() if hasattr(sampler, "get_config") else None
        # Beam search is its settings; other samplers have random numbers, too.
        key = 0 if type(sampler) is BeamSampler else id(sampler), repr(settings)
        if key not in self._compiled:
            if type(sampler) is BeamSampler:  # a copy: the settings of the caller's may be changed
                sampler = BeamSampler(**sampler.get_config())
            self._compiled[key] = sampler, self._compile(sampler)
            for oldest in [*self._compiled][:-_KEPT]:
                del self._compiled[oldest]
        return self._compiled[key][1]

    def _compile(self, sampler: Sampler) -> Callable[..., np.ndarray]:
        backend = keras.backend.backend()
        if backend == "tensorflow":
            import tensorflow as tf

            compiled = tf.function(
                lambda data: self.generate_in_graph(sampler, **data), jit_compile=self.task.jit_compile, autograph=False
            )

            def run(**data: Any) -> np.ndarray:
                tensors = keras.tree.map_structure(tf.constant, data)
                if self.static_shapes:
                    with expected_retracing():
                        return compiled(tensors).numpy()
                # The number of tokens that end a text determines how many candidates a beam has.
                specs = {**keras.tree.map_structure(_open, tensors), "stops": tensors["stops"]}
                return compiled.get_concrete_function(specs)(tensors).numpy()

            return run
        if backend == "jax":
            return self._compile_for_jax(sampler)
        return lambda **data: ops.convert_to_numpy(
            self.generate_in_graph(sampler, **keras.tree.map_structure(ops.convert_to_tensor, data))
        )

    def _compile_for_jax(self, sampler: Sampler) -> Callable[..., np.ndarray]:
        import jax

        weights, states = self.task.weights, list(getattr(sampler, "variables", ()))

        @jax.jit
        def compiled(weight_values: Any, state_values: Any, data: Any) -> tuple[Tensor, list[Tensor]]:
            mapping = [*zip(weights, weight_values, strict=True), *zip(states, state_values, strict=True)]
            with keras.StatelessScope(state_mapping=mapping) as scope:
                tokens = self.generate_in_graph(sampler, **data)
            return tokens, [scope.get_current_value(variable) for variable in states]

        def run(**data: np.ndarray) -> np.ndarray:
            with one_thread():
                tokens, after = compiled([v.value for v in weights], [v.value for v in states], data)
                for variable, value in zip(states, after, strict=True):
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
        """Generate the tokens from `start` up to `end`.

        Args:
            sampler: the sampler.
            prompt: int32 (B, L), prompts, padded.
            read: int32 (B, W), their first columns, `start` or more of them, which are read at once.
            length: int32 (B,), tokens of each prompt.
            limit: int32 (B,), tokens of each prompt with its new tokens.
            start: int32 (), the first position at which a token is generated.
            end: int32 (), the position after the last.
            stops: int32 (S,), the tokens that end a text.
            temperature: float32 () or (B, 1), what logits are divided by.
            source: see `generate`.

        Returns:
            int32 (B, L), the prompts and the new tokens. What comes after the end of a text has no meaning.
        """
        backbone, size = self.task.backbone, self.vocabulary_size
        rows, width = ops.shape(prompt)
        # All sequences of a prompt read the same source, which is therefore not a part of the cache.
        seen = {} if source is None else {"source": backbone.read_source(**source)}
        hidden, cache = backbone.call_with_cache(read, backbone.empty_cache(rows, width), 0, **seen)  # (B, W, H)
        hidden = ops.pad(hidden, ((0, 0), (0, width - ops.shape(read)[1]), (0, 0)))  # (B, L, H)

        # Some samplers have several sequences for each prompt, and choose among them: whatever belongs to a sequence
        # is part of the cache.
        def next(prompt: Tensor, cache: dict[str, Any], index: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
            last = ops.slice(prompt, (0, index - 1), (ops.shape(prompt)[0], 1))  # (B, 1)
            hidden, blocks = backbone.call_with_cache(ops.minimum(last, size - 1), cache["blocks"], index - 1, **seen)
            logits = self.task.next_token_logits(hidden)[:, 0, :size]  # (B, V)
            # A very low temperature would make even the best ones less than `NEVER`.
            logits = (logits - ops.max(logits, axis=1, keepdims=True)) / temperature
            length, limit = cache["length"], cache["limit"]  # (B,)
            ended = ops.any(last == stops, axis=1) & (index > length)  # (B,)
            limit = ops.where(ended, ops.minimum(limit, index), limit)
            if self.task.forces_end:
                full = ops.expand_dims(index >= limit - 1, 1)  # (B, 1)
                logits = ops.where(full, ops.where(ops.arange(size) == stops[0], 0.0, NEVER), logits)
            done = ops.expand_dims(index >= ops.minimum(limit, end), 1)  # (B, 1)
            # Padded, not concatenated with a column (B, 1): that XLA (of JAX 0.11) cannot compile for GPUs, for some V.
            waiting = ops.where(ops.arange(size + 1) == size, 0.0, NEVER)  # (V + 1,)
            logits = ops.where(done, waiting, ops.pad(logits, ((0, 0), (0, 1)), constant_values=NEVER))  # (B, V + 1)
            # Where nothing is left to choose, contrastive search must not find one token better than another.
            waits = ops.expand_dims(index > ops.minimum(limit, end), 1)  # (B, 1)
            hidden = ops.where(waits, ops.ones_like(hidden[:, 0]), hidden[:, 0])  # (B, H)
            return logits, hidden, {"blocks": blocks, "length": length, "limit": limit}

        places = ops.arange(width, dtype="int32")
        beams = isinstance(sampler, BeamSampler)
        return sampler(
            next=next,
            prompt=prompt,
            cache={"blocks": cache, "length": length, "limit": limit},
            index=start,
            mask=(places < ops.expand_dims(length, 1)) & (places < end),  # (B, L)
            stop_token_ids=stops if beams else [size],
            hidden_states=hidden,
            model=backbone,
            **({"limits": limit} if beams else {}),
        )
