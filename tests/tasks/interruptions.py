"""A callback that interrupts a run, and helpers that compare the states of two runs."""

from __future__ import annotations

import keras
import numpy as np

from tests.reference.weights import to_numpy


class Interrupted(Exception):  # noqa: N818 - not an error
    pass


class Spy(keras.callbacks.Callback):
    """Records the state after each step of the optimizer, and interrupts the run after step `at`."""

    def __init__(self, at=None, act=None):
        super().__init__()
        self.states, self.at, self.act = {}, at, act

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        self.states[step] = state_of(self.model)
        if step == self.at:
            self.act(self.model) if self.act else fail()


def fail(*_):
    raise Interrupted


def variables_of(model):
    return [*model.variables, *model.optimizer.variables]


def state_of(model):
    return [np.array(to_numpy(v.value)) for v in variables_of(model)]


def assign(model, state):
    for variable, value in zip(variables_of(model), state, strict=True):
        variable.assign(value)


def spoil(model):
    assign(model, [np.full(v.shape, 7, v.dtype) for v in variables_of(model)])


def assert_same(states, expected):
    for step, state in states.items():
        for i, (actual, desired) in enumerate(zip(state, expected[step], strict=True)):
            np.testing.assert_array_equal(actual, desired, err_msg=f"variable {i} after step {step}")
