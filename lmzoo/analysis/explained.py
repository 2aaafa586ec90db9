"""Scores of the predictions to explain, for a text and for copies of the text with one word left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lmzoo.analysis.reading import SPECIAL, Reader, ReadText, join_spans, make_lists
from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Tensor
from lmzoo.errors import ArgumentError, WrongModelError
from lmzoo.tasks import QuestionAnswerer, TextClassifier, TextRegressor, TokenClassifier
from lmzoo.tasks.token_classifier import place_tokens
from lmzoo.text import EncodedTexts, EncodedWords
from lmzoo.text.batching import ladder_buckets
from lmzoo.text.segments import clean_segments, split_segments
from lmzoo.text.tokenizers.tokenizer import TokenSpan
from lmzoo.text.windows import EncodedWindows
from lmzoo.text.word_splitting import place_words

Explained: TypeAlias = TextClassifier | TextRegressor | TokenClassifier | QuestionAnswerer
_Text: TypeAlias = str | list[str]  # a list of words if the tokenizer takes words
Word: TypeAlias = tuple[int, str, int, int]  # index of the text, the word, start and end in characters


# A score to explain: the text as tokens, the model's inputs, (1, width) each, the name of the prediction, and a
# function from the outputs of S sequences, (S, ...), to their scores, (S,).
Question: TypeAlias = tuple[ReadText, dict[str, np.ndarray], str, Callable[[Any], Any]]


class Attribution(NamedTuple):
    """Contributions of the tokens or words of a text to a prediction.

    Attributes:
        texts: the text, or the two texts of a pair.
        tokens: the n tokens or words as strings.
        offsets: int64 (n, 2), start and end of each token or word in its text, in characters; -1 for special tokens.
        segments: int64 (n,), index of each token's or word's text in `texts`; -1 for special tokens.
        values: float64 (n,), contributions to the score; positive values support the prediction.
        target: the explained prediction: a class name, the text of an answer to a question, or "score" for a
            `TextRegressor`.
        score: float, score of the text, which is the logit of the class, the sum of the answer's start and end logits
            (or only one of them if it was chosen as the target), or the predicted number.
        baseline: float, score of the baseline text; None in results of `leave_out`.

    Example: see `leave_out`.
    """

    texts: tuple[str, ...]
    tokens: list[str]
    offsets: np.ndarray
    segments: np.ndarray
    values: np.ndarray
    target: str
    score: float
    baseline: float | None


def check_explained(task: Any, texts: Any, word: str | int | None) -> Any:
    """Check that predictions for texts can be explained, and return the texts with iterators turned into lists.

    Raises:
        TypeError: If `task` is none of the types in `Explained`, or `texts` is not a list of texts.
        ValueError: If a `TokenClassifier` has a CRF; if `word` is missing for a `TokenClassifier`, or passed for
            another task; or if there are no texts.
    """
    if not isinstance(task, Explained):
        raise WrongModelError(
            "Contributions are to answers of a TextClassifier, TextRegressor, TokenClassifier or QuestionAnswerer, got "
            f"{task!r:.60}."
        )
    texts = make_lists(texts)
    tags_words = isinstance(task, TokenClassifier)
    if tags_words and task.crf:
        raise ValueError("With `crf` labels are scored together, and no word has a score of its own to explain.")
    if tags_words and word is None:
        message = "Name the word whose label is to be explained as `word`, by its number from 0 or as it is."
        raise ArgumentError(message, "word")
    allowed = "None, but for a TokenClassifier, which has an answer for each word"
    require(tags_words or word is None, "word", allowed, word)
    require(len(split_segments(texts, words=True)[0]), "texts", "at least one text", texts)
    return texts


# === Tokens, for gradients ===


def iterate_questions(
    task: Explained, texts: Any, target: str | int | None, word: str | int | None
) -> Iterator[Question]:
    """Iterate over the scores to explain, one per text."""
    reader = Reader.of(task, None)
    if isinstance(task, TokenClassifier):
        yield from _iterate_label_questions(task, reader, texts, target, word)
    elif isinstance(task, QuestionAnswerer):
        yield from _iterate_span_questions(task, reader, texts, target)
    else:
        read_texts, encoded_texts = reader.read(texts)
        classes = _find_classes(task, task.predict(texts, verbose=0), target)
        for i, text in enumerate(read_texts):
            yield _make_question(reader, text, encoded_texts, i, get_class_name(task, classes[i]), (classes[i],))


def _iterate_label_questions(
    task: TokenClassifier, reader: Reader, texts: Any, target: str | int | None, word: str | int | None
) -> Iterator[Question]:
    """Iterate over the scores to explain, one per text, for the label of `word`."""
    encoded_words = task.text_preprocessor.encode_words(texts)  # without windows, which are not explained
    positions = _find_word_positions(
        encoded_words, [_find_word_index(i, words, word) for i, words in enumerate(encoded_words.words)]
    )
    logits = task.predict(encoded_words, verbose=0)  # (n, T, C)
    classes = _find_classes(task, logits[np.arange(len(positions)), positions], target)
    start, _, end = reader.special()
    for i, words in enumerate(encoded_words.words):
        spans = place_tokens(reader.preprocessor.tokenizer, words)[
            : int(encoded_words.lengths[i]) - len(start) - len(end)
        ]
        read_text = join_spans((encoded_words.texts[i],), (SPECIAL, start), (0, spans), (SPECIAL, end))
        yield _make_question(
            reader, read_text, encoded_words, i, get_class_name(task, classes[i]), (positions[i], classes[i])
        )


def _iterate_span_questions(
    task: QuestionAnswerer, reader: Reader, pairs: Any, target: str | int | None
) -> Iterator[Question]:
    """Iterate over the scores to explain, one per pair: the score of the answer in the window that it comes from."""
    score_columns = _get_score_columns(target)
    answers: list[Any] = task.answer(pairs)
    encoded_windows: EncodedWindows = task.encode_inputs(pairs)
    answer_spans = np.array([(answer["start"], answer["end"]) for answer in answers], "int64").reshape(-1, 2)
    _, windows, positions = _compute_answer_scores(task, encoded_windows, answer_spans, score_columns, 32)
    question_texts: list[Any] = [question for question, _ in _make_rows(task, pairs)]
    tokenizer = reader.preprocessor.tokenizer
    start, between, end = reader.special()
    for text, answer, window in zip(question_texts, answers, windows.tolist(), strict=True):
        segment_starts = encoded_windows.begins[window]
        segment_lengths = encoded_windows.counts[window]
        context_slice = slice(segment_starts[3], segment_starts[3] + segment_lengths[3])
        ids = encoded_windows.tokens[context_slice].tolist()
        offsets = encoded_windows.spans[context_slice].tolist()
        context = [
            TokenSpan(token_id, str(tokenizer.id_to_token(token_id)), *span)
            for token_id, span in zip(ids, offsets, strict=True)
        ]
        question = tokenizer.tokenize_with_offsets([text])[0][: segment_lengths[1]]
        read_text = join_spans(
            (_join_words(text), encoded_windows.contexts[encoded_windows.examples[window]]),
            (SPECIAL, start), (0, question), (SPECIAL, between), (1, context), (SPECIAL, end),
        )  # fmt: skip
        indices = [(int(positions[window, column]), column) for column in score_columns]
        yield _make_question(reader, read_text, encoded_windows.packed(np.array([window])), 0, answer["text"], *indices)


def _make_question(
    reader: Reader, read_text: ReadText, encoded_texts: EncodedTexts, row: int, target: str, *indices: tuple[int, ...]
) -> Question:
    """Return a question about a sequence, whose score is the sum of some of the model's outputs.

    Args:
        reader: reader of the task's texts.
        read_text: the sequence with its tokens and their texts.
        encoded_texts: encoded sequences.
        row: index of the sequence in `encoded_texts`.
        target: name of the explained prediction, such as a class.
        *indices: indices of the outputs to sum, without the batch axis.
    """

    def score(outputs: Tensor) -> Tensor:
        return sum(outputs[(slice(None), *index)] for index in indices)

    widths = ladder_buckets(max(reader.preprocessor.sequence_length, len(read_text.tokens)))
    width = next(width for width in widths if width >= len(read_text.tokens))
    return read_text, reader.preprocessor.features(encoded_texts, np.array([row]), width), target, score


# === Left-out words ===


def compute_score_drops(
    task: Explained, texts: Any, target: str | int | None, word: str | int | None, batch_size: int
) -> list[Attribution]:
    """Leave out each word of a text in turn, and return how much the score of the text's prediction drops."""
    if isinstance(task, TokenClassifier):
        return _compute_tag_drops(task, texts, target, word, batch_size)
    if isinstance(task, QuestionAnswerer):
        return _compute_answer_drops(task, texts, target, batch_size)
    rows = _make_rows(task, texts)
    words = [_list_words(row) for row in rows]
    shortened_rows = [_remove_word(row, word) for row, row_words in zip(rows, words, strict=True) for word in row_words]
    outputs = task.predict(_make_inputs([*rows, *shortened_rows]), batch_size=batch_size, verbose=0)  # (n + w, C)
    return _compute_class_drops(task, [tuple(map(_join_words, row)) for row in rows], words, outputs, target)


