"""Special tokens belong to a tokenizer: by default its class's, others where it is told so."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.data.corpora import train_tokenizer
from lmzoo.families.roberta import FAMILY
from lmzoo.models import MaskedLM, Pretrainer, TextClassifier
from lmzoo.testing import tiny_backbone
from lmzoo.text import (
    BytePairTokenizer,
    CharacterPairTokenizer,
    Packing,
    Preprocessor,
    SentencePieceTokenizer,
    WordPieceTokenizer,
)

END = "<|endoftext|>"
GPT2 = {"start_token": None, "pad_token": None, "end_token": END, "unk_token": END, "mask_token": None}
TOLD = {
    BytePairTokenizer: GPT2,
    SentencePieceTokenizer: {
        "start_token": "<cls>",
        "end_token": "<sep>",
        "mask_token": None,
        "other_tokens": ["<eod>"],
    },
    WordPieceTokenizer: {"pad_token": "<0>", "mask_token": None},
}
LISTED = {
    BytePairTokenizer: (END,),
    SentencePieceTokenizer: ("<pad>", "<unk>", "<cls>", "<sep>", "<eod>"),
    WordPieceTokenizer: ("<0>", "[UNK]", "[CLS]", "[SEP]"),
}
SIZES = {BytePairTokenizer: 281, SentencePieceTokenizer: 17, WordPieceTokenizer: 13}
TEXTS = ["good film", f"a{END}good  film {END}", "<mask> film", "", "<pad><s>good"]
classes = pytest.mark.parametrize("cls", TOLD)


def tokenizer_of(cls):
    return cls.of_words(["good", "film"], SIZES[cls], **TOLD[cls])


@classes
def test_told(cls):
    tokenizer = tokenizer_of(cls)
    assert tokenizer.special_tokens == LISTED[cls]
    assert tokenizer.vocabulary_size == SIZES[cls]
    for token in LISTED[cls]:
        assert tokenizer.tokenize([f"good{token} film"])[0].count(tokenizer.token_to_id(token)) == 1
    assert len(tokenizer.tokenize(["[MASK]"])[0]) > 1 or cls is not BytePairTokenizer
    assert cls.special_tokens != LISTED[cls]
    assert cls().special_tokens == cls.special_tokens


@classes
def test_config(cls, tmp_path):
    """What was told is kept; what was not is not written, and so files of earlier versions lack nothing."""
    tokenizer = tokenizer_of(cls)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(tokenizer))
    tokenizer.save_assets(tmp_path)
    again.load_assets(tmp_path)
    assert again.special_tokens == tokenizer.special_tokens
    assert (again.mask_token, again.pad_token, again.other_tokens) == (
        tokenizer.mask_token,
        tokenizer.pad_token,
        tokenizer.other_tokens,
    )
    assert again.tokenize(TEXTS) == tokenizer.tokenize(TEXTS)
    names = {*tokenizer.roles, "other_tokens"}
    assert tokenizer.get_config().keys() & names == {
        name for name in TOLD[cls] if TOLD[cls][name] != getattr(cls, name)
    }
    assert not cls().get_config().keys() & names


def test_gpt2():
    """One token serves for all, and what is another family's special token is text."""
    tokenizer = tokenizer_of(BytePairTokenizer)
    assert tokenizer.token_to_id(END) == SIZES[BytePairTokenizer] - 1
    assert tokenizer.pad_id == 0
    found = [[piece.token for piece in row] for row in tokenizer.tokenize_with_offsets(TEXTS[:2])]
    assert found == [["g", "o", "o", "d", "Ġfilm"], ["a", END, "g", "o", "o", "d", "Ġ", "Ġfilm", "Ġ", END]]
    assert [tokenizer.detokenize(ids) for ids in tokenizer.tokenize(TEXTS)] == TEXTS
    preprocessor = Preprocessor(tokenizer, Packing("", "", (), segments=False), 16)
    features = preprocessor(["good", "good film"])
    np.testing.assert_array_equal(features["padding_mask"], [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    assert features["token_ids"][0, 4] == 0


@pytest.mark.quick_cases("BytePairTokenizer")
@pytest.mark.tf_only
@classes
def test_graph(cls):
    from lmzoo.text.graphs import graph_tokenizer

    tokenizer = tokenizer_of(cls)
    assert graph_tokenizer(tokenizer)(TEXTS).to_list() == tokenizer.tokenize(TEXTS)


@pytest.mark.quick_cases("4-WordPieceTokenizer", "4-CharacterPairTokenizer")
@pytest.mark.tf_only
@pytest.mark.parametrize("cls", [WordPieceTokenizer, CharacterPairTokenizer])
@pytest.mark.parametrize("count", [4, 10, 40])
def test_many_tokens_in_a_graph(cls, count):
    """However many tokens mark entities, white space separates words and control characters are dropped."""
    from lmzoo.text.graphs import graph_tokenizer

    markers = [f"[E{number}]" for number in range(count)]
    tokenizer = cls.of_words(["good", "film"], 80, other_tokens=markers)
    text = "good\tfilm\nfilm\r[E0]good[E3] fi\x01\x08\x0b\x1f\x7flm \ue000\ue003\ue030film"
    assert len(tokenizer.tokenize([text])[0]) >= 7
    assert graph_tokenizer(tokenizer)([text]).to_list() == tokenizer.tokenize([text])


@pytest.mark.quick_cases("BytePairTokenizer")
@pytest.mark.tf_only
@pytest.mark.parametrize("cls", [BytePairTokenizer, SentencePieceTokenizer, WordPieceTokenizer])
def test_the_longest_of_several_that_begin_alike(cls):
    from lmzoo.text.graphs import graph_tokenizer

    others = ["@user", "@user12", "@user1"]
    tokenizer = cls.of_words(["good", "film"], 300, other_tokens=others)
    texts = ["good @user1 film", "@user12@user @user13", "@user112"]
    ids = tokenizer.tokenize(texts)
    found = [[tokenizer.id_to_token(i) for i in of_text] for of_text in ids]
    expected = [["@user1"], ["@user12", "@user", "@user1"], ["@user1"]]
    assert [[token for token in tokens if token in others] for tokens in found] == expected
    assert graph_tokenizer(tokenizer)(texts).to_list() == ids


@classes
def test_no_mask(cls):
    with pytest.raises(ValueError, match=f"This {cls.__name__} has no mask token"):
        _ = tokenizer_of(cls).mask_id


@pytest.mark.quick_cases("Pretrainer")
@pytest.mark.parametrize("task", [MaskedLM, Pretrainer])
def test_tasks_that_mask_are_refused(task):
    tokenizer = tokenizer_of(BytePairTokenizer)
    backbone = tiny_backbone(FAMILY, vocabulary_size=tokenizer.vocabulary_size)
    preprocessor = Preprocessor(tokenizer, Packing("", END, (END,), segments=False), 32)
    with pytest.raises(ValueError, match="This BytePairTokenizer has no mask token: it can neither mask nor"):
        task(backbone, preprocessor)
    classifier = TextClassifier(backbone, preprocessor, num_classes=2)
    assert len(classifier.classify(TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("cls", [WordPieceTokenizer, SentencePieceTokenizer])
def test_an_unknown_token_is_needed(cls):
    with pytest.raises(ValueError, match="needs an `unk_token`"):
        cls(unk_token=None)


def test_no_such_role():
    with pytest.raises(TypeError, match="takes no argument `masc_token`"):
        WordPieceTokenizer(masc_token="[MASC]")


@classes
def test_trained(cls):
    documents = [["A good film.", "A fine day at the films, good or not."]] * 20
    size = {BytePairTokenizer: 265, SentencePieceTokenizer: 33, WordPieceTokenizer: 45}[cls]
    tokenizer = train_tokenizer(documents, cls, size, verbose=False, **TOLD[cls])
    assert tokenizer.special_tokens == LISTED[cls]
    assert {*LISTED[cls]} <= {*tokenizer.vocabulary}
    assert tokenizer.vocabulary_size == size
