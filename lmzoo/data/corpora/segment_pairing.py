"""Pairs of segments from documents, for next-sentence and sentence-order prediction."""

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
    check_not_record,
    make_splits,
    tokenize_documents,
)
from lmzoo.text import EncodedTexts, Preprocessor
from lmzoo.text.packing import truncate_pair
from lmzoo.text.validate_text import clean_columns, warn

_MAX_DRAWS = 10  # attempts to draw a different document
_BLOCK_PAIRS = 4096  # number of pairs joined at once


@dataclass(frozen=True)
class SegmentPairs(EncodedTexts):
    """Packed pairs of segments, with labels that say whether the segments of a pair belong together.

    Attributes:
        labels: int32 (n,), label of each of the n pairs: 0 for consecutive segments in their order; 1 for a pair whose
            segments are swapped (`"sop"`) or whose second segment is random (`"nsp"`, and single sentences).

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
    is_part: bool = False,
) -> SegmentPairs:
    """Split documents into pairs of segments, as in the pretraining of BERT and ALBERT (`create_pretraining_data`).

    Each pass reads all documents. It collects sentences of a document until they reach a target length, and splits them
    into two segments at a random sentence boundary. The target is a full sequence or, with probability `short`, a
    smaller number of tokens, drawn uniformly; each document has one target per pass.

    * `"nsp"`, next-sentence prediction (Devlin et al., 2019): half of the second segments are replaced by consecutive
      sentences of another document, beginning with a random sentence. The replaced sentences begin the next
      pair. Pairs with a replaced segment have label 1, all other pairs 0.
    * `"sop"`, sentence-order prediction (Lan et al., 2020): the segments of half of the pairs are swapped.
      Swapped pairs have label 1, all other pairs 0.

    A single sentence cannot be split: with either objective it gets a random second segment and label 1. If a pair is
    too long, tokens are removed one by one from the longer segment (the second on ties), from its front or back at
    random. If the document drawn for the second segment is the document of the first, another is drawn, up to ten
    times; a single document is paired with itself.

    Sentences without tokens and documents without sentences are omitted. One warning counts these documents, and
    the documents with a single sentence. Memory holds about 40 bytes per pair, and also the documents and sequences if
    `documents` is not a `TokenCorpus`.

    Args:
        documents: iterable of documents, each a list of sentences; or a `TokenCorpus`, for which the sequences are
            stored in a temporary file.
        preprocessor: `lmzoo.text.Preprocessor`, which determines the length of sequences.
        objective: `"nsp"` or `"sop"`.
        rng: numpy generator, source of all randomness: equal generators make equal sequences.
        passes: int, number of times to read the documents; each pass draws new pairs.
        short: float, probability of a smaller target length.
        is_part: bool, whether the documents are a part of a larger dataset, such as a batch; if so, it is no error if
            none of them has two sentences.

    Returns:
        The pairs of all passes in random order, with their labels.

    Raises:
        TypeError: If a document is not a list of strings, in which case the message names its position; or if
            `preprocessor` or `rng` has the wrong type.
        ValueError: If `objective` is unknown, `passes` is below 1, `sequence_length` has room for fewer than two
            tokens, the corpus is from another tokenizer, or, for `is_part=False`, no document has two sentences, since
            all labels would be 1.

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
        folder = documents.sequences_folder
        parts = list(documents.shards)
        num_documents = len(documents)
    else:
        cleaned_documents = clean_documents(documents)
        folder = None
        parts = [tokenize_documents(cleaned_documents, preprocessor.tokenizer).without_empty()]
        num_documents = len(cleaned_documents)
    joined_documents = _JoinedDocuments(parts)
    _warn_of_short_documents(joined_documents, num_documents, objective, is_part)
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"`rng` must be a `numpy.random.Generator`, as from `default_rng(seed)`, got {rng!r:.60}.")
    order = array("q", rng.permutation(len(joined_documents)).astype("int64").tobytes())
    pairs = _Pairs()
    for _ in range(passes):
        for index in range(len(order)):
            _append_pairs(joined_documents, order, index, budget, objective, short, rng, pairs)
    _truncate(pairs, budget, rng)
    pair_order = rng.permutation(len(pairs)).astype("uint32")
    token_ids, sequence_splits = join_blocks(_iterate_blocks(joined_documents, preprocessor, pairs, pair_order), folder)
    start, between, _ = preprocessor.special_ids()
    boundary = pairs.lengths[pair_order, 0] + np.int32(len(start) + len(between))
    return SegmentPairs(token_ids, sequence_splits, boundary, labels=pairs.labels[pair_order].astype("int32"))


