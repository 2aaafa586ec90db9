"""`Seq2SeqLM`: batches, translation, languages, errors; the training of Marian's tokenizer."""

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


def make_multilingual_task(**arguments):
    words = ["the", "film", ">>fra<<", ">>deu<<"]
    tokenizer = MarianTokenizer.of_words(words, FAMILY.tiny.vocabulary_size)
    return Seq2SeqLM(tiny_backbone(FAMILY), Preprocessor(tokenizer, FAMILY.packing, 73), **arguments)


def test_batches_shift_the_targets_for_the_decoder():
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
def test_fit_learns_to_reverse_texts():
    words = ["good", "bad", "film", "plot"]
    rng = np.random.default_rng(1)
    texts = [rng.choice(words, rng.integers(1, 4)) for _ in range(64)]
    pairs = [(" ".join(text), " ".join(text[::-1])) for text in texts]
    keras.utils.set_random_seed(3)
    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 32, "intermediate_dim": 64, "max_sequence_length": 32}
    backbone = MarianBackbone(vocabulary_size=11, dropout=0, **size)
    tokenizer = MarianTokenizer.of_words(words, 11)
    task = Seq2SeqLM(backbone, Preprocessor(tokenizer, FAMILY.packing, 32))
    assert task.optimizer.schedule == "inverse_square_root"
    task.compile(AdamW(1e-2, beta_2=0.98, global_clipnorm=1.0, schedule="inverse_square_root"))
    task.fit(pairs, epochs=40, batch_size=16, verbose=0)
    sources = [source for source, _ in pairs]
    translations = task.translate(sources)
    assert sum(a == b for a, (_, b) in zip(translations, pairs, strict=True)) >= 60
    assert task.generate(sources[:8], sampler="greedy") == task.translate(sources[:8], num_beams=1)


