"""Training a small model to predict masked tokens as a large one does (Sanh et al., 2019).

https://arxiv.org/abs/1910.01108

Letters in shape comments: B sequences, T tokens, M masked tokens, V tokens of the vocabulary, H width.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.sublayers import merged_weights
from lmzoo.layers.temporary import temporary_attributes
from lmzoo.parallel.several_devices import SeveralDevicesModel
from lmzoo.text.keras_input import keras_input
from lmzoo.training.divergence import StopOnDivergence

_WARMUP = 0.05  # share of the steps


@keras.saving.register_keras_serializable(package="lmzoo")
class DistillationLoss(ConfiguredLayer):
    """The losses between a student's and a teacher's predictions, and between their vectors, together.

    With logits s and t of a masked token, the first one is T² · KL(softmax(t / T) ‖ softmax(s / T)), its mean over the
    masked tokens (Hinton et al., 2015). The second one is 1 − cos of the vectors, its mean over the real tokens. If
    one of the models has padded embeddings, its logits beyond those of the other are left out.

    Args:
        temperature: float, T.
        soft: float, weight of the first loss.
        cosine: float, weight of the second one; 0 leaves it out.

    Call arguments: logits float (B, M, V) and vectors float (B, T, H), of the student and of the teacher; `positions`
    int (B, M), 0 where none is masked; `padding_mask` (B, T). Returns the student's logits.

    Example: see `distill`.
    """

    def __init__(self, temperature: float = 2.0, soft: float = 5.0, cosine: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.temperature, self.soft, self.cosine = temperature, soft, cosine

    def call(
        self,
        logits: Tensor,
        teacher_logits: Tensor,
        vectors: Tensor,
        teacher_vectors: Tensor,
        positions: Tensor,
        padding_mask: Tensor,
    ) -> Tensor:
        """Add the losses."""
        masked = ops.cast(positions > 0, "float32")  # (B, M); the first token is never masked
        shared = min(logits.shape[-1], teacher_logits.shape[-1])
        ours, theirs = (
            ops.log_softmax(ops.cast(x[..., :shared], "float32") / self.temperature)  # (B, M, V)
            for x in (logits, ops.stop_gradient(teacher_logits))
        )
        divergence = ops.sum(ops.exp(theirs) * (theirs - ours), axis=-1)  # (B, M)
        self.add_loss(self.soft * self.temperature**2 * _mean(divergence, masked))
        if self.cosine:
            pair = (ops.cast(x, "float32") for x in (vectors, ops.stop_gradient(teacher_vectors)))
            ours, theirs = (ops.normalize(x, axis=-1) for x in pair)  # (B, T, H)
            distance = 1 - ops.sum(ours * theirs, axis=-1)  # (B, T)
            self.add_loss(self.cosine * _mean(distance, ops.cast(padding_mask, "float32")))
        return logits

    def compute_output_spec(self, logits: Tensor, *args: Tensor) -> keras.KerasTensor:
        """Return the student's logits."""
        return keras.KerasTensor(logits.shape, logits.dtype)


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return ops.sum(values * weights) / ops.maximum(ops.sum(weights), 1.0)


