"""What is explained of each kind of task: the score of an answer, for a text and for that text without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lmzoo.analysis.reading import SPECIAL, Reader, ReadText, joined, listed
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
_Text: TypeAlias = str | list[str]  # a list of words if the tokenizer takes them
Word: TypeAlias = tuple[int, str, int, int]  # to which of the texts it belongs, the word, its characters there


# The score of an answer as a function of a model's outputs: the text as tokens, the model's inputs, (1, width) each,
# the answer, and what makes scores (S,) of outputs (S, ...).
Question: TypeAlias = tuple[ReadText, dict[str, np.ndarray], str, Callable[[Any], Any]]


class Attribution(NamedTuple):
    """What each part of a text contributes to an answer.

    Attributes:
        texts: the text, or the two of a pair.
        tokens: n strings, tokens or words.
        offsets: int64 (n, 2), the first character of each and the one after its last; -1 for special tokens.
        segments: int64 (n,), to which of the texts each belongs; -1 for special tokens.
        values: float64 (n,), contributions to the score: positive ones speak for the answer.
        target: the answer: a class by its name, the text of an answer to a question; "score" for numbers.
        score: float, for the text: the logit of the class, the sum of the logits of the answer's start and end, or the
            number.
        baseline: float, the score without the text; None if each word was left out by itself.

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
    """Return texts that can be read twice, and check that answers of a task to them can be explained.

    Raises:
        TypeError: for another task, or texts that are none.
        ValueError: for a tagger with a CRF; if a tagger's word is not named, or one is named for another task; if there
            are no texts.
    """
    if not isinstance(task, Explained):
        raise WrongModelError(
            "Contributions are to answers of a TextClassifier, TextRegressor, TokenClassifier or QuestionAnswerer, got "
            f"{task!r:.60}."
        )
    texts = listed(texts)
    tagger = isinstance(task, TokenClassifier)
    if tagger and task.crf:
        raise ValueError("With `crf` labels are scored together, and no word has a score of its own to explain.")
    if tagger and word is None:
        message = "Name the word whose label is to be explained as `word`, by its number from 0 or as it is."
        raise ArgumentError(message, "word")
    require(tagger or word is None, "word", "None, but for a TokenClassifier, which has an answer for each word", word)
    require(len(split_segments(texts, words=True)[0]), "texts", "at least one text", texts)
    return texts


# === Tokens, for gradients ===


def questions(task: Explained, texts: Any, target: str | int | None, word: str | int | None) -> Iterator[Question]:
    """Return what is asked about each text."""
    reader = Reader.of(task, None)
    if isinstance(task, TokenClassifier):
        yield from _about_tags(task, reader, texts, target, word)
    elif isinstance(task, QuestionAnswerer):
        yield from _about_answers(task, reader, texts, target)
    else:
        read, encoded = reader.read(texts)
        chosen = _classes(task, task.predict(texts, verbose=0), target)
        for i, text in enumerate(read):
            yield _question(reader, text, encoded, i, class_name(task, chosen[i]), (chosen[i],))


def _about_tags(
    task: TokenClassifier, reader: Reader, texts: Any, target: str | int | None, word: str | int | None
) -> Iterator[Question]:
    encoded: EncodedWords = task.encode_inputs(texts)
    columns = _columns(encoded, [_number_of(i, words, word) for i, words in enumerate(encoded.words)])
    logits = task.predict(encoded, verbose=0)  # (n, T, C)
    chosen = _classes(task, logits[np.arange(len(columns)), columns], target)
    start, _, end = reader.special()
    for i, words in enumerate(encoded.words):
        spans = place_tokens(reader.preprocessor.tokenizer, words)[: int(encoded.lengths[i]) - len(start) - len(end)]
        text = joined((encoded.texts[i],), (SPECIAL, start), (0, spans), (SPECIAL, end))
        yield _question(reader, text, encoded, i, class_name(task, chosen[i]), (columns[i], chosen[i]))


