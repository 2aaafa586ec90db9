"""Special tokens of tokenizers: the defaults of the class, or others as arguments."""

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
ARGUMENTS = {
    BytePairTokenizer: GPT2,
    SentencePieceTokenizer: {
        "start_token": "<cls>",
        "end_token": "<sep>",
        "mask_token": None,
        "other_tokens": ["<eod>"],
    },
    WordPieceTokenizer: {"pad_token": "<0>", "mask_token": None},
}
SPECIAL_TOKENS = {
    BytePairTokenizer: (END,),
    SentencePieceTokenizer: ("<pad>", "<unk>", "<cls>", "<sep>", "<eod>"),
    WordPieceTokenizer: ("<0>", "[UNK]", "[CLS]", "[SEP]"),
}
SIZES = {BytePairTokenizer: 281, SentencePieceTokenizer: 17, WordPieceTokenizer: 13}
TEXTS = ["good film", f"a{END}good  film {END}", "<mask> film", "", "<pad><s>good"]
classes = pytest.mark.parametrize("cls", ARGUMENTS)


def tokenizer_of(cls):
    return cls.of_words(["good", "film"], SIZES[cls], **ARGUMENTS[cls])


@classes
def test_arguments_replace_the_special_tokens(cls):
    tokenizer = tokenizer_of(cls)
    assert tokenizer.special_tokens == SPECIAL_TOKENS[cls]
    assert tokenizer.vocabulary_size == SIZES[cls]
    for token in SPECIAL_TOKENS[cls]:
        assert tokenizer.tokenize([f"good{token} film"])[0].count(tokenizer.token_to_id(token)) == 1
    assert len(tokenizer.tokenize(["[MASK]"])[0]) > 1 or cls is not BytePairTokenizer
    assert cls.special_tokens != SPECIAL_TOKENS[cls]
    assert cls().special_tokens == cls.special_tokens


@classes
def test_config_holds_only_changed_special_tokens(cls, tmp_path):
    """Defaults are not written, so files of earlier versions can be read."""
    tokenizer = tokenizer_of(cls)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(tokenizer))
    tokenizer.save_assets(tmp_path)
    copy.load_assets(tmp_path)
    assert copy.special_tokens == tokenizer.special_tokens
    assert (copy.mask_token, copy.pad_token, copy.other_tokens) == (
        tokenizer.mask_token,
        tokenizer.pad_token,
        tokenizer.other_tokens,
    )
    assert copy.tokenize(TEXTS) == tokenizer.tokenize(TEXTS)
    names = {*tokenizer.roles, "other_tokens"}
    assert tokenizer.get_config().keys() & names == {
        name for name in ARGUMENTS[cls] if ARGUMENTS[cls][name] != getattr(cls, name)
    }
    assert not cls().get_config().keys() & names


def test_one_token_may_serve_all_roles():
    """Special tokens of other families are text."""
    tokenizer = tokenizer_of(BytePairTokenizer)
    assert tokenizer.token_to_id(END) == SIZES[BytePairTokenizer] - 1
    assert tokenizer.pad_id == 0
    tokens = [[piece.token for piece in row] for row in tokenizer.tokenize_with_offsets(TEXTS[:2])]
    assert tokens == [["g", "o", "o", "d", "Ġfilm"], ["a", END, "g", "o", "o", "d", "Ġ", "Ġfilm", "Ġ", END]]
    assert [tokenizer.detokenize(ids) for ids in tokenizer.tokenize(TEXTS)] == TEXTS
    preprocessor = Preprocessor(tokenizer, Packing("", "", (), segments=False), 16)
    features = preprocessor(["good", "good film"])
    np.testing.assert_array_equal(features["padding_mask"], [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    assert features["token_ids"][0, 4] == 0


@pytest.mark.quick_cases("BytePairTokenizer")
@pytest.mark.tf_only
@classes
def test_graphs_have_the_same_special_tokens(cls):
    from lmzoo.text.graphs import graph_tokenizer

    tokenizer = tokenizer_of(cls)
    assert graph_tokenizer(tokenizer)(TEXTS).to_list() == tokenizer.tokenize(TEXTS)


@pytest.mark.quick_cases("4-WordPieceTokenizer", "4-CharacterPairTokenizer")
@pytest.mark.tf_only
@pytest.mark.parametrize("cls", [WordPieceTokenizer, CharacterPairTokenizer])
@pytest.mark.parametrize("count", [4, 10, 40])
def test_any_number_of_other_tokens_in_a_graph(cls, count):
    """White space still separates words, and control characters are dropped."""
    from lmzoo.text.graphs import graph_tokenizer

    markers = [f"[E{number}]" for number in range(count)]
    tokenizer = cls.of_words(["good", "film"], 80, other_tokens=markers)
    text = "good\tfilm\nfilm\r[E0]good[E3] fi\x01\x08\x0b\x1f\x7flm \ue000\ue003\ue030film"
    assert len(tokenizer.tokenize([text])[0]) >= 7
    assert graph_tokenizer(tokenizer)([text]).to_list() == tokenizer.tokenize([text])


@pytest.mark.quick_cases("BytePairTokenizer")
@pytest.mark.tf_only
@pytest.mark.parametrize("cls", [BytePairTokenizer, SentencePieceTokenizer, WordPieceTokenizer])
def test_the_longest_of_tokens_with_the_same_beginning(cls):
    from lmzoo.text.graphs import graph_tokenizer

    other_tokens = ["@user", "@user12", "@user1"]
    tokenizer = cls.of_words(["good", "film"], 300, other_tokens=other_tokens)
    texts = ["good @user1 film", "@user12@user @user13", "@user112"]
    ids = tokenizer.tokenize(texts)
    token_rows = [[tokenizer.id_to_token(i) for i in row] for row in ids]
    expected = [["@user1"], ["@user12", "@user", "@user1"], ["@user1"]]
    assert [[token for token in row if token in other_tokens] for row in token_rows] == expected
    assert graph_tokenizer(tokenizer)(texts).to_list() == ids


@classes
def test_a_missing_mask_token_is_an_error(cls):
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
def test_the_unknown_token_is_required(cls):
    with pytest.raises(ValueError, match="needs an `unk_token`"):
        cls(unk_token=None)


def test_unknown_roles_are_refused():
    with pytest.raises(TypeError, match="takes no argument `masc_token`"):
        WordPieceTokenizer(masc_token="[MASC]")


@classes
def test_trained_vocabularies_hold_the_special_tokens(cls):
    documents = [["A good film.", "A fine day at the films, good or not."]] * 20
    size = {BytePairTokenizer: 265, SentencePieceTokenizer: 33, WordPieceTokenizer: 45}[cls]
    tokenizer = train_tokenizer(documents, cls, size, verbose=False, **ARGUMENTS[cls])
    assert tokenizer.special_tokens == SPECIAL_TOKENS[cls]
    assert {*SPECIAL_TOKENS[cls]} <= {*tokenizer.vocabulary}
    assert tokenizer.vocabulary_size == size