def clean_documents(documents: Iterable[Sequence[str]]) -> list[list[str]]:
    """Check documents, each a list of sentences, and turn their sentences into valid strings.

    Raises:
        TypeError: If a document is not a list of strings; the message names its position.
    """
    check_documents(documents)
    return clean_columns({f"documents[{i}]": check_not_record(document, i) for i, document in enumerate(documents)})


class _JoinedDocuments:
    """Documents in several parts, with documents and tokens numbered across all parts.

    Args:
        parts: sequence of `TokenizedDocuments`.
    """

    def __init__(self, parts: Sequence[TokenizedDocuments]) -> None:
        self.parts = parts
        self.documents = make_splits([len(part) for part in parts]).tolist()
        self.tokens = make_splits([len(part.token_ids) for part in parts]).tolist()

    def __len__(self) -> int:
        return self.documents[-1]

    def splits(self, document: int) -> list[int]:
        """Return the positions at which the sentences of a document begin, and the end of its last sentence."""
        part_index = bisect_right(self.documents, document) - 1
        return (
            self.parts[part_index].sentences(document - self.documents[part_index]) + self.tokens[part_index]
        ).tolist()

    def take(self, begin: int, end: int) -> np.ndarray:
        """Return the tokens from position `begin` up to `end`, both in the same document."""
        part_index = bisect_right(self.tokens, begin) - 1
        return self.parts[part_index].token_ids[begin - self.tokens[part_index] : end - self.tokens[part_index]]


def _warn_of_short_documents(documents: _JoinedDocuments, num_documents: int, objective: str, is_part: bool) -> None:
    """Warn of documents without tokens, and of documents with a single sentence.

    Raises:
        ValueError: If no document has two sentences, and `is_part` is False.
    """
    num_single_sentence = sum(int(np.count_nonzero(np.diff(part.document_splits) == 1)) for part in documents.parts)
    if num_single_sentence and num_single_sentence == len(documents) and not is_part:
        raise ValueError(
            f'None of the documents has two sentences, so with `objective="{objective}"` all labels would be 1: pass '
            "documents of several sentences, as `lmzoo.data.corpora.split_documents` makes them."
        )
    warnings = []
    if len(documents) < num_documents:
        warnings.append(
            f"{num_documents - len(documents)} of {num_documents} documents held no tokens and were left out"
        )
    if num_single_sentence:
        warnings.append(
            f"{num_single_sentence} of {len(documents)} documents are one sentence, always paired with a random one"
        )
    if warnings:
        warn("; ".join(warnings) + ".")


class _Pairs:
    """Positions and labels of n pairs of segments, in 25 bytes each."""

    def __init__(self) -> None:
        self._begins = array("q")
        self._lengths = array("i")
        self._labels = array("b")

    def append(self, first: tuple[int, int], second: tuple[int, int], label: int) -> None:
        """Add a pair, given the start and end of each segment, and the label."""
        self._begins.extend((first[0], second[0]))
        self._lengths.extend((first[1] - first[0], second[1] - second[0]))
        self._labels.append(label)

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def begins(self) -> np.ndarray:
        """Writable view of the positions at which the two segments of each pair begin, int64 (n, 2)."""
        return np.frombuffer(self._begins or b"", "int64").reshape(-1, 2)

    @property
    def lengths(self) -> np.ndarray:
        """Writable view of the numbers of tokens of the two segments of each pair, int32 (n, 2)."""
        return np.frombuffer(self._lengths or b"", "int32").reshape(-1, 2)

    @property
    def labels(self) -> np.ndarray:
        """Labels of the pairs, int8 (n,)."""
        return np.frombuffer(self._labels or b"", "int8")


