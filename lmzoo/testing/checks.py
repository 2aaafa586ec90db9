"""The checks of the conformance kit."""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Tensors
from lmzoo.families.backbone import Backbone
from lmzoo.families.named_inputs import OTHER_MODELS_INPUTS, NamedInputsModel
from lmzoo.registry.family import Family
from lmzoo.tasks import Task
from lmzoo.testing.exported_answers import assert_answers_agree, assert_close, assert_same
from lmzoo.testing.functional_models import assert_copies_agree
from lmzoo.testing.other_backend import ask_other_backend, compiles_each_operation, train_and_predict
from lmzoo.testing.tiny import SEED, randomize, tiny_backbone, tiny_examples, tiny_preprocessor, tiny_task, tiny_texts

# === Checks of a family ===


def _features(family: Family, extra_width: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return padded inputs, and where their tokens are real, bool (B, T).

    The values at padding must not matter, so they are not zero, except where zero is what marks padding.
    """
    preprocessor = tiny_preprocessor(family)
    encoded = preprocessor.encode(tiny_texts())
    width = int(encoded.lengths.max()) + extra_width
    features = preprocessor.features(encoded, np.arange(len(encoded)), width)
    real = np.arange(width) < encoded.lengths[:, None]  # (B, T)
    if "padding_mask" in features:
        for name, values in features.items():
            if name != "padding_mask":
                values[~real] = 1
    if family.backbone.reads_source:  # the same texts as targets, of other sources
        features |= {f"decoder_{name}": values.copy() for name, values in features.items()}
        features |= {name: np.roll(features[name], 1, axis=0) for name in ("token_ids", "padding_mask")}
    return features, real


def _blank(features: dict[str, np.ndarray], index: int) -> None:
    """Make a sequence all padding."""
    masks = [values for name, values in features.items() if name.endswith("padding_mask")]
    for values in masks or features.values():
        values[index] = 0


def _outputs(backbone: Backbone, features: dict[str, np.ndarray]) -> dict[str, Tensors]:
    if compiles_each_operation():
        return backbone.predict_on_batch(features)
    outputs = backbone({name: ops.convert_to_tensor(values) for name, values in features.items()})
    return keras.tree.map_structure(ops.convert_to_numpy, dict(outputs))


def _weights(model: keras.Model) -> list[np.ndarray]:
    return [np.array(ops.convert_to_numpy(weight)) for weight in model.weights]


def check_config(family: Family) -> None:
    """`get_config`, JSON and Keras' serialization preserve the configuration; an unknown argument is an error."""
    backbone = tiny_backbone(family, dropout=0.17)
    config = json.loads(json.dumps(backbone.get_config()))
    assert family.backbone.from_config(config).get_config() == backbone.get_config()
    clone = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(backbone))
    assert type(clone) is family.backbone
    assert clone.config == backbone.config
    np.testing.assert_raises(TypeError, family.backbone.from_config, {**config, "no_such_argument": 1})


def check_shapes(family: Family) -> None:
    """Check that outputs have the shapes, names and dtypes that every backbone promises."""
    backbone, (features, real) = tiny_backbone(family), _features(family)
    outputs, (batch, length) = _outputs(backbone, features), real.shape
    hidden = family.tiny.hidden_dim
    of_source = {"encoder_output", "encoder_hidden_states"} if family.backbone.reads_source else set()
    assert outputs.keys() == {"sequence_output", "pooled_output", "hidden_states", *of_source}
    assert outputs["sequence_output"].shape == (batch, length, hidden)
    assert outputs["pooled_output"].shape == (batch, hidden)
    assert {state.shape for state in outputs["hidden_states"]} == {(batch, length, hidden)}
    assert all(array.dtype == "float32" for array in keras.tree.flatten(outputs))
    assert isinstance(backbone.input, dict)
    assert isinstance(backbone.output, dict)


