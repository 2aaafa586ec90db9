"""Learning rates per layer, gradual unfreezing, slanted triangles (Howard & Ruder, 2018) and concatenated pooling."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.families.albert import FAMILY as ALBERT
from lmzoo.families.bert import FAMILY as BERT
from lmzoo.families.lstm_lm import FAMILY as LSTM_LM
from lmzoo.families.marian import FAMILY as MARIAN
from lmzoo.models import TextClassifier
from lmzoo.testing.tiny import tiny_backbone
from lmzoo.training import LAMB, AdamW, GradualUnfreezing, ResumableCheckpoint, layers_of
from tests.reference.weights import to_numpy
from tests.tasks.interruptions import Interrupted, Spy, assert_same, assign, state_of

pytestmark = pytest.mark.usefixtures("eager")

N = 24  # sequences, in batches of 8


def features(vocabulary_size, segments):
    ids = np.random.default_rng(7).integers(1, vocabulary_size, (N, 5)).astype("int32")
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    return {**inputs, "segment_ids": 0 * ids} if segments else inputs


def classifier(family=LSTM_LM):
    keras.utils.set_random_seed(13)
    return TextClassifier(tiny_backbone(family), num_classes=2, pooling=["lasttoken", "max", "mean"])


@pytest.fixture(scope="module")
def task():
    return classifier()


DATA = (features(311, False), np.arange(N) % 2)


def fit(task, *callbacks, epochs=1):
    return task.fit(*DATA, batch_size=8, epochs=epochs, callbacks=list(callbacks), verbose=0)


@pytest.mark.parametrize(
    ("family", "counts"),
    [(LSTM_LM, [1, 3, 3, 3]), (BERT, [5, 16, 16, 2]), (ALBERT, [7, 64, 2]), (MARIAN, [1, 16, 16, 16, 26, 26])],
)
def test_layers_are_listed_from_the_embeddings_up(family, counts):
    class Model:
        backbone = tiny_backbone(family)
        trainable_variables = backbone.trainable_variables

    assert [len(layer) for layer in layers_of(Model)] == counts
    variables = [id(v) for layer in layers_of(Model) for v in layer]
    assert sorted(variables) == sorted(map(id, Model.trainable_variables))


@pytest.mark.parametrize("kind", [AdamW, LAMB])
def test_updates_are_scaled_by_the_decay_of_each_layer(kind):
    rng = np.random.default_rng(5)
    values, grads = (rng.normal(size=(3, 7)).astype("float32") for _ in range(2))

    def updates(decay):
        variables = [keras.Variable(value) for value in values]
        optimizer = kind(0.05, weight_decay=0.1, layer_decay=decay)
        if decay != 1:
            optimizer.set_layers([[v] for v in variables])
        optimizer.build(variables)
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in grads], variables)
        return np.stack([to_numpy(v) for v in variables]) - values

    np.testing.assert_allclose(updates(0.4), updates(1) * np.array([[0.16], [0.4], [1.0]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("total", "cut"), [(40, 4), (1, 1)])  # cut_frac = 0.1, and a single step
def test_slanted_triangles_follow_the_formula(total, cut):
    ratio, peak = 32, 0.01
    optimizer = AdamW(peak, schedule="slanted_triangular")
    variable = keras.Variable(np.zeros(3, "float32"))
    optimizer.build([variable])
    optimizer.start_schedule(cut, total)
    for t in range(1, total + 1):
        p = t / cut if t <= cut else 1 - (t - cut) / (cut * (total / cut - 1))
        np.testing.assert_allclose(float(optimizer._factor()), (1 + p * (ratio - 1)) / ratio, atol=1e-6)
        optimizer.iterations.assign_add(1)


class ChangedLayers(keras.callbacks.Callback):
    """Records which layers have changed after each epoch."""

    def __init__(self, task):
        super().__init__()
        self.layers = layers_of(task)
        self.initial = [[to_numpy(v).copy() for v in layer] for layer in self.layers]
        self.epochs = []

    def on_epoch_end(self, epoch, logs=None):
        _ = self.model  # on JAX, this updates the variables
        pairs = zip(self.layers, self.initial, strict=True)
        self.epochs.append(
            [any((to_numpy(v) != value).any() for v, value in zip(*pair, strict=True)) for pair in pairs]
        )


@pytest.mark.parametrize("steps_per_update", [None, 2])  # an epoch has three steps
def test_layers_are_unfrozen_from_the_top(task, steps_per_update):
    task.compile(AdamW(1e-2, gradient_accumulation_steps=steps_per_update))
    changes = ChangedLayers(task)
    fit(task, GradualUnfreezing(), changes, epochs=6)
    assert [sum(epoch) for epoch in changes.epochs] == [1, 2, 3, 4, 5, 5]
    assert changes.epochs[0] == [False] * 4 + [True]
    changes = ChangedLayers(task)
    fit(task, changes)  # the next `fit` trains everything
    assert changes.epochs == [[True] * 5]


@pytest.mark.slow
def test_a_resumed_run_is_exact(task, tmp_path):
    task.compile(AdamW(1e-2, layer_decay=0.5, schedule="slanted_triangular"))
    task.build_optimizer()
    initial = state_of(task)
    spy = Spy()
    fit(task, GradualUnfreezing(), spy, epochs=3)
    assign(task, initial)
    with pytest.raises(Interrupted):
        fit(task, ResumableCheckpoint(tmp_path, 2), GradualUnfreezing(), Spy(5), epochs=3)
    assign(task, initial)
    fit(task, ResumableCheckpoint(tmp_path, 2), GradualUnfreezing(), epochs=3)
    assert_same({9: state_of(task)}, spy.states)


def test_layer_rates_are_stored_with_the_model(task, tmp_path):
    task.compile(AdamW(1e-2, layer_decay=0.5))
    fit(task)
    task.save(tmp_path / "task.keras")
    loaded = TextClassifier.load(tmp_path / "task.keras")
    assert (loaded.optimizer.layer_decay, loaded.pooling) == (0.5, ["lasttoken", "max", "mean"])
    np.testing.assert_array_equal(loaded.predict(DATA[0], verbose=0), task.predict(DATA[0], verbose=0))
    for model in (task, loaded):
        fit(model)
    np.testing.assert_array_equal(loaded.head.logits.kernel, task.head.logits.kernel)


def test_concatenated_pooling_equals_numpy(task):
    inputs = {name: values.copy() for name, values in DATA[0].items()}
    inputs["padding_mask"][:5, 3:] = 0
    states = to_numpy(task.backbone(inputs)["sequence_output"])
    pooled = []
    for sequence, mask in zip(states, inputs["padding_mask"], strict=True):
        real = sequence[mask > 0]
        pooled.append(np.concatenate([real[-1], real.max(axis=0), real.mean(axis=0)]))
    kernel, bias = (to_numpy(w) for w in (task.head.logits.kernel, task.head.logits.bias))
    np.testing.assert_allclose(task.predict(inputs, verbose=0), np.stack(pooled) @ kernel + bias, atol=1e-5)


def test_wrong_settings_are_refused(task):
    with pytest.raises(ValueError, match=r"`layer_decay` must be a number in \(0, 1\], got 0"):
        AdamW(layer_decay=0)
    with pytest.raises(ValueError, match="`epochs_per_layer` must be an integer of at least 1, got 0"):
        GradualUnfreezing(0)
    with pytest.raises(ValueError, match="does not know the layer of 'kernel'"):
        AdamW(layer_decay=0.5).build([keras.Variable(np.zeros(3, "float32"), name="kernel")])
    with pytest.raises(ValueError, match="`unfreezing_steps` must be 1 integers of at least 0"):
        AdamW().set_layers([[]], [1, 2])
    with pytest.raises(ValueError, match='`pooling` must be "first", "mean" or a list, got \'last\''):
        TextClassifier(task.backbone, num_classes=2, pooling="last")
    with pytest.raises(ValueError, match="`pooling` must be one of"):
        TextClassifier(task.backbone, num_classes=2, pooling=["last"])
    task.compile(keras.optimizers.SGD())
    with pytest.raises(TypeError, match="GradualUnfreezing needs"):
        fit(task, GradualUnfreezing())
