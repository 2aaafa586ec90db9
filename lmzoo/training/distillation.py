"""Knowledge distillation: training a small task on the predictions of a larger one.

The method is from Hinton et al. (2015), https://arxiv.org/abs/1503.02531, and for masked language models from
DistilBERT (Sanh et al., 2019), https://arxiv.org/abs/1910.01108.

Letters in shapes: B sequences, T tokens, M masked tokens, V vocabulary size or number of classes, H hidden dimension.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.normalization import unit_vectors
from lmzoo.layers.sublayers import get_stored_weights
from lmzoo.layers.temporary import set_temporary_attributes
from lmzoo.parallel.several_devices import SeveralDevicesModel
from lmzoo.text.batching import LengthBatches, fit_buckets
from lmzoo.text.keras_input import keras_input
from lmzoo.text.packing import Encoded
from lmzoo.text.segments import clean_single_texts
from lmzoo.training.compiled_functions import prepare_optimizer
from lmzoo.training.divergence import StopOnDivergence
from lmzoo.training.optimizers import AdamW
from lmzoo.training.training_run import count_updates, inner_optimizer, start_schedule

_WARMUP_FRACTION = 0.05  # of the steps
_TEACHER_PREFIX = "teacher_"  # of the names of the teacher's inputs, if the teacher has inputs of its own

MakeBatch: TypeAlias = Callable[[np.ndarray, int, np.random.Generator], tuple[Any, ...]]


@keras.saving.register_keras_serializable(package="lmzoo")
class DistillationLoss(ConfiguredLayer):
    """Layer that adds the distillation losses between a student and a teacher.

    The soft loss is the mean over predictions of τ² · KL(softmax(t / τ) ‖ softmax(s / τ)), for student logits s and
    teacher logits t (Hinton et al., 2015). The cosine loss is the mean over real tokens of 1 − the cosine of both
    models' hidden states, where a vector of zeros has the cosine 0 with every vector. If padded embeddings give one
    model more logits than the other, the extra logits are ignored.

    Args:
        temperature: float, temperature τ of the soft loss.
        soft: float, weight of the soft loss; 0 disables it.
        cosine: float, weight of the cosine loss; 0 disables it.
        multi_label: bool, whether classes are independent: the soft loss then compares the sigmoid of each class.

    Call arguments: `logits` and `teacher_logits`, float (B, M, V); `vectors` and `teacher_vectors`, the hidden states,
    float (B, T, H); `positions` int (B, M), positive for predictions that count, such as the positions of the masked
    tokens; `padding_mask` (B, T). Any other leading dimensions may take the place of (B, M) and of (B, T). With
    `multi_label`, `positions` has the shape of the logits. Returns the student's logits.

    Example: see `distill`.
    """

    def __init__(
        self,
        temperature: float = 2.0,
        soft: float = 5.0,
        cosine: float = 1.0,
        multi_label: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.temperature = temperature
        self.soft = soft
        self.cosine = cosine
        self.multi_label = multi_label

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
        if self.soft:
            is_counted = ops.cast(positions > 0, "float32")  # (B, M); the first token is never masked
            divergence = self._compute_divergence(logits, ops.stop_gradient(teacher_logits))  # (B, M)
            self.add_loss(self.soft * self.temperature**2 * _compute_weighted_mean(divergence, is_counted))
        if self.cosine:
            student_units = unit_vectors(vectors)  # (B, T, H)
            teacher_units = unit_vectors(ops.stop_gradient(teacher_vectors))  # (B, T, H)
            distance = 1 - ops.sum(student_units * teacher_units, axis=-1)  # (B, T)
            self.add_loss(self.cosine * _compute_weighted_mean(distance, ops.cast(padding_mask, "float32")))
        return logits

    def _compute_divergence(self, logits: Tensor, teacher_logits: Tensor) -> Tensor:
        """Return KL(teacher ‖ student) of softened probabilities, float32 (B, M), or (B, V) if multi-label."""
        num_shared = min(logits.shape[-1], teacher_logits.shape[-1])
        scaled_logits = [ops.cast(x[..., :num_shared], "float32") / self.temperature for x in (logits, teacher_logits)]
        if self.multi_label:  # sigmoid(x) is the softmax of x and 0
            scaled_logits = [ops.stack([x, ops.zeros_like(x)], axis=-1) for x in scaled_logits]  # (B, V, 2)
        student_log_probs, teacher_log_probs = (ops.log_softmax(x) for x in scaled_logits)
        return ops.sum(ops.exp(teacher_log_probs) * (teacher_log_probs - student_log_probs), axis=-1)

    def compute_output_spec(self, logits: Tensor, *args: Tensor) -> keras.KerasTensor:
        """Return the spec of the student's logits, float (B, M, V)."""
        return keras.KerasTensor(logits.shape, logits.dtype)


