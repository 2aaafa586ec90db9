"""Knowledge distillation of masked language models, as for DistilBERT (Sanh et al., 2019).

https://arxiv.org/abs/1910.01108

Letters in shapes: B sequences, T tokens, M masked tokens, V vocabulary size, H hidden dimension.
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

_WARMUP_FRACTION = 0.05  # of the steps


@keras.saving.register_keras_serializable(package="lmzoo")
class DistillationLoss(ConfiguredLayer):
    """Layer that adds the distillation losses between a student and a teacher.

    The soft loss is the mean over masked tokens of T² · KL(softmax(t / T) ‖ softmax(s / T)), for student logits s and
    teacher logits t (Hinton et al., 2015). The cosine loss is the mean over real tokens of 1 − cos of the hidden
    states. If padded embeddings give one model more logits than the other, the extra logits are ignored.

    Args:
        temperature: float, T.
        soft: float, weight of the soft loss.
        cosine: float, weight of the cosine loss; 0 disables it.

    Call arguments: logits float (B, M, V) and hidden states float (B, T, H), of the student and of the teacher;
    `positions` int (B, M), of the masked tokens, 0 for padding; `padding_mask` (B, T). Returns the student's logits.

    Example: see `distill`.
    """

    def __init__(self, temperature: float = 2.0, soft: float = 5.0, cosine: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.temperature = temperature
        self.soft = soft
        self.cosine = cosine

    def call(
        self,
        logits: Tensor,
        teacher_logits: Tensor,
        vectors: Tensor,
        teacher_vectors: Tensor,
        positions: Tensor,
        padding_mask: Tensor,
    ) -> Tensor:
        """Add the losses and return the student's logits, float (B, M, V)."""
        is_masked = ops.cast(positions > 0, "float32")  # (B, M); the first token is never masked
        num_shared = min(logits.shape[-1], teacher_logits.shape[-1])
        student_log_probs, teacher_log_probs = (
            ops.log_softmax(ops.cast(x[..., :num_shared], "float32") / self.temperature)  # (B, M, V)
            for x in (logits, ops.stop_gradient(teacher_logits))
        )
        divergence = ops.sum(ops.exp(teacher_log_probs) * (teacher_log_probs - student_log_probs), axis=-1)  # (B, M)
        self.add_loss(self.soft * self.temperature**2 * _weighted_mean(divergence, is_masked))
        if self.cosine:
            states = (ops.cast(x, "float32") for x in (vectors, ops.stop_gradient(teacher_vectors)))
            student_units, teacher_units = (ops.normalize(x, axis=-1) for x in states)  # (B, T, H)
            distance = 1 - ops.sum(student_units * teacher_units, axis=-1)  # (B, T)
            self.add_loss(self.cosine * _weighted_mean(distance, ops.cast(padding_mask, "float32")))
        return logits

    def compute_output_spec(self, logits: Tensor, *args: Tensor) -> keras.KerasTensor:
        """Return the spec of the student's logits, float (B, M, V)."""
        return keras.KerasTensor(logits.shape, logits.dtype)


def _weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    return ops.sum(values * weights) / ops.maximum(ops.sum(weights), 1.0)


