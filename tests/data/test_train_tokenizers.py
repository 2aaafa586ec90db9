"""Tokenizers trained on documents: their special tokens, sizes and rules."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.data.corpora import train_tokenizer, train_wordpiece
from lmzoo.data.corpora.train_tokenizers import split_long_text
from lmzoo.text import (
    BytePairTokenizer,
    CharacterTokenizer,
    SentencePieceTokenizer,
    T5Tokenizer,
    TextWarning,
    WordPieceTokenizer,
)
from lmzoo.text.validate_text import collect_warnings

KINDS = [WordPieceTokenizer, BytePairTokenizer, SentencePieceTokenizer]
SIZES = {WordPieceTokenizer: 89, BytePairTokenizer: 311, SentencePieceTokenizer: 89}
SYLLABLES = "ba ce di fo gu lé ma ni po ru sa te vi xo zu".split()  # noqa: SIM905
WORDS = [a + b + c for a in SYLLABLES for b in SYLLABLES[::4] for c in ("", "n", "st")]


def documents(count=113, seed=3):
    rng = np.random.default_rng(seed)
    return [[" ".join(rng.choice(WORDS, rng.integers(3, 11))) + "." for _ in range(3)] for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_vocabularies_have_the_size_and_repeat(kind):
    tokenizer, repeated = (train_tokenizer(iter(documents()), kind, SIZES[kind], verbose=False) for _ in range(2))
    assert type(tokenizer) is kind
    assert tokenizer.vocabulary_size == len(set(tokenizer.vocabulary)) == SIZES[kind]
    assert tokenizer.detokenize(tokenizer.tokenize(["fogu mapo"])[0]).replace(" ", "") == "fogumapo"
    pieces = len(tokenizer.tokenize([" fogu mapost"])[0])
    assert 2 <= pieces < len("fogu mapost") - 1, "no pieces were learned"
    ids = {id for document in documents() for row in tokenizer.tokenize(document) for id in row}
    assert tokenizer.unk_token_id not in ids, "a text of the training has an unknown piece"
    assert repeated.vocabulary == tokenizer.vocabulary


def test_special_tokens_have_the_ids_of_the_families():
    wordpiece, byte_pairs, sentencepiece = (
        train_tokenizer(documents(), kind, SIZES[kind], verbose=False) for kind in KINDS
    )
    assert wordpiece.vocabulary[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert byte_pairs.vocabulary[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert byte_pairs.mask_id == SIZES[BytePairTokenizer] - 1
    assert sentencepiece.vocabulary[:13] == [
        *("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        *("(", ")", '"', "-", ".", "–", "£", "€"),
    ]
    text = ["a quiet <mask> [MASK]"]
    for tokenizer in (wordpiece, byte_pairs, sentencepiece):
        assert tokenizer.tokenize(text)[0].count(tokenizer.mask_id) == 1


def test_texts_are_cleaned_by_the_rules_of_the_family():
    text = ["Léba", "LÉBA"]
    for kind in (WordPieceTokenizer, SentencePieceTokenizer):
        plain = train_tokenizer(documents(), kind, SIZES[kind], verbose=False)
        assert plain.tokenize(text)[0] == plain.tokenize(text)[1] == plain.tokenize(["leba"])[0]
        assert not any("é" in token for token in plain.vocabulary)
        with collect_warnings():
            cased = train_tokenizer([["Café film"] * 9], kind, 29, verbose=False, lowercase=False)
        assert any("C" in token for token in cased.vocabulary)
    with_accents = train_tokenizer(documents(), SentencePieceTokenizer, 89, verbose=False, keep_accents=True)
    assert any("é" in token for token in with_accents.vocabulary)


def test_rare_pieces_are_not_learned():
    for min_frequency in (1, 2):
        tokenizer = train_wordpiece(["zyzzyva film film film film"], 200, min_frequency=min_frequency, verbose=False)
        assert ("zyzzyva" in tokenizer.vocabulary) == (min_frequency == 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_above_what_the_texts_support_warns(kind):
    with pytest.warns(TextWarning, match=r"support (\d+) tokens, not the 9,973 that were requested") as caught:
        tokenizer = train_tokenizer(["a fine film", ["a fine day"]], kind, 9973, verbose=False)
    assert f" {tokenizer.vocabulary_size} tokens" in str(caught[0].message)
    assert len(caught) == 1


@pytest.mark.parametrize(("kind", "min_size"), [(WordPieceTokenizer, 27), (BytePairTokenizer, 261)])
def test_too_small_sizes_are_refused(kind, min_size):
    texts = [["a fine film", "a fine day at the films"]]
    with pytest.raises(
        ValueError, match=rf"is {min_size - 1}, but the special tokens and the \w+ alone are {min_size}\."
    ):
        train_tokenizer(texts, kind, min_size - 1, verbose=False)
    assert train_tokenizer(texts, kind, min_size, verbose=False).vocabulary_size == min_size


def test_too_small_sizes_for_sentencepiece_are_refused():
    with pytest.raises(ValueError, match=r"cannot learn 17 tokens from these texts: .*17 vs 26"):
        train_tokenizer([["a fine film", "a fine day at the films"]], SentencePieceTokenizer, 17, verbose=False)


@pytest.mark.parametrize("kind", [SentencePieceTokenizer, T5Tokenizer])
def test_sentencepiece_learns_from_long_documents(kind):
    options = {"num_sentinels": 3} if kind is T5Tokenizer else {}
    document = " ".join(np.random.default_rng(7).choice(WORDS, 11_003))
    assert len(document) > 1 << 16
    for texts in ([document], ["a fine film", document]):
        tokenizer = train_tokenizer(texts, kind, 89, verbose=False, **options)
        assert tokenizer.unk_token_id not in tokenizer.tokenize([" ".join(WORDS)])[0]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [""]),
        ("a fine film", ["a fine film"]),
        ("a fine films", ["a fine", " films"]),
        ("a\nfine day at", ["a\nfine day", " at"]),
        ("a fine\nday at", ["a fine\nday", " at"]),
        ("ééééééé", ["ééééé", "éé"]),
        ("a😀😀😀", ["a😀😀", "😀"]),
        (" fine-grained", [" fine-grain", "ed"]),
        ("a fine film\n", ["a fine film", "\n"]),
    ],
)
def test_long_texts_are_split_where_words_end(text, parts):
    assert list(split_long_text(text, 11)) == parts


@pytest.mark.parametrize("kind", KINDS)
def test_errors_of_texts(kind):
    for empty in ([], [[], [""]], ["", " \n"]):
        with pytest.raises(ValueError, match="There is no text to learn a vocabulary from"):
            train_tokenizer(empty, kind, 307, verbose=False)

    def failing():
        yield from documents(700)
        raise ValueError("a.txt is binary")

    with pytest.raises(ValueError, match=r"^a\.txt is binary"):
        train_tokenizer(failing(), kind, 307, verbose=False)


def test_other_tokenizers_are_refused():
    with pytest.raises(ValueError, match="A CharacterTokenizer cannot be trained; choose one of WordPieceTokenizer, B"):
        train_tokenizer(["a"], CharacterTokenizer, 307)