def _compute_weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    return ops.sum(values * weights) / ops.maximum(ops.sum(weights), 1.0)


def smaller(teacher: Any, num_layers: int | None = None) -> Any:
    """Make a student from a task by copying some of its backbone's layers.

    Args:
        teacher: `lmzoo.models.MaskedLM` or another task, the model to copy.
        num_layers: int, number of layers of the student; by default half as many as the teacher has. Evenly
            spaced layers are copied: for half as many, every second layer, starting with the first. In an
            encoder-decoder, these are layers of the encoder; the decoder keeps all of its layers.

    Returns:
        A task of the same class, family and width, with copies of the teacher's weights.

    Raises:
        TypeError: If no layers of the teacher's backbone can be left out, as with ELMo and word vectors.
        ValueError: If `num_layers` is below 1 or above the number of the teacher's layers.

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
    # ELMo's mix has a weight for each layer.
    if "num_layers" not in config or teacher.backbone.scalar_mix is not None:
        raise TypeError(
            "`teacher` must be a task whose backbone can have fewer layers, such as BERT, got a task on "
            f"{type(teacher.backbone).__name__}."
        )
    teacher_layers = config["num_layers"]
    student_layers = max(1, teacher_layers // 2) if num_layers is None else num_layers
    require(
        is_integer(student_layers, 1, teacher_layers),
        "num_layers",
        f"an integer from 1 to {teacher_layers}",
        student_layers,
    )
    backbone = type(teacher.backbone)(**{**config, "num_layers": student_layers, "fine_tuning": None})
    changed_arguments = {"backbone": backbone, "preprocessor": teacher.preprocessor, "name": None}
    student = type(teacher)(**{**teacher.get_config(), **changed_arguments})
    teacher_weights = {_strip_model_names(path, teacher): value for path, value in get_stored_weights(teacher)}
    for weight in student.weights:
        path = _strip_model_names(weight.path, student)
        # The pattern matches neither ALBERT's groups, which layers share, nor decoders: the student has all of them.
        path = re.sub(
            r"\b(block|encoder_block|recurrent)_(\d+)",
            lambda match: f"{match[1]}_{int(match[2]) * teacher_layers // student_layers}",
            path,
        )
        weight.assign(ops.convert_to_numpy(teacher_weights[path]))
    return student


def _strip_model_names(path: str, model: keras.Model) -> str:
    """Return the path of a weight without model names, which Keras may number."""
    names = {model.name, model.backbone.name}
    return "/".join(part for part in path.split("/") if part not in names)


class ComparedOutputs(NamedTuple):
    """Symbolic outputs of a task that distillation compares between student and teacher.

    Attributes:
        logits: float (B, M, V), or with any other leading dimensions; the predictions.
        counted: (B, M), positive for predictions that count.
        vectors: float (B, T, H), or with any other leading dimensions; the hidden states, or the vectors of texts.
        padding_mask: (B, T), 1 for vectors that count, 0 for padding.
    """

    logits: Tensor
    counted: Tensor
    vectors: Tensor
    padding_mask: Tensor


class DistillationSettings(NamedTuple):
    """Settings of `distill` for a class of tasks.

    Attributes:
        weights: default weights of the soft loss, the loss on labels and the cosine loss. None as the last weight means
            1 if the vectors can be compared, else 0.
        per_token: bool, whether predictions are for tokens, so that student and teacher need the same vocabulary.
        takes_labels: bool, whether `distill` takes labels.
        makes_labels: bool, whether training batches have labels that are made from the texts.
        compares_predictions: bool, whether the task has predictions to compare; if not, only vectors of single texts
            are compared.
    """

    weights: tuple[float, float, float | None] = (1.0, 1.0, None)
    per_token: bool = False
    takes_labels: bool = True
    makes_labels: bool = False
    compares_predictions: bool = True


def distill(
    student: Any,
    teacher: Any,
    texts: Any,
    y: Any = None,
    epochs: int = 1,
    batch_size: int = 32,
    temperature: float = 2.0,
    weights: Sequence[float] | None = None,
    optimizer: Any = None,
    seed: int = 0,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: bool | int | str = "auto",
    **kwargs: Any,
) -> keras.callbacks.History:
    """Train a small task on a larger task's predictions for texts, with or without labels.

    The loss is a weighted sum of three terms: the divergence from the teacher's predictions, softened by a temperature
    (Hinton et al., 2015); the task's own loss on labels, for a `MaskedLM` on the masked tokens; and the cosine distance
    between the hidden states of both models at all tokens, as for DistilBERT (Sanh et al., 2019). A `MaskedLM` compares
    predictions for masked tokens, a `TokenClassifier` predictions for all tokens. A `TextEmbedder` has the third term
    only, for the vectors of texts. The teacher is left unchanged, and runs without dropout.

    A `MaskedLM` and a `TokenClassifier` need a teacher with the same vocabulary. For other tasks, student and teacher
    may have different tokenizers; hidden states are then not compared.

    Args:
        student: task to train, `lmzoo.models.MaskedLM`, `TextClassifier`, `TokenClassifier` or `TextEmbedder`, for
            example from `smaller`.
        teacher: task of the same class with the same labels.
        texts: list of texts, or other inputs of the student's `predict`, except tables and datasets. A `TextEmbedder`
            takes single texts.
        y: labels of a classifier's texts, as for its `fit`, or None.
        epochs: int, number of passes over the texts.
        batch_size: int, number of texts in a batch.
        temperature: float above 0, divisor of the logits in the divergence.
        weights: three floats, weights of the loss terms. By default 5, 2 and 1 for a `MaskedLM`, and 1 for each term of
            another task; but for classifiers the third term is left out unless both models have the same tokens and
            hidden dimensions.
        optimizer: a Keras optimizer or its name; by default the student's. The schedule of `AdamW` is a warm-up over a
            twentieth of the steps and a linear decay, unless its `learning_rate` is a schedule or a callback sets it.
        seed: int, seed for the order of the texts and for the masks.
        callbacks: Keras callbacks for training, except `ResumableCheckpoint` and `GradualUnfreezing`.
        verbose: verbosity of `keras.Model.fit`.
        **kwargs: arguments of `keras.Model.compile`, such as `jit_compile`.

    Returns:
        The training history: the total loss and, with labels, the student's metrics.

    Raises:
        TypeError: If the models are not tasks of the same class, their class cannot be distilled, or an entry is not
            text.
        ValueError: If the tasks have different labels or, for a `MaskedLM` or a `TokenClassifier`, different
            vocabularies; if `weights` includes a term that the task does not have, or vectors that cannot be compared;
            if a task reads long texts in windows; if a number is out of range; if `y` is passed to a task that takes no
            labels, or pairs to a task that takes single texts; or if encoded texts are passed but the teacher has its
            own tokens.
        NotFiniteError: If training diverges.

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
    settings = _check_tasks(student, teacher, y)
    require(is_number(temperature, 0) and temperature > 0, "temperature", "a number above 0", temperature)
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        require(is_integer(value, 1), name, "an integer of at least 1", value)
    same_tokens = settings.per_token or _have_same_tokens(student, teacher)
    texts = _check_texts(student, texts, same_tokens)
    learns_labels = y is not None or settings.makes_labels
    outputs: ComparedOutputs = student.compared_outputs()
    frozen_teacher = _FrozenTeacher(teacher)
    teacher_vectors = frozen_teacher.model.output["vectors"]
    _check_weights(weights, settings, learns_labels)
    soft_weight, label_weight, cosine_weight = _choose_weights(
        weights, settings, outputs.vectors, teacher_vectors, same_tokens
    )
    batches = _make_training_batches(student, texts, y, batch_size, seed)
    inputs: Features = dict(student.input)
    if same_tokens:
        # For a student without segment ids, the teacher reads all tokens as the first segment.
        teacher_inputs = {
            name: inputs[name] if name in inputs else ops.zeros_like(inputs["token_ids"]) for name in teacher.input
        }
    else:
        batches.make_batch = _add_teacher_features(batches.make_batch, teacher, texts)
        teacher_inputs = {name: _copy_input(x, _TEACHER_PREFIX + name) for name, x in teacher.input.items()}
        inputs.update({_TEACHER_PREFIX + name: x for name, x in teacher_inputs.items()})
    teacher_outputs = ComparedOutputs(**frozen_teacher(teacher_inputs))
    multi_label = bool(student.multi_label)
    loss_layer = DistillationLoss(
        temperature, soft_weight, cosine_weight, multi_label, dtype="float32", name="distillation_loss"
    )
    logits = loss_layer(
        outputs.logits,
        teacher_outputs.logits,
        outputs.vectors,
        teacher_outputs.vectors,
        outputs.counted,
        outputs.padding_mask,
    )
    # Keras would warn that these variables get no gradient.
    frozen_variables = [(variable, "trainable", False) for variable in student.unused_variables]
    with set_temporary_attributes(frozen_variables):
        model = SeveralDevicesModel(inputs, logits)
        model.dtype_policy = student.dtype_policy  # for float16, so that Keras scales the loss
        model.compile(
            optimizer=student.default_optimizer() if optimizer is None else optimizer,
            loss=student.default_loss() if learns_labels else None,
            loss_weights=[label_weight] if learns_labels else None,
            weighted_metrics=student.default_metrics() if learns_labels else None,
            **kwargs,
        )
        for backbone in (student.backbone, frozen_teacher.backbone):
            backbone.set_compiled_by_xla(model.jit_compile)
        _prepare_optimizer(student, model, epochs * batches.num_batches, callbacks)
        epoch_callback = keras.callbacks.LambdaCallback(on_epoch_begin=batches.begin_epoch)
        callbacks = [StopOnDivergence(), epoch_callback, *callbacks]
        history = model.fit(keras_input(batches), epochs=epochs, callbacks=callbacks, verbose=verbose, shuffle=False)
    student.forget_compiled()
    return history


