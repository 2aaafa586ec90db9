"""`BidirectionalLM` against numpy: inputs, targets, the state carried between batches, files, errors."""

from __future__ import annotations

import itertools
import warnings

import keras
import numpy as np
import pytest

from lmzoo.data.corpora import DocumentStreams, train_words
from lmzoo.families.elmo import FAMILY
from lmzoo.models import BidirectionalLM, ElmoBackbone, TextClassifier
from lmzoo.presets.converting import save_checkpoint
from lmzoo.registry.family import families
from lmzoo.tasks.base.examples import Examples
from lmzoo.testing import randomize, tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.testing.tiny import WORDS
from lmzoo.text import CharacterTokenizer, Preprocessor, WordTokenizer
from lmzoo.training import Adagrad, ResumableCheckpoint
from tests.reference.elmo import BOS, EOS, reference_of, word_row
from tests.reference.weights import to_numpy

VOCABULARY = ["<S>", "</S>", "<UNK>", "a", "film", "the", "plot", ".", "was", "dull", "good"]
WIDTH = 19  # characters a word: the documents have a longer one
DOCUMENTS = [
    [["the", "film", "was", "\u0100t", "."], ["a", "plot"]],
    [["unknown" * 3, "film"]],
    [["dull", "."], ["the", "good", "plot", "was", "a", "plot", "."], ["good"]],
]
SENTENCES = [sentence for document in DOCUMENTS for sentence in document]
ON_TENSORFLOW = pytest.mark.tf_only  # other backends always compile
SLOW_TO_COMPILE = [pytest.mark.slow] * (keras.backend.backend() == "tensorflow")
COUNT = sum(len(sentence) + 1 for sentence in SENTENCES)


def build(num_sampled=99, dropout=0.0, compile=None, **overrides):
    backbone = tiny_backbone(FAMILY, dropout=dropout, max_characters=WIDTH, **overrides)
    preprocessor = Preprocessor(CharacterTokenizer(WIDTH), FAMILY.packing)
    if overrides.get("vocabulary_size"):
        preprocessor.tokenizer = WordTokenizer(VOCABULARY[:-3])
    task = BidirectionalLM(backbone, preprocessor, VOCABULARY, num_sampled)
    randomize(task)
    for weight in task.backbone.bilm.encoder.weights:
        if weight.path.endswith(("embedding", "embeddings")):
            weight.assign(np.concatenate([np.zeros_like(to_numpy(weight[:1])), to_numpy(weight[1:])]))
    if compile:
        task.compile(**compile)
    return task


# === Reference in numpy ===


def make_streams(rows, backward=False):
    """Return the (word, next word) pairs of each row; a row that ends its sentence takes the next one."""
    queue = [["<S>", *sentence, "</S>"][:: -1 if backward else 1] for sentence in SENTENCES]
    streams, current = [[] for _ in range(rows)], [[] for _ in range(rows)]
    while queue or any(len(sentence) > 1 for sentence in current):
        for row in range(rows):
            if len(current[row]) <= 1 and queue:
                current[row] = queue.pop(0)
            if len(current[row]) > 1:
                streams[row].append((current[row][0], current[row][1]))
                current[row] = current[row][1:]
    return streams


def compute_log_probabilities(task, stream, backward=False, state=None):
    """Return the log-probability of each next word of a row, by the formulas of SPEC.md."""
    reference = reference_of(task.backbone)
    if task.backbone.config.vocabulary_size:
        word_ids = {word: i + 1 for i, word in enumerate(VOCABULARY[:-3])}
        x = [reference.word(word_ids.get(word, 3)) for word, _ in stream]
    else:
        boundaries = {"<S>": [BOS], "</S>": [EOS]}
        x = [reference.word(word_row(boundaries.get(word, word.encode()), WIDTH)) for word, _ in stream]
    states = reference.stack(int(backward), np.array(x), state)[0][-1]
    logits = states @ to_numpy(task.head.kernel).astype("float64").T + to_numpy(task.head.bias)
    targets = [VOCABULARY.index(word) if word in VOCABULARY else 2 for _, word in stream]
    return logits[np.arange(len(stream)), targets] - np.log(np.exp(logits).sum(axis=1))


def compute_nlls(task, rows):
    """Return the mean negative log-likelihood in each direction."""
    sums = [
        sum(-compute_log_probabilities(task, row, backward).sum() for row in make_streams(rows, backward) if row)
        for backward in (False, True)
    ]
    return np.array(sums) / COUNT