def _append_pairs(
    documents: _JoinedDocuments,
    order: Sequence[int],
    index: int,
    budget: int,
    objective: str,
    short: float,
    rng: np.random.Generator,
    pairs: _Pairs,
) -> None:
    """Split the document at position `index` of `order` into pairs of segments, and append these to `pairs`."""
    sentence_splits = documents.splits(order[index])
    target_length = int(rng.integers(2, budget, endpoint=True)) if rng.random() < short else budget
    begin = 0
    end = 0
    num_sentences = len(sentence_splits) - 1
    while end < num_sentences:
        end += 1
        if end < num_sentences and sentence_splits[end] - sentence_splits[begin] < target_length:
            continue
        cut = begin + (int(rng.integers(1, end - begin)) if end - begin > 1 else 1)
        first_segment = (sentence_splits[begin], sentence_splits[cut])
        second_segment = (sentence_splits[cut], sentence_splits[end])
        label = 0
        if end - begin == 1 or (objective == "nsp" and rng.random() < 0.5):
            second_segment = _draw_segment(
                documents, order, index, target_length - (first_segment[1] - first_segment[0]), rng
            )
            label = 1
            end = cut  # the replaced sentences come next
        elif objective == "sop" and rng.random() < 0.5:
            first_segment, second_segment = second_segment, first_segment
            label = 1
        pairs.append(first_segment, second_segment, label)
        begin = end


def _draw_segment(
    documents: _JoinedDocuments, order: Sequence[int], index: int, num_tokens: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Draw consecutive sentences of another document, and return the start and end positions of their tokens.

    The sentences have at least `num_tokens` tokens or extend to the end of the document. If ten draws in a row give the
    document at `index`, its sentences are used.
    """
    for _ in range(_MAX_DRAWS):
        other_index = int(rng.integers(len(order)))
        if other_index != index:
            break
    sentence_splits = documents.splits(order[other_index])
    begin = int(rng.integers(len(sentence_splits) - 1))
    end = max(begin + 1, bisect_left(sentence_splits, sentence_splits[begin] + num_tokens))
    return sentence_splits[begin], sentence_splits[min(end, len(sentence_splits) - 1)]


def _truncate(pairs: _Pairs, budget: int, rng: np.random.Generator) -> None:
    """Truncate each pair to `budget` tokens: first the first segments of all pairs, then the second segments."""
    for side in (0, 1):
        for block in _slices(len(pairs)):
            begins = pairs.begins[block]
            lengths = pairs.lengths[block]
            excess = lengths[:, side] - truncate_pair(lengths[:, 0], lengths[:, 1], budget)[side]
            begins[:, side] += rng.binomial(excess, 0.5)  # each removed token is from the front or the back
            lengths[:, side] -= excess


def _slices(num_pairs: int) -> Iterator[slice]:
    """Yield slices of at most `_BLOCK_PAIRS` pairs that cover all `num_pairs` pairs."""
    return (slice(begin, begin + _BLOCK_PAIRS) for begin in range(0, num_pairs, _BLOCK_PAIRS))


def _iterate_blocks(
    documents: _JoinedDocuments, preprocessor: Preprocessor, pairs: _Pairs, order: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the tokens and lengths of blocks of packed sequences, for `join_blocks`."""
    dtype = documents.parts[0].token_ids.dtype
    start, between, end = (np.array(ids, dtype) for ids in preprocessor.special_ids())
    overhead = preprocessor.packing.overhead(pair=True)
    for block in _slices(len(order)):
        begins = pairs.begins[order[block]]
        lengths = pairs.lengths[order[block]]
        pieces: list[np.ndarray] = []
        for (begin_1, begin_2), (end_1, end_2) in zip(begins.tolist(), (begins + lengths).tolist(), strict=True):
            pieces += (start, documents.take(begin_1, end_1), between, documents.take(begin_2, end_2), end)
        yield np.concatenate(pieces), lengths.sum(axis=1, dtype="int32") + np.int32(overhead)
