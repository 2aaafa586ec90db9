"""Trains and predicts on several virtual devices of JAX, in a separate process: `python -m` this module.

Takes devices and names of families, tasks or uses of a model, and prints "equal" if the results equal those of one
device. Devices are a mesh such as 2x4, which also splits weights, or a number such as 2.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from lmzoo import models
from lmzoo.parallel import layout_map
from lmzoo.presets import verify_manifest
from lmzoo.pretraining import Recipe, language_model, pretrain, recipe
from lmzoo.registry.family import Family, families
from lmzoo.testing import tiny_backbone, tiny_examples, tiny_preprocessor, tiny_task
from lmzoo.testing.tiny import public_tasks
from lmzoo.text import BytePairTokenizer, T5Tokenizer
from lmzoo.training import Adagrad, AdamW, ResumableCheckpoint
from tests.tasks.interruptions import Interrupted, Spy

# Sizes that eight devices can split evenly.
WIDE: dict[str, Any] = {"hidden_dim": 40, "num_heads": 5, "intermediate_dim": 56, "num_layers": 2}
SIZES = {
    "albert": {**WIDE, "num_groups": 1, "embedding_dim": 13},
    "marian": {**WIDE, "decoder_heads": 5, "decoder_intermediate_dim": 56},
    "elmo": {"lstm_dim": 16, "projection_dim": 13},
    "static_words": {"vocabulary_size": 128},  # which has no other weight to split
}


def wide(family: Family) -> Family:
    """Return the family with a `tiny` configuration that devices can split."""
    field_names = {field.name for field in dataclasses.fields(family.tiny)}
    sizes = SIZES.get(family.name, {name: size for name, size in WIDE.items() if name in field_names})
    tiny = dataclasses.replace(family.tiny, **sizes)
    return dataclasses.replace(family, tiny=tiny)


LINES = ["The ship left the harbour at dawn.", "Nobody had seen the island.", "The sea grew rough.", "It was calm."]
TOKENIZERS: dict[str, tempfile.TemporaryDirectory[str]] = {}
TASKS = [task.__name__ for task in public_tasks()]

# Tasks of the presets that `lmzoo pretrain` writes, by kind of head.
PRETRAINED = {
    "bidirectional_lm": models.BidirectionalLM,
    "causal_lm": models.CausalLM,
    "pretraining": models.Pretrainer,
    "seq2seq_lm": models.Seq2SeqLM,
}

# Tolerances for results in lower precision than float32.
TOLERANCES = {"mixed_precision": 0.02}


def some_task(name: str = "TextClassifier", family: str = "bert", **arguments: Any) -> models.Task:
    """Return a tiny task with a low learning rate of SGD: adaptive or high rates would amplify rounding errors."""
    task = tiny_task(getattr(models, name), wide(families()[family]), **arguments)
    task.compile(keras.optimizers.SGD(0.02, momentum=0.9))
    return task


def losses_of(task: models.Task, *args: Any, **kwargs: Any) -> list[float]:
    """Return the loss after each step of a `fit`."""
    losses: list[float] = []
    record_loss = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    task.fit(*args, **{"callbacks": [record_loss], "verbose": 0, **kwargs})
    return losses


# === Uses of a model: each yields numbers ===


def fit_of_family(name: str) -> Iterator[Any]:
    """Yield losses, predictions and weights after some steps; the last batches are uneven."""
    task = some_task("Seq2SeqLM" if families()[name].backbone.reads_source else "TextClassifier", name)
    x, y = tiny_examples(task, 19)
    losses = losses_of(task, x, y, batch_size=8, epochs=7)
    assert len(losses) == 21
    if isinstance(keras.distribution.distribution(), keras.distribution.ModelParallel):
        check_split_weights(task)
    yield losses
    yield task.predict(x, batch_size=8, verbose=0)
    yield task.get_weights()


def check_split_weights(task: models.Task) -> None:
    """Check that weights with a suitable axis are split, and the optimizer's state like its weights."""
    is_split = {weight.path: not weight.value.sharding.is_fully_replicated for weight in task.weights}
    state = task.optimizer.variables[2:]  # the first two variables are the steps and the learning rate
    assert [not v.value.sharding.is_fully_replicated for v in state] == [
        is_split[w.path] for w in task.trainable_weights
    ]
    assert any(is_split.values()) == (keras.distribution.distribution().device_mesh.shape[1] > 1), is_split