def _prepare_optimizer(
    student: Any, model: keras.Model, num_batches: int, callbacks: Sequence[keras.callbacks.Callback]
) -> None:
    """Create the optimizer's state, and start its built-in schedule for a training run of `num_batches` batches."""
    optimizer = inner_optimizer(model.optimizer)
    prepare_optimizer(optimizer, student)
    optimizer.build(model.trainable_variables)
    if isinstance(optimizer, AdamW):
        num_updates, _ = count_updates(optimizer, num_batches)
        start_schedule(optimizer, callbacks, round(num_updates * _WARMUP_FRACTION), num_updates)


class _FrozenTeacher(keras.Model):
    """Model that returns the `ComparedOutputs` of a copy of the teacher as a dict, without dropout."""

    def __init__(self, teacher: Any) -> None:
        super().__init__(name="teacher", trainable=False)
        teacher_copy = teacher.copy_with()
        self.backbone = teacher_copy.backbone
        self.model = keras.Model(teacher_copy.input, teacher_copy.compared_outputs()._asdict())
        self.model.trainable = False  # set last, so that Keras passes it on to all layers

    def call(self, inputs: Features) -> Features:
        """Return the outputs for features of the teacher's tokens."""
        # A functional model would pass the mode of training on to its layers.
        return self.model(inputs, training=False)

    def compute_output_spec(self, inputs: Features) -> Features:
        """Return the specs of the outputs, which JAX cannot infer for ELMo's characters."""
        return {name: keras.KerasTensor(output.shape, output.dtype) for name, output in self.model.output.items()}