def check_padding(family: Family) -> None:
    """More padding, whatever its ids, changes nothing; sequences that are all padding stay finite."""
    backbone = tiny_backbone(family)
    (narrow, real), (wide, _) = (_features(family, extra) for extra in (0, 5))
    width = real.shape[1]
    expected, padded = _outputs(backbone, narrow), _outputs(backbone, wide)
    assert_close(padded["pooled_output"], expected["pooled_output"], "pooled_output depends on padding")
    for before, after in zip(expected["hidden_states"], padded["hidden_states"], strict=True):
        assert_close(after[:, :width][real], before[real], "hidden_states depend on padding")
    _blank(wide, 0)
    blank = _outputs(backbone, wide)
    assert all(np.isfinite(array).all() for array in keras.tree.flatten(blank)), "an all-padding sequence is not finite"
    assert_close(
        blank["pooled_output"][1:], padded["pooled_output"][1:], "an all-padding sequence changes its neighbors"
    )


def check_batches(family: Family) -> None:
    """Check that the outputs for a sequence do not depend on the other sequences of the batch, and repeat exactly."""
    backbone, (features, _) = tiny_backbone(family), _features(family)
    together = _outputs(backbone, features)
    assert_close(_outputs(backbone, features), together, "the same call twice", tolerance=0)
    for i in (0, 4):
        alone = _outputs(backbone, {name: values[i : i + 1] for name, values in features.items()})
        expected = keras.tree.map_structure(lambda array, i=i: array[i : i + 1], together)
        assert_close(alone, expected, "a sequence alone and in a batch")


def check_input_names(family: Family) -> None:
    """Check that inputs of other models change no bit, and names that no model has are refused."""
    _check_input_names(tiny_backbone(family), _features(family)[0])


def _check_input_names(model: NamedInputsModel, features: dict[str, np.ndarray]) -> None:
    model.run_eagerly = not compiles_each_operation()
    rng = np.random.default_rng(SEED)
    shape = next(iter(features.values())).shape
    others = {name: rng.integers(2, size=shape) for name in OTHER_MODELS_INPUTS - model.input.keys()}
    outputs, expected = (model.predict_on_batch(inputs) for inputs in ({**others, **features}, features))
    assert_close(outputs, expected, "inputs of other models change the outputs", tolerance=0)
    for name in ("_", *(f"{own}_" for own in model.input)):  # sorted before, between and after the model's own
        for call in (model, model.predict_on_batch):
            with np.testing.assert_raises_regex(ValueError, re.escape(repr(name))):
                call({**features, name: rng.integers(2, size=shape)})


def check_causality(family: Family) -> None:
    """In a causal model or a decoder another token changes nothing before it, and all real tokens after it see it."""
    if not family.backbone.causal and not family.backbone.reads_source:
        return
    backbone, (features, real), position = tiny_backbone(family), _features(family), 3
    name = "decoder_token_ids" if family.backbone.reads_source else "token_ids"
    changed = {**features, name: features[name].copy()}
    changed[name][:, position] = (changed[name][:, position] + 1) % family.tiny.vocabulary_size
    old, new = (_outputs(backbone, inputs)["hidden_states"] for inputs in (features, changed))
    for before, after in zip(old, new, strict=True):
        assert_close(after[:, :position], before[:, :position], "a token changes earlier ones", tolerance=0)
    moved = np.abs(new[-1] - old[-1]).max(axis=-1)  # (B, T)
    assert real[:, position].any()
    assert (moved[:, position:][real[:, position:]] > 1e-5).all(), "a token does not see an earlier one"


def check_training(family: Family, eager: bool | None = None) -> None:
    """Check that a step moves every trainable weight, and is the same eagerly and under `jit_compile=True`.

    One sequence is all padding, whose gradients must be finite, too. On JAX an eager step takes most of a minute and is
    left out by default: `check_task_backends` compares JAX's compiled step with TensorFlow's.
    """
    (features, real), rng = _features(family), np.random.default_rng(SEED)
    _blank(features, 0)
    shape = (*real.shape, family.tiny.hidden_dim)
    targets = [rng.normal(size=shape), rng.normal(size=(shape[0], shape[2]))]

    def build() -> keras.Model:
        backbone = tiny_backbone(family)
        return keras.Model(backbone.input, [backbone.output["sequence_output"], backbone.output["pooled_output"]])

    eager = not compiles_each_operation() if eager is None else eager
    model = _check_step(build, "mse", features, targets, eager=eager)
    if eager:
        expected = keras.tree.map_structure(ops.convert_to_numpy, model(features, training=False))
        assert_close(model.predict_on_batch(features), expected, "outputs, compiled and eager")


