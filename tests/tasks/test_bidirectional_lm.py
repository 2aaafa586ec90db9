"""The bidirectional language model against numpy: what is read, what is predicted, what is carried on."""

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
WIDTH = 19  # characters: the long word of the documents is cut
DOCUMENTS = [
    [["the", "film", "was", "\u0100t", "."], ["a", "plot"]],
    [["unknown" * 3, "film"]],
    [["dull", "."], ["the", "good", "plot", "was", "a", "plot", "."], ["good"]],
]
SENTENCES = [sentence for document in DOCUMENTS for sentence in document]
ON_TENSORFLOW = pytest.mark.tf_only  # elsewhere there is nothing but the other
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


# === In numpy ===


def assign(rows, backward=False):
    """What each row reads and predicts: all read a word at a time, and take the next sentence when they have to."""
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


def in_numpy(task, stream, backward=False, state=None):
    """Log-probabilities of the words of one row, from SPEC.md."""
    reference = reference_of(task.backbone)
    if task.backbone.config.vocabulary_size:
        known = {word: i + 1 for i, word in enumerate(VOCABULARY[:-3])}
        x = [reference.word(known.get(word, 3)) for word, _ in stream]
    else:
        marks = {"<S>": [BOS], "</S>": [EOS]}
        x = [reference.word(word_row(marks.get(word, word.encode()), WIDTH)) for word, _ in stream]
    top = reference.stack(int(backward), np.array(x), state)[0][-1]
    logits = top @ to_numpy(task.head.kernel).astype("float64").T + to_numpy(task.head.bias)
    targets = [VOCABULARY.index(word) if word in VOCABULARY else 2 for _, word in stream]
    return logits[np.arange(len(stream)), targets] - np.log(np.exp(logits).sum(axis=1))


def expected(task, rows):
    """The mean negative log-likelihood in each direction."""
    sums = [sum(-in_numpy(task, row, back).sum() for row in assign(rows, back) if row) for back in (False, True)]
    return np.array(sums) / COUNT


@pytest.mark.quick_cases("overrides1-37")
@pytest.mark.compiled
@pytest.mark.parametrize(("overrides", "rows"), [({"num_layers": 3}, 2), ({"vocabulary_size": 9}, 37)])
def test_perplexity(overrides, rows):
    """Also with more rows than there are sentences."""
    task = build(**overrides)
    forward, backward = expected(task, rows)
    found = {d: np.log(task.perplexity(DOCUMENTS, rows, d, verbose=False)) for d in (None, "forward", "backward")}
    assert found == pytest.approx({None: (forward + backward) / 2, "forward": forward, "backward": backward}, rel=1e-5)
    assert forward != pytest.approx(expected(task, 1)[0], rel=1e-3)
    strings = [[" ".join(s) for s in d] for d in DOCUMENTS]
    assert np.log(task.perplexity(strings, rows, verbose=False)) == pytest.approx(found[None], rel=1e-6)


@pytest.mark.slow
def test_the_state_is_carried_on():
    """However a stream is cut."""
    task = build()
    results = []
    for task.unroll_steps in (COUNT, 7, 7):
        results.append(task.evaluate(DOCUMENTS, batch_size=1, verbose=0, return_dict=True))
    whole, cut, again = results
    forward, backward = expected(task, 1)
    for found in (whole, cut, again):
        assert np.log(found["forward_perplexity"]) == pytest.approx(forward, rel=1e-5)
        assert np.log(found["backward_perplexity"]) == pytest.approx(backward, rel=1e-5)
        assert np.log(found["perplexity"]) == pytest.approx((forward + backward) / 2, rel=1e-5)
    assert whole["loss"] == pytest.approx(COUNT * (forward + backward) / 2, rel=1e-5)


