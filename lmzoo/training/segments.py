"""Pairs of segments out of documents: the rows of next-sentence and of sentence-order prediction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmzoo.text import EncodedTexts, Preprocessor
from lmzoo.text.packing import truncate_pair
from lmzoo.text.policy import clean_columns, is_text, notify

_TRIES = 10  # to draw another document than the own one


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
    documents: Iterable[Sequence[str]],
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
        documents: documents, each a list of sentences.
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
        ValueError: for an unknown `objective`, or a `sequence_length` with room for less than two tokens.

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
    tokenized = _tokenize(clean_documents(documents, notify), preprocessor)
    order = rng.permutation(len(tokenized))
    tokenized = [tokenized[i] for i in order]
    pairs = [
        pair
        for _ in range(passes)
        for index in range(len(tokenized))
        for pair in _pairs_of(tokenized, index, budget, objective, short, rng)
    ]
    firsts, seconds = _truncate([p[0] for p in pairs], [p[1] for p in pairs], budget, rng)
    packed, labels = preprocessor.pack(firsts, seconds, notify), np.array([p[2] for p in pairs], "int32")
    return _labelled(packed, labels).select(rng.permutation(len(pairs)))


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


def _tokenize(documents: list[list[str]], preprocessor: Preprocessor) -> list[list[list[int]]]:
    """Ids of each document's sentences; without those that hold none."""
    ids = iter(preprocessor.tokenizer.tokenize([sentence for document in documents for sentence in document]))
    filled = [[sentence for sentence in [next(ids) for _ in document] if sentence] for document in documents]
    return [document for document in filled if document]


def _pairs_of(
    documents: list[list[list[int]]], index: int, budget: int, objective: str, short: float, rng: np.random.Generator
) -> list[tuple[list[int], list[int], int]]:
    """First and second segment and label of each pair of one document."""
    document = documents[index]
    target = int(rng.integers(2, budget, endpoint=True)) if rng.random() < short else budget
    pairs, begin, end, length = [], 0, 0, 0
    while end < len(document):
        length += len(document[end])
        end += 1
        if end < len(document) and length < target:
            continue
        chunk = document[begin:end]
        cut = int(rng.integers(1, len(chunk))) if len(chunk) > 1 else 1
        first, second, label = _joined(chunk[:cut]), _joined(chunk[cut:]), 0
        if len(chunk) == 1 or (objective == "nsp" and rng.random() < 0.5):
            second, label = _random_segment(documents, index, target - len(first), rng), 1
            end = begin + cut  # what was replaced comes next
        elif objective == "sop" and rng.random() < 0.5:
            first, second, label = second, first, 1
        pairs.append((first, second, label))
        begin, length = end, 0
    return pairs


def _random_segment(documents: list[list[list[int]]], index: int, wanted: int, rng: np.random.Generator) -> list[int]:
    """Sentences of another document, from a random one on until there are `wanted` tokens or it ends."""
    for _ in range(_TRIES):
        other = int(rng.integers(len(documents)))
        if other != index:
            break
    segment: list[int] = []
    for sentence in documents[other][int(rng.integers(len(documents[other]))) :]:
        segment += sentence
        if len(segment) >= wanted:
            break
    return segment


def _truncate(
    firsts: list[list[int]], seconds: list[list[int]], budget: int, rng: np.random.Generator
) -> tuple[list[list[int]], list[list[int]]]:
    """Both segments of each pair, cut to fit."""
    lengths, others = (np.array([len(segment) for segment in column], "int64") for column in (firsts, seconds))
    kept, others_kept = truncate_pair(lengths, others, budget)

    def cut(segments: list[list[int]], lost: np.ndarray, kept: np.ndarray) -> list[list[int]]:
        front = rng.binomial(lost, 0.5)  # each lost token is one from the front or from the back
        return [s[f : f + k] for s, f, k in zip(segments, front.tolist(), kept.tolist(), strict=True)]

    return cut(firsts, lengths - kept, kept), cut(seconds, others - others_kept, others_kept)


def _joined(sentences: list[list[int]]) -> list[int]:
    return [token for sentence in sentences for token in sentence]
