"""`QuestionAnswerer` on raw text: windows, labels, answers, thresholds."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

from lmzoo.evaluation import squad_metrics
from lmzoo.models import QuestionAnswerer
from lmzoo.registry.family import families
from lmzoo.testing import tiny_preprocessor, tiny_task
from lmzoo.text import EncodedWindows, TextWarning
from lmzoo.text.validate_text import collect_warnings

CONTEXT = "the film was good . a plot is bad ! the film was dull"
PAIRS = [("the film ?", CONTEXT), ("a plot ?", "a plot is very fine"), ("is bad ?", "")]
GOLDS = [
    {"text": "good", "answer_start": 13},
    [{"text": "very fine", "answer_start": 10}, {"text": "fine", "answer_start": 15}],
    None,
]
NO_ANSWER = {"text": "", "start": 0, "end": 0}


def build(tiny, length=14, **arguments):
    return QuestionAnswerer(tiny.backbone(), tiny.preprocessor(length), **{"doc_stride": 3, **arguments})


@pytest.fixture(scope="module")
def task(tiny):
    return build(tiny)


def without_score(answer):
    return {name: value for name, value in answer.items() if name != "score"}


def agree(actual, expected):
    """Return whether the answers are equal, with scores equal up to rounding."""
    pairs = list(zip(actual, expected, strict=True))
    return all(without_score(a) == without_score(b) and abs(a["score"] - b["score"]) < 1e-4 for a, b in pairs)


# === Labels ===


def encode_targets(task, x, y, weight=None):
    encoded, positions, weights = task.encode_examples(x, y, weight)
    return encoded.examples.tolist(), positions.tolist(), weights


def test_each_window_is_labeled_with_the_answer_inside_it(task):
    # Windows of eight tokens: from "the", from "good" and from "plot".
    examples, positions, weights = encode_targets(task, PAIRS, GOLDS, [2.0, 3.0, 5.0])
    assert examples == [0, 0, 0, 1, 2]
    assert positions == [[8, 8], [5, 5], [0, 0], [8, 9], [0, 0]]
    assert weights.tolist() == [2, 2, 2, 3, 5]


@pytest.mark.parametrize(
    "y",
    [
        [GOLDS[0], {"text": ["very fine", "fine"], "answer_start": [10, 15]}, {"text": [], "answer_start": []}],
        {"text": ["good", "very fine", ""], "answer_start": np.array([13, 10, -1])},
        [[GOLDS[0]], GOLDS[1], []],
    ],
)
def test_all_forms_of_labels_are_equivalent(task, y):
    assert encode_targets(task, PAIRS, y) == encode_targets(task, PAIRS, GOLDS)


def test_all_forms_of_pairs_are_equivalent(task):
    expected = encode_targets(task, PAIRS, GOLDS)
    columns = tuple(list(column) for column in zip(*PAIRS, strict=True))
    assert encode_targets(task, columns, GOLDS) == expected
    assert encode_targets(task, tuple(np.array(column) for column in columns), GOLDS) == expected
    encoded = task.encode_inputs(PAIRS)
    assert isinstance(encoded, EncodedWindows)
    assert encode_targets(task, encoded, GOLDS) == expected
    assert encode_targets(task, encoded, np.array(expected[1]), None) == expected


def test_a_warning_counts_the_answers_that_fit_no_window(tiny):
    task = build(tiny, max_answer_length=2)
    context = "good film " * 9
    y = [{"text": text, "answer_start": 0} for text in ("good film good", context.strip())] + [None]
    with collect_warnings() as notices:
        _, positions, _ = task.encode_examples([("the", context)] * 3, y)
    assert positions.any(axis=1).sum() == 1
    assert [notice.split(":")[0] for notice in notices] == [
        "1 of 2 answers are not in any window as a whole and are learned as no answer",
        "1 of 2 answers are longer than `max_answer_length`, 2 tokens",
    ]


@pytest.mark.parametrize("top_k", [0, -1, 2.5])
def test_top_k_must_be_positive(task, top_k):
    with pytest.raises(ValueError, match="`top_k` must be a positive integer"):
        task.answer(PAIRS, top_k=top_k)


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (
            PAIRS,
            [{"text": "good", "answer_start": 12}, None, None],
            ValueError,
            "answer of example 0, 'good', is not at",
        ),
        (PAIRS, [None, None, {"text": "good", "answer_start": 0}], ValueError, "example 2, 'good', .* occurs nowhere"),
        (PAIRS, [None, [GOLDS[1][0], {"text": "a", "answer_start": 3}], None], ValueError, "example 1, 'a', is not at"),
        (PAIRS, [{"text": " ", "answer_start": 3}, None, None], ValueError, "example 0, ' ', is white space"),
        (PAIRS, [{"text": "the", "answer_start": -1}, None, None], ValueError, "begins before its context: -1"),
        (("the film", "a plot"), [None], ValueError, r"One pair is \[\(first, second\)\]"),
        (PAIRS, ["good", None, None], ValueError, "example 0, 'good', lacks its \"answer_start\""),
        (PAIRS, [1, None, None], TypeError, r"`y\[0\]` must be"),
        (PAIRS, np.zeros((3, 2), int), TypeError, r"`y\[0\]` must be"),
        (["the film", "a plot"], [None, None], ValueError, "takes pairs"),
        ([("a", "b"), ("a", None)], [None, None], TypeError, r"`contexts\[1\]` must be a string, got None"),
        ([(3, "b")], [None], TypeError, r"`questions\[0\]` must be a string, got 3"),
        ((["a"], ["b", "c"]), [None], ValueError, "a context for each question, got 1 and 2"),
        ([], [], ValueError, "no examples"),
        ([("film " * 15, "good")], [None], ValueError, "question of example 0 has 15 tokens; .* `max_question_length`"),
    ],
)
def test_errors_come_before_the_first_step(task, assert_refused, x, y, error, message):
    assert_refused(task, (x, y), (PAIRS, GOLDS), error, message)


@pytest.mark.parametrize("y", [[[0, 1]], np.zeros((1, 3), int), np.array([[0.0, 1.0]]), np.array([[-1, 0]])])
def test_labels_of_token_features_are_two_positions(task, y):
    features = task.features(task.encode_inputs(PAIRS[1:2]), np.arange(1), 17)
    assert np.isfinite(task.evaluate(features, np.array([[3, 4]]), verbose=0)[0])
    if isinstance(y, list):
        assert np.isfinite(task.evaluate(features, y, verbose=0)[0])
        return
    with pytest.raises(ValueError, match=r"positions of the answer's first and last token, .* shape \(n, 2\); got"):
        task.evaluate(features, y, verbose=0)


def test_answers_in_token_features_are_within_the_sequences(task):
    features = {name: np.ones((2, 7), "int32") for name in task.input}
    assert np.isfinite(task.test_on_batch(features, [[0, 6], [6, 6]])).all()
    with pytest.raises(ValueError, match=r"Label 7 at position 1 is outside \[0, 7\), the sequence"):
        task.evaluate(features, [[0, 6], [3, 7]], verbose=0)


# === Training ===


def test_evaluate_is_the_loss_of_the_windows(task):
    encoded, positions, _ = task.encode_examples(PAIRS, GOLDS)
    logits = task.predict(encoded, verbose=0)
    log_probabilities = [
        row[:n] - np.log(np.exp(row[:n]).sum(axis=0)) for row, n in zip(logits, encoded.lengths, strict=True)
    ]
    losses = np.array([-(w[a, 0] + w[b, 1]) / 2 for w, (a, b) in zip(log_probabilities, positions, strict=True)])
    assert task.evaluate(PAIRS, GOLDS, verbose=0)[0] == pytest.approx(losses.mean(), rel=1e-4)
    weighted = task.evaluate(PAIRS, GOLDS, sample_weight=np.array([1.0, 0.0, 2.0]), verbose=0)[0]
    assert weighted == pytest.approx((losses * [1, 1, 1, 0, 2]).mean(), rel=1e-4)


def test_an_example_is_not_split_between_training_and_validation(task, monkeypatch):
    inputs = []
    encode = type(task).encode_examples

    def encode_examples(self, x, y=None, sample_weight=None, **kwargs):
        inputs.append(x)
        return encode(self, x, y, sample_weight, **kwargs)

    monkeypatch.setattr(QuestionAnswerer, "encode_examples", encode_examples)
    pairs, golds = [PAIRS[1], PAIRS[0], PAIRS[0]], [GOLDS[1], GOLDS[0], GOLDS[0]]  # of one, three and three windows
    task.fit(pairs, golds, validation_split=0.3, verbose=0)
    validation, train = inputs[1:3]  # the validation set is checked first
    assert train.examples.tolist() == [0, 1, 1, 1]
    assert validation.examples.tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="leaves no examples"):
        task.fit(pairs[1:2], golds[1:2], validation_split=0.3, verbose=0)


@pytest.mark.slow
def test_datasets_are_read_like_lists(tiny, strings_dataset):
    task = build(tiny)
    columns = tuple(list(column) for column in zip(*PAIRS, strict=True))
    y = {"text": ["good", "very fine", ""], "answer_start": [13, 10, -1]}
    dataset = strings_dataset((columns, y)).batch(2)
    expected = task.evaluate(PAIRS, GOLDS, batch_size=99, verbose=0)[0]
    first, last = (task.evaluate(PAIRS[part], GOLDS[part], verbose=0)[0] for part in (slice(0, 2), slice(2, 3)))
    assert expected == pytest.approx((4 * first + last) / 5, rel=1e-4)
    assert task.evaluate(dataset, verbose=0)[0] == pytest.approx(expected, rel=1e-4)
    assert np.isfinite(task.fit(dataset, epochs=2, verbose=0).history["loss"]).all()
    expected = task.predict(PAIRS, verbose=0)
    np.testing.assert_allclose(task.predict(dataset, verbose=0), expected, rtol=1e-4, atol=1e-4)


# === Answers ===


def test_predict_returns_the_logits_of_each_window(task):
    encoded = task.encode_inputs(PAIRS)
    logits = task.predict(PAIRS, verbose=0)
    assert logits.dtype == np.float32
    assert logits.shape == (5, 14, 2)
    for row in range(5):
        length = int(encoded.lengths[row])
        features = task.features(encoded, np.array([row]), length)
        np.testing.assert_allclose(logits[row, :length], task(features)[0], rtol=1e-4, atol=1e-4)
    assert task.predict([], verbose=0).shape[0] == 0


def test_answers_are_parts_of_their_contexts(task):
    for top_k in (1, 3):
        ranked_answers = task.answer(PAIRS, top_k=top_k)
        assert len(ranked_answers) == 3
        for (_, context), answers in zip(PAIRS, ranked_answers, strict=True):
            answers = [answers] if top_k == 1 else answers
            assert len(answers) <= top_k
            for answer in answers:
                assert answer["text"] == context[answer["start"] : answer["end"]]
                assert (answer["text"] == "") == (context == "")
    assert agree(task.answer(PAIRS, top_k=3)[0][:1], task.answer(PAIRS)[:1])
    assert without_score(task.answer(PAIRS)[2]) == NO_ANSWER
    assert task.answer([]) == []


def test_scores_are_probabilities_among_the_listed_answers(task):
    for answers in task.answer(PAIRS, top_k=20):
        scores = [answer["score"] for answer in answers]
        assert sum(scores) == pytest.approx(1)
        assert scores == sorted(scores, reverse=True)
        assert len({answer["text"] for answer in answers}) == len(answers) <= 20


@pytest.mark.slow
def test_questions_and_contexts_as_separate_lists(task):
    questions, contexts = (list(column) for column in zip(*PAIRS, strict=True))
    assert agree(task.answer(questions, contexts), task.answer(PAIRS))
    assert agree(task.answer((questions, contexts)), task.answer(PAIRS))
    assert agree(task.answer([q.encode() for q in questions], [c.encode() for c in contexts]), task.answer(PAIRS))
    with pytest.raises(ValueError, match="takes pairs"):
        task.answer(questions)
    with pytest.raises(ValueError, match="each a list of texts"):
        task.answer("a film ?", ["good"])


def test_answers_do_not_depend_on_the_batch(task):
    assert agree(task.answer(PAIRS, batch_size=1), task.answer(PAIRS))


def test_answers_have_at_most_max_answer_length_tokens(tiny):
    task = build(tiny, max_answer_length=2)
    for answers in task.answer(PAIRS[:1], top_k=20):
        assert {len(answer["text"].split()) for answer in answers} == {1, 2}


@pytest.mark.slow
def test_thresholds_decide_on_no_answer(tiny):
    task = build(tiny)
    texts = [without_score(answer) for answer in task.answer(PAIRS)]
    ranked_answers = []
    for threshold, expected in ((-1e9, [NO_ANSWER] * 3), (1e9, texts)):
        task.null_score_threshold = threshold
        assert [without_score(answer) for answer in task.answer(PAIRS)] == expected
        ranked_answers.append(task.answer(PAIRS, top_k=21))
    for low, high in zip(*ranked_answers, strict=True):
        assert agree(sorted(low, key=lambda a: a["text"]), sorted(high, key=lambda a: a["text"]))
        assert sum(answer["score"] for answer in low) == pytest.approx(1)
        assert without_score(low[0]) == without_score(high[-1]) == NO_ANSWER


@pytest.mark.slow
@pytest.mark.compiled
def test_fit_null_threshold_sets_and_saves_the_best_one(tiny, save_and_load):
    task = build(tiny)
    rng = random.Random(3)
    words = tiny.words[:4]  # articles do not count in answers
    pairs = [(q, " ".join(rng.choices(words, k=rng.randrange(1, 30)))) for q in ("a film", "the plot") * 12]
    # Half of the examples, on which the model is surest, have the model's answer, the rest have none: some threshold
    # is perfect.
    task.null_score_threshold = 0.0
    ranked = task.answer(pairs, top_k=100)
    best, none = ([next(a for a in row if bool(a["text"]) == has_text) for row in ranked] for has_text in (True, False))
    null_scores = [np.log(b["score"] / a["score"]) for a, b in zip(best, none, strict=True)]
    median = np.median(null_scores)
    golds = [[a["text"], "dull"] if score < median else [] for a, score in zip(best, null_scores, strict=True)]
    best_threshold = task.fit_null_threshold(pairs, golds)
    assert task.null_score_threshold == best_threshold

    def f1(threshold):
        task.null_score_threshold = threshold
        return squad_metrics(task.answer(pairs), golds)["f1"]

    assert f1(best_threshold) == pytest.approx(100)
    assert max(f1(1e9), f1(-1e9)) < 99
    task.null_score_threshold = best_threshold
    for clone in save_and_load(task):
        assert clone.null_score_threshold == best_threshold
        assert clone.doc_stride == 3
        assert agree(clone.answer(pairs), task.answer(pairs))


def test_a_threshold_needs_examples_with_and_without_answers(task):
    for golds in ([None, None], [GOLDS[0], GOLDS[1]]):
        with pytest.raises(ValueError, match="with an answer and examples without one"):
            task.fit_null_threshold(PAIRS[:2], golds)
    with pytest.raises(ValueError, match="Got 3 texts but 2 labels"):
        task.fit_null_threshold(PAIRS, GOLDS[:2])


def test_n_best_of_1_still_gives_an_answer(tiny):
    """The best start alone is seldom before the best end."""
    task, rng = build(tiny, n_best=1), random.Random(5)
    pairs = [("a film", " ".join(rng.choices(tiny.words[:8], k=rng.randrange(1, 30)))) for _ in range(16)]
    assert all(answer["text"] for answer in task.answer(pairs))
    task.null_score_threshold = 1e9  # as in Google's code: without a candidate there is no answer
    assert any(not answer["text"] for answer in task.answer(pairs))


@pytest.fixture(scope="module")
def shared_task(tiny):
    """Return a task that the tests do not change."""
    return build(tiny, length=37, max_question_length=5)


@pytest.mark.parametrize("question", ["", " ", "😀 \x00", "film " * 99])
@pytest.mark.parametrize("context", ["", " \n", "\x00", "😀", "e\u0301 café 👩‍👧 中文 Straße", "\ud800 x", "x " * 300])
def test_any_string_is_a_valid_text(shared_task, question, context):
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        (answers,) = shared_task.answer([(question, context)], top_k=20)
    cleaned = context.replace("\ud800", "\ufffd")
    assert len(notices) == ("\ud800" in context) + (len(question) > 99)
    assert {notice.category for notice in notices} <= {TextWarning}
    for answer in answers:
        assert answer["text"] == cleaned[answer["start"] : answer["end"]]
    assert (answers[0]["text"] == "") == (cleaned.strip(" \n\x00") == "")


FAMILIES = [family for family in families().values() if QuestionAnswerer.supports(family)]


def fits_a_window(encoded, example, answer):
    """Return whether a window of the example contains all tokens of the answer, which may not be its first token.

    That position stands for no answer. It belongs to the context where there is neither a start token nor a question.
    """
    of_example = encoded.examples == example
    begins, lengths = (part[of_example] for part in encoded.windows)
    tokens = np.arange(begins.min(), (begins + lengths).max())
    starts, ends = encoded.spans[tokens].T
    first, last = tokens[(starts < answer["end"]) & (answer["start"] < ends)][[0, -1]]
    columns = encoded.second[of_example] + first - begins
    return bool(np.any((begins <= first) & (last < begins + lengths) & (columns > 0)))


@pytest.mark.quick_cases("electra", "marian_encoder", "mpnet", "static_words", "t5_encoder", "xlnet")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_answers_with_parts_of_the_text(family):
    task, rng = tiny_task(QuestionAnswerer, family, doc_stride=5), random.Random(7)
    # Marian's tokenizer makes one token of several unknown characters, so the texts have fewer tokens.
    task.preprocessor.sequence_length = 15 if family.name == "marian_encoder" else 23
    words = ["Café", "naïve", "e\u0301t\u00e9", "👩‍👧", "😀😀", "film", "good"]
    words += ["中文", "Straße", "don't", "U.S.", "ﬁne", "x\u200dy"]
    spaces = [" ", "  ", "\n", "\t", "\u00a0", "\u3000", ""]
    contexts = ["".join(rng.choice(words) + rng.choice(spaces) for _ in range(rng.randrange(40))) for _ in range(12)]
    questions = rng.choices(["what is the film ?", "", "Café ?"], k=12)
    encoded = task.encode_inputs((questions, contexts))
    assert len(encoded) > 20
    ranked_answers = task.answer(questions, contexts, top_k=20)
    num_word_answers = 0
    for context, answers in zip(contexts, ranked_answers, strict=True):
        assert (answers[0]["text"] == "") == (context.strip() == "")
        for answer in answers:
            assert answer["text"] == context[answer["start"] : answer["end"]] == answer["text"].strip()
            num_word_answers += answer["text"] in words
    assert num_word_answers > 3
    # A window may end inside an emoji. The answer's text has the whole emoji, which possibly fits no window.
    golds = [
        [a | {"answer_start": a["start"]} for a in answers if a["text"] and fits_a_window(encoded, example, a)]
        for example, answers in enumerate(ranked_answers)
    ]
    # Labels made of the model's own answers point at these answers in the windows.
    _, positions, _ = task.encode_examples((questions, contexts), golds)
    for window, (first, last) in enumerate(positions):
        answers = golds[encoded.examples[window]]
        if last:
            window_start = encoded.windows[0][window] - encoded.second[window]
            start, end = encoded.spans[window_start + first, 0], encoded.spans[window_start + last, 1]
            text = encoded.contexts[encoded.examples[window]][start:end]
            window_text = text.strip()
            answer = answers[0]["text"]
            # In XLM-RoBERTa, a space token has the span of the next character: an answer that ends with it includes
            # the beginning of the next word, and the window points at the whole token of that word.
            remainder = window_text.removeprefix(answer) if window_text.startswith(answer) else " "
            assert window_text in answer or not any(map(str.isspace, remainder))
    assert positions.any(axis=1).sum() >= sum(bool(answers) for answers in golds)


def test_elmo_reads_texts_and_words_alike():
    family = families()["elmo"]
    task = tiny_task(QuestionAnswerer, family)
    pairs = [(["what", "film", "?"], ["the", "good", "film"]), ("what film ?", "the good film")]
    word_answer, text_answer = task.answer(pairs)
    assert agree([word_answer], [text_answer])
    _, positions, _ = task.encode_examples(pairs, [{"text": "good film", "answer_start": 4}] * 2)
    assert positions.tolist() == [[6, 7]] * 2
    assert tiny_preprocessor(family).tokenizer.takes_words