def of_batches(task, part):
    """What an epoch of `fit` on some batches of 2 rows of 3 reports without shuffling, if nothing is learnt."""
    streams = DocumentStreams(DOCUMENTS, lambda *batch: batch[0], 2, 3, shuffle=False)
    streams.count()
    batches = list(streams.batches())
    assert 6 * len(batches) == COUNT // 6 * 6
    means = []
    for side in (0, 1):
        rows = [[step[side] for batch in batches for step in batch[row]] for row in range(2)]
        logs = [in_numpy(task, row, side == 1).reshape(len(batches), 3) for row in rows]
        means.append(-np.mean([row[part] for row in logs]))
    return {
        "forward_perplexity": np.exp(means[0]),
        "backward_perplexity": np.exp(means[1]),
        "perplexity": np.exp(np.mean(means)),
        "loss": 3 * np.mean(means),
    }


class Corpus:
    """Documents that are no list."""

    def __iter__(self):
        return iter(DOCUMENTS)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("jit", [pytest.param(True, marks=SLOW_TO_COMPILE), pytest.param(False, marks=ON_TENSORFLOW)])
def test_the_state_of_training(jit):
    """It is carried from batch to batch, and begins with zeros in each epoch, unless epochs have a given length."""
    task = build(compile={"optimizer": keras.optimizers.SGD(0.0), "jit_compile": jit, "run_eagerly": not jit})
    task.unroll_steps = 3
    size = {"batch_size": 2, "verbose": 0}
    given = {"validation_data": DOCUMENTS[1:]} if not jit else {}
    history = task.fit(DOCUMENTS, epochs=2, shuffle=False, **size, **given).history
    for name, value in of_batches(task, slice(None)).items():
        np.testing.assert_allclose(history[name], 2 * [value], rtol=1e-4)
    if not jit:
        value = task.evaluate(DOCUMENTS[1:], return_dict=True, **size)["perplexity"]
        np.testing.assert_allclose(history["val_perplexity"], 2 * [value], rtol=1e-6)
    # What is remembered of validation is kept apart.
    history = task.fit(Corpus(), steps_per_epoch=2, epochs=2, **size, **given).history
    parts = [of_batches(task, part) for part in (slice(0, 2), slice(2, 4))]
    for name in parts[0]:
        np.testing.assert_allclose(history[name], [part[name] for part in parts], rtol=1e-4)


@pytest.mark.slow  # `check_task_resume` interrupts an epoch, too
@pytest.mark.parametrize("steps", [None, 5])
def test_an_interrupted_run_reads_on(tmp_path, steps):
    """By epochs of the documents' length, and by epochs that go on where the one before ended."""

    def fit(task, at, folder, documents=DOCUMENTS):
        stop = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: done(stop) == at and 1 / 0)
        checkpoint = ResumableCheckpoint(tmp_path / folder, every=3)
        task.unroll_steps = 3
        arguments = {"batch_size": 2, "epochs": 3, "steps_per_epoch": steps, "seed": 5}
        task.fit(documents, callbacks=[stop, checkpoint], verbose=0, **arguments)

    def done(callback):
        return int(callback.model.optimizer.iterations)

    weights = []
    for points in ((), (4, 9)):
        keras.utils.set_random_seed(3)
        task = build(6, dropout=0.2)
        for at in points:
            with pytest.raises(ZeroDivisionError):
                fit(task, at, str(points))
            task.set_weights([np.ones_like(w) for w in task.get_weights()])
        fit(task, -1, str(points))
        weights.append(task.get_weights())
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="another first sentence"):
        fit(task, -1, "()", DOCUMENTS[1:] * 2)


@pytest.mark.slow
def test_documents_by_themselves():
    task, documents = build(), DOCUMENTS[::2]
    task.perplexity(DOCUMENTS, 2, verbose=False)  # leaves a state behind
    found = task.predict(documents, verbose=0)
    assert found.shape == (2, 16, 2)
    for document, logs in zip(documents, found, strict=True):
        steps = task.encode_inputs([document]).documents[0]
        for side in (0, 1):
            of_side = [step[side] for step in steps]
            np.testing.assert_allclose(logs[: len(steps), side], in_numpy(task, of_side, side == 1), atol=1e-5)
        assert not logs[len(steps) :].any()
    assert task.predict([], verbose=0).shape == (0, 0, 2)
    assert [len(steps) for steps in task.encode_inputs([[], [""]]).documents] == [0, 0]