def _about_answers(task: QuestionAnswerer, reader: Reader, pairs: Any, target: str | int | None) -> Iterator[Question]:
    parts = _parts(target)
    answers: list[Any] = task.answer(pairs)
    encoded: EncodedWindows = task.encode_inputs(pairs)
    spans = np.array([(answer["start"], answer["end"]) for answer in answers], "int64").reshape(-1, 2)
    _, windows, places = _answer_scores(task, encoded, spans, parts, 32)
    asked: list[Any] = [question for question, _ in _rows(task, pairs)]
    tokenizer, (start, between, end) = reader.preprocessor.tokenizer, reader.special()
    for text, answer, window in zip(asked, answers, windows.tolist(), strict=True):
        first, count = encoded.begins[window], encoded.counts[window]
        there = slice(first[3], first[3] + count[3])
        context = [
            TokenSpan(k, str(tokenizer.id_to_token(k)), *place)
            for k, place in zip(encoded.tokens[there].tolist(), encoded.spans[there].tolist(), strict=True)
        ]
        question = tokenizer.tokenize_with_offsets([text])[0][: count[1]]
        read = joined(
            (_joined(text), encoded.contexts[encoded.examples[window]]),
            (SPECIAL, start), (0, question), (SPECIAL, between), (1, context), (SPECIAL, end),
        )  # fmt: skip
        indices = [(int(places[window, part]), part) for part in parts]
        yield _question(reader, read, encoded.packed(np.array([window])), 0, answer["text"], *indices)


def _question(
    reader: Reader, read: ReadText, encoded: EncodedTexts, i: int, target: str, *indices: tuple[int, ...]
) -> Question:
    """Return the question whose score is the sum of the outputs at indices."""

    def score(outputs: Tensor) -> Tensor:
        return sum(outputs[(slice(None), *index)] for index in indices)

    widths = ladder_buckets(max(reader.preprocessor.sequence_length, len(read.tokens)))
    width = next(width for width in widths if width >= len(read.tokens))
    return read, reader.preprocessor.features(encoded, np.array([i]), width), target, score


# === Words that are left out ===


def left_out(
    task: Explained, texts: Any, target: str | int | None, word: str | int | None, batch_size: int
) -> list[Attribution]:
    """Return how much the score of each text's answer falls without each of its words."""
    if isinstance(task, TokenClassifier):
        return _tags_without(task, texts, target, word, batch_size)
    if isinstance(task, QuestionAnswerer):
        return _answers_without(task, texts, target, batch_size)
    rows = _rows(task, texts)
    words = [_words(row) for row in rows]
    shorter = [_without(row, word) for row, of_row in zip(rows, words, strict=True) for word in of_row]
    outputs = task.predict(_as_inputs([*rows, *shorter]), batch_size=batch_size, verbose=0)  # (n + w, C)
    return _of_classes(task, [tuple(map(_joined, row)) for row in rows], words, outputs, target)


def _tags_without(
    task: TokenClassifier, texts: Any, target: str | int | None, word: str | int | None, batch_size: int
) -> list[Attribution]:
    given: EncodedWords = task.encode_inputs(texts)
    number = [_number_of(i, words, word) for i, words in enumerate(given.words)]
    names = [[name for name, _, _ in words] for words in given.words]
    others = [[j for j in range(len(row)) if j != k] for row, k in zip(names, number, strict=True)]
    shorter = [[*row[:j], *row[j + 1 :]] for row, of_row in zip(names, others, strict=True) for j in of_row]
    moved = [k - (j < k) for of_row, k in zip(others, number, strict=True) for j in of_row]
    encoded: EncodedWords = task.encode_inputs([*names, *shorter])
    columns = _columns(encoded, [*number, *moved])
    logits = task.predict(encoded, batch_size, verbose=0)[np.arange(len(columns)), columns]  # (n + w, C)
    words = [[(0, *given.words[i][j]) for j in of_row] for i, of_row in enumerate(others)]
    return _of_classes(task, [(text,) for text in given.texts], words, logits, target)


