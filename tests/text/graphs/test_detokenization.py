"""Texts of tokens as TensorFlow ops: the same as in Python, also for parts of characters."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from lmzoo.text import BytePairTokenizer, T5Tokenizer, WordPieceTokenizer, WordTokenizer  # noqa: E402
from lmzoo.text.graphs import graph_detokenizer  # noqa: E402
from tests.text.trained import with_bytes  # noqa: E402
from tests.text.varied import varied_texts  # noqa: E402

BPE = BytePairTokenizer.of_words(["film", "é", "東"], 300)
WORDS = WordTokenizer.of_words(["film", "é"], 7)
PIECES = T5Tokenizer(with_bytes(T5Tokenizer.of_words(["film", "é"], 13, 3).model), 3, added_tokens=["\n", "\u3000"])


def detokenize_in_graph(tokenizer, sequences):
    ids = tf.RaggedTensor.from_row_lengths(
        np.array([i for row in sequences for i in row], "int32"), [len(row) for row in sequences]
    )
    return [text.decode() for text in graph_detokenizer(tokenizer)(ids).numpy()]


@pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")
@pytest.mark.parametrize("tokenizer", [BPE, WORDS, PIECES], ids=["bpe", "words", "sentencepiece"])
def test_texts_are_those_of_python(tokenizer):
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, tokenizer.vocabulary_size, count).tolist() for count in rng.integers(0, 30, 2000)]
    sequences += tokenizer.tokenize(varied_texts(200, 53, ["</s>", "<mask"]))  # whole characters
    assert detokenize_in_graph(tokenizer, sequences) == [tokenizer.detokenize(ids) for ids in sequences]
    assert detokenize_in_graph(tokenizer, []) == []


def test_other_tokenizers_are_refused():
    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "film"])
    with pytest.raises(TypeError, match="tokens of a WordPieceTokenizer cannot be turned into text in a graph"):
        graph_detokenizer(tokenizer)
