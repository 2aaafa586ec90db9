"""Mining of hard negatives: texts that are similar to a query, but not relevant to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import numpy as np

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.common.progress import progress_over
from lmzoo.search.nearest import find_nearest, similarities
from lmzoo.text.segments import clean_single_texts

_CANDIDATES_PER_NEGATIVE = 10  # candidates to filter for each negative


class Embedder(Protocol):
    """The part of a `TextEmbedder` that mining uses."""

    similarity: str

    def embed_queries(self, texts: Any, batch_size: int = 32) -> np.ndarray:
        """Return the embeddings of q queries, float32 (q, H)."""

    def embed_documents(self, texts: Any, batch_size: int = 32) -> np.ndarray:
        """Return the embeddings of n texts to search in, float32 (n, H)."""


class PairScorer(Protocol):
    """The part of a cross-encoder that mining uses."""

    def score(self, texts: Any, batch_size: int = 32) -> list[float]:
        """Return a score for each pair of texts."""


class MinedNegatives(TypedDict):
    """A query, a relevant text, and negatives with their scores: texts similar to the query, but not relevant to it.

    Example: see `lmzoo.search.mine_negatives`.
    """

    query: str
    positive: str
    negatives: list[str]
    scores: list[float]


def mine_negatives(
    embedder: Embedder,
    queries: Sequence[str],
    positives: Sequence[str],
    corpus: Sequence[str] | None = None,
    num_negatives: int = 3,
    range_min: int = 0,
    range_max: int | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    max_score: float | None = None,
    cross_encoder: PairScorer | None = None,
    batch_size: int = 32,
) -> list[MinedNegatives]:
    """Find texts to train on that are similar to a query, but not labeled as relevant to it (Moreira et al., 2024).

    Candidates are the texts of the corpus and the relevant texts of other queries, except a text equal to the query.
    Some candidates may be relevant without being labeled as such. A margin drops candidates that score nearly as high
    as the query's relevant text or, of several relevant texts, the one with the lowest score. The scores of a
    cross-encoder distinguish such candidates more reliably.

    Args:
        embedder: `lmzoo.models.TextEmbedder`.
        queries: n queries; a query may occur several times.
        positives: n texts; each is relevant to the query at the same position.
        corpus: more texts to choose negatives from, or None.
        num_negatives: int, maximum number of negatives for each query.
        range_min: int, number of best candidates to skip, not counting candidates that a margin or `max_score` drops.
        range_max: int, rank of the last candidate, counted in the same way. By default, there are ten candidates for
            each negative if there is a margin or `max_score`, and otherwise as many as needed.
        absolute_margin: float, minimum difference between the scores of the relevant text and a negative.
        relative_margin: float, the same difference as a fraction of the relevant text's score; 0.05 in the paper.
        max_score: float, highest allowed score of a negative.
        cross_encoder: `lmzoo.models.TextRegressor`, whose scores replace the similarities, for the margins, `max_score`
            and the order of the negatives.
        batch_size: int, texts per batch.

    Returns:
        For each query and relevant text, in the order given, `{"query": str, "positive": str, "negatives": list of str,
        "scores": list of float}`, the highest scores first. There are fewer negatives, or none, if candidates run out.

    Raises:
        TypeError: If an entry is not text; the message names its position.
        ValueError: If there are no queries, the numbers of queries and positives differ, a query has no candidates, a
            number is out of range, or a cross-encoder is passed without a margin or `max_score`.

    Example:

    ```python
    import lmzoo
    from lmzoo.search import mine_negatives

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    questions = ["When do you close?", "How can I pay?"]
    answers = ["Our shop is open until six.", "By card or in cash."]
    mined = mine_negatives(embedder, questions, answers, corpus=["We are closed on Sundays."], num_negatives=1)
    triplets = [(row["query"], row["positive"], text) for row in mined for text in row["negatives"]]
    ```
    """
    limits = _Limits(num_negatives, range_min, range_max, absolute_margin, relative_margin, max_score)
    advice = "Its scores are compared by `absolute_margin`, `relative_margin` or `max_score`: pass one of these."
    require(cross_encoder is None or limits.has_filter, "cross_encoder", "None without a margin", cross_encoder, advice)
    pairs, texts, relevant_by_query = _join_texts(queries, positives, corpus)
    excluded_by_query = _find_excluded(texts, relevant_by_query)
    query_texts = [*relevant_by_query]
    query_vectors = embedder.embed_queries(query_texts, batch_size)
    text_vectors = embedder.embed_documents(texts, batch_size)
    max_num_excluded = max(map(len, excluded_by_query.values()))
    last_rank = limits.compute_last_rank(max_num_excluded)
    num_candidates = min(len(texts), last_rank + max_num_excluded)
    scores, indices = find_nearest(query_vectors, text_vectors, num_candidates, embedder.similarity)
    negatives_by_query: dict[str, tuple[list[str], list[float]]] = {}
    with progress_over(range(len(query_texts)), "Mining", "queries") as rows:
        for row in rows:
            query = query_texts[row]
            relevant_indices = np.array(relevant_by_query[query])
            relevant_scores = similarities(
                query_vectors[row : row + 1], text_vectors[relevant_indices], embedder.similarity
            )[0]
            candidate_scores = scores[row]
            if cross_encoder is not None:
                scored_texts = [texts[index] for index in (*relevant_indices, *indices[row])]
                all_scores = cross_encoder.score([(query, text) for text in scored_texts], batch_size)
                relevant_scores, candidate_scores = np.split(np.array(all_scores, "float32"), [len(relevant_indices)])
            max_negative_score = limits.compute_max_score(float(relevant_scores.min()))
            is_negative = ~np.isin(indices[row], excluded_by_query[query]) & (candidate_scores <= max_negative_score)
            order = np.argsort(np.where(is_negative, -candidate_scores, np.inf), kind="stable")[: is_negative.sum()]
            negative_positions = order[range_min:last_rank][:num_negatives]
            negatives_by_query[query] = (
                [texts[index] for index in indices[row][negative_positions]],
                candidate_scores[negative_positions].tolist(),
            )
    return [
        {
            "query": query,
            "positive": positive,
            "negatives": [*negatives_by_query[query][0]],
            "scores": [*negatives_by_query[query][1]],
        }
        for query, positive in pairs
    ]


@dataclass(frozen=True)
class _Limits:
    """Limits on the ranks and scores of negatives; see `mine_negatives`."""

    num_negatives: int
    range_min: int
    range_max: int | None
    absolute_margin: float | None
    relative_margin: float | None
    max_score: float | None

    def __post_init__(self) -> None:
        require(is_integer(self.num_negatives, 1), "num_negatives", "a positive integer", self.num_negatives)
        require(is_integer(self.range_min, 0), "range_min", "an integer of at least 0", self.range_min)
        min_range_max = self.range_min + self.num_negatives
        is_valid = self.range_max is None or is_integer(self.range_max, min_range_max)
        require(is_valid, "range_max", f"at least `range_min` + `num_negatives`, {min_range_max}", self.range_max)
        for name in ("absolute_margin", "relative_margin"):
            value = getattr(self, name)
            require(value is None or is_number(value, 0), name, "a number of at least 0, or None", value)
        require(self.max_score is None or is_number(self.max_score), "max_score", "a number or None", self.max_score)

    @property
    def has_filter(self) -> bool:
        """Whether a margin or `max_score` limits the scores of negatives."""
        return not (self.absolute_margin is None and self.relative_margin is None and self.max_score is None)

    def compute_last_rank(self, max_num_excluded: int) -> int:
        """Return `range_max`, or else its default for queries with at most `max_num_excluded` excluded texts."""
        if self.range_max is not None:
            return self.range_max
        num_candidates = self.num_negatives * (_CANDIDATES_PER_NEGATIVE if self.has_filter else 1)
        return self.range_min + num_candidates + max_num_excluded

    def compute_max_score(self, relevant_score: float) -> float:
        """Return the highest score allowed for a negative, given the lowest score of a relevant text."""
        scores = [math.inf if self.max_score is None else self.max_score]
        if self.absolute_margin is not None:
            scores.append(relevant_score - self.absolute_margin)
        if self.relative_margin is not None:
            scores.append(relevant_score - abs(relevant_score) * self.relative_margin)
        return min(scores)


def _join_texts(
    queries: Sequence[str], positives: Sequence[str], corpus: Sequence[str] | None
) -> tuple[list[tuple[str, str]], list[str], dict[str, list[int]]]:
    """Return pairs of a query and a relevant text, the distinct texts, and the indices of each query's relevant texts.

    Raises:
        TypeError: If an entry is not text; the message names its position.
        ValueError: If there are no queries, or the numbers of queries and positives differ.
    """
    texts_by_argument = {"queries": queries, "positives": positives, "corpus": [] if corpus is None else corpus}
    query_texts, relevant_texts, corpus_texts = (
        clean_single_texts(name, texts) for name, texts in texts_by_argument.items()
    )
    if len(query_texts) != len(relevant_texts) or not query_texts:
        raise ValueError(f"Every query needs a relevant text: got {len(query_texts)} and {len(relevant_texts)}.")
    pairs = list(zip(query_texts, relevant_texts, strict=True))
    index_by_text = {text: index for index, text in enumerate(dict.fromkeys([*corpus_texts, *relevant_texts]))}
    relevant_by_query: dict[str, list[int]] = {}
    for query, text in pairs:
        if index_by_text[text] not in relevant_by_query.setdefault(query, []):
            relevant_by_query[query].append(index_by_text[text])
    return pairs, [*index_by_text], relevant_by_query


def _find_excluded(texts: Sequence[str], relevant_by_query: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Return, for each query, the indices of the texts that cannot be negatives: relevant texts, and the query itself.

    Raises:
        ValueError: If no other text is left for a query.
    """
    index_by_text = {text: index for index, text in enumerate(texts)}
    excluded_by_query = {}
    for query, relevant_indices in relevant_by_query.items():
        has_equal_text = query in index_by_text and index_by_text[query] not in relevant_indices
        excluded_by_query[query] = [*relevant_indices, index_by_text[query]] if has_equal_text else [*relevant_indices]
        if len(excluded_by_query[query]) == len(texts):
            raise ValueError(
                f"All texts are relevant to the query {query!r:.60}, or equal to it. Pass a `corpus` with other texts."
            )
    return excluded_by_query
