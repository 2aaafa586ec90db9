"""Sequence to sequence: examples, errors, what it learns, its tokenizer in Python and in graphs."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.data.corpora import train_joint_tokenizer
from lmzoo.families.bert import FAMILY as BERT
from lmzoo.families.marian import FAMILY
from lmzoo.models import MarianBackbone, Seq2SeqLM
from lmzoo.tasks.beam_search import BeamSampler
from lmzoo.tasks.generation import TokenGenerator
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.text import MarianTokenizer, Preprocessor, TextWarning
from lmzoo.training import AdamW
from lmzoo.training.losses import SmoothedCrossEntropy

PAIRS = [("the film", "a plot was"), ("a", "the film is good .")]


def several_languages(**arguments):
    words = ["the", "film", ">>fra<<", ">>deu<<"]
    tokenizer = MarianTokenizer.of_words(words, FAMILY.tiny.vocabulary_size)
    return Seq2SeqLM(tiny_backbone(FAMILY), Preprocessor(tokenizer, FAMILY.packing, 73), **arguments)


def test_batches():
    task = tiny_task(Seq2SeqLM, FAMILY)
    examples = task.encode_examples(PAIRS, sample_weight=[1.0, 0.5])
    features, targets, weights = task.make_batch(examples, np.array([1, 0]), 6, np.random.default_rng(0))
    token = task.preprocessor.tokenizer.token_to_id
    the, film, a, plot, was, iss, good, stop = map(
        token, ("▁the", "▁film", "▁a", "▁plot", "▁was", "▁is", "▁good", "▁.")
    )
    end, pad = token("</s>"), token("<pad>")
    np.testing.assert_array_equal(features["token_ids"], [[a, end, *[pad] * 4], [the, film, end, *[pad] * 3]])
    np.testing.assert_array_equal(targets, [[the, film, iss, good, stop, end], [a, plot, was, end, pad, pad]])
    shifted = [[pad, the, film, iss, good, stop], [pad, a, plot, was, end, pad]]
    np.testing.assert_array_equal(features["decoder_token_ids"], shifted)
    np.testing.assert_array_equal(features["padding_mask"].sum(axis=1), [2, 3])
    np.testing.assert_array_equal(features["decoder_padding_mask"], weights > 0)
    np.testing.assert_array_equal(weights, [[0.5] * 6, [1, 1, 1, 1, 0, 0]])


@pytest.mark.slow
@pytest.mark.slow
def test_it_learns_to_copy_backwards(eager):
    words = ["good", "bad", "film", "plot"]
    rng = np.random.default_rng(1)
    texts = [rng.choice(words, rng.integers(1, 4)) for _ in range(64)]
    pairs = [(" ".join(text), " ".join(text[::-1])) for text in texts]
    keras.utils.set_random_seed(3)
    backbone = MarianBackbone(
        vocabulary_size=11,
        num_layers=1,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        dropout=0,
        max_sequence_length=32,
    )
    tokenizer = MarianTokenizer.of_words(words, 11)
    task = Seq2SeqLM(backbone, Preprocessor(tokenizer, FAMILY.packing, 32))
    assert task.optimizer.schedule == "inverse_square_root"
    task.compile(AdamW(1e-2, beta_2=0.98, global_clipnorm=1.0, schedule="inverse_square_root"))
    task.fit(pairs, epochs=40, batch_size=16, verbose=0)
    sources = [source for source, _ in pairs]
    found = task.translate(sources)
    assert sum(a == b for a, (_, b) in zip(found, pairs, strict=True)) >= 60
    assert task.generate(sources[:8], sampler="greedy") == task.translate(sources[:8], num_beams=1)


@pytest.fixture
def mixed_precision():
    """Keras' global policy, which all layers without one of their own have."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.slow
@pytest.mark.half_precision
def test_mixed_precision_everywhere(mixed_precision, eager):
    """Logits are in float32, so that what must not come can be -1e9, and translations can be compared."""
    task = tiny_task(Seq2SeqLM, FAMILY)
    assert task.output.dtype == task.predict([("the film", "a")], verbose=0).dtype == "float32"
    assert len(task.translate(["the film", "a"])) == 2