def smaller(teacher: Any, num_layers: int | None = None) -> Any:
    """Make a student to be trained: a copy of a masked language model with some of its layers.

    Args:
        teacher: `lmzoo.models.MaskedLM`.
        num_layers: int, n; by default half of the teacher's. The layers are spread evenly: with half of them, every
            second one, beginning with the first.

    Returns:
        A `MaskedLM` of the same family and width, with copies of the teacher's weights.

    Raises:
        ValueError: if `num_layers` is not between 1 and the teacher's.

    Example:

    ```python
    import lmzoo

    teacher = lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased")
    lmzoo.training.smaller(teacher, num_layers=2).backbone.num_layers  # 2
    ```
    """
    config = {
        name: value for name, value in teacher.backbone.get_config().items() if name not in ("frozen", "lora", "name")
    }
    there = config["num_layers"]
    wanted = max(1, there // 2) if num_layers is None else num_layers
    require(is_integer(wanted, 1, there), "num_layers", f"an integer from 1 to {there}", wanted)
    backbone = type(teacher.backbone)(**{**config, "num_layers": wanted, "fine_tuning": None})
    parts = {"backbone": backbone, "preprocessor": teacher.preprocessor, "name": None}
    student = type(teacher)(**{**teacher.get_config(), **parts})
    known = {_path(path, teacher): value for path, value in merged_weights(teacher)}
    for weight in student.weights:
        path = _path(weight.path, student)
        # Not those of ALBERT's groups, which are all there.
        path = re.sub(r"\bblock_(\d+)", lambda found: f"block_{int(found[1]) * there // wanted}", path)
        weight.assign(ops.convert_to_numpy(known[path]))
    return student


def _path(path: str, model: keras.Model) -> str:
    """Return the path of a weight without the names of models, which Keras may number."""
    names = {model.name, model.backbone.name}
    return "/".join(part for part in path.split("/") if part not in names)


def distill(
    student: Any,
    teacher: Any,
    texts: Any,
    epochs: int = 1,
    batch_size: int = 32,
    temperature: float = 2.0,
    weights: Sequence[float] = (5.0, 2.0, 1.0),
    optimizer: Any = None,
    seed: int = 0,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: bool | int | str = "auto",
    **kwargs: Any,
) -> keras.callbacks.History:
    """Train a masked language model on texts and on what a larger one predicts for them, as DistilBERT was.

    The loss is a weighted sum of three: between the predictions of both for the masked tokens, softened by a
    temperature; the usual one of the masked tokens; and between the directions of the vectors of both for all tokens.
    Sanh et al. (2019) compare predictions for all tokens, here they are compared for masked tokens, which are the only
    ones that a `MaskedLM` computes. The teacher stays as it is; its dropout is off.

    Args:
        student: `lmzoo.models.MaskedLM`, which is trained; see `smaller`.
        teacher: `lmzoo.models.MaskedLM` with the same vocabulary.
        texts: texts in a list, or what else `fit` of the student takes, except tables and datasets.
        epochs: int.
        batch_size: int.
        temperature: float, above 0.
        weights: of the three losses. A 0 for the last one allows for other widths than the teacher's.
        optimizer: a Keras optimizer; by default the student's, with a warm-up over a twentieth of the steps and a
            linear decay.
        seed: int, of the order and of the masks.
        callbacks: of Keras' `fit`.
        verbose: see `keras.Model.fit`.
        **kwargs: of `keras.Model.compile`, such as `jit_compile`.

    Returns:
        The history, with the whole loss and the accuracy on masked tokens.

    Raises:
        TypeError: for tasks that do not predict masked tokens.
        ValueError: for other vocabularies, other widths with a weight for the vectors, and numbers out of range.

    Example:

    ```python
    import lmzoo
    from lmzoo.training import distill, smaller

    teacher = lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased")
    student = smaller(teacher, num_layers=2)
    distill(student, teacher, ["The sea was calm.", "The wind turned to the north."], verbose=0)
    student.fill(["The sea was [MASK]."])
    ```
    """
    soft, hard, cosine = _checked(student, teacher, temperature, weights)
    inputs: Features = student.input
    positions = inputs["mask_positions"]
    # A family without segments reads the same tokens as one of their first segment.
    read = {name: inputs.get(name, ops.zeros_like(inputs["token_ids"])) for name in teacher.input}
    logits, vectors = _predicted(student, inputs)  # (B, M, V), (B, T, H)
    frozen = teacher.copy_with(dropout=0.0)
    frozen = keras.Model(frozen.input, _predicted(frozen, frozen.input), name="teacher")
    frozen.trainable = False  # only now, so that Keras passes it on to the layers
    teacher_logits, teacher_vectors = frozen(read)  # (B, M, V), (B, T, H)
    losses = DistillationLoss(temperature, soft, cosine, dtype="float32", name="distillation_loss")
    outputs = losses(logits, teacher_logits, vectors, teacher_vectors, positions, inputs["padding_mask"])
    batches = student.training_batches(texts, batch_size=batch_size, seed=seed)
    told = keras.callbacks.LambdaCallback(on_epoch_begin=batches.begin_epoch)
    # No loss reaches them, of which Keras would warn.
    frozen_variables = [(variable, "trainable", False) for variable in student.unused_variables]
    with temporary_attributes(frozen_variables):
        model = SeveralDevicesModel(inputs, outputs)
        model.dtype_policy = student.dtype_policy  # in float16 Keras scales the loss
        optimizer = student.default_optimizer() if optimizer is None else optimizer
        model.compile(
            optimizer=optimizer,
            loss=student.default_loss(),
            loss_weights=[hard],
            weighted_metrics=student.default_metrics(),
            **kwargs,
        )
        optimizer.build(model.trainable_variables)
        if hasattr(optimizer, "start_schedule"):
            steps = epochs * batches.num_batches // (optimizer.gradient_accumulation_steps or 1)
            optimizer.start_schedule(round(steps * _WARMUP), steps)
        callbacks = [StopOnDivergence(), told, *callbacks]
        history = model.fit(keras_input(batches), epochs=epochs, callbacks=callbacks, verbose=verbose, shuffle=False)
    student.forget_compiled()
    return history


def _predicted(task: Any, inputs: Features) -> tuple[Tensor, Tensor]:
    """Return a task's logits of masked tokens, float (B, M, V), and its vectors of all tokens, float (B, T, H)."""
    features = {name: inputs[name] for name in task.backbone.input}
    found = task.backbone(features)
    vectors, bias = task.head(task.backbone.vectors_at(features, inputs["mask_positions"], found))
    return task.backbone(features, vectors=vectors, bias=bias), found["sequence_output"]


def _checked(student: Any, teacher: Any, temperature: float, weights: Sequence[float]) -> tuple[float, float, float]:
    """Return the weights of the three losses, after all arguments have been checked."""
    for name, task in (("student", student), ("teacher", teacher)):
        if getattr(task, "head_kind", None) != "masked_lm":
            raise TypeError(f"`{name}` must be a `lmzoo.models.MaskedLM`, got {type(task).__name__}.")
    vocabularies = [task.text_preprocessor.tokenizer.vocabulary for task in (student, teacher)]
    if list(vocabularies[0]) != list(vocabularies[1]):
        first = next(i for i, pair in enumerate(zip_longest(*vocabularies)) if pair[0] != pair[1])
        found = " and ".join(repr(v[first]) if first < len(v) else "nothing" for v in vocabularies)
        raise ValueError(f"Student and teacher must have the same vocabulary; at id {first} they have {found}.")
    require(is_number(temperature, 0) and temperature > 0, "temperature", "a number above 0", temperature)
    valid = len(weights) == 3 and all(is_number(weight, 0) for weight in weights) and any(weights)
    require(valid, "weights", "three numbers of at least 0, not all 0", weights)
    widths = [task.backbone.config.hidden_dim for task in (student, teacher)]
    if weights[2] and widths[0] != widths[1]:
        raise ValueError(
            f"The vectors of student and teacher have {widths[0]} and {widths[1]} dimensions: only vectors of the same "
            "width can be compared. Pass `weights` whose last one is 0."
        )
    soft, hard, cosine = map(float, weights)
    return soft, hard, cosine