def _copy_input(tensor: keras.KerasTensor, name: str) -> keras.KerasTensor:
    """Return a new symbolic input with the shape and dtype of `tensor`."""
    return keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=name)


def _make_training_batches(student: Any, texts: Any, y: Any, batch_size: int, seed: int) -> Any:
    """Return shuffled batches of the student's features, with labels if there are any."""
    if y is not None or student.distillation.makes_labels:
        return student.training_batches(texts, y, batch_size=batch_size, seed=seed)
    encoded_texts = student.encode_inputs(texts)
    buckets = fit_buckets(encoded_texts.lengths, student.text_preprocessor.sequence_length, batch_size=batch_size)

    def make_batch(indices: np.ndarray, width: int, rng: np.random.Generator) -> tuple[dict[str, np.ndarray]]:
        return (student.select_inputs(student.features(encoded_texts, indices, width)),)

    return LengthBatches(encoded_texts.lengths, make_batch, batch_size, buckets, "shuffle", (seed,))


def _add_teacher_features(make_batch: MakeBatch, teacher: Any, texts: Any) -> MakeBatch:
    """Return a function that adds the features of the teacher's own tokens to the student's batches."""
    encoded_texts = teacher.encode_inputs(texts)
    buckets = np.array(fit_buckets(encoded_texts.lengths, teacher.text_preprocessor.sequence_length))

    def make_joined_batch(indices: np.ndarray, width: int, rng: np.random.Generator) -> tuple[Any, ...]:
        features, *labels = make_batch(indices, width, rng)
        teacher_width = int(buckets[np.searchsorted(buckets, encoded_texts.lengths[indices].max())])
        teacher_features = teacher.select_inputs(teacher.features(encoded_texts, indices, teacher_width))
        return {**features, **{_TEACHER_PREFIX + name: values for name, values in teacher_features.items()}}, *labels

    return make_joined_batch