@pytest.mark.quick_cases("overrides1-37")
@pytest.mark.compiled
@pytest.mark.parametrize(("overrides", "rows"), [({"num_layers": 3}, 2), ({"vocabulary_size": 9}, 37)])
def test_perplexity_agrees_with_numpy(overrides, rows):
    """The second case has more rows than sentences."""
    task = build(**overrides)
    forward, backward = compute_nlls(task, rows)
    losses = {
        direction: np.log(task.perplexity(DOCUMENTS, rows, direction, verbose=False))
        for direction in (None, "forward", "backward")
    }
    assert losses == pytest.approx({None: (forward + backward) / 2, "forward": forward, "backward": backward}, rel=1e-5)
    assert forward != pytest.approx(compute_nlls(task, 1)[0], rel=1e-3)
    strings = [[" ".join(sentence) for sentence in document] for document in DOCUMENTS]
    assert np.log(task.perplexity(strings, rows, verbose=False)) == pytest.approx(losses[None], rel=1e-6)


@pytest.mark.slow
def test_scores_do_not_depend_on_the_unroll_length():
    task = build()
    results = []
    for task.unroll_steps in (COUNT, 7, 7):
        results.append(task.evaluate(DOCUMENTS, batch_size=1, verbose=0, return_dict=True))
    forward, backward = compute_nlls(task, 1)
    for scores in results:
        assert np.log(scores["forward_perplexity"]) == pytest.approx(forward, rel=1e-5)
        assert np.log(scores["backward_perplexity"]) == pytest.approx(backward, rel=1e-5)
        assert np.log(scores["perplexity"]) == pytest.approx((forward + backward) / 2, rel=1e-5)
    assert results[0]["loss"] == pytest.approx(COUNT * (forward + backward) / 2, rel=1e-5)


def compute_epoch_logs(task, selection):
    """Return the logs of an unshuffled epoch over a slice of the batches (2 rows of 3 steps) at learning rate 0."""
    streams = DocumentStreams(DOCUMENTS, lambda *batch: batch[0], 2, 3, shuffle=False)
    streams.count()
    batches = list(streams.batches())
    assert 6 * len(batches) == COUNT // 6 * 6
    means = []
    for side in (0, 1):
        rows = [[step[side] for batch in batches for step in batch[row]] for row in range(2)]
        log_probabilities = [compute_log_probabilities(task, row, side == 1).reshape(len(batches), 3) for row in rows]
        means.append(-np.mean([row[selection] for row in log_probabilities]))
    return {
        "forward_perplexity": np.exp(means[0]),
        "backward_perplexity": np.exp(means[1]),
        "perplexity": np.exp(np.mean(means)),
        "loss": 3 * np.mean(means),
    }


class Corpus:
    """Iterable of documents without a length."""

    def __iter__(self):
        return iter(DOCUMENTS)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("jit", [pytest.param(True, marks=SLOW_TO_COMPILE), pytest.param(False, marks=ON_TENSORFLOW)])
def test_training_carries_the_state_from_batch_to_batch(jit):
    """Each epoch begins with zeros, unless `steps_per_epoch` is given."""
    task = build(compile={"optimizer": keras.optimizers.SGD(0.0), "jit_compile": jit, "run_eagerly": not jit})
    task.unroll_steps = 3
    arguments = {"batch_size": 2, "verbose": 0}
    validation = {"validation_data": DOCUMENTS[1:]} if not jit else {}
    history = task.fit(DOCUMENTS, epochs=2, shuffle=False, **arguments, **validation).history
    for name, value in compute_epoch_logs(task, slice(None)).items():
        np.testing.assert_allclose(history[name], 2 * [value], rtol=1e-4)
    if not jit:
        value = task.evaluate(DOCUMENTS[1:], return_dict=True, **arguments)["perplexity"]
        np.testing.assert_allclose(history["val_perplexity"], 2 * [value], rtol=1e-6)
    # Validation does not change the state of training.
    history = task.fit(Corpus(), steps_per_epoch=2, epochs=2, **arguments, **validation).history
    expected = [compute_epoch_logs(task, selection) for selection in (slice(0, 2), slice(2, 4))]
    for name in expected[0]:
        np.testing.assert_allclose(history[name], [logs[name] for logs in expected], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [None, 5])
def test_an_interrupted_run_reads_on(tmp_path, steps):
    """Epochs end with the documents, or continue where the previous epoch ended."""

    def fit(task, at, folder, documents=DOCUMENTS):
        stop = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: count_steps(stop) == at and 1 / 0)
        checkpoint = ResumableCheckpoint(tmp_path / folder, every=3)
        task.unroll_steps = 3
        arguments = {"batch_size": 2, "epochs": 3, "steps_per_epoch": steps, "seed": 5}
        task.fit(documents, callbacks=[stop, checkpoint], verbose=0, **arguments)

    def count_steps(callback):
        return int(callback.model.optimizer.iterations)

    weights = []
    for interruptions in ((), (4, 9)):
        keras.utils.set_random_seed(3)
        task = build(6, dropout=0.2)
        for at in interruptions:
            with pytest.raises(ZeroDivisionError):
                fit(task, at, str(interruptions))
            task.set_weights([np.ones_like(w) for w in task.get_weights()])
        fit(task, -1, str(interruptions))
        weights.append(task.get_weights())
    for expected, actual in zip(*weights, strict=True):
        np.testing.assert_array_equal(actual, expected)
    with pytest.raises(ValueError, match="differs in first sentence"):
        fit(task, -1, "()", DOCUMENTS[1:] * 2)


