"""Preprocessing, answer ranking and scores of BERT's SQuAD code, in plain Python; it shares no code with lmzoo.

Contexts are split into words at spaces. Pieces are WordPiece tokens; those that continue a word begin with "##".
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

SPACES = " \t\r\n\u202f"

Span = tuple[int, int]


# === Windows and labels ===


def split_words(text: str) -> tuple[list[str], list[int]]:
    """Return the words of a text and each character's word index; a space belongs to the word before it."""
    words: list[str] = []
    word_of: list[int] = []
    after_space = True
    for character in text:
        if character in SPACES:
            after_space = True
        else:
            if after_space:
                words.append("")
            words[-1] += character
            after_space = False
        word_of.append(len(words) - 1)
    return words, word_of


def windows(total: int, room: int, stride: int) -> list[Span]:
    """Return (first piece, number of pieces) of each window."""
    spans: list[Span] = []
    start = 0
    while start < total:
        length = min(total - start, room)
        spans.append((start, length))
        if start + length == total:
            break
        start += min(length, stride)
    return spans


def has_max_context(spans: list[Span], index: int, piece: int) -> bool:
    best_score, best_index = -math.inf, None
    for i, (start, length) in enumerate(spans):
        end = start + length - 1
        if start <= piece <= end:
            score = min(piece - start, end - piece) + 0.01 * length
            if score > best_score:
                best_score, best_index = score, i
    return best_index == index


def label_pieces(
    context: str, text: str, start: int, tokenize: Callable[[str], list[str]]
) -> tuple[Span, list[str]] | None:
    """Return the indices of an answer's first and last piece, and all pieces of the context.

    Return None if the words at the answer's position do not contain the answer.
    """
    words, word_of = split_words(context)
    first, last = word_of[start], word_of[start + len(text) - 1]
    if " ".join(split_words(text)[0]) not in " ".join(words[first : last + 1]):
        return None
    pieces: list[str] = []
    word_starts: list[int] = []
    for word in words:
        word_starts.append(len(pieces))
        pieces += tokenize(word)
    low = word_starts[first]
    high = word_starts[last + 1] - 1 if last + 1 < len(words) else len(pieces) - 1
    answer = " ".join(tokenize(text))
    for new_low in range(low, high + 1):
        for new_high in range(high, new_low - 1, -1):
            if " ".join(pieces[new_low : new_high + 1]) == answer:
                return (new_low, new_high), pieces
    return (low, high), pieces


def window_label(span: Span | None, window: Span, before: int) -> Span:
    """Return a window's label; `before` is the number of tokens in front of the window in its row."""
    start, length = window
    if span is None or span[0] < start or span[1] > start + length - 1:
        return (0, 0)
    return (span[0] - start + before, span[1] - start + before)


# === From logits to answers ===


class Candidate(NamedTuple):
    score: float
    text: str
    first: int  # piece of the context; -1 for the null answer
    last: int


class Row(NamedTuple):
    """Logits of a window, without padding, and the number of tokens in front of it."""

    starts: list[float]
    ends: list[float]
    before: int  # tokens in front of the window


def highest(logits: list[float], n: int) -> list[int]:
    return sorted(range(len(logits)), key=lambda i: logits[i], reverse=True)[:n]


def n_best(
    rows: list[Row],
    spans: list[Span],
    text_of: Callable[[int, int], str],
    n: int = 20,
    longest: int = 30,
    null: bool = False,
) -> tuple[list[Candidate], list[float], float]:
    """Return the n-best list of an example, its probabilities and the null score."""
    preliminary: list[Candidate] = []
    null_score = math.inf
    for index, (row, (start, length)) in enumerate(zip(rows, spans, strict=True)):
        null_score = min(null_score, row.starts[0] + row.ends[0])
        for i in highest(row.starts, n):
            for j in highest(row.ends, n):
                inside = row.before <= i < row.before + length and row.before <= j < row.before + length
                if not inside or j < i or j - i + 1 > longest:
                    continue
                first, last = i - row.before + start, j - row.before + start
                if has_max_context(spans, index, first):
                    preliminary.append(Candidate(row.starts[i] + row.ends[j], "", first, last))
    if null:
        preliminary.append(Candidate(null_score, "", -1, -1))
    preliminary.sort(key=lambda candidate: candidate.score, reverse=True)
    candidates: list[Candidate] = []
    for candidate in preliminary:
        if len(candidates) >= n:
            break
        text = "" if candidate.first < 0 else text_of(candidate.first, candidate.last)
        if (text or candidate.first < 0) and text not in {chosen.text for chosen in candidates}:
            candidates.append(candidate._replace(text=text))
    if null and "" not in {candidate.text for candidate in candidates}:
        candidates.append(Candidate(null_score, "", -1, -1))
    total = sum(math.exp(candidate.score - candidates[0].score) for candidate in candidates)
    highest_score = candidates[0].score if candidates else 0.0
    return candidates, [math.exp(candidate.score - highest_score) / total for candidate in candidates], null_score