def _compute_tag_drops(
    task: TokenClassifier, texts: Any, target: str | int | None, word: str | int | None, batch_size: int
) -> list[Attribution]:
    """Return, for each text, the contributions of all other words to the label of `word`."""
    encoded_texts = task.text_preprocessor.encode_words(texts)  # without windows, which are not explained
    target_indices = [_find_word_index(i, words, word) for i, words in enumerate(encoded_texts.words)]
    word_lists = [[name for name, _, _ in words] for words in encoded_texts.words]
    removable_indices = [
        [j for j in range(len(row)) if j != k] for row, k in zip(word_lists, target_indices, strict=True)
    ]
    shortened_texts = [
        [*row[:j], *row[j + 1 :]] for row, indices in zip(word_lists, removable_indices, strict=True) for j in indices
    ]
    shifted_indices = [
        k - (j < k) for indices, k in zip(removable_indices, target_indices, strict=True) for j in indices
    ]
    all_encoded_texts = task.text_preprocessor.encode_words([*word_lists, *shortened_texts])
    positions = _find_word_positions(all_encoded_texts, [*target_indices, *shifted_indices])
    logits = task.predict(all_encoded_texts, batch_size, verbose=0)[np.arange(len(positions)), positions]  # (n + w, C)
    words = [[(0, *encoded_texts.words[i][j]) for j in indices] for i, indices in enumerate(removable_indices)]
    return _compute_class_drops(task, [(text,) for text in encoded_texts.texts], words, logits, target)