def check_seed(family: Family) -> None:
    """`keras.utils.set_random_seed` makes weights and dropout reproducible."""
    config, runs = {**tiny_backbone(family).get_config(), "dropout": 0.3}, []
    features = {name: ops.convert_to_tensor(v) for name, v in _features(family)[0].items()}
    for _ in range(2):
        keras.utils.set_random_seed(SEED)
        backbone = family.backbone(**config)
        noisy = [backbone(features, training=True)["pooled_output"] for _ in range(2)]
        runs.append([ops.convert_to_numpy(array) for array in noisy])
    assert_close(runs[1], runs[0], "the same seed twice")
    assert np.abs(runs[0][0] - runs[0][1]).max() > 1e-3, "dropout repeats its mask"


def check_backbone_files(family: Family) -> None:
    """Check that a `.keras` file and a preset restore the backbone bit by bit."""
    backbone = tiny_backbone(family)
    with tempfile.TemporaryDirectory() as folder:
        backbone.save(f"{folder}/backbone.keras")
        backbone.save_to_preset(f"{folder}/preset")
        clones = [keras.saving.load_model(f"{folder}/backbone.keras"), Backbone.from_preset(f"{folder}/preset")]
    for clone in clones:
        assert type(clone) is family.backbone
        assert clone.config == backbone.config
        assert_close(_weights(clone), _weights(backbone), "weights after loading", tolerance=0)


def check_functional_model(family: Family) -> None:
    """Check that a functional model over all outputs stays the same when cloned, read from JSON, or loaded."""
    assert_copies_agree(tiny_backbone(family), _features(family)[0])


# === Checks of a task on a family ===


def _task_batch(task: Task) -> tuple[Tensors, ...]:
    examples = task.encode_examples(*tiny_examples(task))
    lengths = examples.encoded.lengths
    return task.make_batch(examples, np.arange(len(lengths)), int(lengths.max()), np.random.default_rng(SEED))


def check_task_predictions(task_class: type[Task], family: Family) -> None:
    """Raw texts get the same predictions in any order and batch size; `answers` is the method of its name."""
    answers = task_class.answers
    if answers is not Task.answers:
        name = answers.__name__
        assert getattr(task_class, name) is answers, f"{task_class.__name__} has another `{name}`: `answers = {name}`."
    task = tiny_task(task_class, family)
    x, _ = tiny_examples(task, 11)
    expected = task.predict(x, batch_size=11, verbose=0)
    backwards = task.predict(x[::-1], batch_size=4, verbose=0)
    assert_close(keras.tree.map_structure(lambda array: array[::-1], backwards), expected, "predictions by batch")
    assert {len(array) for array in keras.tree.flatten(expected)} == {len(x)}


def check_task_input_names(task_class: type[Task], family: Family) -> None:
    """Check that inputs of other models change no bit, and names that no model has are refused."""
    task = tiny_task(task_class, family)
    _check_input_names(task, _task_batch(task)[0])


def check_task_functional_model(task_class: type[Task], family: Family) -> None:
    """Check that a functional model over all outputs stays the same when cloned, read from JSON, or loaded."""
    task = tiny_task(task_class, family)
    assert_copies_agree(task, _task_batch(task)[0])


def check_task_training(task_class: type[Task], family: Family) -> None:
    """Check that a step moves every trainable weight, and is the same eagerly and under `jit_compile=True`."""
    batch, eager = _task_batch(tiny_task(task_class, family)), not compiles_each_operation()
    _check_step(lambda: tiny_task(task_class, family), "auto", *batch, eager=eager)