def _have_same_tokens(student: Any, teacher: Any) -> bool:
    """Return whether both tasks turn every text, with its default prompt, into the same tokens."""
    text_settings = []
    for task in (student, teacher):
        preprocessor = task.text_preprocessor
        tokenizer = preprocessor.tokenizer
        prompt = task.prompt_text() if hasattr(task, "prompt_text") else ""  # of a `TextEmbedder`
        text_settings.append(
            (type(tokenizer), tokenizer.get_config(), preprocessor.packing, preprocessor.sequence_length, prompt)
        )
    return text_settings[0] == text_settings[1] and not _describe_first_difference(student, teacher)


def _check_tasks(student: Any, teacher: Any, y: Any) -> DistillationSettings:
    """Check that the tasks can be compared, and return the settings of their class.

    Raises:
        TypeError: If the student cannot be distilled, or the teacher is a task of another class.
        ValueError: If they share weights, if their class names or `multi_label` differ, if a task reads long texts in
            windows, if tasks that predict tokens have different vocabularies, or if `y` is passed to tasks that take no
            labels.
    """
    settings: DistillationSettings | None = getattr(student, "distillation", None)
    if settings is None:
        raise TypeError(f"`student` must be a task with logits or vectors to compare, got {type(student).__name__}.")
    if getattr(teacher, "head_kind", None) != student.head_kind:
        raise TypeError(f"`teacher` must be a `lmzoo.models.{type(student).__name__}`, got {type(teacher).__name__}.")
    if {id(weight) for weight in student.weights} & {id(weight) for weight in teacher.weights}:
        raise ValueError(
            "Student and teacher share weights, so the training would change the teacher. Make the student with "
            "`lmzoo.training.smaller`, or load it on its own."
        )
    for name in ("class_names", "multi_label"):
        values = [getattr(task, name) for task in (student, teacher)]
        if values[0] != values[1]:
            raise ValueError(f"Student and teacher must have the same `{name}`, got {values[0]} and {values[1]}.")
    for name, task in (("student", student), ("teacher", teacher)):
        advice = "Texts are truncated here; set it again afterwards."
        require(task.windows is None, f"{name}.windows", "None", task.windows, advice)
    if settings.per_token and (difference := _describe_first_difference(student, teacher)):
        raise ValueError(f"Student and teacher must have the same vocabulary; {difference}.")
    if y is not None and not settings.takes_labels:
        raise ValueError(f"A {type(student).__name__} is distilled from texts alone: leave out `y`.")
    return settings