@pytest.mark.slow
def test_a_search_is_compiled_once(monkeypatch):
    """Also that of a new task, whose first call compiles the task as well."""
    task, traced, generate = tiny_task(Seq2SeqLM, FAMILY, max_new_tokens=3), [], TokenGenerator.generate_in_graph
    counting = lambda self, *a, **k: traced.append(1) or generate(self, *a, **k)  # noqa: E731
    monkeypatch.setattr(TokenGenerator, "generate_in_graph", counting)
    found = task.translate(["the film", "a"])
    assert task.translate(["the film", "a"]) == found
    assert task.generate(["the film", "a"], sampler=BeamSampler()) == found
    assert len(traced) == 1


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_label_smoothing(share):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(3, 5, 7)).astype("float32"), rng.integers(0, 7, (3, 5))
    log = np.log(np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True))
    spread = np.eye(7)[labels] * (1 - share) + share / 7
    found = keras.ops.convert_to_numpy(SmoothedCrossEntropy(share)(labels, logits))
    np.testing.assert_allclose(found, -(spread * log).sum(axis=-1).mean(), rtol=1e-5)


def test_inverse_square_root():
    optimizer = AdamW(1.0, schedule="inverse_square_root")
    optimizer.build([keras.Variable([0.0])])
    optimizer.start_schedule(4, 40)
    rates = []
    for step in (0, 3, 15, 35):
        optimizer.iterations.assign(step)
        rates.append(float(keras.ops.convert_to_numpy(optimizer._factor())))
    np.testing.assert_allclose(rates, [0.25, 1.0, 0.5, 1 / 3], rtol=1e-6)


LONG = " ".join(["film"] * 73)
ERRORS = {
    "unequal": (lambda t: t.fit((["a", "b"], ["a"])), "got 2 sources, 1 targets"),
    "no targets": (lambda t: t.fit(["a", "b"]), "Sources alone are for `translate`"),
    "labels": (lambda t: t.fit(["a"], ["b"]), "learns from pairs alone"),
    "long": (lambda t: t.translate(["a", LONG]), "source at position 1 has 74 tokens, more than the 73 positions"),
    "long in fit": (lambda t: t.fit([("a", "b"), (LONG, "b")]), "source at position 1 has 74 tokens"),
    "language": (lambda t: t.translate(["a"], language="fra"), "does not write >>fra<<: it writes one language"),
    "beams": (lambda t: t.translate(["a"], num_beams=0), "`num_beams` must be a positive integer"),
    "new": (lambda t: t.translate(["a"], max_new_tokens=73), "`max_new_tokens` must be an integer from 1 to 72"),
    "sampler": (lambda t: t.generate(["a"], sampler="beams"), "Did you mean 'beam'"),
}


