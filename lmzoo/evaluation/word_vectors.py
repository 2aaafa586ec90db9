"""Evaluation of word vectors: similarities of words compared with people's judgments, and analogies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.progress import progress_bar
from lmzoo.data.readers.text_files import open_text, read_numbered_lines
from lmzoo.evaluation.reports import Cell, Report
from lmzoo.text.validate_text import is_column

NUM_WORDS = 300_000  # as in gensim
_MAX_SCORES = 1 << 24  # scores in memory at once


class WordVectorModel(Protocol):
    """A model with a vector for each word, such as a `lmzoo.models.StaticEmbedder`."""

    words: Any
    vectors: Any

    def score_analogies(self, vectors: np.ndarray, method: str) -> np.ndarray:
        """Return the scores of all V words as answers to n analogies, float32 (n, V).

        Args:
            vectors: float32 (n, 3, H), unit vectors of the three given words of each analogy.
            method: `"3CosAdd"` or `"3CosMul"`.
        """


def word_similarity(
    embedder: WordVectorModel, pairs: str | Path | Iterable[tuple[str, str, float]], num_words: int = NUM_WORDS
) -> Report:
    """Correlate the cosines of word vectors with people's judgments of similarity, as in WordSim-353 or SimLex-999.

    Words are compared without regard to case. Pairs with a word outside of the vocabulary are left out.

    Args:
        embedder: model with the word vectors, such as a `lmzoo.models.StaticEmbedder`.
        pairs: pairs of words with their similarity, `(word, word, number)`; or the path of a text file with these three
            columns, separated by tabs or spaces. Lines that begin with "#" are comments.
        num_words: int, number of words to use, from the start of the vocabulary.

    Returns:
        `Report` with the scores `spearman` and `pearson`, the number of `pairs`, and the number of pairs `left_out`.

    Raises:
        ValueError: If a line of the file or a pair is not two words and a finite number (the message gives its number),
            or fewer than two pairs are in the vocabulary.

    Example:

    ```python
    import lmzoo

    words, vectors = ["cup", "mug", "cat"], [[1.0, 0.2], [0.9, 0.3], [0.1, 1.0]]
    embedder = lmzoo.models.StaticEmbedder(words, vectors)
    judgments = [("cup", "mug", 9.0), ("cup", "cat", 1.0), ("mug", "cat", 1.5), ("cup", "plate", 5.0)]
    lmzoo.evaluation.word_similarity(embedder, judgments).scores["spearman"]  # 1.0
    ```
    """
    from scipy.stats import pearsonr, spearmanr

    rows_by_word = _group_rows_by_word(embedder, num_words)
    if isinstance(pairs, (str, Path)):
        triples = [*_read_pairs(pairs)]
    else:
        triples = [_check_pair(pair, position) for position, pair in enumerate(pairs)]
    uppercase_triples = [(first_word.upper(), second_word.upper(), score) for first_word, second_word, score in triples]
    covered_triples = [
        triple for triple in uppercase_triples if triple[0] in rows_by_word and triple[1] in rows_by_word
    ]
    if len(covered_triples) < 2:
        coverage = f"{len(covered_triples)} of {len(triples)}"
        raise ValueError(f"Expected two or more pairs of words in the vocabulary, got {coverage}.")
    first_vectors = _compute_unit_vectors(
        embedder, [rows_by_word[first_word][0] for first_word, _, _ in covered_triples]
    )
    second_vectors = _compute_unit_vectors(
        embedder, [rows_by_word[second_word][0] for _, second_word, _ in covered_triples]
    )
    cosines = (first_vectors * second_vectors).sum(axis=1)
    judgments = np.array([score for _, _, score in covered_triples])
    scores = {
        "spearman": float(spearmanr(judgments, cosines).statistic),
        "pearson": float(pearsonr(judgments, cosines).statistic),
        "pairs": len(covered_triples),
        "left_out": len(triples) - len(covered_triples),
    }
    return Report(scores)


def word_analogies(
    embedder: WordVectorModel,
    questions: str | Path | Iterable[tuple[str, str, str, str]],
    num_words: int = NUM_WORDS,
    method: str = "3CosAdd",
    verbose: bool = True,
) -> Report:
    """Compute the accuracy of word vectors on analogies, such as Google's questions-words dataset.

    A question (a, b, c, d) is answered correctly if d is the best word for "a is to b as c is to". Words are compared
    without regard to case. Questions with a word outside of the vocabulary are left out.

    Args:
        embedder: model with the word vectors, such as a `lmzoo.models.StaticEmbedder`.
        questions: questions of four words; or the path of a text file with a question in each line, in which lines such
            as ": family" begin sections.
        num_words: int, number of words to use, from the start of the vocabulary.
        method: `"3CosAdd"` or `"3CosMul"`; see `lmzoo.models.StaticEmbedder.analogy`.
        verbose: whether to show progress.

    Returns:
        `Report` with the score `accuracy`, the number of `questions`, the number of questions `left_out`, and the table
        "by section".

    Raises:
        ValueError: If a line of the file or a question does not have four words (the message gives its number), no
            question is in the vocabulary, or `method` is unknown.

    Example:

    ```python
    import lmzoo

    words = ["king", "queen", "man", "woman"]
    embedder = lmzoo.models.StaticEmbedder(words, [[1.0, 1.0], [1.0, -1.0], [0.1, 1.0], [0.1, -1.0]])
    report = lmzoo.evaluation.word_analogies(embedder, [("man", "king", "woman", "queen")])
    report.scores  # {"accuracy": 1.0, "questions": 1, "left_out": 0}
    ```
    """
    rows_by_word = _group_rows_by_word(embedder, num_words)
    if isinstance(questions, (str, Path)):
        parsed_questions = [*_read_questions(questions)]
    else:
        parsed_questions = [("", _check_question(question, position)) for position, question in enumerate(questions)]
    uppercase_questions = [(section, [word.upper() for word in words]) for section, words in parsed_questions]
    covered_questions = [
        (section, words) for section, words in uppercase_questions if all(word in rows_by_word for word in words)
    ]
    if not covered_questions:
        raise ValueError(f"Expected questions whose words are in the vocabulary, got none of {len(parsed_questions)}.")
    is_right = _judge_answers(
        embedder, rows_by_word, [words for _, words in covered_questions], num_words, method, verbose
    )
    section_names = np.array([section for section, _ in covered_questions], object)
    section_rows: list[list[Cell]] = []
    for section_name in dict.fromkeys(section_names):
        in_section = section_names == section_name
        section_rows.append([section_name, int(in_section.sum()), float(is_right[in_section].mean())])
    scores = {
        "accuracy": float(is_right.mean()),
        "questions": len(covered_questions),
        "left_out": len(parsed_questions) - len(covered_questions),
    }
    return Report(scores, {"by section": (["section", "questions", "accuracy"], section_rows)})


def _judge_answers(
    embedder: WordVectorModel,
    rows_by_word: dict[str, list[int]],
    questions: Sequence[list[str]],
    num_words: int,
    method: str,
    verbose: bool,
) -> np.ndarray:
    """Return whether each of n questions is answered correctly, bool (n,).

    Args:
        embedder: the word vectors.
        rows_by_word: dict from each uppercase word to the rows of the words that equal it in uppercase.
        questions: four uppercase words each, the last of which is the right answer.
        num_words: number of words, from the start of the vocabulary, that are possible answers.
        method: scoring method, see `score_analogies`.
        verbose: whether to show progress.
    """
    is_right = []
    chunk_size = max(1, _MAX_SCORES // len(embedder.words))
    with progress_bar("Answering", len(questions), "questions", verbose) as advance:
        for start in range(0, len(questions), chunk_size):
            chunk = questions[start : start + chunk_size]
            rows = np.array([[rows_by_word[word][0] for word in words[:3]] for words in chunk])  # (n, 3)
            vectors = _compute_unit_vectors(embedder, rows.reshape(-1)).reshape(*rows.shape, -1)  # (n, 3, H)
            scores = embedder.score_analogies(vectors, method)[:, :num_words]
            for words, word_scores in zip(chunk, scores, strict=True):
                word_scores[list(itertools.chain.from_iterable(rows_by_word[word] for word in words[:3]))] = -np.inf
                is_right.append(embedder.words[int(word_scores.argmax())].upper() == words[3])
            advance(len(chunk))
    return np.array(is_right)


def _group_rows_by_word(embedder: WordVectorModel, num_words: int) -> dict[str, list[int]]:
    """Return a dict from each uppercase word to the ascending rows of the words that equal it in uppercase."""
    require(is_integer(num_words, 1), "num_words", "a positive integer", num_words)
    rows_by_word: dict[str, list[int]] = {}
    for row, word in enumerate(embedder.words[:num_words]):
        rows_by_word.setdefault(word.upper(), []).append(row)
    return rows_by_word


def _compute_unit_vectors(embedder: WordVectorModel, rows: Any) -> np.ndarray:
    """Return the vectors at the n `rows`, scaled to unit length, float32 (n, H)."""
    vectors = embedder.vectors[rows]
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)


def _check_pair(pair: Any, position: int) -> tuple[str, str, float]:
    """Check that `pair`, the entry `pairs[position]`, is two words and their similarity, and return it.

    Raises:
        ValueError: If `pair` is anything else; the message names the position.
    """
    fields = list(pair) if is_column(pair) else []
    try:
        first_word, second_word, judgment = fields
        similarity = float(judgment)
    except (TypeError, ValueError):
        similarity = math.nan
    is_valid = math.isfinite(similarity) and isinstance(fields[0], str) and isinstance(fields[1], str)
    require(is_valid, f"pairs[{position}]", "two words and a finite number", pair)
    return first_word, second_word, similarity


def _check_question(question: Any, position: int) -> list[str]:
    """Check that `question`, the entry `questions[position]`, is four words, and return them as a list.

    Raises:
        ValueError: If `question` is not four words; the message names the position.
    """
    words = list(question) if is_column(question) else []
    is_valid = len(words) == 4 and all(isinstance(word, str) for word in words)
    require(is_valid, f"questions[{position}]", "four words", question)
    return words


def _read_pairs(path: str | Path) -> Iterator[tuple[str, str, float]]:
    """Yield the pairs of words with their similarity in a text file.

    Raises:
        ValueError: If a line is not two words and a finite number; the message names the line.
    """
    with open_text(path) as file:
        for line_number, line in read_numbered_lines(file):
            if not line.strip() or line.startswith("#"):
                continue
            fields = line.split("\t") if "\t" in line else line.split()
            try:
                triple = _check_pair([field.strip() for field in fields], line_number)
            except ValueError:
                problem = "must hold two words and a number, separated by tabs or spaces"
                raise ValueError(f"{path}, line {line_number} {problem}: {line:.60}") from None
            yield triple


def _read_questions(path: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the section and the four words of each question in a text file.

    Raises:
        ValueError: If a line does not have four words; the message names the line.
    """
    section = ""
    with open_text(path) as file:
        for line_number, line in read_numbered_lines(file):
            words = line.split()
            if line.startswith(":"):
                section = line.removeprefix(":").strip()
            elif len(words) == 4:
                yield section, words
            elif words:
                raise ValueError(f"{path}, line {line_number} must hold four words: {line:.60}")
