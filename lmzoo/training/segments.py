"""Pairs of segments out of documents: the rows of next-sentence and of sentence-order prediction."""

from __future__ import annotations

import dataclasses
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmzoo.text import EncodedTexts, Preprocessor
from lmzoo.text.packing import truncate_pair
from lmzoo.text.policy import clean_columns, is_text, notify
from lmzoo.training.rows import join_rows
from lmzoo.training.shards import TokenCorpus
from lmzoo.training.tokens import TokenizedDocuments, splits_of, tokenize_documents

_TRIES = 10  # to draw another document than the own one
_BLOCK = 4096  # rows joined at once


@dataclass(frozen=True)
class SegmentPairs(EncodedTexts):
    """Packed pairs of segments that know whether they belong together.

    Attributes:
        labels: int32 (n,), 0 for a pair as it stands in its document, 1 for one whose second segment is from another
            (`"nsp"`), or whose segments are swapped (`"sop"`).
    """

    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, "int32"))

    def select(self, rows: Any) -> SegmentPairs:
        """The given pairs, in the given order.

        Args:
            rows: int array (m,).
        """
        return _labelled(super().select(rows), self.labels[np.asarray(rows, "int64")])


def segment_pairs(
    documents: Iterable[Sequence[str]] | TokenCorpus,
    preprocessor: Preprocessor,
    objective: str,
    rng: np.random.Generator,
    passes: int = 1,
    short: float = 0.1,
    notify: Callable[[str], None] = notify,
) -> SegmentPairs:
    """Cuts documents into pairs of segments as BERT and ALBERT were pre-trained on (their `create_pretraining_data`).

    Each pass goes through all documents. Of one it takes sentences until they reach the target, which is all that fits
    into a row or, with probability `short`, a uniformly drawn smaller number of tokens; it is drawn once for a document
    and pass. They are parted in two between sentences, anywhere.

    * `"nsp"`, next-sentence prediction (Devlin et al., 2019): half of the second segments are replaced by sentences of
      another document, from a random one on, and the sentences that were replaced come next. Label 1; 0 for the others.
    * `"sop"`, sentence-order prediction (Lan et al., 2020): half of the pairs are swapped. Label 1; 0 for the others.

    One sentence alone, which has nothing to be parted from, gets a random second segment and label 1 with either. What
    does not fit is taken from the longer segment, the second on ties, token by token from its front or back at random.
    The other document is drawn up to ten times if it is the own one; where there is no other, the own one is taken.

    Sentences without tokens, and documents without sentences, are left out.

    Args:
        documents: documents, each a list of sentences; or a `TokenCorpus`, whose rows are kept in a file (see there).
        preprocessor: says how long a row is.
        objective: `"nsp"` or `"sop"`.
        rng: source of all randomness: the same generator makes the same rows.
        passes: int, how often to go through the documents; each pass parts and pairs them anew.
        short: float, share of the passes through a document with a smaller target.
        notify: what to do with notices; see `Preprocessor.encode`.

    Returns:
        The pairs of all passes in random order, with their labels.

    Raises:
        TypeError: for a document that is no list of strings, naming its position.
        ValueError: for an unknown `objective`, a `sequence_length` with room for less than two tokens, or a corpus of
            another tokenizer.

    Example:

    ```python
    import numpy as np
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.training import segment_pairs

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "b", "c"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    preprocessor = Preprocessor(tokenizer, packing, sequence_length=16)
    pairs = segment_pairs([["a a", "b"], ["c", "a c"]], preprocessor, "sop", np.random.default_rng(7))
    pairs.lengths  # [6, 6]
    pairs.labels  # 1 where the segments are swapped
    ```
    """
    if objective not in ("nsp", "sop"):
        raise ValueError(f'`objective` must be "nsp" or "sop", got {objective!r}.')
    budget = preprocessor.sequence_length - preprocessor.packing.overhead(pair=True)
    if budget < 2:
        raise ValueError(
            f"`sequence_length` is {preprocessor.sequence_length}, which leaves room for {max(0, budget)} tokens of a "
            f"pair: it must be at least {preprocessor.sequence_length - budget + 2}."
        )
    if isinstance(documents, TokenCorpus):
        documents.check_tokenizer(preprocessor.tokenizer)
        folder, parts = documents.rows_folder, documents.shards
    else:
        cleaned = clean_documents(documents, notify)
        folder, parts = None, [tokenize_documents(cleaned, preprocessor.tokenizer).without_empty()]
    places = _Places(parts)
    order = rng.permutation(len(places)).tolist()
    found = array("q")
    for _ in range(passes):
        for index in range(len(order)):
            _pair_up(places, order, index, budget, objective, short, rng, found)
    pairs = np.frombuffer(found, "int64").reshape(-1, 5) if found else np.zeros((0, 5), "int64")  # (n, 5)
    first, second = _truncate(pairs[:, 0:2], pairs[:, 2:4], budget, rng)
    shuffled = rng.permutation(len(pairs))
    first, second, labels = first[shuffled], second[shuffled], pairs[shuffled, 4].astype("int32")
    flat, splits = join_rows(_blocks(places, preprocessor, first, second), folder)
    start, between, _ = preprocessor.special_ids()
    boundary = np.diff(first, axis=1)[:, 0] + len(start) + len(between)
    return SegmentPairs(flat, splits, boundary.astype("int32"), labels=labels)