@pytest.mark.parametrize(("use", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_errors(use, message):
    with pytest.raises(ValueError, match=message):
        use(tiny_task(Seq2SeqLM, FAMILY))


def test_wrong_models():
    with pytest.raises(ValueError, match="This BertBackbone reads no source"):
        Seq2SeqLM(tiny_backbone(BERT))
    for name, value in {"num_beams": 0, "label_smoothing": 1, "max_new_tokens": 73, "length_penalty": "a"}.items():
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            Seq2SeqLM(tiny_backbone(FAMILY), tiny_preprocessor(FAMILY), **{name: value})


@pytest.mark.slow
def test_languages():
    task = several_languages()
    assert task.languages == (">>fra<<", ">>deu<<")
    with pytest.raises(ValueError, match="does not write >>ita<<: it writes >>fra<<, >>deu<<"):
        task.translate(["the film"], language="ita")
    with pytest.raises(ValueError, match="The source at position 1 asks for >>ita<<, but the model writes >>fra<<"):
        task.fit([(">>fra<< the film", "film"), (">>ita<< film", "film")])
    found = task.translate(["the film"], language="fra", max_new_tokens=5)
    assert found == task.translate([">>fra<< the film"], max_new_tokens=5)
    assert len(task.encode_sources([">> the << film"])) == 1  # text, not a language
    ids = task.preprocessor.tokenizer.tokenize([">>deu<< the film"])
    assert ids[0] == [4, 5, 6]


def test_long_sources_are_cut_with_a_warning_if_the_model_has_room():
    task = several_languages()
    task.preprocessor.sequence_length = 8
    with pytest.warns(TextWarning, match="1 of 1 texts were truncated to 8 tokens"):
        assert task.encode_sources([" ".join(["film"] * 20)]).lengths.tolist() == [8]


TEXTS = ["ein Hund läuft über die Wiese", "zwei Kinder spielen im Schnee", "Ein Mann mit Hut ﬁscht", "Straße"]
OTHERS = ["a dog runs over the meadow", "two children play in the snow", "A man with a hat fishes", "street"]
ODD = ["", " ", "Ein</s> Hund", ">>deu<< Hund", "日本 läuft\n\tüber", "e\u0301 ﬁ\x00x", "<pad>", " >>deu<<", ">>x<<"]


def test_training_of_a_tokenizer(tmp_path):
    tokenizer = train_joint_tokenizer(TEXTS, OTHERS, 60)
    assert (tokenizer.vocabulary[:2], tokenizer.vocabulary[-1], tokenizer.vocabulary_size) == (
        ["</s>", "<unk>"],
        "<pad>",
        60,
    )
    for text in TEXTS[:2] + OTHERS:
        assert tokenizer.detokenize(tokenizer.tokenize([text])[0]) == text
    tokenizer.save_assets(tmp_path)
    again = MarianTokenizer()
    again.load_assets(tmp_path)
    assert again.tokenize(TEXTS) == tokenizer.tokenize(TEXTS)
    assert train_joint_tokenizer(TEXTS, OTHERS, 60).models == tokenizer.models
    spans = tokenizer.tokenize_with_offsets(TEXTS + ODD)
    assert [[s.id for s in of_text] for of_text in spans] == tokenizer.tokenize(TEXTS + ODD)
    assert "".join(TEXTS[0][s.start : s.end] for s in spans[0]) == TEXTS[0].replace(" ", "")
    with pytest.raises(ValueError, match="cannot learn 9,998 tokens from these texts"):
        train_joint_tokenizer(TEXTS, OTHERS, 9999)


def test_two_models_with_one_vocabulary():
    one, two = train_joint_tokenizer(TEXTS, TEXTS, 50), train_joint_tokenizer(OTHERS, OTHERS, 50)
    vocabulary = list(dict.fromkeys([*one.vocabulary, *two.vocabulary]))
    tokenizer = MarianTokenizer(one.model, two.model, vocabulary)
    for side, alone, texts in ((tokenizer, one, TEXTS), (tokenizer.target_side, two, OTHERS)):
        expected = [[alone.id_to_token(i) for i in ids] for ids in alone.tokenize(texts)]
        assert [[side.id_to_token(i) for i in ids] for ids in side.tokenize(texts)] == expected


@pytest.mark.tf_only
def test_the_tokenizer_in_graphs():
    import tensorflow as tf

    from lmzoo.text.graphs import graph_detokenizer, graph_tokenizer

    model = train_joint_tokenizer(TEXTS, OTHERS, 60)
    tokenizer = MarianTokenizer(model.model, None, [*model.vocabulary, ">>deu<<"])
    texts = [*TEXTS, *OTHERS, *ODD]
    ids = tokenizer.tokenize(texts)
    assert graph_tokenizer(tokenizer)(tf.constant(texts)).to_list() == ids
    found = graph_detokenizer(tokenizer)(tf.ragged.constant(ids, dtype="int32")).numpy()
    assert [text.decode() for text in found] == [tokenizer.detokenize(of_text) for of_text in ids]


WRONG_FILES = {
    "not a model": ({"source": b"no", "vocabulary": ["<pad>", "<unk>", "</s>"]}, "is not a SentencePiece model"),
    "no padding": ({"source": b"", "vocabulary": ["<unk>", "</s>"]}, "lacks the special tokens <pad>"),
    "gaps": ({"source": b"", "vocabulary": {"<pad>": 0, "<unk>": 1, "</s>": 3}}, "must be 0 to 2, .*'</s>' has 3"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG_FILES.values(), ids=WRONG_FILES.keys())
def test_wrong_files(arguments, message):
    with pytest.raises(ValueError, match=message):
        MarianTokenizer(**arguments)
