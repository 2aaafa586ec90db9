"""Cutting documents into pairs of segments, for next-sentence and sentence-order prediction."""

from __future__ import annotations

import dataclasses
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.data.corpora.sequence_storage import join_blocks, room_in_sequence
from lmzoo.data.corpora.token_corpus import TokenCorpus
from lmzoo.data.corpora.tokenized_documents import (
    TokenizedDocuments,
    check_documents,
    no_record,
    splits_of,
    tokenize_documents,
)
from lmzoo.text import EncodedTexts, Preprocessor
from lmzoo.text.packing import truncate_pair
from lmzoo.text.validate_text import clean_columns, warn

_TRIES = 10  # how often another document is drawn if it is the same one
_BLOCK = 4096  # pairs joined at once


@dataclass(frozen=True)
class SegmentPairs(EncodedTexts):
    """Packed pairs of segments, with labels that say whether they belong together.

    Attributes:
        labels: int32 (n,), 0 for a pair as it stands in its document, 1 for a pair whose second segment is from
            another document (`"nsp"`) or whose segments are swapped (`"sop"`).

    Example: see `segment_pairs`.
    """

    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, "int32"))

    def select(self, indices: np.ndarray | Sequence[int]) -> SegmentPairs:
        texts = super().select(indices)
        fields = {f.name: getattr(texts, f.name) for f in dataclasses.fields(EncodedTexts)}
        return SegmentPairs(**fields, labels=self.labels[np.asarray(indices, "int64")])


def segment_pairs(
    documents: Iterable[Sequence[str]] | TokenCorpus,
    preprocessor: Preprocessor,
    objective: str,
    rng: np.random.Generator,
    passes: int = 1,
    short: float = 0.1,
) -> SegmentPairs:
    """Cut documents into pairs of segments, as in the pre-training of BERT and ALBERT (`create_pretraining_data`).

    Each pass reads all documents. It collects sentences of a document until they reach a target length, and splits them
    into two segments at a random sentence boundary. The target is all that fits into a sequence or, with probability
    `short`, a smaller number of tokens, uniformly drawn; it is drawn once per document and pass.

    * `"nsp"`, next-sentence prediction (Devlin et al., 2019): half of the second segments are replaced by consecutive
      sentences of another document, beginning at a random one. The replaced sentences come next. These pairs have
      label 1, the others 0.
    * `"sop"`, sentence-order prediction (Lan et al., 2020): half of the pairs are swapped. These pairs have label 1,
      the others 0.

    A single sentence cannot be split: with either objective it gets a random second segment and label 1. If a pair is
    too long, tokens are removed one by one from the longer segment (the second on ties), from its front or back at
    random. If the other document is the same one, it is drawn again, up to ten times; if there is only one document, it
    is used itself.

    Sentences without tokens and documents without sentences are left out. One warning says how many documents were, and
    how many have a single sentence. In addition to documents and sequences that are not in a corpus, memory holds
    about 40 bytes per pair.

    Args:
        documents: documents, each a list of sentences; or a `TokenCorpus`, whose sequences are stored in a file.
        preprocessor: determines how long a sequence is.
        objective: `"nsp"` or `"sop"`.
        rng: source of all randomness: equal generators make equal sequences.
        passes: int, how often to read the documents; each pass draws other pairs.
        short: float, probability of a smaller target.

    Returns:
        The pairs of all passes in random order, with their labels.

    Raises:
        TypeError: for a document that is not a list of strings, naming its position; for something else than a
            preprocessor or a generator.
        ValueError: for an unknown `objective`, `passes` below 1, a `sequence_length` with room for fewer than two
            tokens, a corpus of another tokenizer, or documents none of which has two sentences, since all labels would
            be 1.

    Example:

    ```python
    import numpy as np
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.data.corpora import segment_pairs

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "b", "c"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    preprocessor = Preprocessor(tokenizer, packing, sequence_length=16)
    pairs = segment_pairs([["a a", "b"], ["c", "a c"]], preprocessor, "sop", np.random.default_rng(7))
    pairs.lengths  # [6, 6]
    pairs.labels  # 1 where the segments are swapped
    ```
    """
    require(objective in ("nsp", "sop"), "objective", '"nsp" or "sop"', objective)
    budget = room_in_sequence(preprocessor, pair=True)
    require(is_integer(passes, 1), "passes", "an integer of at least 1", passes)
    if isinstance(documents, TokenCorpus):
        documents.check_tokenizer(preprocessor.tokenizer)
        folder, parts, given = documents.sequences_folder, list(documents.shards), len(documents)
    else:
        cleaned = clean_documents(documents)
        folder, parts, given = None, [tokenize_documents(cleaned, preprocessor.tokenizer).without_empty()], len(cleaned)
    places = _Places(parts)
    _report(places, given, objective)
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"`rng` must be a `numpy.random.Generator`, as from `default_rng(seed)`, got {rng!r:.60}.")
    order = array("q", rng.permutation(len(places)).astype("int64").tobytes())
    pairs = _Pairs()
    for _ in range(passes):
        for index in range(len(order)):
            _pair_up(places, order, index, budget, objective, short, rng, pairs)
    _truncate(pairs, budget, rng)
    shuffled = rng.permutation(len(pairs)).astype("uint32")
    flat, splits = join_blocks(_blocks(places, preprocessor, pairs, shuffled), folder)
    start, between, _ = preprocessor.special_ids()
    boundary = pairs.lengths[shuffled, 0] + np.int32(len(start) + len(between))
    return SegmentPairs(flat, splits, boundary, labels=pairs.labels[shuffled].astype("int32"))


