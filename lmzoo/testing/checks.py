"""Conformance checks of families and tasks."""

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


def _make_features(family: Family, extra_width: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return inputs by name, and the mask of real tokens, bool (B, T), for B sequences padded to length T.

    T exceeds the longest sequence by `extra_width`. For models with a padding mask, inputs at padding are not zero, to
    check that they do not matter.
    """
    preprocessor = tiny_preprocessor(family)
    encoded = preprocessor.encode(tiny_texts())
    width = int(encoded.lengths.max()) + extra_width
    features = preprocessor.features(encoded, np.arange(len(encoded)), width)
    is_real = np.arange(width) < encoded.lengths[:, None]  # (B, T)
    if "padding_mask" in features:
        for name, values in features.items():
            if name != "padding_mask":
                values[~is_real] = 1
    if family.backbone.reads_source:  # the texts are the targets, with different sources
        features |= {f"decoder_{name}": values.copy() for name, values in features.items()}
        features |= {name: np.roll(features[name], 1, axis=0) for name in ("token_ids", "padding_mask")}
    return features, is_real


def _blank_out(features: dict[str, np.ndarray], index: int) -> None:
    """Replace the sequence at `index` with padding."""
    masks = [values for name, values in features.items() if name.endswith("padding_mask")]
    for values in masks or features.values():
        values[index] = 0


def _compute_outputs(backbone: Backbone, features: dict[str, np.ndarray]) -> dict[str, Tensors]:
    if compiles_each_operation():
        return backbone.predict_on_batch(features)
    outputs = backbone({name: ops.convert_to_tensor(values) for name, values in features.items()})
    return keras.tree.map_structure(ops.convert_to_numpy, dict(outputs))


def _get_weights(model: keras.Model) -> list[np.ndarray]:
    return [np.array(ops.convert_to_numpy(weight)) for weight in model.weights]


def check_config(family: Family) -> None:
    """Check that serialization preserves the configuration, and that unknown arguments raise a TypeError."""
    backbone = tiny_backbone(family, dropout=0.17)
    config = json.loads(json.dumps(backbone.get_config()))
    assert family.backbone.from_config(config).get_config() == backbone.get_config()
    clone = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(backbone))
    assert type(clone) is family.backbone
    assert clone.config == backbone.config
    np.testing.assert_raises(TypeError, family.backbone.from_config, {**config, "no_such_argument": 1})


def check_shapes(family: Family) -> None:
    """Check that outputs have the names, shapes and dtypes required of every backbone."""
    backbone = tiny_backbone(family)
    features, is_real = _make_features(family)
    outputs = _compute_outputs(backbone, features)
    batch_size, length = is_real.shape
    hidden_dim = family.tiny.hidden_dim
    source_outputs = {"encoder_output", "encoder_hidden_states"} if family.backbone.reads_source else set()
    assert outputs.keys() == {"sequence_output", "pooled_output", "hidden_states", *source_outputs}
    assert outputs["sequence_output"].shape == (batch_size, length, hidden_dim)
    assert outputs["pooled_output"].shape == (batch_size, hidden_dim)
    assert {state.shape for state in outputs["hidden_states"]} == {(batch_size, length, hidden_dim)}
    assert all(array.dtype == "float32" for array in keras.tree.flatten(outputs))
    # Keras layers can also declare outputs for tensors with values.
    specs = backbone.compute_output_spec({n: ops.convert_to_tensor(features[n]) for n in backbone.input})
    shapes = [tuple(spec.shape) for spec in keras.tree.flatten(specs)]
    assert shapes == [array.shape for array in keras.tree.flatten(outputs)]
    assert isinstance(backbone.input, dict)
    assert isinstance(backbone.output, dict)


def check_padding(family: Family) -> None:
    """Check that padding does not change the outputs, and that a sequence of only padding has finite outputs."""
    backbone = tiny_backbone(family)
    (narrow_features, is_real), (wide_features, _) = (_make_features(family, extra_width) for extra_width in (0, 5))
    width = is_real.shape[1]
    expected = _compute_outputs(backbone, narrow_features)
    padded_outputs = _compute_outputs(backbone, wide_features)
    assert_close(padded_outputs["pooled_output"], expected["pooled_output"], "pooled_output depends on padding")
    for narrow_state, wide_state in zip(expected["hidden_states"], padded_outputs["hidden_states"], strict=True):
        assert_close(wide_state[:, :width][is_real], narrow_state[is_real], "hidden_states depend on padding")
    _blank_out(wide_features, 0)
    blank_outputs = _compute_outputs(backbone, wide_features)
    assert all(np.isfinite(array).all() for array in keras.tree.flatten(blank_outputs)), (
        "an all-padding sequence is not finite"
    )
    assert_close(
        blank_outputs["pooled_output"][1:],
        padded_outputs["pooled_output"][1:],
        "an all-padding sequence changes its neighbors",
    )


def check_batches(family: Family) -> None:
    """Check that a sequence's outputs do not depend on the rest of the batch, and are the same in every call."""
    backbone = tiny_backbone(family)
    features, _ = _make_features(family)
    batch_outputs = _compute_outputs(backbone, features)
    assert_close(_compute_outputs(backbone, features), batch_outputs, "the same call twice", tolerance=0)
    for i in (0, 4):
        single_outputs = _compute_outputs(backbone, {name: values[i : i + 1] for name, values in features.items()})
        expected = keras.tree.map_structure(lambda array, i=i: array[i : i + 1], batch_outputs)
        assert_close(single_outputs, expected, "a sequence alone and in a batch")


def check_input_names(family: Family) -> None:
    """Check that inputs of other models do not change the outputs, and that unknown names raise a ValueError."""
    _check_input_names(tiny_backbone(family), _make_features(family)[0])


def _check_input_names(model: NamedInputsModel, features: dict[str, np.ndarray]) -> None:
    model.run_eagerly = not compiles_each_operation()
    rng = np.random.default_rng(SEED)
    shape = next(iter(features.values())).shape
    unused_inputs = {name: rng.integers(2, size=shape) for name in OTHER_MODELS_INPUTS - model.input.keys()}
    outputs, expected = (model.predict_on_batch(inputs) for inputs in ({**unused_inputs, **features}, features))
    assert_close(outputs, expected, "inputs of other models change the outputs", tolerance=0)
    # These names sort before, between and after the names of the model's inputs.
    for name in ("_", *(f"{input_name}_" for input_name in model.input)):
        for call in (model, model.predict_on_batch):
            with np.testing.assert_raises_regex(ValueError, re.escape(repr(name))):
                call({**features, name: rng.integers(2, size=shape)})


def check_causality(family: Family) -> None:
    """Check that in a causal model or decoder, changing a token affects all later real tokens and no earlier ones."""
    if not family.backbone.causal and not family.backbone.reads_source:
        return
    backbone = tiny_backbone(family)
    features, is_real = _make_features(family)
    position = 3
    input_name = "decoder_token_ids" if family.backbone.reads_source else "token_ids"
    changed_features = {**features, input_name: features[input_name].copy()}
    changed_features[input_name][:, position] = (
        changed_features[input_name][:, position] + 1
    ) % family.tiny.vocabulary_size
    old_states, new_states = (
        _compute_outputs(backbone, inputs)["hidden_states"] for inputs in (features, changed_features)
    )
    for old_state, new_state in zip(old_states, new_states, strict=True):
        assert_close(new_state[:, :position], old_state[:, :position], "a token changes earlier ones", tolerance=0)
    differences = np.abs(new_states[-1] - old_states[-1]).max(axis=-1)  # (B, T)
    assert is_real[:, position].any()
    assert (differences[:, position:][is_real[:, position:]] > 1e-5).all(), "a token does not see an earlier one"


def check_training(family: Family, eager: bool | None = None) -> None:
    """Check that a training step changes every trainable weight, and that eager and compiled steps agree.

    The batch includes a sequence of only padding, whose gradients must also be finite. Biases of keys, and weights that
    change only the outputs but not the loss, may stay unchanged.

    Args:
        family: the family to check.
        eager: whether to compare the compiled step with an eager step. The default is False on JAX, where an eager step
            takes most of a minute (`check_task_backends` compares with TensorFlow instead), and True elsewhere.
    """
    features, is_real = _make_features(family)
    rng = np.random.default_rng(SEED)
    _blank_out(features, 0)
    shape = (*is_real.shape, family.tiny.hidden_dim)
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
    """Check that `keras.utils.set_random_seed` makes initial weights and dropout reproducible."""
    config = {**tiny_backbone(family).get_config(), "dropout": 0.3}
    outputs_by_run = []
    features = {name: ops.convert_to_tensor(values) for name, values in _make_features(family)[0].items()}
    for _ in range(2):
        keras.utils.set_random_seed(SEED)
        backbone = family.backbone(**config)
        pooled_outputs = [backbone(features, training=True)["pooled_output"] for _ in range(2)]
        outputs_by_run.append([ops.convert_to_numpy(array) for array in pooled_outputs])
    assert_close(outputs_by_run[1], outputs_by_run[0], "the same seed twice")
    assert np.abs(outputs_by_run[0][0] - outputs_by_run[0][1]).max() > 1e-3, "dropout repeats its mask"


def check_backbone_files(family: Family) -> None:
    """Check that a `.keras` file and a preset restore the backbone exactly."""
    backbone = tiny_backbone(family)
    with tempfile.TemporaryDirectory() as folder:
        backbone.save(f"{folder}/backbone.keras")
        backbone.save_to_preset(f"{folder}/preset")
        clones = [keras.saving.load_model(f"{folder}/backbone.keras"), Backbone.from_preset(f"{folder}/preset")]
    for clone in clones:
        assert type(clone) is family.backbone
        assert clone.config == backbone.config
        assert_close(_get_weights(clone), _get_weights(backbone), "weights after loading", tolerance=0)


def check_functional_model(family: Family) -> None:
    """Check that copies that Keras clones, builds from JSON, or loads have the same outputs as the model."""
    assert_copies_agree(tiny_backbone(family), _make_features(family)[0])


# === Checks of a task on a family ===


def _make_task_batch(task: Task) -> tuple[Tensors, ...]:
    examples = task.encode_examples(*tiny_examples(task))
    lengths = examples.encoded.lengths
    return task.make_batch(examples, np.arange(len(lengths)), int(lengths.max()), np.random.default_rng(SEED))


def check_task_predictions(task_class: type[Task], family: Family) -> None:
    """Check that predictions do not depend on order or batch size, and that `answers` is an alias of a method."""
    answers = task_class.answers
    if answers is not Task.answers:
        name = answers.__name__
        assert getattr(task_class, name) is answers, f"{task_class.__name__} has another `{name}`: `answers = {name}`."
    task = tiny_task(task_class, family)
    x, _ = tiny_examples(task, 11)
    expected = task.predict(x, batch_size=11, verbose=0)
    reversed_predictions = task.predict(x[::-1], batch_size=4, verbose=0)
    assert_close(
        keras.tree.map_structure(lambda array: array[::-1], reversed_predictions), expected, "predictions by batch"
    )
    assert {len(array) for array in keras.tree.flatten(expected)} == {len(x)}


def check_task_input_names(task_class: type[Task], family: Family) -> None:
    """Check that inputs of other models do not change the outputs, and that unknown names raise a ValueError."""
    task = tiny_task(task_class, family)
    _check_input_names(task, _make_task_batch(task)[0])


def check_task_functional_model(task_class: type[Task], family: Family) -> None:
    """Check that copies that Keras clones, builds from JSON, or loads have the same outputs as the model."""
    task = tiny_task(task_class, family)
    assert_copies_agree(task, _make_task_batch(task)[0])


def check_task_training(task_class: type[Task], family: Family) -> None:
    """Check that a training step changes every trainable weight, and that eager and compiled steps agree.

    As in `check_training`, some weights may stay unchanged, and on JAX there is no eager step.
    """
    batch = _make_task_batch(tiny_task(task_class, family))
    eager = not compiles_each_operation()
    _check_step(lambda: tiny_task(task_class, family), "auto", *batch, eager=eager)


def check_task_fit(task_class: type[Task], family: Family) -> None:
    """Check that `fit` on raw texts lowers the loss, and that a second run from the same state repeats the losses."""
    task = tiny_task(task_class, family)
    x, y = tiny_examples(task, 8)
    # SGD, since on such a small model, Adam's update would take most of a step's time.
    task.compile(keras.optimizers.SGD(0.1, global_clipnorm=1.0))
    task.optimizer.build(task.trainable_variables)
    x = 2 * list(x)
    y = None if y is None else 2 * list(y)
    variables = [*task.variables, *task.optimizer.variables]
    start_values = [np.array(ops.convert_to_numpy(variable)) for variable in variables]
    losses = []
    for _ in range(2):
        for variable, start_value in zip(variables, start_values, strict=True):
            variable.assign(start_value)
        keras.utils.set_random_seed(SEED)
        losses.append(task.fit(x, y, batch_size=8, epochs=3, verbose=0).history["loss"])
    assert_close(losses[1], losses[0], "two runs of fit")
    assert losses[0][-1] < losses[0][0]


def check_task_files(task_class: type[Task], family: Family) -> None:
    """Check that a `.keras` file and a preset restore the task exactly, with its head and vocabulary.

    The constructor of a task must compile it. A task that is loaded with `compile=False` must have no optimizer.
    """
    task = tiny_task(task_class, family)
    assert task.compiled, f"The constructor of {task_class.__name__} must end with `self.compile()`."
    randomize(task)
    with tempfile.TemporaryDirectory() as folder:
        task.save(Path(folder, "task.keras"))
        task.save_to_preset(Path(folder, "preset"))
        uncompiled_task = keras.saving.load_model(Path(folder, "task.keras"), compile=False)
        clones = [keras.saving.load_model(Path(folder, "task.keras")), task_class.from_preset(Path(folder, "preset"))]
    assert not uncompiled_task.compiled
    assert uncompiled_task.optimizer is None
    for clone in [uncompiled_task, *clones]:
        assert clone.get_config() == task.get_config()
        assert clone.preprocessor.tokenizer.vocabulary == task.text_preprocessor.tokenizer.vocabulary
        assert_close(_get_weights(clone), _get_weights(task), "weights after loading", tolerance=0)


def check_task_resume(task_class: type[Task], family: Family) -> None:
    """Check that training continues exactly from a `.keras` file, including the state of the optimizer."""
    task = tiny_task(task_class, family)
    batch = _make_task_batch(tiny_task(task_class, family))
    task.compile(run_eagerly=not compiles_each_operation())  # faster for two steps
    task.train_on_batch(*batch)
    with tempfile.TemporaryDirectory() as folder:
        task.save(Path(folder, "task.keras"))
        loaded_task = keras.saving.load_model(Path(folder, "task.keras"))
    assert_close(_get_weights(loaded_task), _get_weights(task), "weights after loading", tolerance=0)
    assert_close(loaded_task.train_on_batch(*batch), task.train_on_batch(*batch), "the step after loading", tolerance=0)
    assert_close(_get_weights(loaded_task), _get_weights(task), "weights after the step after loading")


def check_task_backends(task_class: type[Task], family: Family) -> None:
    """Check that a saved task trains and predicts the same on TensorFlow and JAX, if both are installed.

    Inputs are compared first, so that a failure shows whether the inputs or only the results differ.
    """
    other_backend = "tensorflow" if keras.backend.backend() == "jax" else "jax"
    if importlib.util.find_spec(other_backend) is None:
        return
    task = tiny_task(task_class, family)
    with tempfile.TemporaryDirectory() as folder:
        task.save(Path(folder, "task.keras"))
        ask_other_backend(other_backend, [folder, task_class.__module__, family.backbone.__module__])
        other_results = dict(np.load(Path(folder, "results.npz")))
    for name, result in train_and_predict(task).items():
        description = f"{name} of {keras.backend.backend()} (ACTUAL) and {other_backend} (DESIRED)"
        if name.startswith("input"):  # without padding, since padded lengths depend on the backend
            common_slices = tuple(map(slice, np.minimum(result.shape, other_results[name].shape)))
            assert_close(result[common_slices], other_results[name][common_slices], description)
        else:
            assert_close(result, other_results[name], f"{description}, with equal inputs")


def check_task_export(task_class: type[Task], family: Family) -> None:
    """Check that an exported model returns the same answers as the task in Python, for strings and for token ids.

    The check passes if the task cannot be exported, or TensorFlow Text is not installed.
    """
    if importlib.util.find_spec("tensorflow_text") is None or not task_class.served_outputs:
        return
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - the exported graph's ops

    from lmzoo.serving.warmup import read_warmup

    task = tiny_task(task_class, family)
    texts = [f"{text} {family.mask_token or ''}" for text in tiny_texts()]
    with tempfile.TemporaryDirectory() as folder:
        task.export(Path(folder, "1"), verbose=False)
        signatures = tf.saved_model.load(str(Path(folder, "1"))).signatures
        serve = signatures["serving_default"]
        specs = serve.structured_input_signature[1]  # in no particular order
        input_names = [name for name in ("text", "prompt", "choices", "question", "context") if name in specs]
        x = texts if input_names == ["text"] else tiny_examples(task)[0]
        columns = [x] if len(input_names) == 1 else [list(column) for column in zip(*x, strict=True)]
        # Examples may have different numbers of choices: shorter lists are padded with "".
        tensors = [tf.ragged.constant(c).to_tensor() if isinstance(c[0], list) else tf.constant(c) for c in columns]
        outputs = serve(**dict(zip(input_names, tensors, strict=True)))
        assert outputs.keys() == {*task.served_outputs, "truncated"}
        outputs = {name: value.numpy() for name, value in outputs.items()}
        if input_names == ["text"]:
            features = {name: tf.constant(values) for name, values in task.text_preprocessor(texts).items()}
            token_outputs = signatures["tokens"](**features)
            has_all_outputs = token_outputs.keys() >= {*task.served_outputs}
            for name in outputs.keys() & token_outputs.keys() if has_all_outputs else ():
                assert_same(token_outputs[name].numpy(), outputs[name], f"served {name}")
        truncation_flags = [
            signatures[name](**inputs)["truncated"].numpy() for name, inputs in read_warmup(Path(folder, "1"))
        ]
    assert {len(rows) for rows in truncation_flags} == {1, 4}, "requests to warm up with"
    if task_class.answers is not Task.answers:
        assert_answers_agree(task, x, outputs)


def _check_step(build: Callable[[], keras.Model], loss: str, *batch: Tensors, eager: bool) -> keras.Model:
    """Check a compiled training step, also against an eager step if `eager`, and return the trained model.

    Raises:
        AssertionError: If the steps differ, if a weight is not finite, or if a trainable weight is unchanged, except
            for biases of keys and weights that change only the outputs but not the loss.
    """
    step_results = []
    for options in (*[{"run_eagerly": True}] * eager, {"jit_compile": True}):
        model = build()
        model.compile(keras.optimizers.SGD(0.5), loss=loss, **options)
        old_weights = _get_weights(model)
        step_results.append((model.train_on_batch(*batch), _get_weights(model)))
    assert_close(step_results[-1], step_results[0], "a training step, compiled and eager", tolerance=1e-4)
    assert all(np.isfinite(array).all() for array in step_results[-1][1]), "a gradient is not finite"
    trainable_ids = {id(weight) for weight in model.trainable_weights}
    unchanged_paths = [
        weight.path
        for weight, old_value, new_value in zip(model.weights, old_weights, step_results[-1][1], strict=True)
        # The gradient of a key bias is only noise, since softmax ignores a constant added to all scores of a query.
        if id(weight) in trainable_ids and np.array_equal(old_value, new_value) and not weight.path.endswith("key/bias")
        if not _affects_only_outputs(model, weight, batch)
    ]
    assert not unchanged_paths, f"no gradient reaches {unchanged_paths}"
    return model


def _affects_only_outputs(model: keras.Model, weight: keras.Variable, batch: tuple[Tensors, ...]) -> bool:
    """Return whether the outputs depend on a weight but the loss does not.

    Such a weight adds the same number to all logits of a softmax, for example a bias before a softmax over positions.
    """
    original_value = np.array(ops.convert_to_numpy(weight))
    outputs_and_losses = []
    for shift in (0.0, 0.5):
        weight.assign(original_value + np.float32(shift))
        model.reset_metrics()
        outputs_and_losses.append(
            (model.predict_on_batch(batch[0]), model.test_on_batch(*batch, return_dict=True)["loss"])
        )
    weight.assign(original_value)
    (outputs, loss), (shifted_outputs, shifted_loss) = outputs_and_losses
    pairs = zip(keras.tree.flatten(outputs), keras.tree.flatten(shifted_outputs), strict=True)
    return any(not np.allclose(*pair, atol=1e-3) for pair in pairs) and bool(np.isclose(loss, shifted_loss, rtol=1e-5))


def _iterate_checks(prefix: str) -> Iterator[Callable[..., None]]:
    """Iterate over the functions of this module whose names begin with `prefix`."""
    return (value for name, value in globals().items() if name.startswith(prefix))


TASK_CHECKS: tuple[Callable[[type[Task], Family], None], ...] = tuple(_iterate_checks("check_task_"))
FAMILY_CHECKS: tuple[Callable[[Family], None], ...] = tuple(
    c for c in _iterate_checks("check_") if c not in TASK_CHECKS
)