def _answers_without(
    task: QuestionAnswerer, pairs: Any, target: str | int | None, batch_size: int
) -> list[Attribution]:
    parts, rows = _parts(target), _rows(task, pairs)
    answers: list[Any] = task.answer(pairs, batch_size=batch_size)
    spans = [(answer["start"], answer["end"]) for answer in answers]
    words, shorter, moved = [], [], []
    for row, (start, end) in zip(rows, spans, strict=True):
        kept = [word for word in _words(row) if word[0] == 0 or word[3] <= start or word[2] >= end]
        words.append(kept)
        shorter += [_without(row, word) for word in kept]
        for word in kept:
            first, last = _dropped(row[1], *word[2:]) if word[0] else (end, end)
            moved.append(tuple(place - max(0, min(place, last) - first) for place in (start, end)))
    encoded: EncodedWindows = task.encode_inputs(_as_inputs([*rows, *shorter]))
    scores, *_ = _answer_scores(task, encoded, np.array([*spans, *moved], "int64"), parts, batch_size)
    return _falls([tuple(map(_joined, row)) for row in rows], words, [answer["text"] for answer in answers], scores)


def _of_classes(
    task: Any, texts: Sequence[tuple[str, ...]], words: list[list[Word]], outputs: np.ndarray, target: str | int | None
) -> list[Attribution]:
    """Return contributions to classes, from the outputs (n + w, C) for n texts, then without each of their words."""
    chosen = _classes(task, outputs[: len(texts)], target)
    columns = np.append(chosen, np.repeat(chosen, [*map(len, words)]))  # (n + w,)
    scores = outputs[np.arange(len(outputs)), columns].astype("float64")
    return _falls(texts, words, [class_name(task, column) for column in chosen], scores)


def _falls(
    texts: Sequence[tuple[str, ...]], words: list[list[Word]], targets: Sequence[str], scores: np.ndarray
) -> list[Attribution]:
    """Return the contributions of words, from the scores of n texts, then without each of their words: (n + w,)."""
    results = []
    parts = np.split(scores[len(texts) :], np.cumsum([*map(len, words)])[:-1])
    for read, of_text, target, score, without in zip(texts, words, targets, scores.tolist(), parts, strict=False):
        offsets = np.array([place for _, _, *place in of_text], "int64").reshape(-1, 2)
        segments = np.array([segment for segment, *_ in of_text], "int64")
        tokens = [word for _, word, _, _ in of_text]
        results.append(Attribution(read, tokens, offsets, segments, score - without, target, score, None))
    return results


# === Parts of both ===


def class_name(task: Any, column: int) -> str:
    """Return what a column of the outputs stands for."""
    return "score" if isinstance(task, TextRegressor) else task.class_names[column]


def _classes(task: Any, outputs: np.ndarray, target: str | int | None) -> list[int]:
    """Return the column of the outputs (n, C) to explain, for each text."""
    if isinstance(task, TextRegressor):
        require(target is None, "target", "None for a TextRegressor, which gives one number", target)
        return [0] * len(outputs)
    if target is None:
        return outputs.argmax(axis=1).tolist()
    names = task.class_names
    if target in names:
        return [names.index(str(target))] * len(outputs)
    known = is_integer(target, 0) and int(target) < len(names)
    require(known, "target", f"one of the classes {', '.join(names)}, or its number", target)
    return [int(target)] * len(outputs)


def _parts(target: str | int | None) -> tuple[int, ...]:
    """Return the columns of a QuestionAnswerer's outputs."""
    parts: dict[Any, tuple[int, ...]] = {None: (0, 1), "start": (0,), "end": (1,)}
    require(target in parts, "target", '"start", "end" or None for both, of an answer', target)
    return parts[target]


