"""Log-likelihoods of choices that continue a prompt, for classification with a causal language model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import keras
import numpy as np

from lmzoo.common.arguments import require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.errors import ArgumentError
from lmzoo.families.backbone import Backbone
from lmzoo.families.named_inputs import NamedInputsModel
from lmzoo.layers import GatherPositions
from lmzoo.tasks.base.prediction import predict_encoded
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.sequence_scores import log_probabilities
from lmzoo.text import EncodedTexts, Preprocessor
from lmzoo.text.validate_text import Text, clean_columns

_BETWEEN_EXAMPLES = "\n\n"


@dataclass(frozen=True)
class ChoiceRow:
    """A token sequence to read for one or several choices of a prompt, and the tokens to predict from it.

    Attributes:
        token_ids: ids of the prompt and of a choice without its last token, which is only a target.
        positions: for each target, the position just before it, from which it is predicted.
        targets: ids of the tokens to predict.
        choices: for each target, the index of its choice.
    """

    token_ids: list[int]
    positions: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)


# === Texts ===


def check_choices(choices: Iterable[Text]) -> list[str]:
    """Check that there are at least two different choices, and return them as a list of strings.

    Raises:
        TypeError: If a choice is not a string; the message names its position.
        ValueError: If there are fewer than two choices, a choice is empty, or two choices are equal.
    """
    (cleaned_choices,) = clean_columns({"choices": choices})
    require(len(cleaned_choices) > 1, "choices", "at least two texts", cleaned_choices)
    for i, choice in enumerate(cleaned_choices):
        if not choice.strip():
            raise ArgumentError(f"`choices[{i}]` is empty: write at least one word.", "choices")
        if choice in cleaned_choices[:i]:
            message = (
                f"`choices[{cleaned_choices.index(choice)}]` and `choices[{i}]` are both {choice!r:.60}: leave one out."
            )
            raise ArgumentError(message, "choices")
    return cleaned_choices


def join_choice(prompt: str, choice: str, separator: str) -> str:
    """Append the choice to the prompt, with `separator` in between unless there is whitespace already."""
    has_space = prompt[-1:].isspace() or choice[:1].isspace()
    return prompt + choice if has_space else prompt + separator + choice


def join_examples(examples: Iterable[tuple[Text, Text]], choices: Sequence[str], separator: str) -> str:
    """Return the text of solved examples to put before each prompt, with an empty line after each example.

    Args:
        examples: pairs of a prompt and one of the choices.
        choices: all choices.
        separator: string between a prompt and its choice.

    Raises:
        TypeError: If an example is not a pair of strings; the message names its position.
        ValueError: If the second text of an example is not among the choices.
    """
    pairs = list(examples)
    for i, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"`examples[{i}]` must be a pair of a prompt and its choice, got {pair!r:.60}.")
    columns = {
        "prompts of `examples`": [prompt for prompt, _ in pairs],
        "choices of `examples`": [solution for _, solution in pairs],
    }
    prompts, solutions = clean_columns(columns)
    for i, solution in enumerate(solutions):
        if solution not in choices:
            message = f"`examples[{i}]` has the choice {solution!r:.60}, which is not one of `choices`: correct it."
            raise ArgumentError(message, "examples")
    return "".join(
        join_choice(prompt, solution, separator) + _BETWEEN_EXAMPLES
        for prompt, solution in zip(prompts, solutions, strict=True)
    )


# === Tokens ===


def encode_choices(
    preprocessor: Preprocessor,
    name: str,
    prompt: str,
    choices: Sequence[str],
    separator: str,
    start_ids: Sequence[int],
    max_length: int,
) -> list[ChoiceRow]:
    """Return the rows from which a model predicts all tokens of the choices after a prompt.

    Prompt and choice are tokenized as one text. A token with characters of both belongs to the choice. If the tokens of
    the prompt depend on the choice, all tokens from the first one that differs are predicted, so that the likelihoods
    of all choices have the same context and can be compared.

    Args:
        preprocessor: preprocessor of prompts.
        name: name of the prompt in messages, such as "`prompts[0]`".
        prompt: text before the choices.
        choices: texts of the choices.
        separator: string between prompt and choice.
        start_ids: list with the id of the start token, which precedes the first token of a text; empty without one.
        max_length: maximum number of tokens that the model reads.

    Raises:
        ValueError: If the prompt is too long, if a choice has no tokens, if two choices have the same tokens, or if
            `start_ids` is empty and the prompt is empty or its first token depends on the choice.
    """
    spans = preprocessor.tokenizer.tokenize_with_offsets([join_choice(prompt, choice, separator) for choice in choices])
    prompt_lengths = [sum(span.end <= len(prompt) for span in row) for row in spans]
    ids_by_choice = [[span.id for span in row] for row in spans]
    common_length = _count_common_prefix(
        [ids[:length] for ids, length in zip(ids_by_choice, prompt_lengths, strict=True)]
    )
    prefix = preprocessor.special_ids()[0] or (list(start_ids) if common_length == 0 else [])
    first_target = len(prefix) + common_length
    if not first_target:
        raise ValueError(_explain_missing_context(preprocessor, name, prompt))
    sequences = [prefix + ids for ids in ids_by_choice]
    for i, ids in enumerate(sequences):
        context_length = len(prefix) + prompt_lengths[i]
        if len(ids) == context_length:
            raise ArgumentError(
                f"`choices[{i}]`, {choices[i]!r:.60}, has no tokens: write at least one word.", "choices"
            )
        if ids in sequences[:i]:
            message = f"`choices[{sequences.index(ids)}]` and `choices[{i}]` have the same tokens: leave one out."
            raise ArgumentError(message, "choices")
        if len(ids) - 1 > max_length:
            raise ValueError(
                f"{name} has {context_length} tokens, which with `choices[{i}]` is more than the {max_length} tokens "
                "that the model takes. Shorten it."
            )
    return _merge_rows(sequences, first_target)


def _count_common_prefix(sequences: Iterable[Sequence[int]]) -> int:
    """Return the length of the longest common prefix of the sequences."""
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


def _explain_missing_context(preprocessor: Preprocessor, name: str, prompt: str) -> str:
    """Return the error message for a prompt that gives the choices no common context."""
    if not preprocessor.tokenizer.tokenize([prompt])[0]:
        return f"{name} is empty, and the family has no start token to begin a text with: write at least one word."
    return (
        f"The first token of {name} depends on the choice or holds characters of it, and the family has no start token "
        "after which to predict it. Put a space between prompt and choice (`separator`), or write words before the "
        "prompt."
    )


def _merge_rows(sequences: Sequence[list[int]], first_target: int) -> list[ChoiceRow]:
    """Return rows from which a model predicts each sequence's tokens from index `first_target` on.

    Two sequences share a row if one of them without its last token is a prefix of the other. All choices of a single
    token therefore share one row.
    """
    rows: list[ChoiceRow] = []
    for choice_index in sorted(range(len(sequences)), key=lambda i: len(sequences[i]), reverse=True):
        ids = sequences[choice_index]
        context = ids[:-1]
        row = next((row for row in rows if row.token_ids[: len(context)] == context), None)
        if row is None:
            row = ChoiceRow(context)
            rows.append(row)
        row.positions.extend(range(first_target - 1, len(context)))
        row.targets.extend(ids[first_target:])
        row.choices.extend([choice_index] * (len(ids) - first_target))
    return rows


# === Scores ===


def make_choice_model(backbone: Backbone, compute_logits: Callable[[Features, Tensor], Tensor]) -> NamedInputsModel:
    """Build a model that computes the log-probabilities of M target tokens in each of B sequences, float32 (B, M).

    Its inputs are the backbone's inputs; `targets` int32 (B, M), the ids of the target tokens; and `positions` int32
    (B, M), the positions just before them. Logits are computed only at `positions`, to save memory.

    Args:
        backbone: a causal backbone.
        compute_logits: function from the model's inputs and the hidden states at `positions`, (B, M, H), to the logits
            of the token after each position, (B, M, V).
    """
    inputs = dict(backbone.input)
    positions = keras.Input((None,), dtype="int32", name="positions")
    targets = keras.Input((None,), dtype="int32", name="targets")
    gather = GatherPositions(dtype=backbone.dtype_policy, name="before_targets")
    vectors = gather(backbone(inputs)["sequence_output"], positions)  # (B, M, H)
    logits = compute_logits(inputs, vectors)  # (B, M, V)
    return NamedInputsModel({**inputs, "positions": positions, "targets": targets}, log_probabilities(logits, targets))


def score_choices(
    model: NamedInputsModel,
    task: Task,
    rows_by_prompt: Sequence[Sequence[ChoiceRow]],
    num_choices: int,
    batch_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-likelihood of each choice after each prompt, and its number of tokens, both float64 (n, C).

    Args:
        model: model that `make_choice_model` built.
        task: task whose preprocessor pads the rows.
        rows_by_prompt: the rows of each of n prompts, from `encode_choices`.
        num_choices: int, number C of choices.
        batch_size: int, rows per batch.
    """
    shape = len(rows_by_prompt), num_choices
    if not rows_by_prompt:
        return np.zeros(shape), np.zeros(shape)
    rows = [*itertools.chain.from_iterable(rows_by_prompt)]
    prompt_indices = np.repeat(np.arange(shape[0]), [len(prompt_rows) for prompt_rows in rows_by_prompt])  # (rows,)
    lengths = np.array([len(row.token_ids) for row in rows])
    target_counts = np.array([len(row.targets) for row in rows])
    is_target = np.arange(target_counts.max()) < target_counts[:, None]  # (rows, M)
    target_inputs = {name: np.zeros(is_target.shape, "int32") for name in ("positions", "targets")}
    for name, values in target_inputs.items():
        values[is_target] = [*itertools.chain.from_iterable(getattr(row, name) for row in rows)]
    token_ids = np.fromiter(itertools.chain.from_iterable(row.token_ids for row in rows), "int32", lengths.sum())
    encoded = EncodedTexts(token_ids, np.cumsum([0, *lengths]), lengths.astype("int32"))
    scores = predict_encoded(
        task, model, encoded, batch_size, per_token=False, extra=target_inputs, verbose=0
    )  # (rows, M)
    choice_indices = np.fromiter(
        itertools.chain.from_iterable(row.choices for row in rows), "int64", target_counts.sum()
    )
    # The index of each target's prompt and choice in the flattened results.
    cell_indices = np.repeat(prompt_indices, target_counts) * num_choices + choice_indices
    cell_count = shape[0] * num_choices
    log_likelihoods = np.bincount(cell_indices, scores[is_target], cell_count).reshape(shape)
    return log_likelihoods, np.bincount(cell_indices, minlength=cell_count).reshape(shape).astype("float64")
