"""Distillation: its losses against numpy, students with some of a teacher's layers, training, errors."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers.character_encoder import CharacterEncoder
from lmzoo.layers.sublayers import sublayers
from lmzoo.models import CausalLM, MaskedLM, Seq2SeqLM, TextClassifier, TextEmbedder, TextRegressor, TokenClassifier
from lmzoo.parallel.several_devices import SeveralDevicesModel
from lmzoo.registry.family import families
from lmzoo.testing import randomize, tiny_task, tiny_texts
from lmzoo.testing.tiny import tiny_backbone
from lmzoo.text.probabilities import log_softmax
from lmzoo.training import AdamW, DistillationLoss, GradualUnfreezing, ResumableCheckpoint, distill, smaller
from tests.pretraining.conftest import assert_same_weights

to_numpy = keras.ops.convert_to_numpy


def draw_weights(task):
    """Draw weights that are the same on every backend, unlike initial ones."""
    rng = np.random.default_rng(5)
    for weight in task.weights:
        weight.assign(rng.normal(1 if weight.path.endswith("gamma") else 0, 0.25, weight.shape))


def divergences(logits, teacher_logits):
    """Return the Kullback-Leibler divergences from the teacher's distributions to the student's."""
    log_probabilities, expected = (log_softmax(x) for x in (logits, teacher_logits))
    return (np.exp(expected) * (expected - log_probabilities)).sum(axis=-1)


def cosines(vectors, teacher_vectors):
    norms = np.linalg.norm(vectors, axis=-1) * np.linalg.norm(teacher_vectors, axis=-1)
    return (vectors * teacher_vectors).sum(axis=-1) / norms


@pytest.fixture
def teacher():
    task = tiny_task(MaskedLM, families()["bert"])
    draw_weights(task)
    return task


def test_the_layer_has_the_losses_of_the_formulas():
    rng = np.random.default_rng(2)
    logits, teacher_logits = rng.normal(size=(2, 3, 5, 7))  # (B, M, V) each
    vectors, teacher_vectors = rng.normal(size=(2, 3, 11, 13))  # (B, T, H) each
    positions = np.array([[1, 4, 0, 0, 0], [2, 3, 7, 8, 9], [0, 0, 0, 0, 0]])
    mask = (np.arange(11) < np.array([[5], [11], [2]])).astype("int32")
    layer = DistillationLoss(temperature=3.0, soft=0.7, cosine=1.9)
    outputs = layer(logits, teacher_logits, vectors, teacher_vectors, positions, mask)
    np.testing.assert_allclose(to_numpy(outputs), logits, rtol=1e-6)
    divergence = divergences(logits / 3, teacher_logits / 3)[positions > 0].mean()
    distance = (1 - cosines(vectors, teacher_vectors))[mask > 0].mean()
    expected = [0.7 * 9 * divergence, 1.9 * distance]
    np.testing.assert_allclose([float(loss) for loss in layer.losses], expected, rtol=1e-4)
    assert DistillationLoss.from_config(layer.get_config()).get_config() == layer.get_config()


@pytest.mark.slow
def test_students_may_have_more_embeddings_than_tokens(teacher):
    """Some checkpoints have them."""
    config = {**teacher.backbone.get_config(), "vocabulary_size": teacher.backbone.vocabulary_size + 5, "name": None}
    student = MaskedLM(type(teacher.backbone)(**config), teacher.preprocessor)
    history = distill(student, teacher, tiny_texts(5), batch_size=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    rng = np.random.default_rng(3)
    logits, teacher_logits = rng.normal(size=(2, 3, 5, 7))
    arguments = rng.normal(size=(2, 3, 2, 13)), np.ones((3, 5)), np.ones((3, 2))
    layer, padded = (DistillationLoss(cosine=0.0) for _ in range(2))
    layer(logits, teacher_logits, *arguments[0], *arguments[1:])
    padded(np.pad(logits, ((0, 0), (0, 0), (0, 4))), teacher_logits, *arguments[0], *arguments[1:])
    assert float(padded.losses[0]) == pytest.approx(float(layer.losses[0]), rel=1e-6)


@pytest.mark.parametrize(
    ("cls", "family", "texts"),
    [
        (TextClassifier, "elmo", ["good film", "the plot was a very good film"]),  # zeros at padding
        (TextEmbedder, "static_words", ["", "good film"]),
    ],
)
def test_vectors_of_zeros_leave_the_weights_finite(cls, family, texts, eager):
    student, teacher = (tiny_task(cls, families()[family]) for _ in range(2))
    randomize(student)
    distill(student, teacher, texts, batch_size=2, optimizer=keras.optimizers.SGD(0.1), verbose=0, run_eagerly=True)
    for weight in student.weights:
        assert np.isfinite(to_numpy(weight)).all(), weight.path


@pytest.mark.tf_only
def test_the_teacher_is_compiled_like_the_student(eager, monkeypatch):
    """XLA cannot compile the search for equal words."""
    settings = []

    def fit(model, *args, **kwargs):
        settings.extend(layer.dedupe for layer in sublayers(model) if isinstance(layer, CharacterEncoder))

    monkeypatch.setattr(SeveralDevicesModel, "fit", fit)
    student, teacher = (tiny_task(TextClassifier, families()["elmo"]) for _ in range(2))
    distill(student, teacher, ["good film"], verbose=0, jit_compile=True)
    assert len(settings) >= 2  # of the student and of the teacher
    assert not any(settings)


@pytest.mark.parametrize(("count", "chosen"), [(None, [0]), (2, [0, 1])])
def test_a_student_has_some_of_the_layers(teacher, count, chosen):
    student = smaller(teacher, count)
    assert student.backbone.num_layers == len(chosen)
    for block, k in zip(student.backbone.blocks, chosen, strict=True):
        assert_same_weights(block, teacher.backbone.blocks[k])
    assert_same_weights(student.head, teacher.head)
    assert student.masking == teacher.masking


@pytest.mark.parametrize(
    ("family", "task_class", "layers"), [("t5", Seq2SeqLM, "encoder_block"), ("lstm_lm", CausalLM, "recurrent")]
)
def test_encoders_with_decoders_and_recurrent_models_have_evenly_spaced_layers(family, task_class, layers):
    teacher = task_class(tiny_backbone(families()[family], num_layers=5))
    expected = {weight.path: to_numpy(weight) for weight in teacher.backbone.weights}
    for weight in smaller(teacher, 2).backbone.weights:
        np.testing.assert_array_equal(to_numpy(weight), expected[weight.path.replace(f"{layers}_1", f"{layers}_2")])


def test_students_have_no_frozen_layers(teacher):
    """A copy with other arguments keeps them frozen."""
    frozen = teacher.copy_with(dropout=0.0)
    frozen.backbone.embeddings.trainable = False
    copy = frozen.copy_with(dropout=0.1)
    assert not copy.backbone.embeddings.trainable
    assert len(copy.trainable_weights) == len(frozen.trainable_weights) < len(teacher.trainable_weights)
    student = smaller(frozen, 1)
    assert len(student.non_trainable_weights) == len(teacher.non_trainable_weights)


@pytest.mark.slow
def test_students_and_copies_have_loras_updates(teacher):
    teacher.backbone.enable_lora(2)
    randomize(teacher)
    texts = [f"{teacher.preprocessor.tokenizer.mask_token} {text}" for text in tiny_texts(3)]
    expected = teacher.predict(texts, verbose=0)
    for copy in (smaller(teacher, teacher.backbone.num_layers), teacher.copy_with(dropout=0.1)):
        np.testing.assert_allclose(copy.predict(texts, verbose=0), expected, rtol=1e-4, atol=1e-5)
        assert copy.backbone.lora_rank is None


def test_a_student_of_albert_repeats_its_blocks_less_often():
    teacher = tiny_task(MaskedLM, families()["albert"])
    student = smaller(teacher, 2)
    assert (student.backbone.num_layers, teacher.backbone.num_layers) == (2, 4)
    assert_same_weights(student, teacher)


@pytest.mark.slow
def test_float16_scales_the_loss(teacher, eager):
    student, callback = smaller(teacher.copy_with(dtype="mixed_float16"), 1), keras.callbacks.Callback()
    distill(student, teacher, tiny_texts(3), callbacks=[callback], verbose=0)
    assert isinstance(callback.model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert np.isfinite([float(np.abs(to_numpy(weight)).max()) for weight in student.weights]).all()


@pytest.mark.slow
def test_the_schedule_counts_updates(teacher, eager):
    optimizer = AdamW(0.1, gradient_accumulation_steps=4)
    distill(smaller(teacher, 1), teacher, tiny_texts(7), epochs=4, batch_size=1, optimizer=optimizer, verbose=0)
    assert to_numpy(optimizer.iterations) == 7
    assert to_numpy(optimizer._schedule).tolist()[1:] == [0, 7]  # warm-up and all updates


@pytest.mark.parametrize(
    ("rate", "callbacks", "schedule"),
    [
        (0.1, [], [0, 1, 23]),  # [first step, warm-up, total]
        (0.1, [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)], [0, 0, 0]),
        (0.1, [keras.callbacks.ReduceLROnPlateau(monitor="loss")], [0, 1, 0]),
        (keras.optimizers.schedules.CosineDecay(0.1, 7), [], [0, 0, 0]),
    ],
    ids=["alone", "scheduler", "plateau", "schedule"],
)
def test_the_schedule_leaves_the_rate_to_others(rate, callbacks, schedule, eager):
    student, teacher = (tiny_task(TextEmbedder, families()["static_words"]) for _ in range(2))
    settings = {"batch_size": 1, "callbacks": callbacks, "verbose": 0, "run_eagerly": True}
    optimizer = AdamW(rate)
    distill(student, teacher, tiny_texts(23), optimizer=optimizer, **settings)
    assert to_numpy(optimizer._schedule).tolist() == schedule


def test_optimizers_may_have_a_name_or_rates_by_layer(eager):
    teacher = make_teacher("embedder")
    for optimizer, trains_embeddings in (("adam", True), (AdamW(0.1, layer_decay=1e-9), False)):
        student = smaller(teacher, 1)
        distill(student, teacher, tiny_texts(3), batch_size=3, optimizer=optimizer, verbose=0, run_eagerly=True)
        block, table = student.backbone.blocks[0], student.backbone.embeddings
        expected = teacher.backbone.blocks[0], teacher.backbone.embeddings
        changes = [largest_change(*pair) for pair in zip((block, table), expected, strict=True)]
        assert changes[0] > 1e-4
        assert (changes[1] > 1e-4) == trains_embeddings


def largest_change(layer, original):
    pairs = zip(layer.weights, original.weights, strict=True)
    return max(np.abs(to_numpy(weight) - to_numpy(expected)).max() for weight, expected in pairs)


@pytest.mark.parametrize("make_callback", [ResumableCheckpoint, lambda folder: GradualUnfreezing()])
def test_callbacks_for_tasks_are_refused(make_callback, tmp_path, eager):
    student, teacher = (tiny_task(TextEmbedder, families()["static_words"]) for _ in range(2))
    callback = make_callback(tmp_path)
    message = f"{type(callback).__name__} needs the `fit` of a task or `fit_together`, .* `fit` of SeveralDevicesModel"
    with pytest.raises(ValueError, match=message):
        distill(student, teacher, tiny_texts(3), callbacks=[callback], verbose=0, run_eagerly=True)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_student_comes_closer_to_its_teacher(teacher, family):
    student = smaller(teacher, 1)
    if family != "bert":  # a student without segments and pooler
        config = {**teacher.backbone.get_config(), "num_layers": 1, "num_segments": 0, "name": None}
        backbone = families()[family].backbone(**config)
        read = teacher.preprocessor
        preprocessor = type(read)(read.tokenizer, families()[family].packing, read.sequence_length)
        student = MaskedLM(backbone, preprocessor)
        draw_weights(student)
    pooler = [to_numpy(v) for v in student.unused_variables]
    before = [to_numpy(weight) for weight in teacher.weights]
    mask = teacher.preprocessor.tokenizer.mask_token
    texts = tiny_texts(24)
    masked_texts = [f"{mask} {text}" for text in tiny_texts(5)]

    def divergence():
        return divergences(student.predict(masked_texts, verbose=0), expected).mean()

    expected = teacher.predict(masked_texts, verbose=0)
    initial = divergence()
    optimizer = keras.optimizers.Adam(0.01)
    history = distill(student, teacher, texts, epochs=16, batch_size=8, optimizer=optimizer, verbose=0).history
    assert divergence() < 0.6 * initial
    assert history["loss"][-1] < history["loss"][0]
    assert "accuracy" in history
    for weight, value in zip(teacher.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)
    for variable, value in zip(student.unused_variables, pooler, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), value)
        assert variable.trainable


@pytest.mark.parametrize("family", ["elmo", "static_words"])
def test_backbones_without_layers_to_leave_out_have_no_smaller_student(family):
    task = tiny_task(TextEmbedder, families()[family])
    with pytest.raises(TypeError, match=f"can have fewer layers, .* got a task on {type(task.backbone).__name__}"):
        smaller(task)


def test_a_student_shares_no_weights_with_its_teacher(eager):
    teacher = tiny_task(TextEmbedder, families()["static_words"])
    student = TextEmbedder(teacher.backbone, teacher.preprocessor, pooling="max")
    for task in (student, teacher):
        with pytest.raises(ValueError, match="Student and teacher share weights, so the training would change"):
            distill(task, teacher, ["a"])


@pytest.mark.slow
def test_wrong_arguments_are_refused(teacher):
    student = smaller(teacher, 1)
    with pytest.raises(TypeError, match=r"`teacher` must be a .*MaskedLM`, got TextClassifier"):
        distill(student, TextClassifier(teacher.backbone, teacher.preprocessor, num_classes=2), ["a"])
    with pytest.raises(ValueError, match=r"must have the same vocabulary; at id \d+ they have '.*' and '.*'"):
        distill(tiny_task(MaskedLM, families()["roberta"]), teacher, ["a"])
    for name, value, message in (
        ("temperature", 0, "a number above 0"),
        ("weights", (1, 2), "three numbers of at least 0, not all 0"),
        ("weights", (0, 0, 0), "three numbers of at least 0, not all 0"),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must be {message}"):
            distill(student, teacher, ["a"], **{name: value})
    with pytest.raises(ValueError, match="`num_layers` must be an integer from 1 to"):
        smaller(teacher, 99)
    config = {**teacher.backbone.get_config(), "hidden_dim": 14, "num_heads": 7, "name": None}
    narrow = MaskedLM(type(teacher.backbone)(**config), teacher.preprocessor)
    with pytest.raises(ValueError, match=r"14 and .* dimensions: only vectors of the same"):
        distill(narrow, teacher, ["a"])
    with pytest.raises(TypeError, match="`x` must be texts"):
        student.training_batches({name: np.ones((2, 3), "int32") for name in student.input})


# === Classifiers, taggers and embedders ===

TASKS = {
    "classifier": (TextClassifier, {"num_classes": 3}),
    "several labels": (TextClassifier, {"num_classes": 3, "multi_label": True}),
    "tagger": (TokenClassifier, {"num_classes": 3}),
    "embedder": (TextEmbedder, {}),
}


def make_teacher(kind):
    """Return a task with random weights, whose probabilities differ from each other."""
    cls, arguments = TASKS[kind]
    task = tiny_task(cls, families()["bert"], **arguments)
    draw_weights(task)
    return task


def expected_loss(kind, student, teacher, texts):
    """Return the loss of a batch of unlabeled texts, computed in numpy from the outputs of both tasks."""
    encoded = student.encode_inputs(texts)
    features = student.features(encoded, np.arange(len(texts)), int(encoded.lengths.max()))
    outputs, teacher_outputs = (to_numpy(task(features)).astype("float64") for task in (student, teacher))
    mask = features["padding_mask"] > 0
    hidden, teacher_hidden = (to_numpy(task.backbone(features)["sequence_output"]) for task in (student, teacher))
    if kind == "embedder":
        return (1 - (outputs * teacher_outputs).sum(axis=-1)).mean()
    if kind == "several labels":
        outputs, teacher_outputs = (np.stack([x, 0 * x], axis=-1) for x in (outputs, teacher_outputs))
    divergence = divergences(outputs / 2, teacher_outputs / 2)
    cosine = 1 - cosines(hidden, teacher_hidden)
    return 4 * (divergence[mask] if kind == "tagger" else divergence).mean() + cosine[mask].mean()


def distill_without_change(student, teacher, texts, *labels):
    """Return the history of one step with a learning rate of 0, whose loss is that of the unchanged weights."""
    optimizer = keras.optimizers.SGD(0.0)
    return distill(student, teacher, texts, *labels, batch_size=len(texts), optimizer=optimizer, verbose=0).history


@pytest.mark.quick_cases("classifier")
@pytest.mark.parametrize("kind", TASKS)
def test_tasks_have_the_loss_of_the_formula(kind, eager):
    """The student has no dropout here; a teacher never has any."""
    teacher = make_teacher(kind).copy_with(dropout=0.9)
    student = smaller(teacher, 1).copy_with(dropout=0.0)
    texts = tiny_texts(5)
    history = distill_without_change(student, teacher, texts)
    assert history["loss"][0] == pytest.approx(expected_loss(kind, student, teacher, texts), rel=1e-4)


@pytest.mark.quick_cases("embedder")
@pytest.mark.compiled
@pytest.mark.parametrize("kind", TASKS)
def test_a_task_comes_closer_to_its_teacher(kind):
    teacher = make_teacher(kind)
    student = smaller(teacher, 1)
    before = [to_numpy(weight) for weight in teacher.weights]
    texts = tiny_texts(24)
    initial = expected_loss(kind, student, teacher, texts[:7])
    optimizer = keras.optimizers.Adam(0.01)
    distill(student, teacher, texts, epochs=16, batch_size=8, optimizer=optimizer, verbose=0)
    assert expected_loss(kind, student, teacher, texts[:7]) < 0.6 * initial
    assert teacher.trainable_weights
    assert all(variable.trainable for variable in student.unused_variables)
    for weight, value in zip(teacher.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)


@pytest.mark.slow
def test_labels_add_their_loss(eager):
    teacher = make_teacher("classifier")
    student = smaller(teacher, 1).copy_with(dropout=0.0)
    texts = tiny_texts(5)
    labels = [0, 2, 1, 2, 0]
    without_labels = distill_without_change(student, teacher, texts)
    with_labels = distill_without_change(student, teacher, texts, labels)
    label_loss = -log_softmax(student.predict(texts, verbose=0))[np.arange(5), labels].mean()
    assert with_labels["loss"][0] == pytest.approx(without_labels["loss"][0] + label_loss, rel=1e-4)
    assert "accuracy" in with_labels
    assert "accuracy" not in without_labels


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classifier", "embedder"])
def test_a_teacher_may_have_another_tokenizer(kind, eager):
    """Each model reads its own tokens; only predictions for whole texts are compared."""
    cls, arguments = TASKS[kind]
    teacher = tiny_task(cls, families()["roberta"], **arguments)
    if kind == "embedder":
        arguments = {"projection": [{"kind": "dense", "units": teacher.backbone.config.hidden_dim}]}
    student = tiny_task(cls, families()["bert"], **arguments).copy_with(dropout=0.0)
    draw_weights(student)
    draw_weights(teacher)
    texts = tiny_texts(7)
    history = distill_without_change(student, teacher, texts)
    outputs, teacher_outputs = (task.predict(texts, verbose=0).astype("float64") for task in (student, teacher))
    if kind == "embedder":
        expected = (1 - (outputs * teacher_outputs).sum(axis=-1)).mean()
    else:
        expected = 4 * divergences(outputs / 2, teacher_outputs / 2).mean()
    assert history["loss"][0] == pytest.approx(expected, rel=1e-4)
    if kind == "classifier":
        with pytest.raises(ValueError, match=r"35 and 49 dimensions: .* Pass `weights` whose last one is 0"):
            distill(student, teacher, texts, weights=(1, 1, 1))
        shorter = tiny_task(cls, families()["bert"], **arguments)
        shorter.preprocessor.sequence_length -= 1
        with pytest.raises(ValueError, match=r"have different tokens, whose vectors cannot be compared\. Pass"):
            distill(student, shorter, texts, weights=(1, 1, 1))


def test_each_embedder_reads_its_default_prompt(eager):
    prompts = {"long": "a very very good film "}
    teacher = tiny_task(TextEmbedder, families()["bert"], prompts=prompts, default_prompt="long")
    student = tiny_task(TextEmbedder, families()["bert"]).copy_with(dropout=0.0)
    draw_weights(student)
    draw_weights(teacher)
    texts = tiny_texts(5)
    history = distill_without_change(student, teacher, texts)
    expected = 1 - (student.embed(texts) * teacher.embed(texts)).sum(axis=-1).mean()
    assert expected > 0.001
    assert history["loss"][0] == pytest.approx(expected, rel=1e-3)


def test_arguments_that_do_not_fit_the_task_are_refused(eager):
    student, embedder = (make_teacher("embedder") for _ in range(2))
    for weights in ((1, 0, 1), (0, 1, 0)):
        with pytest.raises(ValueError, match=r"`weights` must be \(0, 0, 1\) for a task that compares only vectors"):
            distill(student, embedder, ["a"], weights=weights)
    with pytest.raises(ValueError, match="`texts` must be a list of single texts, got pairs"):
        distill(student, embedder, [("a", "b")])
    for name in ("batch_size", "epochs"):
        with pytest.raises(ValueError, match=f"`{name}` must be an integer of at least 1, got 0"):
            distill(student, embedder, ["a"], **{name: 0})
    student, classifier = (make_teacher("classifier") for _ in range(2))
    with pytest.raises(ValueError, match="`weights` must be above 0 for a term other than labels"):
        distill(student, classifier, ["a"], weights=(0, 1, 0))


def test_texts_may_be_a_generator(eager):
    prompted = tiny_task(TextEmbedder, families()["bert"], prompts={"it": "the "}, default_prompt="it")
    student = tiny_task(TextEmbedder, families()["bert"])
    texts = tiny_texts(5)
    history = distill(student, prompted, (text for text in texts), batch_size=5, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    with pytest.raises(ValueError, match=r"`texts` must be texts that are not encoded, got .* different tokens or"):
        distill(student, prompted, student.encode_inputs(texts))


@pytest.mark.slow
def test_tasks_that_do_not_match_are_refused():
    teacher = make_teacher("classifier")
    with pytest.raises(ValueError, match=r"must have the same `class_names`, got \['0', '1'\]"):
        distill(tiny_task(TextClassifier, families()["bert"], num_classes=2), teacher, ["a"])
    student, embedder = (make_teacher("embedder") for _ in range(2))
    with pytest.raises(ValueError, match="A TextEmbedder is distilled from texts alone: leave out `y`"):
        distill(student, embedder, ["a"], [1])
    projection = [{"kind": "dense", "units": 7}]
    narrow = TextEmbedder(student.backbone, student.preprocessor, projection=projection)
    with pytest.raises(ValueError, match=r"have 7 and .* dimensions: .*Add a `projection` to the student"):
        distill(narrow, embedder, ["a"])
    regressor = tiny_task(TextRegressor, families()["bert"])
    with pytest.raises(TypeError, match=r"`student` must be a .*, got TextRegressor"):
        distill(regressor, regressor, ["a"])
    with pytest.raises(ValueError, match="same vocabulary"):
        distill(make_teacher("tagger"), tiny_task(TokenClassifier, families()["roberta"], num_classes=3), ["a"])
    taggers = [tiny_task(TokenClassifier, families()["bert"], num_classes=3, crf=True) for _ in range(2)]
    with pytest.raises(ValueError, match="with `crf` cannot be distilled"):
        distill(*taggers, ["a"])