@pytest.mark.slow
def test_predict_reads_each_document_separately():
    task, documents = build(), DOCUMENTS[::2]
    task.perplexity(DOCUMENTS, 2, verbose=False)  # leaves a state behind
    predictions = task.predict(documents, verbose=0)
    assert predictions.shape == (2, 16, 2)
    for document, log_probabilities in zip(documents, predictions, strict=True):
        steps = task.encode_inputs([document]).documents[0]
        for side in (0, 1):
            stream = [step[side] for step in steps]
            np.testing.assert_allclose(
                log_probabilities[: len(steps), side], compute_log_probabilities(task, stream, side == 1), atol=1e-5
            )
        assert not log_probabilities[len(steps) :].any()
    assert task.predict([], verbose=0).shape == (0, 0, 2)
    assert [len(steps) for steps in task.encode_inputs([[], [""]]).documents] == [0, 0]


def test_inputs_and_targets_of_a_batch():
    task = build()
    features = task.make_batch(Examples(task.encode_inputs([DOCUMENTS[1]])), np.array([0]), 5, None)[0]
    assert {name: values.shape for name, values in features.items()} == {
        "character_ids": (1, 5, 2, WIDTH),
        "targets": (1, 5, 2),
        "goes_on": (1,),
    }
    long = word_row(("unknown" * 3).encode(), WIDTH)
    np.testing.assert_array_equal(features["character_ids"][0, 1], [long, word_row(b"film", WIDTH)])
    np.testing.assert_array_equal(features["character_ids"][0, 0], [word_row([BOS], WIDTH), word_row([EOS], WIDTH)])
    assert features["targets"][0].tolist() == [[2, 4], [4, 2], [1, 0], [-1, -1], [-1, -1]]
    assert not features["character_ids"][0, 3:].any()
    features = task.make_batch(Examples(task.encode_inputs([["a film"]])), np.array([0]), 3, None)[0]
    assert features["character_ids"].shape == (1, 3, 2, 16), "columns of padding are left out"


@pytest.mark.slow
@pytest.mark.compiled
def test_fit_learns_predictable_words():
    """Each word follows from the word before it, and from the word after it."""
    documents = [["a film was dull .", "the plot is good ."]] * 9
    task = build(num_sampled=5, dropout=0.1)
    optimizer = task.optimizer
    settings = [optimizer.initial_accumulator_value, optimizer.global_clipnorm, float(optimizer.learning_rate.numpy())]
    assert (type(optimizer), settings) == (Adagrad, [1.0, 10.0, pytest.approx(0.2)])
    before = to_numpy(task.backbone.weights)
    task.unroll_steps = 4
    history = task.fit(documents, batch_size=3, epochs=15, verbose=0).history
    assert task.perplexity(documents, verbose=False) < 2 < 4 < history["perplexity"][0]
    assert history["loss"] == pytest.approx((4 * np.log(history["perplexity"])).tolist(), rel=1e-4)
    changed = {w.path for w, old in zip(task.backbone.weights, before, strict=True) if (to_numpy(w) != old).any()}
    assert {w.path for w in task.backbone.weights} - changed == {w.path for w in task.backbone.scalar_mix.weights}


@pytest.mark.slow
def test_dropout_acts_on_the_inputs_and_the_last_outputs_of_the_lstms():
    task = build(dropout=0.4)
    features = task.make_batch(Examples(task.encode_inputs(DOCUMENTS)), np.arange(3), 16, None)[0]
    first, second = (to_numpy(task(features, training=True)) for _ in range(2))
    assert not np.allclose(first, second)
    task.backbone.bilm.dropout.rate = 0.0
    first, second, deterministic = (to_numpy(task(features, training=training)) for training in (True, True, False))
    assert not np.allclose(first, second)
    task.streams.dropout.rate = 0.0
    np.testing.assert_allclose(to_numpy(task(features, training=True)), deterministic, atol=1e-6)


# === Files ===


def assert_same(models):
    for model, clone in itertools.pairwise(models):
        for expected, actual in zip(model.weights, clone.weights, strict=True):
            np.testing.assert_array_equal(to_numpy(actual), to_numpy(expected), err_msg=expected.path)


