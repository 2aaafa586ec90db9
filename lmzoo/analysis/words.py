"""What words mean in their texts, and how surprising they are there."""

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
from lmzoo.text.word_splitting import place_words, words_of


class Sense(NamedTuple):
    """An occurrence of a word.

    Attributes:
        text: the number of the text.
        start: its first character there.
        end: the character after its last.
        group: int, the number of its group: 0 for the largest one.
        vector: float32 (H,), its vector there, normalized.

    Example: see `senses`.
    """

    text: int
    start: int
    end: int
    group: int
    vector: np.ndarray


class WordSurprisal(NamedTuple):
    """The surprisal of a word.

    Attributes:
        word: the word, `text[start:end]`.
        start: its first character.
        end: the character after its last.
        surprisal: float, its negative log-probability in nats; NaN if the model does not predict all of its tokens.

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
    """Return the occurrences of a word in texts, grouped by the similarity of their vectors.

    In one text "bank" is where money lies, in another one the edge of a river: contextual vectors differ (Peters et
    al., 2018, table 4). Groups are found by average linkage of cosines (scikit-learn's agglomerative clustering).

    Args:
        embedder: a `lmzoo.models.TextEmbedder`, which any preset makes: `TextEmbedder.from_preset(...)`.
        word: whatever its case, a whole word of the texts.
        texts: strings.
        layers: which layers the vectors are from: see `lmzoo.models.TextEmbedder.embed`.
        groups: int, how many groups; fewer if the word occurs less often.
        batch_size: int.

    Returns:
        The occurrences, in the order of the texts.

    Raises:
        TypeError: for another kind of model; naming the position of an entry that is not text.
        ValueError: if there are no texts; for a word that occurs in none of them, or that is read as several words,
            such as "don't" or "New York".

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    texts = ["He put it in the bank.", "They sat on the bank of the river.", "The bank lent him money."]
    [found.group for found in lmzoo.analysis.senses(embedder, "bank", texts)]
    ```
    """
    from sklearn.cluster import AgglomerativeClustering

    require(is_integer(groups, 1), "groups", "a positive integer", groups)
    if not isinstance(embedder, TextEmbedder):
        raise WrongModelError(f"Senses are told apart by the vectors of a TextEmbedder, got {embedder!r:.60}.")
    cleaned, sought = clean_texts(texts), word.lower()
    if not cleaned:
        raise ValueError("`texts` is empty: pass at least one text.")
    where = [i for i, text in enumerate(cleaned) if sought in map(str.lower, words_of(text))]
    found, vectors = [], []
    embeddings = embedder.embed([cleaned[i] for i in where], batch_size, level="word", layers=layers)
    for i, embedded in zip(where, embeddings, strict=True):
        for name, (start, end), vector in zip(*embedded, strict=True):
            if name.lower() == sought:
                found.append((i, int(start), int(end)))
                vectors.append(vector / max(float(np.linalg.norm(vector)), 1e-12))
    if not found:
        parts = words_of(word)
        require(len(parts) == 1, "word", "one word", word, f"It is read as {parts}.")
        raise ValueError(f"The word {word!r} occurs in none of the {len(cleaned)} texts as a whole word.")
    number = np.zeros(len(found), "int64")
    if min(groups, len(found)) > 1:
        linkage = AgglomerativeClustering(min(groups, len(found)), metric="cosine", linkage="average")
        number = linkage.fit_predict(np.stack(vectors))
    ranks = np.argsort(np.argsort(-np.bincount(number), kind="stable"), kind="stable")
    return [Sense(*place, int(ranks[k]), vector) for place, k, vector in zip(found, number, vectors, strict=True)]


def surprisal(
    model: CausalLM | MaskedLM | BidirectionalLM, texts: Sequence[Text], batch_size: int = 32
) -> list[list[WordSurprisal]]:
    """Return the surprisal of each word of texts: the sum of the negative log-probabilities of its tokens.

    For a `CausalLM` given what comes before (Hale, 2001, https://aclanthology.org/N01-1021); for a `MaskedLM` given all
    other tokens, those of the same word included; for a `BidirectionalLM` the mean of both directions, one given the
    words before, the other the words after. It reads each text as one sentence, and words outside of its vocabulary
    count as `<UNK>`.

    Args:
        model: a language model with a preprocessor.
        texts: strings.
        batch_size: int.

    Returns:
        The words of each text.

    Raises:
        TypeError: for another kind of model; naming the position of an entry that is not text.

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
    cleaned = clean_texts(texts)
    if isinstance(model, BidirectionalLM):
        return _of_both_directions(model, cleaned, batch_size)
    tokens = model.text_preprocessor.tokenizer.tokenize_with_offsets(cleaned)
    results = []
    for text, spans, scores in zip(cleaned, tokens, model.score(cleaned, batch_size), strict=True):
        words, values = place_words(text), _of_tokens(spans, scores)
        of_word, token = tokens_of_words(words, spans)
        sums = np.zeros(len(words))
        np.add.at(sums, of_word, values[token])
        sums[np.bincount(of_word, minlength=len(words)) == 0] = np.nan
        results.append([WordSurprisal(*place, float(value)) for place, value in zip(words, sums, strict=True)])
    return results


def _of_both_directions(model: BidirectionalLM, texts: list[str], batch_size: int) -> list[list[WordSurprisal]]:
    results = [place_words(text) for text in texts]
    read = [i for i, words in enumerate(results) if words]
    found: list[list[WordSurprisal]] = [[] for _ in texts]
    scores = model.predict([[texts[i]] for i in read], batch_size=batch_size, verbose=0) if read else []
    for i, both in zip(read, scores, strict=True):  # (T, 2), each direction in the order of reading
        forward, backward = both[: len(results[i])].T.astype("float64")
        values = -(forward + backward[::-1]) / 2
        found[i] = [WordSurprisal(*place, float(value)) for place, value in zip(results[i], values, strict=True)]
    return found


def _of_tokens(spans: Sequence[TokenSpan], scores: Sequence[TokenScore]) -> np.ndarray:
    """Return the surprisal of each token, float64 (T,): NaN for those without a score, such as GPT's first."""
    values, left = np.full(len(spans), np.nan), [*scores]
    for i, span in reversed([*enumerate(spans)]):  # from the end, since tokens of one character share their place
        if left and (left[-1]["start"], left[-1]["end"]) == (span.start, span.end):
            values[i] = -left.pop()["log_probability"]
    return values