def smaller(teacher: Any, num_layers: int | None = None) -> Any:
    """Make a student from a masked language model by copying some of its layers.

    Args:
        teacher: `lmzoo.models.MaskedLM`, the model to copy.
        num_layers: int, number of layers of the student; by default half as many as the teacher has. Evenly
            spaced layers are copied: for half as many, every second layer, starting with the first.

    Returns:
        A `MaskedLM` of the same family and width, with copies of the teacher's weights.

    Raises:
        ValueError: if `num_layers` is below 1 or above the number of the teacher's layers.

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
    teacher_layers = config["num_layers"]
    student_layers = max(1, teacher_layers // 2) if num_layers is None else num_layers
    require(
        is_integer(student_layers, 1, teacher_layers),
        "num_layers",
        f"an integer from 1 to {teacher_layers}",
        student_layers,
    )
    backbone = type(teacher.backbone)(**{**config, "num_layers": student_layers, "fine_tuning": None})
    student_parts = {"backbone": backbone, "preprocessor": teacher.preprocessor, "name": None}
    student = type(teacher)(**{**teacher.get_config(), **student_parts})
    teacher_weights = {_strip_model_names(path, teacher): value for path, value in merged_weights(teacher)}
    for weight in student.weights:
        path = _strip_model_names(weight.path, student)
        # Does not match ALBERT's groups: layers share them, so the student has all of them.
        path = re.sub(r"\bblock_(\d+)", lambda match: f"block_{int(match[1]) * teacher_layers // student_layers}", path)
        weight.assign(ops.convert_to_numpy(teacher_weights[path]))
    return student


def _strip_model_names(path: str, model: keras.Model) -> str:
    """Return the path of a weight without model names, which Keras may number."""
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
    """Train a small masked language model on texts and on a larger model's predictions, as for DistilBERT.

    The loss is a weighted sum of three terms: the divergence from the teacher's predictions for masked tokens, softened
    by a temperature; the cross-entropy of the masked tokens; and the cosine distance between the hidden states of both
    models at all tokens. Sanh et al. (2019) compare predictions for all tokens; here only masked tokens are compared,
    since a `MaskedLM` computes no other predictions. The teacher is left unchanged, and has no dropout.

    Args:
        student: `lmzoo.models.MaskedLM`, the model to train, for example from `smaller`.
        teacher: `lmzoo.models.MaskedLM` with the same vocabulary.
        texts: list of texts, or other inputs of the student's `fit`, except tables and datasets.
        epochs: int, number of passes over the texts.
        batch_size: int, number of texts in a batch.
        temperature: float above 0, divisor of the logits in the divergence.
        weights: three floats, weights of the loss terms. If the last one is 0, the hidden dimensions may differ.
        optimizer: a Keras optimizer; by default the student's, with a warm-up over a twentieth of the steps and a
            linear decay.
        seed: int, seed for the order of the texts and for the masks.
        callbacks: Keras callbacks for training.
        verbose: verbosity of `keras.Model.fit`.
        **kwargs: arguments of `keras.Model.compile`, such as `jit_compile`.

    Returns:
        The training history: the total loss and the accuracy on masked tokens.

    Raises:
        TypeError: if a model is not a `MaskedLM`.
        ValueError: if the vocabularies differ, the hidden dimensions differ and the cosine loss has a weight, or a
            number is out of range.

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
    soft, hard, cosine = _check_arguments(student, teacher, temperature, weights)
    inputs: Features = student.input
    positions = inputs["mask_positions"]
    # For a student without segment ids, the teacher reads all tokens as the first segment.
    teacher_inputs = {name: inputs.get(name, ops.zeros_like(inputs["token_ids"])) for name in teacher.input}
    logits, vectors = _predict(student, inputs)  # (B, M, V), (B, T, H)
    frozen_teacher = teacher.copy_with(dropout=0.0)
    frozen_teacher = keras.Model(frozen_teacher.input, _predict(frozen_teacher, frozen_teacher.input), name="teacher")
    frozen_teacher.trainable = False  # set last, so that Keras passes it on to all layers
    teacher_logits, teacher_vectors = frozen_teacher(teacher_inputs)  # (B, M, V), (B, T, H)
    loss_layer = DistillationLoss(temperature, soft, cosine, dtype="float32", name="distillation_loss")
    outputs = loss_layer(logits, teacher_logits, vectors, teacher_vectors, positions, inputs["padding_mask"])
    batches = student.training_batches(texts, batch_size=batch_size, seed=seed)
    epoch_callback = keras.callbacks.LambdaCallback(on_epoch_begin=batches.begin_epoch)
    # Keras would warn that these variables get no gradient.
    frozen_variables = [(variable, "trainable", False) for variable in student.unused_variables]
    with temporary_attributes(frozen_variables):
        model = SeveralDevicesModel(inputs, outputs)
        model.dtype_policy = student.dtype_policy  # for float16, so that Keras scales the loss
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
            optimizer.start_schedule(round(steps * _WARMUP_FRACTION), steps)
        callbacks = [StopOnDivergence(), epoch_callback, *callbacks]
        history = model.fit(keras_input(batches), epochs=epochs, callbacks=callbacks, verbose=verbose, shuffle=False)
    student.forget_compiled()
    return history


def _predict(task: Any, inputs: Features) -> tuple[Tensor, Tensor]:
    """Return the logits of masked tokens, float (B, M, V), and the hidden states of all tokens, float (B, T, H)."""
    features = {name: inputs[name] for name in task.backbone.input}
    outputs = task.backbone(features)
    vectors, bias = task.head(task.backbone.masked_vectors_at(features, inputs["mask_positions"], outputs))
    return task.backbone(features, vectors=vectors, bias=bias), outputs["sequence_output"]


def _check_arguments(
    student: Any, teacher: Any, temperature: float, weights: Sequence[float]
) -> tuple[float, float, float]:
    """Check the arguments of `distill`, and return the weights of the three loss terms."""
    for name, task in (("student", student), ("teacher", teacher)):
        if getattr(task, "head_kind", None) != "masked_lm":
            raise TypeError(f"`{name}` must be a `lmzoo.models.MaskedLM`, got {type(task).__name__}.")
    vocabularies = [task.text_preprocessor.tokenizer.vocabulary for task in (student, teacher)]
    if list(vocabularies[0]) != list(vocabularies[1]):
        first_difference = next(i for i, pair in enumerate(zip_longest(*vocabularies)) if pair[0] != pair[1])
        tokens = " and ".join(
            repr(v[first_difference]) if first_difference < len(v) else "nothing" for v in vocabularies
        )
        raise ValueError(
            f"Student and teacher must have the same vocabulary; at id {first_difference} they have {tokens}."
        )
    require(is_number(temperature, 0) and temperature > 0, "temperature", "a number above 0", temperature)
    is_valid = len(weights) == 3 and all(is_number(weight, 0) for weight in weights) and any(weights)
    require(is_valid, "weights", "three numbers of at least 0, not all 0", weights)
    widths = [task.backbone.config.hidden_dim for task in (student, teacher)]
    if weights[2] and widths[0] != widths[1]:
        raise ValueError(
            f"The vectors of student and teacher have {widths[0]} and {widths[1]} dimensions: only vectors of the same "
            "width can be compared. Pass `weights` whose last one is 0."
        )
    soft, hard, cosine = map(float, weights)
    return soft, hard, cosine
