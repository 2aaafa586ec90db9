"""Training on the sequences of a tokenized corpus."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

from lmzoo.data.corpora import pack_documents, segment_pairs, write_corpus
from lmzoo.models import MaskedLM, Pretrainer
from lmzoo.text import LengthBatches
from lmzoo.training import ResumableCheckpoint


def test_a_corpus_in_files_gives_the_batches_of_documents(tiny, tmp_path):
    texts, preprocessor = tiny.texts(48), tiny.preprocessor()
    documents = [texts[i::7] for i in range(7)]
    corpus = write_corpus(documents, preprocessor.tokenizer, tmp_path, shard_tokens=17)
    assert len(corpus.shards) > 3
    masked_lm = MaskedLM(tiny.backbone(), preprocessor)
    sequences = pack_documents(corpus, preprocessor)
    history = masked_lm.fit(sequences, batch_size=len(sequences), verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert masked_lm.optimizer.iterations == 1

    pretrainer = Pretrainer(tiny.backbone(), preprocessor, objective="sop")
    batches = []
    for source in (documents, corpus):
        pairs = segment_pairs(source, preprocessor, "sop", np.random.default_rng(3))
        examples = pretrainer.encode_examples(pairs)
        batches.append(pretrainer.make_batch(examples, np.array([3, 1, 4]), 37, np.random.default_rng(5)))
    for actual, expected in zip(*map(keras.tree.flatten, reversed(batches)), strict=True):
        np.testing.assert_array_equal(actual, expected)
        assert actual.dtype == expected.dtype


@pytest.mark.slow
def test_a_run_goes_on_with_equal_sequences_only(tiny, tmp_path, monkeypatch):
    """Token ids and labels are compared; runs of earlier versions, which did not record them, still go on."""
    texts = tiny.texts(40)
    model = Pretrainer(tiny.backbone(), tiny.preprocessor(length=16), objective="nsp")
    rng = np.random.default_rng(3)
    pairs = segment_pairs([texts[i::7] for i in range(7)], model.preprocessor, "nsp", rng, short=0.0)[:6]

    def run(pairs, folder, epochs):
        model.fit(pairs, epochs=epochs, batch_size=6, verbose=0, callbacks=[ResumableCheckpoint(folder)])
        return int(model.optimizer.iterations)

    run(pairs, tmp_path / "new", 1)
    for other_pairs in (
        dataclasses.replace(pairs, labels=1 - pairs.labels),
        dataclasses.replace(pairs, token_ids=np.where(pairs.token_ids > 7, pairs.token_ids - 1, pairs.token_ids)),
    ):
        with pytest.raises(ValueError, match=r"holds a run that differs in content of the batches\. Choose"):
            run(other_pairs, tmp_path / "new", 2)
    identity = LengthBatches.identity
    recorded = ("texts", "batch size", "order", "seed")
    with monkeypatch.context() as patch:
        patch.setattr(LengthBatches, "identity", lambda self: {name: identity(self)[name] for name in recorded})
        steps = run(pairs, tmp_path / "old", 1)
    assert run(pairs, tmp_path / "old", 3) == steps + 2
