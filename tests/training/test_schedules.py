"""Schedules against their formulas, and the updates of an optimizer that follows one."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.training import AdamW, InverseSquareRoot, LateDecay, WarmUp
from tests.reference.weights import to_numpy

PEAK, WARMUP, TOTAL = 0.4, 4, 13


def decay(steps=TOTAL, power=1.0):
    return keras.optimizers.schedules.PolynomialDecay(PEAK, steps, end_learning_rate=0.0, power=power)


def bert(t):
    return PEAK * t / WARMUP if t < WARMUP else PEAK * max(1 - t / TOTAL, 0)


def fairseq(t):
    return PEAK * t / WARMUP if t < WARMUP else PEAK * max(1 - (t - WARMUP) / (TOTAL - WARMUP), 0)


def squared(t):
    return PEAK * t / WARMUP if t < WARMUP else PEAK * max(1 - t / TOTAL, 0) ** 2


def vaswani(t):
    return PEAK * min(t / WARMUP, np.sqrt(WARMUP / t)) if t else 0.0


def late(t):
    begin = TOTAL - 5
    return PEAK * (min(t / WARMUP, 1) if t <= begin else 1 - min((t - begin) / 5, 1) ** 0.5)


SCHEDULES = {
    "bert": (lambda: WarmUp(decay(), WARMUP), bert),
    "fairseq": (lambda: WarmUp(decay(TOTAL - WARMUP), WARMUP, shift=True), fairseq),
    "squared": (lambda: WarmUp(decay(power=2.0), WARMUP), squared),
    "vaswani": (lambda: WarmUp(InverseSquareRoot(PEAK, WARMUP), WARMUP), vaswani),
    "wsd": (lambda: WarmUp(LateDecay(PEAK, TOTAL - 5, TOTAL), WARMUP), late),
    "none": (lambda: WarmUp(decay(), 0), lambda t: PEAK * max(1 - t / TOTAL, 0)),
}


@pytest.mark.parametrize(("make", "expected"), SCHEDULES.values(), ids=SCHEDULES)
def test_rates_follow_the_formulas(make, expected):
    rates = [expected(t) for t in range(TOTAL + 3)]
    schedule = make()
    np.testing.assert_allclose([float(schedule(t)) for t in range(TOTAL + 3)], rates, rtol=1e-5, atol=1e-7)
    serialized = keras.optimizers.schedules.serialize(schedule)
    copy = keras.optimizers.schedules.deserialize(serialized)
    assert type(copy) is WarmUp
    np.testing.assert_allclose([float(copy(t)) for t in range(TOTAL + 3)], rates, rtol=1e-5, atol=1e-7)


def test_an_optimizer_follows_a_schedule():
    variable = keras.Variable(np.ones(1, "float32"), name="kernel")
    optimizer = AdamW(WarmUp(decay(), WARMUP), weight_decay=1.0)
    optimizer.build([variable])
    rates = []
    for _ in range(TOTAL):
        before = to_numpy(variable.value)
        optimizer.apply([keras.ops.zeros((1,))])
        rates.append(float((1 - to_numpy(variable.value) / before)[0]))
    np.testing.assert_allclose(rates, [bert(t) for t in range(TOTAL)], atol=2e-6)


def test_wrong_numbers_of_steps_are_refused():
    with pytest.raises(ValueError, match="at least 0, got -1"):
        WarmUp(decay(), -1)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        InverseSquareRoot(PEAK, 0)