def all_of_task(name: str) -> Iterator[Any]:
    """Yield the results of everything that a task does, with uneven last batches."""
    task_class = getattr(models, name)
    task = some_task(name, family_for(task_class))
    x, y = tiny_examples(task, 11)
    yield losses_of(task, x, y, batch_size=8, epochs=2)
    yield task.evaluate(x, y, 4, verbose=0)
    yield task.predict(x, 8, verbose=0)
    yield from answers_of(task, x)
    yield task.get_weights()


def family_for(task_class: type[models.Task]) -> str:
    """Return the first family that supports a task."""
    return next(family.name for family in families().values() if task_class.supports(family))


def answers_of(task: models.Task, x: list[Any]) -> Iterator[Any]:
    """Yield the results of the task's own methods."""
    if isinstance(task, models.BidirectionalLM):
        yield task.perplexity(x, batch_size=3, verbose=False)
    if isinstance(task, models.MaskedLM):
        mask = task.preprocessor.tokenizer.mask_token
        yield task.pseudo_perplexity([text.replace(mask, "") for text in x[:3]], batch_size=4)
    if isinstance(task, (models.TextEmbedder, models.Seq2SeqLM)):
        x = [first for first, _ in x]
    if isinstance(task, models.TextEmbedder):
        yield task.embed(x[:5], batch_size=4, level="word")
    if type(task).answers is not models.Task.answers:
        yield task.answers(x, batch_size=8)


def pretraining(family: str) -> Iterator[Any]:
    """Yield the weights of a tiny pre-trained preset, the losses and the scores."""
    recipe.SIZES["nano"] = (1, 64)
    language_model.WORD_SIZES["nano"] = (8, 6, ((1, 3), (2, 5)))
    text = [LINES[i % 4 :] + LINES[: i % 4] for i in range(103)]
    record = families()[family]
    positions = {} if family == "elmo" else {"positions": 23}
    vocabulary_size = 60
    if issubclass(record.tokenizer, BytePairTokenizer):
        vocabulary_size = 262  # the bytes alone are 256 tokens
    elif issubclass(record.tokenizer, T5Tokenizer):
        vocabulary_size = 160  # the sentinels alone are 100 tokens
    settings = Recipe(
        family, tokens=600, vocabulary_size=vocabulary_size, sequence_length=17, batch_size=6, **positions
    )
    losses: list[float] = []
    record_loss = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    with tempfile.TemporaryDirectory() as folder:
        preset, work = Path(folder, "preset"), Path(folder, "preset.work")
        if family in TOKENIZERS:  # runs differ in which of equally frequent tokens they learn
            shutil.copytree(TOKENIZERS[family].name, work / "tokenizer")
        scores = pretrain(text, preset, settings, callbacks=[record_loss], verbose=False, weights_dtype="float32")
        if family != "elmo" and family not in TOKENIZERS:
            TOKENIZERS[family] = tempfile.TemporaryDirectory()
            shutil.copytree(work / "tokenizer", TOKENIZERS[family].name, dirs_exist_ok=True)
        verify_manifest(preset)
        yield PRETRAINED[record.pretrained_head].from_preset(preset).get_weights()
    assert len(losses) > 3
    yield losses
    # The relative error of a perplexity is the absolute error of the loss, so compare the loss.
    yield {name: math.log(score) if "perplexity" in name else score for name, score in scores.items()}


def token_features() -> Iterator[Any]:
    task = some_task()
    x, y = tiny_examples(task, 11)
    features = task.preprocessor(x)
    yield losses_of(task, features, np.array(y), batch_size=4, epochs=2, shuffle=False)
    yield task.evaluate(features, np.array(y), 4, verbose=0)
    yield task.predict(features, 4, verbose=0)
    yield task.get_weights()


def dataset() -> Iterator[Any]:
    import tensorflow as tf

    task = some_task()
    texts, labels = tiny_examples(task, 11)
    data = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(4)
    yield losses_of(task, data, epochs=2)
    yield task.evaluate(data, verbose=0)
    yield task.predict(data.map(lambda text, label: text), verbose=0)
    yield task.get_weights()


def accumulation() -> Iterator[Any]:
    task = some_task("MaskedLM")
    optimizer = keras.optimizers.SGD(0.05, gradient_accumulation_steps=3)
    task.compile(optimizer)
    x, _ = tiny_examples(task, 23)
    yield losses_of(task, x, batch_size=4, epochs=2)
    yield task.get_weights()


def clipped() -> Iterator[Any]:
    """Yield results with gradients that are clipped by their total norm, and uneven first batches."""
    task = some_task("MaskedLM")
    task.compile(Adagrad(0.5, global_clipnorm=0.05, weight_decay=0.01, use_ema=True))
    x, _ = tiny_examples(task, 10)
    yield losses_of(task, x, batch_size=7, epochs=2)
    yield task.get_weights()