def check_task_fit(task_class: type[Task], family: Family) -> None:
    """`fit` on raw texts lowers the loss, and repeats itself exactly from the same start."""
    task = tiny_task(task_class, family)
    x, y = tiny_examples(task, 8)
    # SGD tests as much of `fit` as Adam, whose update takes most of a step on so small a model.
    task.compile(keras.optimizers.SGD(0.1, global_clipnorm=1.0))
    task.optimizer.build(task.trainable_variables)
    x, y = 2 * list(x), None if y is None else 2 * list(y)
    variables = [*task.variables, *task.optimizer.variables]
    start, losses = [np.array(ops.convert_to_numpy(variable)) for variable in variables], []
    for _ in range(2):
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        keras.utils.set_random_seed(SEED)
        losses.append(task.fit(x, y, batch_size=8, epochs=3, verbose=0).history["loss"])
    assert_close(losses[1], losses[0], "two runs of fit")
    assert losses[0][-1] < losses[0][0]


def check_task_files(task_class: type[Task], family: Family) -> None:
    """Check that a `.keras` file and a preset restore the task with its head and vocabulary, bit by bit.

    The constructor compiles the task; loaded with `compile=False` it has no optimizer.
    """
    task = tiny_task(task_class, family)
    assert task.compiled, f"The constructor of {task_class.__name__} must end with `self.compile()`."
    randomize(task)
    with tempfile.TemporaryDirectory() as folder:
        task.save(Path(folder, "task.keras"))
        task.save_to_preset(Path(folder, "preset"))
        uncompiled = keras.saving.load_model(Path(folder, "task.keras"), compile=False)
        clones = [keras.saving.load_model(Path(folder, "task.keras")), task_class.from_preset(Path(folder, "preset"))]
    assert not uncompiled.compiled
    assert uncompiled.optimizer is None
    for clone in [uncompiled, *clones]:
        assert clone.get_config() == task.get_config()
        assert clone.preprocessor.tokenizer.vocabulary == task.text_preprocessor.tokenizer.vocabulary
        assert_close(_weights(clone), _weights(task), "weights after loading", tolerance=0)


def check_task_resume(task_class: type[Task], family: Family) -> None:
    """Check that a `.keras` file restores the optimizer, so that training continues as if it had not stopped."""
    task, batch = tiny_task(task_class, family), _task_batch(tiny_task(task_class, family))
    task.compile(run_eagerly=not compiles_each_operation())  # quicker for two steps
    task.train_on_batch(*batch)
    with tempfile.TemporaryDirectory() as folder:
        task.save(Path(folder, "task.keras"))
        saved = keras.saving.load_model(Path(folder, "task.keras"))
    assert_close(_weights(saved), _weights(task), "weights after loading", tolerance=0)
    assert_close(saved.train_on_batch(*batch), task.train_on_batch(*batch), "the step after loading", tolerance=0)
    assert_close(_weights(saved), _weights(task), "weights after the step after loading")


def check_task_backends(task_class: type[Task], family: Family) -> None:
    """Check that a `.keras` file trains and predicts the same on TensorFlow and JAX, if both are there.

    The inputs are compared first: a failure names the first of them that differs, or what differs although they are
    equal.
    """
    other = "tensorflow" if keras.backend.backend() == "jax" else "jax"
    if importlib.util.find_spec(other) is None:
        return
    task = tiny_task(task_class, family)
    with tempfile.TemporaryDirectory() as folder:
        task.save(Path(folder, "task.keras"))
        ask_other_backend(other, [folder, task_class.__module__, family.backbone.__module__])
        theirs = dict(np.load(Path(folder, "results.npz")))
    for name, ours in train_and_predict(task).items():
        what = f"{name} of {keras.backend.backend()} (ACTUAL) and {other} (DESIRED)"
        if name.startswith("input"):  # without padding: each backend has widths of its own
            common = tuple(map(slice, np.minimum(ours.shape, theirs[name].shape)))
            assert_close(ours[common], theirs[name][common], what)
        else:
            assert_close(ours, theirs[name], f"{what}, with equal inputs")


