"""`StaticEmbedder`: vectors, neighbors and analogies, compared with gensim, and memory-mapped presets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmzoo
from lmzoo.models import Backbone, StaticEmbedder
from lmzoo.presets import PresetError
from lmzoo.static_vectors import Subwords
from lmzoo.text import TextWarning

WORDS = ["the", "film", "was", "good", "bad", "Paris", "paris", ". . .", "never", "n't", "plot"]


def make_embedder(with_subwords: bool = False, words: list[str] = WORDS) -> StaticEmbedder:
    rng = np.random.default_rng(17)
    vectors = rng.normal(size=(len(words), 5)).astype("float32")
    subwords = Subwords(2, 4, rng.normal(size=(31, 5)).astype("float32")) if with_subwords else None
    return StaticEmbedder(words, vectors, subwords)


def normalize(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_vectors_of_words() -> None:
    embedder = make_embedder()
    with pytest.warns(TextWarning, match="1 of 6 words have no vector, such as 'xyz'"):
        first, second, third = embedder.embed(["the film", ["was", ". . .", "xyz"], "Paris"], level="word")
    assert (first.words, first.offsets.tolist()) == (["the", "film"], [[0, 3], [4, 8]])
    np.testing.assert_array_equal(second.vectors, [*embedder.vectors[[2, 7]], np.zeros(5)])
    np.testing.assert_array_equal(third.vectors, embedder.vectors[[5]])


def test_vectors_of_texts_are_means() -> None:
    embedder = make_embedder()
    with pytest.warns(TextWarning, match="2 of 3 texts have no word with a vector"):
        vectors = embedder.embed(["film xyz good", "", "xyz"])
    np.testing.assert_allclose(vectors, [embedder.vectors[[1, 3]].mean(axis=0), np.zeros(5), np.zeros(5)], atol=1e-7)
    assert embedder.embed([]).shape == (0, 5)
    assert embedder.embed([], level="word") == []


def test_a_lowercase_vocabulary_ignores_case() -> None:
    embedder = make_embedder(words=["the", "film", "n't"])
    assert embedder.lowercase
    assert "The" in embedder
    np.testing.assert_array_equal(embedder.embed(["THE"]), embedder.vectors[:1])
    assert not make_embedder().lowercase
    assert "The" not in make_embedder()


def test_subwords_of_unknown_words() -> None:
    embedder = make_embedder(with_subwords=True)
    (words,) = embedder.embed(["films"], level="word")
    np.testing.assert_array_equal(words.vectors, embedder.subwords.compose_unknown(["films"]))
    cosines = normalize(embedder.vectors) @ normalize(words.vectors[0])
    best = embedder.nearest("films", top_k=3)
    assert [neighbor["word"] for neighbor in best] == [WORDS[i] for i in np.argsort(-cosines)[:3]]


def test_nearest_and_analogy() -> None:
    embedder = make_embedder()
    units = normalize(embedder.vectors)
    scores = units @ units[3]
    best = embedder.nearest("good", top_k=4)
    expected = [row for row in np.argsort(-scores) if row != 3][:4]
    assert [neighbor["word"] for neighbor in best] == [WORDS[row] for row in expected]
    np.testing.assert_allclose([neighbor["score"] for neighbor in best], scores[expected], atol=1e-6)
    assert len(embedder.nearest("good", top_k=100)) == len(WORDS) - 1
    a, b, c = units[[0, 1, 2]]
    added = units @ normalize(b - a + c)
    best = embedder.analogy("the", "film", "was", top_k=2)
    expected = [row for row in np.argsort(-added) if row > 2][:2]
    assert [neighbor["word"] for neighbor in best] == [WORDS[row] for row in expected]
    np.testing.assert_allclose([neighbor["score"] for neighbor in best], added[expected], atol=1e-6)
    multiplied = (1 + units @ b) * (1 + units @ c) / 4 / ((1 + units @ a) / 2 + 1e-6)
    best = embedder.analogy("the", "film", "was", top_k=2, method="3CosMul")
    expected = [row for row in np.argsort(-multiplied) if row > 2][:2]
    assert [neighbor["word"] for neighbor in best] == [WORDS[row] for row in expected]
    np.testing.assert_allclose([neighbor["score"] for neighbor in best], multiplied[expected], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Call to deprecated `init_sims`:DeprecationWarning")  # within gensim
def test_neighbors_analogies_and_scores_equal_gensims(tmp_path: Path) -> None:
    gensim = pytest.importorskip("gensim")
    embedder = make_embedder(words=[f"w{i}" for i in range(97)])
    peer = gensim.models.KeyedVectors(5)
    peer.add_vectors(embedder.words, embedder.vectors)

    def assert_neighbors(neighbors: Any, expected: Any) -> None:
        assert [neighbor["word"] for neighbor in neighbors] == [word for word, _ in expected]
        scores = [score for _, score in expected]
        np.testing.assert_allclose([neighbor["score"] for neighbor in neighbors], scores, rtol=1e-5)

    assert_neighbors(embedder.nearest("w3", top_k=7), peer.most_similar("w3", topn=7))
    words = {"positive": ["w2", "w3"], "negative": ["w1"]}
    assert_neighbors(embedder.analogy("w1", "w2", "w3", top_k=5), peer.most_similar(**words, topn=5))
    assert_neighbors(embedder.analogy("w1", "w2", "w3", 5, "3CosMul"), peer.most_similar_cosmul(**words, topn=5))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("# words\n" + "".join(f"W{i}\tw{3 * i}\t{i * i % 11}\n" for i in range(41)))
    (pearson, spearman, left_out) = peer.evaluate_word_pairs(str(pairs))
    scores = lmzoo.evaluation.word_similarity(embedder, pairs).scores
    np.testing.assert_allclose([scores["pearson"], scores["spearman"]], [pearson[0], spearman[0]], rtol=1e-5)
    assert scores["left_out"] / 41 == pytest.approx(left_out / 100)
    questions = tmp_path / "questions.txt"
    answers = [peer.most_similar(positive=[f"w{i + 1}", f"w{i + 2}"], negative=[f"w{i}"], topn=1) for i in range(9)]
    lines = [f"w{i} w{i + 1} w{i + 2} {answer[0][0] if i % 2 else 'w90'}\n" for i, answer in enumerate(answers)]
    questions.write_text(": odd\n" + "".join(lines[1::2]) + ": even\n" + "".join(lines[::2]) + "w1 w2 w3 w999\n")
    accuracy, sections = peer.evaluate_word_analogies(str(questions))
    report = lmzoo.evaluation.word_analogies(embedder, questions, verbose=False)
    assert report.scores == {"accuracy": accuracy, "questions": 9, "left_out": 1}
    odd, even = (len(part["correct"]) / len(part["correct"] + part["incorrect"]) for part in sections[:-1])
    assert report.tables["by section"][1] == [["odd", 4, odd], ["even", 5, even]]


@pytest.mark.parametrize("with_subwords", [False, True])
def test_presets_are_mapped_into_memory(with_subwords: bool, tmp_path: Path) -> None:
    embedder = make_embedder(with_subwords)
    embedder.save_to_preset(tmp_path / "preset")
    loaded = StaticEmbedder.from_preset(tmp_path / "preset")
    assert loaded.words == WORDS
    assert isinstance(loaded.vectors, np.memmap)
    np.testing.assert_array_equal(loaded.vectors, embedder.vectors)
    assert (loaded.subwords is not None) == with_subwords
    if with_subwords:
        assert isinstance(loaded.subwords.vectors, np.memmap)
        assert (loaded.subwords.min_length, loaded.subwords.max_length) == (2, 4)
        np.testing.assert_array_equal(loaded.subwords.vectors, embedder.subwords.vectors)
    loaded.save_to_preset(tmp_path / "preset")  # replaces the files that are mapped
    assert StaticEmbedder.from_preset(tmp_path / "preset").nearest("good") == embedder.nearest("good")


def test_presets_in_int8(tmp_path: Path) -> None:
    embedder = make_embedder()
    embedder.save_to_preset(tmp_path / "preset", weights_dtype="int8")
    loaded = StaticEmbedder.from_preset(tmp_path / "preset")
    assert loaded.words == WORDS
    step = np.abs(embedder.vectors).max(axis=1, keepdims=True) / 127
    assert np.abs(loaded.vectors - embedder.vectors).max() > 0
    assert (np.abs(loaded.vectors - embedder.vectors) <= 0.5001 * step).all()
    backbone = Backbone.from_preset(tmp_path / "preset")
    np.testing.assert_array_equal(backbone.token_embedding.embeddings[-len(WORDS) :], loaded.vectors)


def test_altered_presets_are_refused(tmp_path: Path) -> None:
    make_embedder(with_subwords=True).save_to_preset(tmp_path / "preset")
    path = tmp_path / "preset" / "assets" / "subwords.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(PresetError, match=r"subwords\.npy was altered"):
        StaticEmbedder.from_preset(tmp_path / "preset")
    (tmp_path / "preset" / "manifest.json").unlink()
    with pytest.raises(PresetError, match=r"subwords\.npy cannot be read"):
        StaticEmbedder.from_preset(tmp_path / "preset")
    (tmp_path / "preset" / "assets" / "subwords.json").write_text('{"min_length": 2}')
    with pytest.raises(PresetError, match=r"subwords\.json must hold `min_length` and `max_length`"):
        StaticEmbedder.from_preset(tmp_path / "preset")


def test_presets_of_models_are_refused() -> None:
    with pytest.raises(PresetError, match="'bert_nano_en_uncased' holds a BertBackbone, not word vectors"):
        StaticEmbedder.from_preset("bert_nano_en_uncased")


def test_words_that_presets_cannot_hold_are_left_out(tmp_path: Path) -> None:
    words = ["the", "<unk>", " a", "!!!MAXTERMID", "", "b\n", "film"]
    embedder = make_embedder(words=words)
    with pytest.warns(TextWarning, match="4 of 7 words are empty or begin or end with spaces, and are left out"):
        embedder.save_to_preset(tmp_path / "preset")
    loaded = StaticEmbedder.from_preset(tmp_path / "preset")
    assert dict(zip(loaded.words, loaded.vectors.tolist(), strict=True)) == {
        word: embedder.vectors[words.index(word)].tolist() for word in ("<unk>", "the", "film")
    }


@pytest.mark.parametrize("words", [["the", "<unk>", "cat"], ["<unk>", "the", "cat"]])
def test_presets_keep_special_tokens_with_a_vector_of_zeros(words: list[str], tmp_path: Path) -> None:
    vectors = np.array([[1, 2], [3, 4], [5, 6]], "float32")
    vectors[words.index("<unk>")] = 0
    StaticEmbedder(words, vectors).save_to_preset(tmp_path / "preset")
    loaded = StaticEmbedder.from_preset(tmp_path / "preset")
    assert loaded.words == ["the", "cat", "<unk>"]
    np.testing.assert_array_equal(loaded.vectors, vectors[[words.index(word) for word in loaded.words]])


def test_tasks_on_word_vectors(tmp_path: Path) -> None:
    embedder = make_embedder(words=["the", "film", "was", "good", "bad"])
    embedder.save_to_preset(tmp_path / "preset")
    texts = ["The film", "was xyz GOOD!"]
    task = lmzoo.models.TextEmbedder.from_preset(tmp_path / "preset", normalize=False)
    first, second = task.embed(texts, level="word")
    np.testing.assert_array_equal(first.vectors, embedder.vectors[[0, 1]])
    np.testing.assert_array_equal(second.vectors, [embedder.vectors[2], np.zeros(5), embedder.vectors[3], np.zeros(5)])
    np.testing.assert_allclose(task.embed(texts)[:1], embedder.embed(texts[:1]), atol=1e-7)
    tagger = lmzoo.models.TokenClassifier.from_preset(tmp_path / "preset", labels=["O", "B-X"])
    tagger.save_to_preset(tmp_path / "tagger")
    np.testing.assert_array_equal(StaticEmbedder.from_preset(tmp_path / "tagger").vectors, embedder.vectors)


def test_from_preset_reads_files_of_vectors(tmp_path: Path) -> None:
    embedder = make_embedder(words=WORDS[:7])
    embedder.save(tmp_path / "vectors.txt")
    np.testing.assert_array_equal(StaticEmbedder.from_preset(tmp_path / "vectors.txt").vectors, embedder.vectors)


def test_errors_of_arguments() -> None:
    vectors = np.ones((2, 3))
    with pytest.raises(ValueError, match=r"a row for each of the 3 words, got shape \(2, 3\)"):
        StaticEmbedder(["a", "b", "c"], vectors)
    with pytest.raises(ValueError, match="must be different, got 'a' twice"):
        StaticEmbedder(["a", "a"], vectors)
    with pytest.raises(ValueError, match="got the widths 3 and 2"):
        StaticEmbedder(["a", "b"], vectors, Subwords(3, 6, np.ones((5, 2), "float32")))
    with pytest.raises(TypeError, match=r"`words\[1\]` must be a string, got 3"):
        StaticEmbedder(["a", 3], vectors)
    with pytest.raises(TypeError, match="`words` must be a list of strings, got one string"):
        StaticEmbedder("ab", vectors)
    embedder = make_embedder()
    with pytest.raises(ValueError, match="'xyz' is not among the 11 words"):
        embedder.nearest("xyz")
    with pytest.raises(ValueError, match="`top_k` must be a positive integer"):
        embedder.nearest("good", top_k=0)
    with pytest.raises(ValueError, match="`word` must be a word"):
        embedder.nearest(["good"])
    with pytest.raises(ValueError, match='`method` must be "3CosAdd" or "3CosMul"'):
        embedder.analogy("good", "bad", "was", method="add")
    with pytest.raises(ValueError, match='`level` must be "text" or "word"'):
        embedder.embed(["good"], level="token")
    with pytest.raises(TypeError, match="write"):
        embedder.embed("good")


def test_errors_of_evaluation_files(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("good\tbad\t1\ngood\tbad\n")
    with pytest.raises(ValueError, match=r"words\.txt, line 2 must hold two words and a number"):
        lmzoo.evaluation.word_similarity(make_embedder(), path)
    path.write_text(": a\ngood bad\n")
    with pytest.raises(ValueError, match=r"words\.txt, line 2 must hold four words"):
        lmzoo.evaluation.word_analogies(make_embedder(), path)
    with pytest.raises(ValueError, match="two or more pairs of words in the vocabulary, got 0 of 1"):
        lmzoo.evaluation.word_similarity(make_embedder(), [("x", "y", 1)])
    with pytest.raises(ValueError, match="questions whose words are in the vocabulary, got none of 1"):
        lmzoo.evaluation.word_analogies(make_embedder(), [("x", "y", "z", "good")])


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([WORDS[:4], WORDS[:3]], r"`questions\[1\]` must be four words, got \['the', 'film', 'was'\]"),
        (["good"], r"`questions\[0\]` must be four words, got 'good'"),
        ([("the", "film", "was", 3)], r"`questions\[0\]` must be four words, got \('the', 'film', 'was', 3\)"),
    ],
)
def test_errors_of_questions(questions: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lmzoo.evaluation.word_analogies(make_embedder(), questions)


@pytest.mark.parametrize("pair", [("the", "film"), ("the", "film", "x"), ("the", "film", float("nan")), "abc", 3])
def test_errors_of_judged_pairs(pair: Any) -> None:
    pairs = [("the", "film", "1.5"), pair]
    with pytest.raises(ValueError, match=r"`pairs\[1\]` must be two words and a finite number, got "):
        lmzoo.evaluation.word_similarity(make_embedder(), pairs)


def test_errors_of_methods() -> None:
    with pytest.raises(ValueError, match='`method` must be "3CosAdd" or "3CosMul", got \'x\''):
        lmzoo.evaluation.word_analogies(make_embedder(), [WORDS[:4]], method="x")
    with pytest.raises(ValueError, match='`method` must be "3CosAdd" or "3CosMul", got \'x\''):
        make_embedder().score_analogies(np.ones((1, 3, 5), "float32"), "x")


def test_words_to_look_up_are_cleaned() -> None:
    embedder = make_embedder(with_subwords=True)
    assert embedder.nearest(b"good", 3) == embedder.nearest("good", 3)
    assert embedder.analogy(b"the", "film", b"was", 3) == embedder.analogy("the", "film", "was", 3)
    with pytest.warns(TextWarning, match="invalid UTF-8"):
        assert embedder.nearest("\ud800abc", 3) == embedder.nearest("\ufffdabc", 3)