def _compute_answer_drops(
    task: QuestionAnswerer, pairs: Any, target: str | int | None, batch_size: int
) -> list[Attribution]:
    """Return, for each pair, the contributions to its answer of all words outside of the answer."""
    score_columns = _get_score_columns(target)
    rows = _make_rows(task, pairs)
    answers: list[Any] = task.answer(pairs, batch_size=batch_size)
    spans = [(answer["start"], answer["end"]) for answer in answers]
    words = []
    shortened_rows = []
    shifted_spans = []
    for row, (start, end) in zip(rows, spans, strict=True):
        removable_words = [word for word in _list_words(row) if word[0] == 0 or word[3] <= start or word[2] >= end]
        words.append(removable_words)
        shortened_rows += [_remove_word(row, word) for word in removable_words]
        for word in removable_words:
            removed_start, removed_end = _find_removed_span(row[1], *word[2:]) if word[0] else (end, end)
            shifted_spans.append(
                tuple(offset - max(0, min(offset, removed_end) - removed_start) for offset in (start, end))
            )
    encoded_windows: EncodedWindows = task.encode_inputs(_make_inputs([*rows, *shortened_rows]))
    scores, *_ = _compute_answer_scores(
        task, encoded_windows, np.array([*spans, *shifted_spans], "int64"), score_columns, batch_size
    )
    strings = [tuple(map(_join_words, row)) for row in rows]
    return _make_attributions(strings, words, [answer["text"] for answer in answers], scores)