def check_task_export(task_class: type[Task], family: Family) -> None:
    """Check that the exported model answers strings as the task does in Python, and token ids the same way.

    Passes for a task that cannot be exported.
    """
    if importlib.util.find_spec("tensorflow_text") is None or not task_class.served_outputs:
        return
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - the exported graph's ops

    from lmzoo.serving.warmup import read_warmup

    task, texts = tiny_task(task_class, family), [f"{text} {family.mask_token or ''}" for text in tiny_texts()]
    with tempfile.TemporaryDirectory() as folder:
        task.export(Path(folder, "1"), verbose=False)
        served = tf.saved_model.load(str(Path(folder, "1"))).signatures
        serve = served["serving_default"]
        named = serve.structured_input_signature[1]  # unordered
        inputs = [name for name in ("text", "prompt", "choices", "question", "context") if name in named]
        x = texts if inputs == ["text"] else tiny_examples(task)[0]
        columns = [x] if len(inputs) == 1 else [list(column) for column in zip(*x, strict=True)]
        # Examples may differ in their number of choices: shorter lists are padded with "".
        tensors = [tf.ragged.constant(c).to_tensor() if isinstance(c[0], list) else tf.constant(c) for c in columns]
        found = serve(**dict(zip(inputs, tensors, strict=True)))
        assert found.keys() == {*task.served_outputs, "truncated"}
        found = {name: value.numpy() for name, value in found.items()}
        if inputs == ["text"]:
            tokens = served["tokens"](**{k: tf.constant(v) for k, v in task.text_preprocessor(texts).items()})
            for name in found.keys() & tokens.keys() if tokens.keys() >= {*task.served_outputs} else ():
                assert_same(tokens[name].numpy(), found[name], f"served {name}")
        warm = [served[name](**inputs)["truncated"].numpy() for name, inputs in read_warmup(Path(folder, "1"))]
    assert {len(rows) for rows in warm} == {1, 4}, "requests to warm up with"
    if task_class.answers is not Task.answers:
        assert_answers_agree(task, x, found)


def _check_step(build: Callable[[], keras.Model], loss: str, *batch: Tensors, eager: bool) -> keras.Model:
    """Take a compiled step, compare it with an eager one if asked to, and return the compiled model."""
    results = []
    for arguments in (*[{"run_eagerly": True}] * eager, {"jit_compile": True}):
        model = build()
        model.compile(keras.optimizers.SGD(0.5), loss=loss, **arguments)
        before = _weights(model)
        results.append((model.train_on_batch(*batch), _weights(model)))
    assert_close(results[-1], results[0], "a training step, compiled and eager", tolerance=1e-4)
    assert all(np.isfinite(array).all() for array in results[-1][1]), "a gradient is not finite"
    trained = {id(weight) for weight in model.trainable_weights}
    unmoved = [
        weight.path
        for weight, was, now in zip(model.weights, before, results[-1][1], strict=True)
        # A softmax ignores what is added to all scores of a query: the keys' bias has no gradient but noise.
        if id(weight) in trained and np.array_equal(was, now) and not weight.path.endswith("key/bias")
        if not _is_unseen(model, weight, batch)
    ]
    assert not unmoved, f"no gradient reaches {unmoved}"
    return model


def _is_unseen(model: keras.Model, weight: keras.Variable, batch: tuple[Tensors, ...]) -> bool:
    """Return whether the outputs depend on a weight but the loss does not.

    That is so for a weight that adds the same to all logits of a softmax, such as the last layer's bias where the
    softmax is over positions.
    """
    value, found = np.array(ops.convert_to_numpy(weight)), []
    for shift in (0.0, 0.5):
        weight.assign(value + np.float32(shift))
        model.reset_metrics()
        found.append((model.predict_on_batch(batch[0]), model.test_on_batch(*batch, return_dict=True)["loss"]))
    weight.assign(value)
    (outputs, loss), (shifted_outputs, shifted_loss) = found
    arrays = zip(keras.tree.flatten(outputs), keras.tree.flatten(shifted_outputs), strict=True)
    return any(not np.allclose(*pair, atol=1e-3) for pair in arrays) and bool(np.isclose(loss, shifted_loss, rtol=1e-5))


def _checks(prefix: str) -> Iterator[Callable[..., None]]:
    return (value for name, value in globals().items() if name.startswith(prefix))


TASK_CHECKS: tuple[Callable[[type[Task], Family], None], ...] = tuple(_checks("check_task_"))
FAMILY_CHECKS: tuple[Callable[[Family], None], ...] = tuple(c for c in _checks("check_") if c not in TASK_CHECKS)
