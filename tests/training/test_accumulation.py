"""Gradients of several batches gathered for one update."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.training import LAMB, AdamW
from tests.reference.weights import to_numpy
from tests.training.updating import ARGUMENTS, SHAPES, assert_equal, gradient, start

COUNT, UPDATES = 3, 2


def compiled(optimizer, variables):
    """`apply` under XLA."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(lambda grads: optimizer.apply(grads, variables), jit_compile=True)
    if keras.backend.backend() != "jax":
        pytest.skip("nothing to compile with")
    import jax

    step = jax.jit(optimizer.stateless_apply)

    def apply(grads):
        values, state = step([v.value for v in optimizer.variables], grads, [v.value for v in variables])
        for variable, value in zip([*variables, *optimizer.variables], [*values, *state], strict=True):
            variable.assign(value)

    return apply


def train(optimizer, batches):
    variables = start()
    optimizer.build(list(variables.values()))
    optimizer.start_schedule(1, UPDATES + 1)
    apply, states = compiled(optimizer, list(variables.values())), []
    for grads in batches:
        apply([keras.ops.convert_to_tensor(g) for g in grads])
        states.append({name: to_numpy(v.value) for name, v in variables.items()})
    return states


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AdamW, LAMB])
def test_several_batches_equal_one_of_all(kind):
    parts = [gradient(step) for step in range(COUNT * UPDATES)]
    joined = [
        [np.mean(grads, axis=0) for grads in zip(*parts[i : i + COUNT], strict=True)]
        for i in range(0, len(parts), COUNT)
    ]
    # Clipped: what is clipped is the mean over all batches.
    arguments = {**ARGUMENTS, "global_clipnorm": 0.3}
    assert np.sqrt(sum((g**2).sum() for g in joined[0])) > 0.3
    optimizer = kind(**arguments, gradient_accumulation_steps=COUNT)
    expected, found = train(kind(**arguments), joined), train(optimizer, parts)
    for update in range(UPDATES):
        before = found[update * COUNT - 1] if update else {n: to_numpy(v.value) for n, v in start().items()}
        for gathering in range(COUNT - 1):
            assert_equal(found[update * COUNT + gathering], before, tolerance=0)
        assert_equal(found[update * COUNT + COUNT - 1], expected[update], tolerance=1e-6)
    assert int(optimizer.iterations) == UPDATES
    assert max(np.abs(expected[0][name] - expected[1][name]).max() for name in SHAPES) > 1e-3
