"""GPT's byte-pair encoding of characters: transformers' ids, in Python and as TensorFlow ops."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest

from lmzoo.data.corpora import train_character_pairs
from lmzoo.text import CharacterPairTokenizer
from tests.text.varied import SAYINGS, decode, varied_texts

TEXTS = ["", "A good FILM!", "  naïve\tcafé 東京 film's ", "good<unk>film <unk> ", "x" * 300, "goodgood \u0301 a\u0301"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_character_pairs([*SAYINGS, *TEXTS] * 3, 700, verbose=False)


@pytest.fixture(scope="module")
def texts():
    return [*TEXTS, *varied_texts(400, 59, ["<unk>", "<unk", "</w>"], words=SAYINGS)]


pytestmark = pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")


def test_ids_are_those_of_transformers(tokenizer, texts):
    transformers = pytest.importorskip("transformers")
    vocabulary = {token: i for i, token in enumerate(tokenizer.vocabulary)}
    peer = transformers.OpenAIGPTTokenizer(vocabulary, [tuple(merge.split(" ")) for merge in tokenizer.merges])
    texts = decode(texts)
    rows = tokenizer.tokenize(texts)
    assert rows == peer(texts)["input_ids"]
    assert sum(len(tokenizer.vocabulary[i]) > 5 for ids in rows for i in ids) > 100, "few pieces were merged"
    assert any(i == vocabulary["<unk>"] for ids in rows for i in ids)
    clean = ["a good film", "dull !"]
    assert [tokenizer.detokenize(ids) for ids in tokenizer.tokenize(clean)] == clean
    assert [text.strip() for text in peer.batch_decode(peer(clean)["input_ids"])] == clean


@pytest.mark.slow
def test_graphs_have_the_same_ids_offsets_and_texts(tokenizer, texts):
    tf = pytest.importorskip("tensorflow")
    from lmzoo.serving.allowed_ops import check_ops
    from lmzoo.text.graphs import graph_detokenizer, graph_tokenizer

    graph, detokenize = graph_tokenizer(tokenizer), graph_detokenizer(tokenizer)
    ids, spans = graph.with_offsets(tf.constant(texts))
    expected = tokenizer.tokenize_with_offsets(texts)
    assert ids.to_list() == graph(tf.constant(texts)).to_list() == [[span.id for span in row] for row in expected]
    for text, offsets, row in zip(decode(texts), spans.to_list(), expected, strict=True):
        if not any(map(unicodedata.combining, text)):
            assert offsets == [[span.start, span.end] for span in row], text
    rows = tokenizer.tokenize(texts)
    assert [text.decode() for text in detokenize(ids).numpy()] == [tokenizer.detokenize(row) for row in rows]
    function = tf.function(lambda text: detokenize(graph(text)), [tf.TensorSpec([None], tf.string)], autograph=False)
    check_ops(function.get_concrete_function().graph.as_graph_def())
    assert graph(tf.constant([], tf.string)).to_list() == []


def test_files_round_trip(tokenizer, tmp_path):
    tokenizer.save_assets(tmp_path)
    loaded = CharacterPairTokenizer.from_config(json.loads(json.dumps(tokenizer.get_config())))
    loaded.load_assets(tmp_path)
    assert (loaded.vocabulary, loaded.merges) == (tokenizer.vocabulary, tokenizer.merges)
    assert loaded.tokenize(TEXTS) == tokenizer.tokenize(TEXTS)


def test_of_words_and_errors_of_vocabularies():
    words = ["good", "film", "!"]
    tokenizer = CharacterPairTokenizer.of_words(words, 40)
    assert tokenizer.vocabulary_size == 40
    assert [[tokenizer.vocabulary[i] for i in ids] for ids in tokenizer.tokenize(["Good film!", "god"])] == [
        ["good</w>", "film</w>", "!</w>"],
        ["g", "od</w>"],
    ]
    np.testing.assert_array_equal(tokenizer.word_starts(), np.ones(40, bool))
    with pytest.raises(ValueError, match="`size` is 9, but the words and their letters need"):
        CharacterPairTokenizer.of_words(words, 9)
    with pytest.raises(ValueError, match="needs an `unk_token`"):
        CharacterPairTokenizer(unk_token=None)
    with pytest.raises(ValueError, match="Line 1 of the merges, 'a b', needs 'a'"):
        CharacterPairTokenizer(["<unk>"], ["a b"])