def _compute_class_drops(
    task: Any, texts: Sequence[tuple[str, ...]], words: list[list[Word]], outputs: np.ndarray, target: str | int | None
) -> list[Attribution]:
    """Return contributions to classes, given outputs (n + w, C) for n texts and then w texts with a word left out."""
    classes = _find_classes(task, outputs[: len(texts)], target)
    columns = np.append(classes, np.repeat(classes, [*map(len, words)]))  # (n + w,)
    scores = outputs[np.arange(len(outputs)), columns].astype("float64")
    return _make_attributions(texts, words, [get_class_name(task, column) for column in classes], scores)


def _make_attributions(
    texts: Sequence[tuple[str, ...]], words: list[list[Word]], targets: Sequence[str], scores: np.ndarray
) -> list[Attribution]:
    """Return contributions of words, given scores (n + w,) of n texts and then w texts with a word left out."""
    attributions = []
    shortened_scores = np.split(scores[len(texts) :], np.cumsum([*map(len, words)])[:-1])
    for strings, text_words, target, score, scores_without_word in zip(
        texts, words, targets, scores.tolist(), shortened_scores, strict=False
    ):
        offsets = np.array([span for _, _, *span in text_words], "int64").reshape(-1, 2)
        segments = np.array([segment for segment, *_ in text_words], "int64")
        tokens = [word for _, word, _, _ in text_words]
        attributions.append(
            Attribution(strings, tokens, offsets, segments, score - scores_without_word, target, score, None)
        )
    return attributions


# === Shared by both ===


def get_class_name(task: Any, column: int) -> str:
    """Return the class name of a column of the outputs, or "score" for a regression."""
    return "score" if isinstance(task, TextRegressor) else task.class_names[column]


def _find_classes(task: Any, outputs: np.ndarray, target: str | int | None) -> list[int]:
    """Return the class to explain for each of n texts, as a column of `outputs` (n, C).

    Raises:
        ArgumentError: If `target` is not a class of the task, or is passed for a `TextRegressor`.
    """
    if isinstance(task, TextRegressor):
        require(target is None, "target", "None for a TextRegressor, which gives one number", target)
        return [0] * len(outputs)
    if target is None:
        return outputs.argmax(axis=1).tolist()
    names = task.class_names
    if target in names:
        return [names.index(str(target))] * len(outputs)
    is_valid = is_integer(target, 0) and int(target) < len(names)
    require(is_valid, "target", f"one of the classes {', '.join(names)}, or its number", target)
    return [int(target)] * len(outputs)


def _get_score_columns(target: str | int | None) -> tuple[int, ...]:
    """Return the columns of a `QuestionAnswerer`'s outputs that add up to the score.

    Raises:
        ArgumentError: If `target` is not None, "start" or "end".
    """
    columns_by_target: dict[Any, tuple[int, ...]] = {None: (0, 1), "start": (0,), "end": (1,)}
    require(target in columns_by_target, "target", '"start", "end" or None for both, of an answer', target)
    return columns_by_target[target]


