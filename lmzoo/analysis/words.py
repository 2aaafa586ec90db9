"""Word senses in context, and the surprisal of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.errors import WrongModelError
from lmzoo.tasks import BidirectionalLM, CausalLM, MaskedLM, TextEmbedder
from lmzoo.tasks.word_vectors import Layers
from lmzoo.text.alignment import tokens_of_words
from lmzoo.text.token_scores import TokenScore
from lmzoo.text.tokenizers.tokenizer import TokenSpan
from lmzoo.text.validate_text import Text, clean_texts
from lmzoo.text.word_splitting import list_words, place_words


class Sense(NamedTuple):
    """An occurrence of a word, with the group of similar occurrences that it belongs to.

    Attributes:
        text: int, index of the text.
        start: int, offset of the word's first character in the text.
        end: int, offset after the word's last character.
        group: int, index of the group of similar occurrences; 0 is the largest group.
        vector: float32 (H,), contextual vector of the word, of length 1.

    Example: see `senses`.
    """

    text: int
    start: int
    end: int
    group: int
    vector: np.ndarray


class WordSurprisal(NamedTuple):
    """A word in a text, with its surprisal.

    Attributes:
        word: the word, `text[start:end]`.
        start: int, offset of the word's first character in the text.
        end: int, offset after the word's last character.
        surprisal: float, negative log-probability in nats; NaN if the model does not predict all tokens of the word.

    Example: see `surprisal`.
    """

    word: str
    start: int
    end: int
    surprisal: float


def senses(
    embedder: TextEmbedder,
    word: str,
    texts: Sequence[str],
    layers: Layers = None,
    groups: int = 2,
    batch_size: int = 32,
) -> list[Sense]:
    """Return the occurrences of a word in texts, grouped by the similarity of their contextual vectors.

    For example, "bank" may be a place for money or the edge of a river (Peters et al., 2018, table 4). Groups are
    computed by average linkage of cosine distances (scikit-learn's agglomerative clustering).

    Args:
        embedder: a `lmzoo.models.TextEmbedder`, created from any preset by `TextEmbedder.from_preset(...)`.
        word: a whole word of the texts, in upper or lower case.
        texts: strings.
        layers: layers of the vectors; see `lmzoo.models.TextEmbedder.embed`. "all" is not possible, since a sense has
            one vector.
        groups: int, number of groups; fewer if the word occurs less often.
        batch_size: int, number of texts in a batch.

    Returns:
        The occurrences that have a vector, in the order of the texts; occurrences beyond the sequence length have none.

    Raises:
        TypeError: If `embedder` is not a `TextEmbedder`, or an entry is not text; the message gives the entry's
            position.
        ValueError: If there are no texts, `layers` is "all", `word` occurs in none of the texts or is read as several
            words, such as "don't" or "New York", or no occurrence has a vector.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    texts = ["He put it in the bank.", "They sat on the bank of the river.", "The bank lent him money."]
    [sense.group for sense in lmzoo.analysis.senses(embedder, "bank", texts)]
    ```
    """
    from sklearn.cluster import AgglomerativeClustering

    require(is_integer(groups, 1), "groups", "a positive integer", groups)
    advice = "A sense has one vector: pass a dict of weights to mix layers."
    require(not (isinstance(layers, str) and layers == "all"), "layers", "a layer, or several to mix", layers, advice)
    if not isinstance(embedder, TextEmbedder):
        raise WrongModelError(f"Senses are told apart by the vectors of a TextEmbedder, got {embedder!r:.60}.")
    cleaned_texts = clean_texts(texts)
    lowercase_word = word.lower()
    if not cleaned_texts:
        raise ValueError("`texts` is empty: pass at least one text.")
    text_indices = [i for i, text in enumerate(cleaned_texts) if lowercase_word in map(str.lower, list_words(text))]
    occurrences = []
    vectors = []
    num_occurrences = 0
    embeddings = embedder.embed([cleaned_texts[i] for i in text_indices], batch_size, level="word", layers=layers)
    for i, word_vectors in zip(text_indices, embeddings, strict=True):
        for name, (start, end), vector in zip(*word_vectors, strict=True):
            if name.lower() != lowercase_word:
                continue
            num_occurrences += 1
            if norm := float(np.linalg.norm(vector)):
                occurrences.append((i, int(start), int(end)))
                vectors.append(vector / norm)
    if not num_occurrences:
        component_words = list_words(word)
        require(len(component_words) == 1, "word", "one word", word, f"It is read as {component_words}.")
        raise ValueError(f"The word {word!r} occurs in none of the {len(cleaned_texts)} texts as a whole word.")
    if not occurrences:
        raise ValueError(
            f"No occurrence of the word {word!r} has a vector: words beyond the sequence length have none. Pass "
            "shorter texts, or raise `sequence_length`."
        )
    clusters = np.zeros(len(occurrences), "int64")
    if min(groups, len(occurrences)) > 1:
        clusterer = AgglomerativeClustering(min(groups, len(occurrences)), metric="cosine", linkage="average")
        clusters = clusterer.fit_predict(np.stack(vectors))
    ranks = np.argsort(np.argsort(-np.bincount(clusters), kind="stable"), kind="stable")
    return [
        Sense(*occurrence, int(ranks[cluster]), vector)
        for occurrence, cluster, vector in zip(occurrences, clusters, vectors, strict=True)
    ]


def surprisal(
    model: CausalLM | MaskedLM | BidirectionalLM, texts: Sequence[Text], batch_size: int = 32
) -> list[list[WordSurprisal]]:
    """Return the surprisal of each word in texts: the sum of the negative log-probabilities of its tokens.

    A `CausalLM` predicts a token from the text before it (Hale, 2001, https://aclanthology.org/N01-1021), a `MaskedLM`
    from all other tokens, including tokens of the same word. For a `BidirectionalLM`, surprisal is the mean of two
    predictions: from the words before, and from the words after. Each text is then read as one sentence, and
    words outside of the vocabulary count as `<UNK>`.

    Args:
        model: a language model with a preprocessor.
        texts: strings.
        batch_size: int, number of texts in a batch.

    Returns:
        The words of each text with their surprisals.

    Raises:
        TypeError: If the model is of another kind, or an entry is not text; the message gives the entry's position.

    Example:

    ```python
    import lmzoo

    model = lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased")
    (words,) = lmzoo.analysis.surprisal(model, ["He opened the door and went purple."])
    max(words, key=lambda word: word.surprisal).word
    ```
    """
    if not isinstance(model, (CausalLM, MaskedLM, BidirectionalLM)):
        raise WrongModelError(
            f"Surprisal is of a CausalLM, a MaskedLM or a BidirectionalLM, got a {type(model).__name__}."
        )
    cleaned_texts = clean_texts(texts)
    if isinstance(model, BidirectionalLM):
        return _compute_bidirectional_surprisal(model, cleaned_texts, batch_size)
    text_spans = model.text_preprocessor.tokenizer.tokenize_with_offsets(cleaned_texts)
    surprisals = []
    for text, spans, scores in zip(cleaned_texts, text_spans, model.score(cleaned_texts, batch_size), strict=True):
        words = place_words(text)
        token_surprisals = _compute_token_surprisal(spans, scores)
        word_indices, token_indices = tokens_of_words(words, spans)
        word_surprisals = np.zeros(len(words))
        np.add.at(word_surprisals, word_indices, token_surprisals[token_indices])
        word_surprisals[np.bincount(word_indices, minlength=len(words)) == 0] = np.nan
        surprisals.append(
            [WordSurprisal(*word, float(value)) for word, value in zip(words, word_surprisals, strict=True)]
        )
    return surprisals


def _compute_bidirectional_surprisal(
    model: BidirectionalLM, texts: list[str], batch_size: int
) -> list[list[WordSurprisal]]:
    words = [place_words(text) for text in texts]
    nonempty_indices = [i for i, text_words in enumerate(words) if text_words]
    surprisals: list[list[WordSurprisal]] = [[] for _ in texts]
    scores = (
        model.predict([[texts[i]] for i in nonempty_indices], batch_size=batch_size, verbose=0)
        if nonempty_indices
        else []
    )
    for i, text_scores in zip(nonempty_indices, scores, strict=True):  # (T, 2), each direction in its reading order
        forward_scores, backward_scores = text_scores[: len(words[i])].T.astype("float64")
        word_surprisals = -(forward_scores + backward_scores[::-1]) / 2
        surprisals[i] = [
            WordSurprisal(*word, float(value)) for word, value in zip(words[i], word_surprisals, strict=True)
        ]
    return surprisals


def _compute_token_surprisal(spans: Sequence[TokenSpan], scores: Sequence[TokenScore]) -> np.ndarray:
    """Return the surprisal of each token, float64 (T,), NaN for tokens without a score, such as GPT's first token."""
    values = np.full(len(spans), np.nan)
    pending_scores = [*scores]
    for i, span in reversed([*enumerate(spans)]):  # from the end, since tokens of the same character share offsets
        if pending_scores and (pending_scores[-1]["start"], pending_scores[-1]["end"]) == (span.start, span.end):
            values[i] = -pending_scores.pop()["log_probability"]
    return values