def lora() -> Iterator[Any]:
    task = some_task()
    task.backbone.enable_lora(2)
    task.compile(keras.optimizers.SGD(0.05))
    x, y = tiny_examples(task, 11)
    yield losses_of(task, x, y, batch_size=4, epochs=2)
    yield task.predict(x, 4, verbose=0)


def mixed_precision() -> Iterator[Any]:
    family = wide(families()["bert"])
    backbone = tiny_backbone(family, dtype="mixed_bfloat16")
    task = models.TextClassifier(backbone, tiny_preprocessor(family), num_classes=3)
    task.compile(keras.optimizers.SGD(0.05))
    x, y = tiny_examples(task, 11)
    yield losses_of(task, x, y, batch_size=4, epochs=2)
    yield task.predict(x, 4, verbose=0)


def resumed() -> Iterator[Any]:
    """Yield the weights of a run with masks and dropout that is interrupted twice."""

    def run(folder: Path | None, steps: int | None) -> models.Task:
        keras.utils.set_random_seed(5)
        family = wide(families()["bert"])
        task = models.MaskedLM(tiny_backbone(family, dropout=0.1), tiny_preprocessor(family))
        task.compile(AdamW(1e-3, epsilon=1.0))  # a large epsilon keeps rounding errors small
        x, _ = tiny_examples(task, 11)
        callbacks: list[keras.callbacks.Callback] = [] if folder is None else [ResumableCheckpoint(folder, every=1)]
        if steps is not None:
            callbacks.append(Spy(steps))
        with contextlib.suppress(Interrupted):
            task.fit(x, batch_size=4, epochs=3, verbose=0, callbacks=callbacks)
        return task

    uninterrupted = run(None, None).get_weights()
    yield uninterrupted
    with tempfile.TemporaryDirectory() as folder:
        for steps in (3, 8):
            run(Path(folder), steps)
        resumed_weights = run(Path(folder), None).get_weights()
    yield [a - b for a, b in zip(uninterrupted, resumed_weights, strict=True)]


FUNCTIONS = {
    use.__name__: use for use in (token_features, dataset, accumulation, clipped, lora, mixed_precision, resumed)
}
WAYS: dict[str, Callable[[], Iterator[Any]]] = {
    **FUNCTIONS,
    **{name: functools.partial(fit_of_family, name) for name in families()},
    **{name: functools.partial(all_of_task, name) for name in TASKS},
    **{
        f"pretrain_{name}": functools.partial(pretraining, name)
        for name, family in families().items()
        if family.pretrained_head in recipe.METHODS
    },
}


# === On one device, and on several ===


def model_of(name: str) -> models.Task:
    """Return a task with weights like those that a use of a model trains."""
    family_name = name.removeprefix("pretrain_")
    reads_source = family_name in families() and families()[family_name].backbone.reads_source
    task_class = getattr(models, name if name in TASKS else "Seq2SeqLM" if reads_source else "TextClassifier")
    family = family_name if family_name in families() else family_for(task_class)
    return tiny_task(task_class, wide(families()[family]))


@contextlib.contextmanager
def on_devices(shape: tuple[int, ...], name: str) -> Iterator[None]:
    """Compute on all devices, with parts of the batch and, on a mesh, with parts of the weights."""
    devices = keras.distribution.list_devices()
    if len(shape) == 1:
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    else:
        mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)
        layouts = layout_map(model_of(name), mesh)
        parallel = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
        keras.distribution.set_distribution(parallel)
    yield
    keras.distribution.set_distribution(None)


def results(use: Callable[[], Iterator[Any]]) -> list[Any]:
    keras.utils.set_random_seed(3)
    return [np.asarray(x) for x in keras.tree.flatten(list(use()))]


def compare(shape: tuple[int, ...], name: str) -> None:
    expected = results(WAYS[name])
    with on_devices(shape, name):
        actual = results(WAYS[name])
    assert len(expected) == len(actual) > 0
    tolerance = TOLERANCES.get(name, 1e-5)
    for desired, values in zip(expected, actual, strict=True):
        if desired.dtype.kind == "f":
            np.testing.assert_allclose(values, desired, atol=tolerance, rtol=tolerance)
        else:
            np.testing.assert_array_equal(values, desired)
    print(shape, name, len(actual), "arrays")


if __name__ == "__main__":
    devices = tuple(map(int, sys.argv[1].split("x")))
    for name in sys.argv[2:]:
        compare(devices, name)
    print("equal")