def clean_documents(documents: Any, notify: Callable[[str], None] = notify) -> list[list[str]]:
    """Documents as lists of valid strings.

    Args:
        documents: documents, each a list of sentences.
        notify: what to do with notices; see `Preprocessor.encode`.

    Raises:
        TypeError: for a document that is no list of strings, naming its position.
    """
    check_documents(documents)
    return clean_columns({f"documents[{i}]": sentences for i, sentences in enumerate(documents)}, notify)


def check_documents(documents: Any) -> None:
    """Checks that there may be documents in `documents`.

    Raises:
        TypeError: if it is one text, a dict, or nothing to go through.
    """
    if is_text(documents) or isinstance(documents, Mapping) or not isinstance(documents, Iterable):
        raise TypeError(
            f"Expected a list of documents, each a list of sentences; got {documents!r:.60} "
            f"({type(documents).__name__})."
        )


def _labelled(texts: EncodedTexts, labels: np.ndarray) -> SegmentPairs:
    fields = {f.name: getattr(texts, f.name) for f in dataclasses.fields(EncodedTexts)}
    return SegmentPairs(**fields, labels=labels)


class _Places:
    """Documents in several parts, and where their sentences are if all tokens are counted in turn."""

    def __init__(self, parts: Sequence[TokenizedDocuments]) -> None:
        self.parts = parts
        self.documents = splits_of([len(part) for part in parts]).tolist()
        self.tokens = splits_of([len(part.token_ids) for part in parts]).tolist()

    def __len__(self) -> int:
        return self.documents[-1]

    def splits(self, document: int) -> list[int]:
        """Where the sentences of a document begin and end."""
        part = bisect_right(self.documents, document) - 1
        return (self.parts[part].sentences(document - self.documents[part]) + self.tokens[part]).tolist()

    def take(self, begin: int, end: int) -> np.ndarray:
        """Tokens of one document."""
        part = bisect_right(self.tokens, begin) - 1
        return self.parts[part].token_ids[begin - self.tokens[part] : end - self.tokens[part]]


def _pair_up(
    places: _Places,
    order: list[int],
    index: int,
    budget: int,
    objective: str,
    short: float,
    rng: np.random.Generator,
    found: array[int],
) -> None:
    """Appends where the first and the second segment of each pair of a document begin and end, and the label."""
    splits = places.splits(order[index])
    target = int(rng.integers(2, budget, endpoint=True)) if rng.random() < short else budget
    begin, end, last = 0, 0, len(splits) - 1
    while end < last:
        end += 1
        if end < last and splits[end] - splits[begin] < target:
            continue
        cut = begin + (int(rng.integers(1, end - begin)) if end - begin > 1 else 1)
        first, second, label = (splits[begin], splits[cut]), (splits[cut], splits[end]), 0
        if end - begin == 1 or (objective == "nsp" and rng.random() < 0.5):
            second, label = _random_segment(places, order, index, target - (first[1] - first[0]), rng), 1
            end = cut  # what was replaced comes next
        elif objective == "sop" and rng.random() < 0.5:
            first, second, label = second, first, 1
        found.extend((*first, *second, label))
        begin = end


def _random_segment(
    places: _Places, order: list[int], index: int, wanted: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Sentences of another document, from a random one on until there are `wanted` tokens or it ends."""
    for _ in range(_TRIES):
        other = int(rng.integers(len(order)))
        if other != index:
            break
    splits = places.splits(order[other])
    begin = int(rng.integers(len(splits) - 1))
    end = max(begin + 1, bisect_left(splits, splits[begin] + wanted))
    return splits[begin], splits[min(end, len(splits) - 1)]


def _truncate(
    first: np.ndarray, second: np.ndarray, budget: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end (n, 2) of both segments of each pair, cut to fit."""
    lengths, others = first[:, 1] - first[:, 0], second[:, 1] - second[:, 0]
    kept, others_kept = truncate_pair(lengths, others, budget)

    def cut(segments: np.ndarray, lost: np.ndarray) -> np.ndarray:
        front = rng.binomial(lost, 0.5)  # each lost token is one from the front or from the back
        return segments + np.stack([front, front - lost], axis=1)

    return cut(first, lengths - kept), cut(second, others - others_kept)


def _blocks(
    places: _Places, preprocessor: Preprocessor, first: np.ndarray, second: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows, special tokens included."""
    dtype = places.parts[0].token_ids.dtype
    start, between, end = (np.array(ids, dtype) for ids in preprocessor.special_ids())
    overhead = preprocessor.packing.overhead(pair=True)
    lengths = (np.diff(first) + np.diff(second))[:, 0] + overhead
    for begin in range(0, len(first), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        pieces: list[np.ndarray] = []
        for a, b in zip(first[block].tolist(), second[block].tolist(), strict=True):
            pieces += (start, places.take(*a), between, places.take(*b), end)
        yield np.concatenate(pieces), lengths[block]