def clean_documents(documents: Iterable[Sequence[str]]) -> list[list[str]]:
    """Check documents, each a list of sentences, and make their sentences valid strings.

    Raises:
        TypeError: for a document that is not a list of strings, naming its position.
    """
    check_documents(documents)
    return clean_columns({f"documents[{i}]": no_record(found, i) for i, found in enumerate(documents)})


class _Places:
    """Documents in several parts, with positions that count the tokens of all parts."""

    def __init__(self, parts: Sequence[TokenizedDocuments]) -> None:
        self.parts = parts
        self.documents = splits_of([len(part) for part in parts]).tolist()
        self.tokens = splits_of([len(part.token_ids) for part in parts]).tolist()

    def __len__(self) -> int:
        return self.documents[-1]

    def splits(self, document: int) -> list[int]:
        """Return the positions where the sentences of a document begin and end."""
        part = bisect_right(self.documents, document) - 1
        return (self.parts[part].sentences(document - self.documents[part]) + self.tokens[part]).tolist()

    def take(self, begin: int, end: int) -> np.ndarray:
        """Return the tokens between two positions in one document."""
        part = bisect_right(self.tokens, begin) - 1
        return self.parts[part].token_ids[begin - self.tokens[part] : end - self.tokens[part]]


def _report(places: _Places, given: int, objective: str) -> None:
    """Warn of documents with fewer than two sentences.

    Raises:
        ValueError: if no document has two.
    """
    alone = sum(int(np.count_nonzero(np.diff(part.document_splits) == 1)) for part in places.parts)
    if alone and alone == len(places):
        raise ValueError(
            f'None of the documents has two sentences, so with `objective="{objective}"` all labels would be 1: pass '
            "documents of several sentences, as `lmzoo.data.corpora.split_documents` makes them."
        )
    said = []
    if len(places) < given:
        said.append(f"{given - len(places)} of {given} documents held no tokens and were left out")
    if alone:
        said.append(f"{alone} of {len(places)} documents are one sentence, always paired with a random one")
    if said:
        warn("; ".join(said) + ".")


class _Pairs:
    """Positions and labels of n pairs of segments, in 25 bytes each."""

    def __init__(self) -> None:
        self._begins, self._lengths, self._labels = array("q"), array("i"), array("b")

    def append(self, first: tuple[int, int], second: tuple[int, int], label: int) -> None:
        """Add a pair: where its two segments begin and end, and its label."""
        self._begins.extend((first[0], second[0]))
        self._lengths.extend((first[1] - first[0], second[1] - second[0]))
        self._labels.append(label)

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def begins(self) -> np.ndarray:
        """Int64 (n, 2), where both segments begin; writable, like `lengths`."""
        return np.frombuffer(self._begins or b"", "int64").reshape(-1, 2)

    @property
    def lengths(self) -> np.ndarray:
        """Int32 (n, 2)."""
        return np.frombuffer(self._lengths or b"", "int32").reshape(-1, 2)

    @property
    def labels(self) -> np.ndarray:
        """Int8 (n,)."""
        return np.frombuffer(self._labels or b"", "int8")


def _pair_up(
    places: _Places,
    order: Sequence[int],
    index: int,
    budget: int,
    objective: str,
    short: float,
    rng: np.random.Generator,
    pairs: _Pairs,
) -> None:
    """Append the pairs of a document."""
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
        pairs.append(first, second, label)
        begin = end


def _random_segment(
    places: _Places, order: Sequence[int], index: int, wanted: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Draw a sentence of another document, and as many after it as make `wanted` tokens or end the document."""
    for _ in range(_TRIES):
        other = int(rng.integers(len(order)))
        if other != index:
            break
    splits = places.splits(order[other])
    begin = int(rng.integers(len(splits) - 1))
    end = max(begin + 1, bisect_left(splits, splits[begin] + wanted))
    return splits[begin], splits[min(end, len(splits) - 1)]


def _truncate(pairs: _Pairs, budget: int, rng: np.random.Generator) -> None:
    """Cut both segments of each pair to fit: first all first segments, then all second ones."""
    for side in (0, 1):
        for block in _slices(len(pairs)):
            begins, lengths = pairs.begins[block], pairs.lengths[block]
            lost = lengths[:, side] - truncate_pair(lengths[:, 0], lengths[:, 1], budget)[side]
            begins[:, side] += rng.binomial(lost, 0.5)  # each lost token is from the front or the back
            lengths[:, side] -= lost


def _slices(count: int) -> Iterator[slice]:
    return (slice(begin, begin + _BLOCK) for begin in range(0, count, _BLOCK))


def _blocks(
    places: _Places, preprocessor: Preprocessor, pairs: _Pairs, order: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the sequences in blocks, with special tokens; see `join_blocks`."""
    dtype = places.parts[0].token_ids.dtype
    start, between, end = (np.array(ids, dtype) for ids in preprocessor.special_ids())
    overhead = preprocessor.packing.overhead(pair=True)
    for block in _slices(len(order)):
        begins, lengths = pairs.begins[order[block]], pairs.lengths[order[block]]
        parts: list[np.ndarray] = []
        for (a, b), (c, d) in zip(begins.tolist(), (begins + lengths).tolist(), strict=True):
            parts += (start, places.take(a, c), between, places.take(b, d), end)
        yield np.concatenate(parts), lengths.sum(axis=1, dtype="int32") + np.int32(overhead)
