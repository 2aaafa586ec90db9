"""Splitting of documents into words, and vocabularies learned from the words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.progress import progress_over
from lmzoo.data.corpora.tokenized_documents import check_documents, check_not_record
from lmzoo.text.tokenizers.word_level import WordTokenizer
from lmzoo.text.validate_text import TextWarningFilter, clean_columns, warn
from lmzoo.text.word_splitting import list_words

Document = Sequence[str | Sequence[str]]


def train_words(
    documents: Iterable[Document],
    vocabulary_size: int,
    min_frequency: int = 1,
    verbose: bool = True,
    kind: type[WordTokenizer] = WordTokenizer,
) -> WordTokenizer:
    """Learn a vocabulary of the most frequent words, for a language model that predicts words.

    Args:
        documents: iterable of documents, each a list of sentences: lists of words, or strings, which
            `lmzoo.text.word_splitting.split_words` splits.
        vocabulary_size: int, maximum number of words, including special words such as `<S>`, `</S>` and `<UNK>`.
        min_frequency: int, minimum frequency of a word.
        verbose: bool, whether to show progress.
        kind: class of the tokenizer: `WordTokenizer` for a `BidirectionalLM`, `lmzoo.text.TextWordTokenizer` for a
            `CausalLM`.

    Returns:
        The tokenizer. Its vocabulary lists the special words, then other words by descending frequency, and equally
        frequent words in alphabetical order. Words that begin or end with a space or contain a line break are omitted,
        since the vocabulary file cannot hold them. If the documents have fewer words than `vocabulary_size`, one
        warning says how many.

    Raises:
        TypeError: If a document is not a list of sentences; the message names its position.
        ValueError: If `vocabulary_size` has no room for a word, or `min_frequency` is below 1.

    Example:

    ```python
    from lmzoo.data.corpora import train_words

    tokenizer = train_words([["a fine film", "a film"], [["New York"]]], vocabulary_size=6)
    tokenizer.vocabulary  # ["<S>", "</S>", "<UNK>", "a", "film", "New York"]
    ```
    """
    tokenizer = learn_words(documents, vocabulary_size, min_frequency, verbose, kind)
    report_size(len(tokenizer.vocabulary), vocabulary_size, "words")
    return tokenizer


def learn_words(
    documents: Iterable[Document], vocabulary_size: int, min_frequency: int, verbose: bool, kind: type[WordTokenizer]
) -> WordTokenizer:
    """Learn a vocabulary as in `train_words`, but without a warning if there are too few words."""
    special_words = kind.special_tokens
    allowed_sizes = f"an integer above {len(special_words)}, the number of special words"
    require(is_integer(vocabulary_size, len(special_words) + 1), "vocabulary_size", allowed_sizes, vocabulary_size)
    require(is_integer(min_frequency, 1), "min_frequency", "an integer of at least 1", min_frequency)
    frequencies: Counter[str] = Counter()
    check_documents(documents)
    with progress_over(documents, "Counting words", "documents", verbose) as tracked_documents:
        for sentence in sentences_of(tracked_documents):
            frequencies.update(sentence)
    frequent_words = (w for w, n in frequencies.items() if n >= min_frequency and w not in special_words)
    # Each word must fit on a line of the vocabulary file.
    words = [word for word in frequent_words if word == word.strip() != "" and "\n" not in word]
    words.sort(key=lambda word: (-frequencies[word], word))
    return kind([*special_words, *words[: vocabulary_size - len(special_words)]])


def report_size(size: int, requested_size: int, entries: str) -> None:
    """Warn if a vocabulary has fewer entries than requested.

    Args:
        size: int, number of entries.
        requested_size: int, requested number of entries.
        entries: str, name of the entries, "tokens" or "words".
    """
    if size < requested_size:
        warn(
            f"The documents support {size:,} {entries}, not the {requested_size:,} that were requested: all that are "
            "frequent enough are in the vocabulary."
        )


def sentences_of(
    documents: Iterable[Document], order: Sequence[int] | None = None, warning_filter: TextWarningFilter | None = None
) -> Iterator[list[str]]:
    """Yield the sentences of documents as lists of words, skipping sentences without words.

    Invalid UTF-8 causes at most one warning.

    Args:
        documents: iterable of documents, see `train_words`.
        order: positions of the documents to read, in order; `documents` must then be a sequence. None to read all.
        warning_filter: `TextWarningFilter`, shared by calls that together issue at most one warning; None for a new
            filter.

    Raises:
        TypeError: If a document is not a list of sentences; the message names its position.
    """
    check_documents(documents)
    warning_filter = warning_filter or TextWarningFilter()
    numbered_documents = enumerate(documents) if order is None else ((i, documents[i]) for i in order)  # type: ignore[index]
    for i, document in numbered_documents:
        with warning_filter.once_per_reason():
            sentences = clean_columns({f"documents[{i}]": check_not_record(document, i)}, words=True)[0]
        for sentence in sentences:
            if words := list_words(sentence) if isinstance(sentence, str) else sentence:
                yield words