@pytest.mark.slow
def test_files_restore_the_vocabulary_and_all_weights(tmp_path):
    task = build(num_sampled=7)
    for training in (False, True):
        task.streams.make_room(2, training)  # for states, which are not saved
    task.save(tmp_path / "task.keras")
    task.save_to_preset(tmp_path / "preset")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clones = [keras.saving.load_model(tmp_path / "task.keras"), BidirectionalLM.from_preset(tmp_path / "preset")]
        clones.append(BidirectionalLM.from_preset(tmp_path / "preset", vocabulary=WordTokenizer(VOCABULARY)))
        TextClassifier.from_preset(tmp_path / "preset", num_classes=2)
    assert [(clone.vocabulary.vocabulary, clone.num_sampled) for clone in clones] == 3 * [(VOCABULARY, 7)]
    assert_same([task, *clones])
    backbone = ElmoBackbone.from_preset(tmp_path / "preset")
    assert_same([task.backbone, backbone])
    with pytest.warns(UserWarning, match="another `vocabulary` were passed, so it starts from scratch"):
        new_task = BidirectionalLM.from_preset(tmp_path / "preset", vocabulary=VOCABULARY[:7])
    assert (new_task.head.kernel.shape, new_task.num_sampled) == ((7, 13), 7)
    backbone.save_to_preset(tmp_path / "bare")
    with pytest.raises(ValueError, match="needs `vocabulary`"):
        BidirectionalLM.from_preset(tmp_path / "bare", preprocessor=task.preprocessor, load_weights=False)


def test_files_of_the_original_code_restore_the_backbone(tmp_path):
    task = build()
    save_checkpoint(task.backbone, tmp_path / "bilm", to="bilm")
    with pytest.warns(UserWarning, match="no head of a BidirectionalLM, so it starts from scratch"):
        reloaded = BidirectionalLM.from_preset(tmp_path / "bilm", vocabulary=VOCABULARY)
    assert_same([task.backbone.bilm, reloaded.backbone.bilm])
    assert reloaded.preprocessor.tokenizer.max_characters == WIDTH


# === Errors ===


def test_errors_of_documents_and_arguments():
    task = build()
    with pytest.raises(ValueError, match=rf"hold {COUNT} words.*too few for a batch of 128 rows of 20"):
        task.fit(DOCUMENTS, verbose=0)
    with pytest.raises(ValueError, match="the documents hold no words"):
        task.fit([[], [""]], verbose=0)
    with pytest.raises(ValueError, match="the documents hold no words"):
        task.perplexity([])
    with pytest.raises(ValueError, match="learns from documents alone"):
        task.fit(DOCUMENTS, [0, 1, 0])
    with pytest.raises(ValueError, match="A document has no weight"):
        task.fit(DOCUMENTS, sample_weight=np.ones(3))
    with pytest.raises(ValueError, match="learns from documents alone"):
        task.evaluate(DOCUMENTS, [0, 1, 0])
    with pytest.raises(TypeError, match=r"`documents\[0\]` must be a list of strings, got one string"):
        task.fit(["a text", "another"])
    with pytest.raises(TypeError, match="Expected a list of documents"):
        task.perplexity("a text")
    with pytest.raises(TypeError, match="which a generator does not allow"):
        task.fit(document for document in DOCUMENTS)
    task.unroll_steps = 2
    with pytest.raises(ValueError, match=r"In `validation_data`: .*no words"):
        task.fit(DOCUMENTS, batch_size=2, validation_data=[[]], verbose=0)
    with pytest.raises(ValueError, match="leaves no examples"):
        task.fit(DOCUMENTS, batch_size=2, validation_split=0.9, verbose=0)
    with pytest.raises(ValueError, match='`direction` must be "forward", "backward" or None, got \'up\''):
        task.perplexity(DOCUMENTS, direction="up")
    with pytest.raises(ValueError, match="has no preprocessor"):
        BidirectionalLM(task.backbone, None, VOCABULARY).perplexity(DOCUMENTS)


def test_errors_of_the_constructor():
    with pytest.raises(ValueError, match="BertBackbone has no LSTMs in both directions"):
        tiny_task(BidirectionalLM, families()["bert"])
    backbone, preprocessor = tiny_backbone(FAMILY), tiny_preprocessor(FAMILY)
    with pytest.raises(ValueError, match=r"needs `vocabulary`.*train_words"):
        BidirectionalLM(backbone, preprocessor)
    with pytest.raises(ValueError, match="must begin with <S>, </S>, <UNK>, got a, <S>, </S>"):
        BidirectionalLM(backbone, preprocessor, ["a", *VOCABULARY[:3]])
    assert train_words([list(WORDS)], 9).vocabulary[:3] == VOCABULARY[:3]
