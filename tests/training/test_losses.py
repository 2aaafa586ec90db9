"""Losses of logits: names, functions and classes of Keras, lists and dicts, refused losses."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.training.losses import match_loss

losses = keras.losses


@pytest.mark.parametrize(
    ("loss", "loss_class"),
    [
        ("bce", losses.BinaryCrossentropy),
        ("BinaryCrossentropy", losses.BinaryCrossentropy),
        ("binary_focal_crossentropy", losses.BinaryFocalCrossentropy),
        ("CategoricalCrossentropy", losses.CategoricalCrossentropy),
        (losses.CategoricalFocalCrossentropy, losses.CategoricalFocalCrossentropy),
        ("SparseCategoricalCrossentropy", losses.SparseCategoricalCrossentropy),
        (losses.sparse_categorical_crossentropy, losses.SparseCategoricalCrossentropy),
    ],
)
def test_all_spellings_of_a_cross_entropy_take_logits(loss, loss_class):
    matched = match_loss(loss)
    assert type(matched) is loss_class
    assert matched.from_logits
    several = match_loss({"a": [loss, "mse"], "b": (None, loss)})
    assert [type(entry) for entry in (*several["a"], *several["b"])] == [loss_class, str, type(None), loss_class]


def test_the_loss_of_a_name_is_computed_from_logits():
    logits = np.array([[2.0], [-3.0], [0.5]])
    labels = np.array([[1.0], [0.0], [0.0]])
    expected = np.log1p(np.exp(np.where(labels == 1, -logits, logits))).mean()
    assert float(match_loss("bce")(labels, logits)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("loss", ["mse", "KLDivergence", losses.Huber(), losses.mean_squared_error, max, None])
def test_losses_without_logits_are_unchanged(loss):
    assert match_loss(loss) is match_loss(loss, of_logits=False) is loss


@pytest.mark.parametrize("wrap", [lambda loss: loss, lambda loss: [loss], lambda loss: {"a": ["mse", loss]}])
def test_losses_of_other_outputs_are_refused(wrap):
    for loss_class in (losses.BinaryFocalCrossentropy, losses.CategoricalFocalCrossentropy, losses.BinaryCrossentropy):
        with pytest.raises(ValueError, match=rf"outputs are logits: pass {loss_class.__name__}\(from_logits=True\)"):
            match_loss(wrap(loss_class()))
        with pytest.raises(ValueError, match=rf"are probabilities: pass {loss_class.__name__}\(from_logits=False\)"):
            match_loss(wrap(loss_class(from_logits=True)), of_logits=False)
        assert match_loss(loss_class(), of_logits=False)
    for name in ("crossentropy", "CE"):
        with pytest.raises(ValueError, match=rf"outputs are logits, which the loss '{name}' does not take: name one"):
            match_loss(wrap(name))
    with pytest.raises(ValueError, match="bcee"):
        match_loss(wrap("bcee"))
