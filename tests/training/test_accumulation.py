"""Accumulation of the gradients of several batches for one update."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.training import LAMB, AdamW
from tests.reference.weights import to_numpy
from tests.training.updating import ARGUMENTS, SHAPES, assert_equal, compiled, gradient, start

COUNT, UPDATES = 3, 2


def train(optimizer, batches):
    variables = start()
    optimizer.build(list(variables.values()))
    optimizer.start_schedule(1, UPDATES + 1)
    apply = compiled(optimizer, list(variables.values()))
    states = []
    for grads in batches:
        apply([keras.ops.convert_to_tensor(g) for g in grads])
        states.append({name: to_numpy(v.value) for name, v in variables.items()})
    return states


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AdamW, LAMB])
def test_several_batches_equal_one_of_all(kind):
    parts = [gradient(step) for step in range(COUNT * UPDATES)]
    means = [
        [np.mean(grads, axis=0) for grads in zip(*parts[i : i + COUNT], strict=True)]
        for i in range(0, len(parts), COUNT)
    ]
    # The mean over all batches is clipped.
    arguments = {**ARGUMENTS, "global_clipnorm": 0.3}
    assert np.sqrt(sum((g**2).sum() for g in means[0])) > 0.3
    optimizer = kind(**arguments, gradient_accumulation_steps=COUNT)
    expected = train(kind(**arguments), means)
    states = train(optimizer, parts)
    for update in range(UPDATES):
        before = states[update * COUNT - 1] if update else {n: to_numpy(v.value) for n, v in start().items()}
        for batch in range(COUNT - 1):
            assert_equal(states[update * COUNT + batch], before, tolerance=0)
        assert_equal(states[update * COUNT + COUNT - 1], expected[update], tolerance=1e-6)
    assert int(optimizer.iterations) == UPDATES
    assert max(np.abs(expected[0][name] - expected[1][name]).max() for name in SHAPES) > 1e-3