def _compute_answer_scores(
    task: QuestionAnswerer,
    encoded_windows: EncodedWindows,
    spans: np.ndarray,
    score_columns: Sequence[int],
    batch_size: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the score of each answer, the window that it comes from, and the positions of answers in all windows.

    As in the task's ranking, the window is the highest-scoring window that holds the answer or, if the answer is empty,
    the lowest-scoring window.

    Returns:
        Scores, float64 (n,), NaN for an answer that no window holds after a word was left out; indices of windows,
        int64 (n,); and token positions of starts and ends in each of the w windows, (w, 2).
    """
    logits = task.predict(encoded_windows, batch_size, verbose=0)  # (w, T, 2)
    positions = encoded_windows.positions(spans)  # (w, 2)
    rows = np.arange(len(logits))
    scores = sum(logits[rows, positions[:, column], column].astype("float64") for column in score_columns)  # (w,)
    has_no_answer = (spans[:, 0] == spans[:, 1])[encoded_windows.examples]  # (w,)
    ranking_scores = np.where(has_no_answer, -scores, np.where(positions.any(axis=1), scores, -np.inf))
    windows_by_example = [np.flatnonzero(encoded_windows.examples == i) for i in range(len(encoded_windows.contexts))]
    best_windows = np.array([indices[ranking_scores[indices].argmax()] for indices in windows_by_example], "int64")
    return np.where(np.isfinite(ranking_scores[best_windows]), scores[best_windows], np.nan), best_windows, positions


def _find_word_index(text_index: int, words: Sequence[tuple[str, int, int]], word: str | int | None) -> int:
    """Return the index in `words` of `word`, which is a string (its first occurrence counts) or already an index.

    Raises:
        ValueError: If the text has no such word; the message gives `text_index`.
    """
    names = [name for name, _, _ in words]
    if isinstance(word, str) and word in names:
        return names.index(word)
    is_valid = is_integer(word, 0) and int(word) < len(names)  # type: ignore[arg-type]
    if not is_valid:
        raise ValueError(f"Text {text_index} has no word {word!r}: its words are {', '.join(map(repr, names))!s:.200}.")
    return int(word)  # type: ignore[arg-type]


def _find_word_positions(encoded_words: EncodedWords, word_indices: Sequence[int]) -> np.ndarray:
    """Return the position of the chosen word's first token in each of n sequences, int (n,).

    Raises:
        ValueError: If the word was truncated in a sequence.
    """
    positions = encoded_words.first[encoded_words.word_splits[:-1] + np.array(word_indices, "int64")]
    if (positions < 0).any():
        raise ValueError("The word was truncated: pass a shorter text, or raise `sequence_length`.")
    return positions


def _make_rows(task: Explained, texts: Any) -> list[tuple[_Text, ...]]:
    """Return each text or pair of texts as a tuple of strings, or of lists of words if the tokenizer takes words."""
    return list(zip(*clean_segments(texts, task.text_preprocessor.tokenizer.takes_words), strict=True))


def _join_words(text: _Text) -> str:
    """Return a text as a string, with a space between words."""
    return text if isinstance(text, str) else " ".join(text)


def _list_words(row: Iterable[_Text]) -> list[Word]:
    """Return the words of a text or of both texts of a pair."""
    return [(segment, *word) for segment, text in enumerate(row) for word in place_words(text)]


def _remove_word(row: tuple[_Text, ...], word: Word) -> tuple[_Text, ...]:
    """Return a text or pair of texts without one word."""
    segment, _, start, end = word
    text = shortened_text = row[segment]
    if isinstance(text, str):
        removed_start, removed_end = _find_removed_span(text, start, end)
        shortened_text = text[:removed_start] + text[removed_end:]
    else:
        shortened_text = [name for name, *span in place_words(text) if span != [start, end]]
    return (*row[:segment], shortened_text, *row[segment + 1 :])


def _find_removed_span(text: _Text, start: int, end: int) -> tuple[int, int]:
    """Return the start and end of the characters to remove with a word: the word and a space next to it.

    No space is removed if that would join two words. A space must not be left over, since byte-level tokenizers have
    separate tokens for two spaces, and for a space at the start or end of a text.
    """
    text = _join_words(text)
    character_before = text[:start][-1:]
    character_after = text[end : end + 1]
    if character_after.isspace() and (not character_before or character_before.isspace()):
        return start, end + 1
    if character_before.isspace() and not character_after.isalnum():  # before punctuation, or at the end
        return start - 1, end
    return start, end


def _make_inputs(rows: Sequence[tuple[_Text, ...]]) -> Any:
    """Return texts or pairs in the form of a task's inputs: a list of texts, or two lists."""
    columns = tuple(list(column) for column in zip(*rows, strict=True))
    return columns[0] if len(columns) == 1 else columns
