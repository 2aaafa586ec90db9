"""`fit` with gradient accumulation, and in half precision."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.models import BertBackbone, MaskedLM
from lmzoo.training import LAMB, AdamW
from tests.reference.weights import to_numpy


@pytest.mark.slow
def test_accumulated_small_batches_train_like_a_large_one(tiny, weights_of):
    texts, labels = tiny.data()
    results = []
    for size, steps in ((8, 2), (16, None)):
        optimizer = LAMB(0.01, global_clipnorm=1.0, gradient_accumulation_steps=steps)
        task = tiny.classifier(optimizer=optimizer)
        before = weights_of(task)
        task.fit(texts, labels, batch_size=size, epochs=2, shuffle=False, verbose=0)
        results.append(weights_of(task))
        assert to_numpy(optimizer._schedule.value).tolist() == [0, 1, 2]
    for small, large in zip(*results, strict=True):
        np.testing.assert_allclose(small, large, atol=2e-5)
    assert max(np.abs(a - b).max() for a, b in zip(results[0], before, strict=True)) > 0.01


def test_the_schedule_counts_gradients_of_an_earlier_fit(tiny):
    optimizer = AdamW(0.01, gradient_accumulation_steps=2)
    task = tiny.classifier(optimizer=optimizer)
    for schedule in ([0, 1, 2], [2, 1, 3]):  # [first step, warm-up, total]; the fifth batch is for the third update
        task.fit(*tiny.data(5), batch_size=1, verbose=0)
        assert to_numpy(optimizer._schedule.value).tolist() == schedule


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_lowers_the_loss(tiny, weights_of, dtype):
    backbone = BertBackbone(**{**tiny.backbone(dropout=0.1).get_config(), "dtype": dtype})
    task = MaskedLM(backbone, tiny.preprocessor())
    task.compile(LAMB(0.01, global_clipnorm=1.0, gradient_accumulation_steps=2))
    before, texts = weights_of(task), tiny.texts(8)
    history = task.fit(texts, batch_size=4, epochs=5, shuffle=False, verbose=0).history
    assert history["loss"][-1] < 0.95 * history["loss"][0]
    assert max(np.abs(a - b).max() for a, b in zip(weights_of(task), before, strict=True)) > 0.01
    count = len(task.optimizer.variables)
    task.fit(texts, batch_size=4, verbose=0)
    assert len(task.optimizer.variables) == count