def prediction(candidates: list[Candidate], null_score: float, threshold: float) -> str:
    """Return the predicted answer for SQuAD 2.0, which is empty if the null score exceeds the threshold."""
    best = next((candidate for candidate in candidates if candidate.text), None)
    return "" if best is None or null_score - best.score > threshold else best.text


# === Answer texts from pieces ===


def is_punctuation(character: str) -> bool:
    code = ord(character)
    ascii_marks = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return ascii_marks or unicodedata.category(character).startswith("P")


CJK = [
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
]


def basic_tokens(text: str) -> list[str]:
    """Split a text into BERT's words, in lowercase and without accents."""
    cleaned = ""
    for c in text:
        category = unicodedata.category(c)
        if c in "\0\ufffd" or (category in ("Cc", "Cf") and c not in "\t\n\r"):
            continue
        if c in "\t\n\r " or category == "Zs":
            cleaned += " "
        else:
            cleaned += f" {c} " if any(low <= ord(c) <= high for low, high in CJK) else c
    tokens: list[str] = []
    for word in cleaned.split():
        bare = "".join(c for c in unicodedata.normalize("NFD", word.lower()) if unicodedata.category(c) != "Mn")
        current = ""
        for c in bare:
            if is_punctuation(c):
                tokens += [current, c] if current else [c]
                current = ""
            else:
                current += c
        tokens += [current] if current else []
    return tokens


def joined(pieces: list[str]) -> str:
    return " ".join(" ".join(pieces).replace(" ##", "").replace("##", "").split())


def realign(predicted: str, original: str) -> str:
    """Return the part of `original` that `predicted`, joined pieces, came from, or all of `original` if unclear."""
    tokens = " ".join(basic_tokens(original))
    first = tokens.find(predicted)
    if first == -1:
        return original
    last = first + len(predicted) - 1
    of_original = [i for i, c in enumerate(original) if c != " "]
    of_tokens = [i for i, c in enumerate(tokens) if c != " "]
    if len(of_original) != len(of_tokens):
        return original
    original_index = dict(zip(of_tokens, of_original, strict=True))
    if first not in original_index or last not in original_index:
        return original
    return original[original_index[first] : original_index[last] + 1]


# === Scores ===


def normalize(text: str) -> str:
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1(predicted: str, gold: str) -> float:
    predicted_words, gold_words = normalize(predicted).split(), normalize(gold).split()
    if not predicted_words or not gold_words:
        return float(predicted_words == gold_words)
    common = sum((Counter(predicted_words) & Counter(gold_words)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted_words), common / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def scores(predictions: list[str], golds: list[list[str]]) -> tuple[float, float]:
    """Return exact match and F1 in percent, as the official script of version 2.0 computes them."""
    exact = total = 0.0
    for predicted, texts in zip(predictions, golds, strict=True):
        gold_texts = [text for text in texts if normalize(text)] or [""]
        exact += max(float(normalize(predicted) == normalize(text)) for text in gold_texts)
        total += max(f1(predicted, text) for text in gold_texts)
    return 100 * exact / len(predictions), 100 * total / len(predictions)


def best_threshold_score(nulls: list[float], best: list[float], answers: list[float], empty: list[float]) -> float:
    """Return the highest mean score over all thresholds: one on each side of every score difference is tried."""
    differences = [null - score for null, score in zip(nulls, best, strict=True)]
    thresholds = [d + step for d in differences for step in (-1e-6, 1e-6)]

    def mean(threshold: float) -> float:
        chosen = [e if d > threshold else a for d, a, e in zip(differences, answers, empty, strict=True)]
        return sum(chosen) / len(chosen)

    return max(map(mean, thresholds))