@pytest.fixture
def mixed_precision():
    """Set Keras' global dtype policy to mixed_float16."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.slow
@pytest.mark.half_precision
def test_logits_are_float32_in_mixed_precision(mixed_precision):
    """The search sets excluded tokens to -1e9 and compares translations."""
    task = tiny_task(Seq2SeqLM, FAMILY)
    assert task.output.dtype == task.predict([("the film", "a")], verbose=0).dtype == "float32"
    assert len(task.translate(["the film", "a"])) == 2


@pytest.mark.slow
def test_a_search_is_compiled_once(monkeypatch):
    """The first call of a new task compiles the task as well."""
    task, traces, generate = tiny_task(Seq2SeqLM, FAMILY, max_new_tokens=3), [], TokenGenerator.generate_in_graph
    count_traces = lambda self, *a, **k: traces.append(1) or generate(self, *a, **k)  # noqa: E731
    monkeypatch.setattr(TokenGenerator, "generate_in_graph", count_traces)
    translations = task.translate(["the film", "a"])
    assert task.translate(["the film", "a"]) == translations
    assert task.generate(["the film", "a"], sampler=BeamSampler()) == translations
    assert len(traces) == 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_label_smoothing_agrees_with_numpy(smoothing):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(3, 5, 7)).astype("float32"), rng.integers(0, 7, (3, 5))
    log_probabilities = np.log(np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True))
    targets = np.eye(7)[labels] * (1 - smoothing) + smoothing / 7
    loss = keras.ops.convert_to_numpy(SmoothedCrossEntropy(smoothing)(labels, logits))
    np.testing.assert_allclose(loss, -(targets * log_probabilities).sum(axis=-1).mean(), rtol=1e-5)


def test_the_maximum_of_new_tokens_is_checked_when_it_is_set():
    task = tiny_task(Seq2SeqLM, FAMILY, max_new_tokens=7)
    for count in (72, None):
        task.max_new_tokens = count
        assert task.get_config()["max_new_tokens"] == count
    for count in (0, 73, 2.5):
        with pytest.raises(ValueError, match="must be None or a positive integer below the model's 73 positions"):
            task.max_new_tokens = count


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
    "few targets": (
        lambda t: t.generate({"token_ids": [[4, 5, 2]] * 2, "decoder_token_ids": [[0, 4, 5]]}),
        "`decoder_token_ids` must have a row for each of the 2 sources in `token_ids`, got 1",
    ),
    "many targets": (
        lambda t: t.generate({"token_ids": [[4, 5, 2]], "decoder_token_ids": [[0, 4], [0, 5]]}),
        "`decoder_token_ids` must have a row for each of the 1 sources in `token_ids`, got 2",
    ),
    "language of another type": (
        lambda t: t.translate(["a"], language=3),
        '`language` must be a language code such as "fra", or None, got 3',
    ),
}


@pytest.mark.parametrize(("call", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_errors_of_calls(call, message):
    with pytest.raises(ValueError, match=message):
        call(tiny_task(Seq2SeqLM, FAMILY))


def test_a_batch_size_of_none_stands_for_32(monkeypatch):
    sizes = []

    def generate(self, prompts, *_, **__):
        sizes.append(len(prompts))
        return [[[] for _ in prompts]]

    monkeypatch.setattr(TokenGenerator, "generate", generate)
    assert len(tiny_task(Seq2SeqLM, FAMILY).translate(["the film"] * 37, batch_size=None)) == 37
    assert sizes == [32, 5]


def test_errors_of_the_constructor():
    with pytest.raises(ValueError, match="This BertBackbone reads no source"):
        Seq2SeqLM(tiny_backbone(BERT))
    for name, value in {"num_beams": 0, "label_smoothing": 1, "max_new_tokens": 73, "length_penalty": "a"}.items():
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            Seq2SeqLM(tiny_backbone(FAMILY), tiny_preprocessor(FAMILY), **{name: value})


@pytest.mark.slow
def test_multilingual_models_translate_into_the_given_language():
    task = make_multilingual_task()
    assert task.languages == (">>fra<<", ">>deu<<")
    with pytest.raises(ValueError, match="does not write >>ita<<: it writes >>fra<<, >>deu<<"):
        task.translate(["the film"], language="ita")
    with pytest.raises(ValueError, match="The source at position 1 asks for >>ita<<, but the model writes >>fra<<"):
        task.fit([(">>fra<< the film", "film"), (">>ita<< film", "film")])
    for call in (task.translate, task.generate):
        with pytest.raises(ValueError, match="`language` must be None for token ids, got 'fra'"):
            call([[3, 4]], language="fra")
    translations = task.translate(["the film"], language="fra", max_new_tokens=5)
    assert translations == task.translate([">>fra<< the film"], max_new_tokens=5)
    assert len(task.encode_sources([">> the << film"])) == 1  # text, not a language
    ids = task.preprocessor.tokenizer.tokenize([">>deu<< the film"])
    assert ids[0] == [4, 5, 6]


def test_sources_beyond_the_sequence_length_are_truncated_with_a_warning():
    task = make_multilingual_task()
    task.preprocessor.sequence_length = 8
    with pytest.warns(TextWarning, match="1 of 1 texts were truncated to 8 tokens"):
        assert task.encode_sources([" ".join(["film"] * 20)]).lengths.tolist() == [8]


GERMAN = ["ein Hund läuft über die Wiese", "zwei Kinder spielen im Schnee", "Ein Mann mit Hut ﬁscht", "Straße"]
ENGLISH = ["a dog runs over the meadow", "two children play in the snow", "A man with a hat fishes", "street"]
UNUSUAL = [
    "",
    " ",
    "Ein</s> Hund",
    ">>deu<< Hund",
    "日本 läuft\n\tüber",
    "e\u0301 ﬁ\x00x",
    "<pad>",
    " >>deu<<",
    ">>x<<",
]


def test_a_joint_tokenizer_is_trained_and_saved(tmp_path):
    tokenizer = train_joint_tokenizer(GERMAN, ENGLISH, 60)
    assert tokenizer.vocabulary_size == 60
    assert (tokenizer.vocabulary[:2], tokenizer.vocabulary[-1]) == (["</s>", "<unk>"], "<pad>")
    for text in GERMAN[:2] + ENGLISH:
        assert tokenizer.detokenize(tokenizer.tokenize([text])[0]) == text
    tokenizer.save_assets(tmp_path)
    reloaded = MarianTokenizer()
    reloaded.load_assets(tmp_path)
    assert reloaded.tokenize(GERMAN) == tokenizer.tokenize(GERMAN)
    assert train_joint_tokenizer(GERMAN, ENGLISH, 60).models == tokenizer.models
    spans = tokenizer.tokenize_with_offsets(GERMAN + UNUSUAL)
    assert [[s.id for s in of_text] for of_text in spans] == tokenizer.tokenize(GERMAN + UNUSUAL)
    assert "".join(GERMAN[0][s.start : s.end] for s in spans[0]) == GERMAN[0].replace(" ", "")
    with pytest.raises(ValueError, match="cannot learn 9,998 tokens from these texts"):
        train_joint_tokenizer(GERMAN, ENGLISH, 9999)


def test_each_side_has_its_own_model_of_one_vocabulary():
    source, target = train_joint_tokenizer(GERMAN, GERMAN, 50), train_joint_tokenizer(ENGLISH, ENGLISH, 50)
    vocabulary = list(dict.fromkeys([*source.vocabulary, *target.vocabulary]))
    tokenizer = MarianTokenizer(source.model, target.model, vocabulary)
    for side, tokenizer_of_side, texts in ((tokenizer, source, GERMAN), (tokenizer.target_side, target, ENGLISH)):
        expected = [[tokenizer_of_side.id_to_token(i) for i in ids] for ids in tokenizer_of_side.tokenize(texts)]
        assert [[side.id_to_token(i) for i in ids] for ids in side.tokenize(texts)] == expected


WRONG_FILES = {
    "not a model": ({"source": b"no", "vocabulary": ["<pad>", "<unk>", "</s>"]}, "is not a SentencePiece model"),
    "no padding": ({"source": b"", "vocabulary": ["<unk>", "</s>"]}, "lacks the special tokens <pad>"),
    "no vocabulary": ({"source": b""}, "Pass both `source` and `vocabulary`"),
    "no source": ({"vocabulary": ["<pad>", "<unk>", "</s>"]}, "Pass both `source` and `vocabulary`"),
    "a target alone": ({"target": b""}, "Pass both `source` and `vocabulary`"),
    "gaps": ({"source": b"", "vocabulary": {"<pad>": 0, "<unk>": 1, "</s>": 3}}, "must be 0 to 2, .*'</s>' has 3"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG_FILES.values(), ids=WRONG_FILES.keys())
def test_errors_of_tokenizer_files(arguments, message):
    with pytest.raises(ValueError, match=message):
        MarianTokenizer(**arguments)
