"""From documents to pre-training rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from lmzoo.text import EncodedTexts, Preprocessor, WordPieceTokenizer


def train_wordpiece(
    texts: Iterable[str], vocabulary_size: int, lowercase: bool = True, min_frequency: int = 2, verbose: bool = True
) -> WordPieceTokenizer:
    """Learns a WordPiece vocabulary with Hugging Face's trainer.

    Args:
        texts: lines or documents.
        vocabulary_size: int, tokens including the special ones.
        lowercase: whether to lower-case and strip accents.
        min_frequency: int, rarer pieces are not learnt.
        verbose: whether to show progress.

    Returns:
        The tokenizer; the special tokens have ids 0 to 4. Among equally frequent pieces the trainer's choice and order
        are not the same in every run: keep the vocabulary, not the recipe.

    Example:

    ```python
    from lmzoo.training import train_wordpiece

    tokenizer = train_wordpiece(["a fine film, a fine day"], vocabulary_size=60, min_frequency=1, verbose=False)
    ```
    """
    from tokenizers import Tokenizer, models, trainers

    # Cleans and splits as the result will, but reads a special token in the text as text and not as a word to learn.
    rules = WordPieceTokenizer(WordPieceTokenizer.special_tokens, lowercase=lowercase).backend
    learner = Tokenizer(models.WordPiece(unk_token=WordPieceTokenizer.unk_token))
    learner.normalizer, learner.pre_tokenizer = rules.normalizer, rules.pre_tokenizer
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=min_frequency,
        special_tokens=list(WordPieceTokenizer.special_tokens),
        limit_alphabet=1000,
        show_progress=verbose,
    )
    learner.train_from_iterator(texts, trainer)
    learnt = learner.get_vocab()
    return WordPieceTokenizer(sorted(learnt, key=learnt.__getitem__), lowercase=lowercase)


def pack_documents(documents: Iterable[str], preprocessor: Preprocessor, batch: int = 256) -> EncodedTexts:
    """Packs running text into full rows: `start`, pieces, `end`.

    Documents follow one another, separated by the end token, and rows are cut wherever they are full, so that there is
    no padding. A last, shorter row is dropped. `pack_sentences` cuts between sentences instead.

    Args:
        documents: strings.
        preprocessor: says how long a row is.
        batch: int, documents tokenised at once.

    Returns:
        Rows of exactly `preprocessor.sequence_length` tokens.
    """
    tokenizer, packing = preprocessor.tokenizer, preprocessor.packing
    start, end = tokenizer.token_to_id(packing.start), tokenizer.token_to_id(packing.end)
    flat = np.concatenate(
        [np.array([*ids, end], "int32") for group in _groups(documents, batch) for ids in tokenizer.tokenize(group)]
        or [np.zeros(0, "int32")]
    )
    length, room = preprocessor.sequence_length, preprocessor.sequence_length - 2
    count = len(flat) // room
    rows = np.full((count, length), end, "int32")
    rows[:, 0] = start
    rows[:, 1:-1] = flat[: count * room].reshape(count, room)
    splits = np.arange(count + 1, dtype="int64") * length
    return EncodedTexts(rows.reshape(-1), splits, np.full(count, length, "int32"))


def pack_sentences(
    documents: Iterable[Sequence[str]], preprocessor: Preprocessor, across_documents: bool = True, batch: int = 256
) -> EncodedTexts:
    """Packs whole sentences into rows of at most `preprocessor.sequence_length` tokens (Liu et al., 2019, section 4.2).

    A row is `start` and then sentences, each followed by `end`; the next one begins a new row if it does not fit. By
    default rows run on across documents, with one more `end` between them (FULL-SENTENCES); otherwise a document ends
    its row (DOC-SENTENCES). A sentence that is longer than a row goes on in the next.

    Args:
        documents: documents, each a list of sentences.
        preprocessor: says how long a row is.
        across_documents: whether a row may hold parts of several documents.
        batch: int, documents tokenised at once.

    Returns:
        Rows of different lengths.

    Example:

    ```python
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.training import pack_sentences

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "b"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    rows = pack_sentences([["a a", "b"], ["a"]], Preprocessor(tokenizer, packing, sequence_length=7))
    rows.lengths  # [7, 4]: [CLS] a a [SEP] b [SEP] [SEP] and [CLS] a [SEP] [SEP]
    ```
    """
    tokenizer, packing = preprocessor.tokenizer, preprocessor.packing
    start, end = tokenizer.token_to_id(packing.start), tokenizer.token_to_id(packing.end)
    room = preprocessor.sequence_length - 1
    rows: list[list[int]] = []
    row: list[int] = []

    def close() -> None:
        if len(row) > 1:  # not a lone separator
            rows.append([start, *row])
        row.clear()

    for group in _groups(documents, batch):
        encoded = iter(tokenizer.tokenize([sentence for document in group for sentence in document]))
        for document in group:
            sentences = [[*next(encoded), end] for _ in document] + [[end]] * across_documents
            for ids in sentences:
                if len(row) + len(ids) > room:
                    close()
                for begin in range(0, len(ids), room):
                    row.extend(ids[begin : begin + room])
                    if len(row) == room:
                        close()
            if not across_documents:
                close()
    close()
    splits = np.cumsum([0, *map(len, rows)], dtype="int64")
    flat = np.array([id for row in rows for id in row], "int32")
    return EncodedTexts(flat, splits, np.diff(splits).astype("int32"))


def _groups(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    group: list[Any] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
