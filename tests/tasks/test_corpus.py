"""Tasks learn from rows of a tokenised corpus as from those of documents."""

from __future__ import annotations

import keras
import numpy as np

from lmzoo.models import MaskedLM, Pretrainer
from lmzoo.training import pack_documents, segment_pairs, write_corpus


def test_rows_in_files(tiny, tmp_path):
    texts, preprocessor = tiny.texts(48), tiny.preprocessor()
    documents = [texts[i::7] for i in range(7)]
    corpus = write_corpus(documents, preprocessor.tokenizer, tmp_path, shard_tokens=17)
    assert len(corpus.shards) > 3
    masked = MaskedLM(tiny.backbone(), preprocessor)
    rows = pack_documents(corpus, preprocessor)
    history = masked.fit(rows, batch_size=len(rows), verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert masked.optimizer.iterations == 1

    both = Pretrainer(tiny.backbone(), preprocessor, objective="sop")
    batches = []
    for source in (documents, corpus):
        pairs = segment_pairs(source, preprocessor, "sop", np.random.default_rng(3))
        encoded, _, _ = both.encode_examples(pairs)
        batches.append(both.make_batch(encoded, np.array([3, 1, 4]), 37, None, None, np.random.default_rng(5)))
    for found, expected in zip(*map(keras.tree.flatten, reversed(batches)), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