def test_what_is_read_and_what_is_predicted():
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
    short = task.make_batch(Examples(task.encode_inputs([["a film"]])), np.array([0]), 3, None)[0]
    assert short["character_ids"].shape == (1, 3, 2, 16), "columns of padding are left out"


@pytest.mark.slow
@pytest.mark.compiled
def test_it_learns():
    """From documents of which every word is told by the one before it, and by the one after it."""
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
    moved = {w.path for w, old in zip(task.backbone.weights, before, strict=True) if (to_numpy(w) != old).any()}
    assert {w.path for w in task.backbone.weights} - moved == {w.path for w in task.backbone.scalar_mix.weights}


@pytest.mark.slow
def test_dropout():
    """On the inputs of the LSTMs and on their last outputs; anew each time."""
    task = build(dropout=0.4)
    features = task.make_batch(Examples(task.encode_inputs(DOCUMENTS)), np.arange(3), 16, None)[0]
    first, again = (to_numpy(task(features, training=True)) for _ in range(2))
    assert not np.allclose(first, again)
    task.backbone.bilm.dropout.rate = 0.0
    first, again, still = (to_numpy(task(features, training=training)) for training in (True, True, False))
    assert not np.allclose(first, again)
    task.streams.dropout.rate = 0.0
    np.testing.assert_allclose(to_numpy(task(features, training=True)), still, atol=1e-6)


# === Files ===


def assert_same(models):
    for first, other in itertools.pairwise(models):
        for one, two in zip(first.weights, other.weights, strict=True):
            np.testing.assert_array_equal(to_numpy(one), to_numpy(two), err_msg=one.path)


@pytest.mark.slow
def test_files(tmp_path):
    task = build(num_sampled=7)
    for training in (False, True):
        task.streams.make_room(2, training)  # for what is in no file
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
        anew = BidirectionalLM.from_preset(tmp_path / "preset", vocabulary=VOCABULARY[:7])
    assert (anew.head.kernel.shape, anew.num_sampled) == ((7, 13), 7)
    backbone.save_to_preset(tmp_path / "bare")
    with pytest.raises(ValueError, match="needs `vocabulary`"):
        BidirectionalLM.from_preset(tmp_path / "bare", preprocessor=task.preprocessor, load_weights=False)


def test_the_originals_files(tmp_path):
    task = build()
    save_checkpoint(task.backbone, tmp_path / "bilm", to="bilm")
    with pytest.warns(UserWarning, match="no head of a BidirectionalLM, so it starts from scratch"):
        again = BidirectionalLM.from_preset(tmp_path / "bilm", vocabulary=VOCABULARY)
    assert_same([task.backbone.bilm, again.backbone.bilm])
    assert again.preprocessor.tokenizer.max_characters == WIDTH


# === Errors ===


def test_what_cannot_be_learnt():
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


def test_what_cannot_be_built():
    with pytest.raises(ValueError, match="BertBackbone has no LSTMs in both directions"):
        tiny_task(BidirectionalLM, families()["bert"])
    backbone, preprocessor = tiny_backbone(FAMILY), tiny_preprocessor(FAMILY)
    with pytest.raises(ValueError, match=r"needs `vocabulary`.*train_words"):
        BidirectionalLM(backbone, preprocessor)
    with pytest.raises(ValueError, match="must begin with <S>, </S>, <UNK>, got a, <S>, </S>"):
        BidirectionalLM(backbone, preprocessor, ["a", *VOCABULARY[:3]])
    assert train_words([list(WORDS)], 9).vocabulary[:3] == VOCABULARY[:3]
