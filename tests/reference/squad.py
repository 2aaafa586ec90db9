"""What surrounds the model in BERT's code for SQuAD, in plain Python from its description: nothing is shared with the
library. Contexts are split into words at spaces; pieces are WordPiece tokens, "##" before those that go on with a word.
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
    """The words of a text, and for each character the index of its word (of the word before it, for a space)."""
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
    """(first piece, number of pieces) of each window."""
    found: list[Span] = []
    start = 0
    while start < total:
        length = min(total - start, room)
        found.append((start, length))
        if start + length == total:
            break
        start += min(length, stride)
    return found


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
    """First and last piece of an answer, narrowed from words to pieces, and all pieces; None if it is not there."""
    words, word_of = split_words(context)
    first, last = word_of[start], word_of[start + len(text) - 1]
    if " ".join(split_words(text)[0]) not in " ".join(words[first : last + 1]):
        return None
    pieces: list[str] = []
    begins: list[int] = []
    for word in words:
        begins.append(len(pieces))
        pieces += tokenize(word)
    low = begins[first]
    high = begins[last + 1] - 1 if last + 1 < len(words) else len(pieces) - 1
    wanted = " ".join(tokenize(text))
    for new_low in range(low, high + 1):
        for new_high in range(high, new_low - 1, -1):
            if " ".join(pieces[new_low : new_high + 1]) == wanted:
                return (new_low, new_high), pieces
    return (low, high), pieces


def window_label(span: Span | None, window: Span, before: int) -> Span:
    """What a window is trained on; `before` is the number of tokens in front of it in the row."""
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
    """The logits of a window, without padding, and where it is."""

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
    """The n-best list of an example, its probabilities, and the null score."""
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
    found: list[Candidate] = []
    for candidate in preliminary:
        if len(found) >= n:
            break
        text = "" if candidate.first < 0 else text_of(candidate.first, candidate.last)
        if (text or candidate.first < 0) and text not in {other.text for other in found}:
            found.append(candidate._replace(text=text))
    if null and "" not in {candidate.text for candidate in found}:
        found.append(Candidate(null_score, "", -1, -1))
    total = sum(math.exp(candidate.score - found[0].score) for candidate in found)
    highest_score = found[0].score if found else 0.0
    return found, [math.exp(candidate.score - highest_score) / total for candidate in found], null_score


def prediction(found: list[Candidate], null_score: float, threshold: float) -> str:
    """The answer of SQuAD 2.0."""
    best = next((candidate for candidate in found if candidate.text), None)
    return "" if best is None or null_score - best.score > threshold else best.text


# === The text of an answer from its pieces alone ===


def is_punctuation(character: str) -> bool:
    code = ord(character)
    ascii_marks = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return ascii_marks or unicodedata.category(character).startswith("P")


CJK = [
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
]


def basic_tokens(text: str) -> list[str]:
    """BERT's words, in lower case."""
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
    """The part of `original`, whole words, that `predicted`, joined pieces, came from; all of it if that fails."""
    tokens = " ".join(basic_tokens(original))
    at = tokens.find(predicted)
    if at == -1:
        return original
    after = at + len(predicted) - 1
    of_original = [i for i, c in enumerate(original) if c != " "]
    of_tokens = [i for i, c in enumerate(tokens) if c != " "]
    if len(of_original) != len(of_tokens):
        return original
    place = dict(zip(of_tokens, of_original, strict=True))
    if at not in place or after not in place:
        return original
    return original[place[at] : place[after] + 1]


# === Scores ===


def normalize(text: str) -> str:
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1(predicted: str, gold: str) -> float:
    ours, theirs = normalize(predicted).split(), normalize(gold).split()
    if not ours or not theirs:
        return float(ours == theirs)
    same = sum((Counter(ours) & Counter(theirs)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def scores(predictions: list[str], golds: list[list[str]]) -> tuple[float, float]:
    """Exact match and F1 of the official script of version 2.0, in percent."""
    exact = total = 0.0
    for predicted, texts in zip(predictions, golds, strict=True):
        wanted = [text for text in texts if normalize(text)] or [""]
        exact += max(float(normalize(predicted) == normalize(text)) for text in wanted)
        total += max(f1(predicted, text) for text in wanted)
    return 100 * exact / len(predictions), 100 * total / len(predictions)


def best_threshold_score(nulls: list[float], best: list[float], answers: list[float], empty: list[float]) -> float:
    """The highest mean score that any threshold gives, by trying one around each difference."""
    differences = [null - score for null, score in zip(nulls, best, strict=True)]
    tried = [d + step for d in differences for step in (-1e-6, 1e-6)]

    def mean(threshold: float) -> float:
        chosen = [e if d > threshold else a for d, a, e in zip(differences, answers, empty, strict=True)]
        return sum(chosen) / len(chosen)

    return max(map(mean, tried))