def _answer_scores(
    task: QuestionAnswerer, encoded: EncodedWindows, spans: np.ndarray, parts: Sequence[int], batch_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return answers' scores, float64 (n,), and windows, int (n,), and the places of answers in all windows (w, 2).

    As the task ranks them: the best window that holds the answer or, for no answer, the one with the lowest score. NaN
    if leaving out a word has moved the answer to where no window holds it.
    """
    logits, places = task.predict(encoded, batch_size, verbose=0), encoded.positions(spans)  # (w, T, 2), (w, 2)
    every = np.arange(len(logits))
    scores = sum(logits[every, places[:, part], part].astype("float64") for part in parts)  # (w,)
    none = (spans[:, 0] == spans[:, 1])[encoded.examples]  # (w,)
    ranks = np.where(none, -scores, np.where(places.any(axis=1), scores, -np.inf))
    by_example = [np.flatnonzero(encoded.examples == i) for i in range(len(encoded.contexts))]
    windows = np.array([of_example[ranks[of_example].argmax()] for of_example in by_example], "int64")
    return np.where(np.isfinite(ranks[windows]), scores[windows], np.nan), windows, places


def _number_of(i: int, words: Sequence[tuple[str, int, int]], word: str | int | None) -> int:
    """Return the number of the word to explain among those of text i."""
    names = [name for name, _, _ in words]
    if isinstance(word, str) and word in names:
        return names.index(word)
    known = is_integer(word, 0) and int(word) < len(names)  # type: ignore[arg-type]
    if not known:
        raise ValueError(f"Text {i} has no word {word!r}: its words are {', '.join(map(repr, names))!s:.200}.")
    return int(word)  # type: ignore[arg-type]


def _columns(encoded: EncodedWords, number: Sequence[int]) -> np.ndarray:
    """Where the first token of a word of each text is in its sequence, int (n,)."""
    columns = encoded.first[encoded.word_splits[:-1] + np.array(number, "int64")]
    if (columns < 0).any():
        raise ValueError("The word was truncated: pass a shorter text, or raise `sequence_length`.")
    return columns


def _rows(task: Explained, texts: Any) -> list[tuple[_Text, ...]]:
    """Each text, or the two of each pair: strings, or lists of words if the task's tokenizer takes them."""
    return list(zip(*clean_segments(texts, task.text_preprocessor.tokenizer.takes_words), strict=True))


def _joined(text: _Text) -> str:
    return text if isinstance(text, str) else " ".join(text)


def _words(row: Iterable[_Text]) -> list[Word]:
    return [(segment, *word) for segment, text in enumerate(row) for word in place_words(text)]


def _without(row: tuple[_Text, ...], word: Word) -> tuple[_Text, ...]:
    segment, _, start, end = word
    text = shorter = row[segment]
    if isinstance(text, str):
        first, last = _dropped(text, start, end)
        shorter = text[:first] + text[last:]
    else:
        shorter = [name for name, *place in place_words(text) if place != [start, end]]
    return (*row[:segment], shorter, *row[segment + 1 :])


def _dropped(text: _Text, start: int, end: int) -> tuple[int, int]:
    """Return the characters that go with a word: its own and a space next to it, unless that would join two words.

    Two spaces, or one at the start or the end of a text, are a token of their own for byte-level tokenizers.
    """
    text = _joined(text)
    before, after = text[:start][-1:], text[end : end + 1]
    if after.isspace() and (not before or before.isspace()):
        return start, end + 1
    if before.isspace() and not after.isalnum():  # before punctuation, or at the end
        return start - 1, end
    return start, end


def _as_inputs(rows: Sequence[tuple[_Text, ...]]) -> Any:
    """Return texts, or pairs, as a task takes them."""
    columns = tuple(list(column) for column in zip(*rows, strict=True))
    return columns[0] if len(columns) == 1 else columns