def _describe_first_difference(student: Any, teacher: Any) -> str:
    """Return a description of the first difference between the tasks' vocabularies, or "" if they are equal."""
    vocabularies = [task.text_preprocessor.tokenizer.vocabulary for task in (student, teacher)]
    if list(vocabularies[0]) == list(vocabularies[1]):
        return ""
    first_different_id = next(i for i, pair in enumerate(zip_longest(*vocabularies)) if pair[0] != pair[1])
    tokens = " and ".join(
        repr(v[first_different_id]) if first_different_id < len(v) else "nothing" for v in vocabularies
    )
    return f"at id {first_different_id} they have {tokens}"


def _check_texts(student: Any, texts: Any, same_tokens: bool) -> Any:
    """Check encoded and single texts, and return all texts in a form that allows several iterations.

    Args:
        student: the task to train.
        texts: texts, pairs or encoded texts.
        same_tokens: whether the teacher reads the student's tokens.

    Raises:
        TypeError: If the student takes only single texts, and an entry is not text.
        ValueError: If the student takes only single texts, and an entry is a pair; or if the teacher has its own
            tokens, and the texts are encoded.
    """
    if isinstance(texts, Encoded):
        advice = "Student and teacher have different tokens or prompts: pass the texts themselves."
        require(same_tokens, "texts", "texts that are not encoded", type(texts).__name__, advice)
        return texts
    if not student.distillation.compares_predictions:
        return clean_single_texts("texts", texts, student.text_preprocessor.tokenizer.takes_words)
    if isinstance(texts, tuple):
        return tuple([*column] if isinstance(column, Iterator) else column for column in texts)
    return [*texts] if isinstance(texts, Iterator) else texts


def _check_weights(weights: Sequence[float] | None, settings: DistillationSettings, learns_labels: bool) -> None:
    """Check the weights that were passed for the three loss terms.

    Raises:
        ValueError: If `weights` are not three numbers, one is negative, or all are 0; if the soft loss or the loss on
            labels has a weight, but the task compares only vectors; or if only the loss on labels has a weight, but
            there are no labels.
    """
    if weights is None:
        return
    is_valid = len(weights) == 3 and all(is_number(weight, 0) for weight in weights) and any(weights)
    require(is_valid, "weights", "three numbers of at least 0, not all 0", weights)
    soft_weight, label_weight, cosine_weight = weights
    has_terms = settings.compares_predictions or not (soft_weight or label_weight)
    require(has_terms, "weights", "(0, 0, 1) for a task that compares only vectors", weights)
    has_loss = learns_labels or soft_weight or cosine_weight
    require(has_loss, "weights", "above 0 for a term other than labels", weights, "Or pass labels, `y`.")


def _choose_weights(
    weights: Sequence[float] | None,
    settings: DistillationSettings,
    vectors: Tensor,
    teacher_vectors: Tensor,
    same_tokens: bool,
) -> tuple[float, float, float]:
    """Return the weights of the soft loss, the loss on labels and the cosine loss.

    Args:
        weights: weights of these losses; None for the defaults in `settings`.
        settings: settings of the task's class.
        vectors: hidden states or text vectors of the student.
        teacher_vectors: hidden states or text vectors of the teacher.
        same_tokens: bool, whether both models read the same tokens.

    Raises:
        ValueError: If the cosine loss has a weight, but the vectors of student and teacher cannot be compared.
    """
    widths = (vectors.shape[-1], teacher_vectors.shape[-1])
    are_text_vectors = len(vectors.shape) == 2
    soft_weight, label_weight, cosine_weight = settings.weights if weights is None else map(float, weights)
    if cosine_weight is None:
        cosine_weight = float(widths[0] == widths[1] and (same_tokens or are_text_vectors))
    advice = "Add a `projection` to the student" if are_text_vectors else "Pass `weights` whose last one is 0"
    if cosine_weight and widths[0] != widths[1]:
        raise ValueError(
            f"The vectors of student and teacher have {widths[0]} and {widths[1]} dimensions: only vectors of the same "
            f"width can be compared. {advice}."
        )
    if cosine_weight and not (same_tokens or are_text_vectors):
        raise ValueError(f"Student and teacher have different tokens, whose vectors cannot be compared. {advice}.")
    return soft_weight, label_weight, cosine_weight
