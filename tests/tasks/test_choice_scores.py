"""`CausalLM.classify`: likelihoods of choices after prompts."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.families.gpt import FAMILY as GPT
from lmzoo.families.gpt2 import FAMILY
from lmzoo.families.lstm_lm import FAMILY as LSTM_LM
from lmzoo.models import CausalLM
from lmzoo.presets.converting import convert
from lmzoo.tasks import choice_scores
from lmzoo.testing import randomize, tiny_preprocessor, tiny_task
from lmzoo.text import Preprocessor
from lmzoo.text.probabilities import softmax

PROMPTS = ["the film was", "a plot", "the é  plot was never dull . is it a good film", "film\n", "very "]
CHOICES = ["good", "very bad", "dull and fine", "bad"]
EXAMPLES = [("the plot is", "bad"), ("a film", "very bad")]


@pytest.fixture(scope="module")
def model():
    """Return a model that the tests do not change."""
    model = tiny_task(CausalLM, FAMILY)
    randomize(model)
    return model


def order_scores(answers):
    """Return the scores in the order of the choices, float (n, C)."""
    return np.array([[{a["label"]: a["score"] for a in row}[choice] for choice in CHOICES] for row in answers])


@pytest.fixture(scope="module")
def likelihoods(model, tmp_path_factory):
    """Return a function that computes the log-likelihoods and token counts of `CHOICES` with transformers."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("gpt2")
    model.save_to_preset(folder / "ours")
    convert(folder / "ours", folder / "theirs", to="hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "theirs")
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder / "theirs").eval()

    def compute(prompts, first=""):
        sums, counts = np.zeros((2, len(prompts), len(CHOICES)))
        for i, prompt in enumerate(prompts):
            for j, choice in enumerate(CHOICES):
                # A space before a choice belongs to its first token.
                before = tokenizer(first + prompt.removesuffix(" "))["input_ids"] or [tokenizer.bos_token_id]
                after = tokenizer(choice if prompt.endswith("\n") else f" {choice}")["input_ids"]
                ids = torch.tensor([before + after])
                with torch.no_grad():
                    scores = peer(ids).logits.log_softmax(-1)[0, len(before) - 1 : -1]
                sums[i, j] = scores[torch.arange(len(after)), torch.tensor(after)].sum()
                counts[i, j] = len(after)
        return sums, counts

    return compute


def test_scores_are_those_of_transformers(model, likelihoods):
    sums, counts = likelihoods([*PROMPTS, ""])
    assert counts.min() < counts.max()
    answers = order_scores(model.classify([*PROMPTS, ""], CHOICES, top_k=4))
    np.testing.assert_allclose(answers, softmax(sums), atol=1e-5)
    np.testing.assert_allclose(np.log(answers[:, :1] / answers), sums[:, :1] - sums, atol=1e-4)
    mean = order_scores(model.classify([*PROMPTS, ""], CHOICES, reduction="mean", top_k=4))
    np.testing.assert_allclose(mean, softmax(sums / counts), atol=1e-5)


@pytest.mark.parametrize("unconditional_prompt", ["", "the film is"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_scores_are_relative_to_an_unconditional_prompt(model, likelihoods, unconditional_prompt, reduction):
    (sums, counts), (prior_sums, prior_counts) = likelihoods(PROMPTS), likelihoods([unconditional_prompt])
    expected = softmax(sums - prior_sums if reduction == "sum" else sums / counts - prior_sums / prior_counts)
    settings = {"reduction": reduction, "unconditional_prompt": unconditional_prompt}
    answers = order_scores(model.classify(PROMPTS, CHOICES, **settings, top_k=4))
    np.testing.assert_allclose(answers, expected, atol=1e-5)


def test_examples_are_put_before_the_prompts(model, likelihoods):
    first = "the plot is bad\n\na film very bad\n\n"
    sums, _ = likelihoods(PROMPTS, first)
    prior_sums, _ = likelihoods([""])  # without examples
    answers = order_scores(model.classify(PROMPTS, CHOICES, EXAMPLES, unconditional_prompt="", top_k=4))
    np.testing.assert_allclose(answers, softmax(sums - prior_sums), atol=1e-5)
    answers_after_one = order_scores(model.classify(PROMPTS, CHOICES, EXAMPLES[:1], top_k=4))
    np.testing.assert_allclose(answers_after_one, softmax(likelihoods(PROMPTS, "the plot is bad\n\n")[0]), atol=1e-5)


def test_answers_have_the_format_of_a_classifiers(model):
    ranked = model.classify(PROMPTS, CHOICES, top_k=3)
    assert [len(row) for row in ranked] == [3] * len(PROMPTS)
    assert all(row == sorted(row, key=lambda answer: -answer["score"]) for row in ranked)
    assert model.classify(PROMPTS, CHOICES) == [row[0] for row in ranked]
    assert all(
        answer.keys() == {"label", "score"} and type(answer["score"]) is float for row in ranked for answer in row
    )
    assert len({answer["label"] for answer in model.classify(PROMPTS, CHOICES)}) > 1
    assert model.classify([], CHOICES) == []
    assert model.classify([b"the film was"], CHOICES) == model.classify(["the film was"], CHOICES)


def test_scores_do_not_depend_on_batches_and_sequence_length(model):
    expected = order_scores(model.classify(PROMPTS, CHOICES, top_k=4))
    for batch_size in (1, 3):
        answers = order_scores(model.classify(PROMPTS, CHOICES, top_k=4, batch_size=batch_size))
        np.testing.assert_allclose(answers, expected, atol=1e-5)
    # The model limits prompts, not the length to which its preprocessor truncates texts.
    preprocessor = tiny_preprocessor(FAMILY)
    short = CausalLM(model.backbone, Preprocessor(preprocessor.tokenizer, FAMILY.packing, 5))
    np.testing.assert_allclose(order_scores(short.classify(PROMPTS, CHOICES, top_k=4)), expected, atol=1e-5)


def sum_token_scores(model, prompt, choices):
    """Return the choices' sums over `score`, which begins texts with the start token."""
    sums = []
    for choice in choices:
        (tokens,) = model.score([f"{prompt} {choice}"])
        sums.append(sum(token["log_probability"] for token in tokens if token["end"] > len(prompt)))
    return np.array([sums])


def sum_text_scores(model, prompt, choices):
    """Return the sums over `score` of whole texts, float (1, C), and their numbers of tokens."""
    rows = model.score([prompt + choice for choice in choices])
    sums = [sum(token["log_probability"] for token in row) for row in rows]
    return np.array([sums]), np.array([[len(row) for row in rows]])


@pytest.fixture(scope="module")
def merging_model(model):
    """Return the model with a tokenizer for which "overcome" begins with "over", and "overside" with "o"."""
    original = model.preprocessor.tokenizer
    merges = ["r s", "e rs", "v ers", "o v", "ov e", "ove r"]
    vocabulary = list(original.vocabulary)
    for old, new in zip(original.merges[-len(merges) :], merges, strict=True):
        vocabulary[vocabulary.index(old.replace(" ", ""))] = new.replace(" ", "")
    all_merges = [*original.merges[: -len(merges)], *merges]
    tokenizer = FAMILY.tokenizer(vocabulary, all_merges, **FAMILY.special_tokens)
    tokens = [[tokenizer.id_to_token(id) for id in ids] for ids in tokenizer.tokenize(["overcome", "overside"])]
    assert [row[:2] for row in tokens] == [["over", "c"], ["o", "vers"]]
    return CausalLM(model.backbone, Preprocessor(tokenizer, FAMILY.packing, 67))


@pytest.mark.parametrize(("prompt", "adds_start_token"), [("over", False), ("over", True), ("the over", True)])
def test_choices_follow_the_same_context_if_they_change_the_tokens_of_the_prompt(
    merging_model, prompt, adds_start_token
):
    task = CausalLM(merging_model.backbone, merging_model.preprocessor, add_start_token=adds_start_token)
    choices = ["come", "side"]
    sums, counts = sum_text_scores(task, prompt, choices)

    def classify(prompt, **settings):
        (row,) = task.classify([prompt], choices, separator="", top_k=2, **settings)
        return [[{answer["label"]: answer["score"] for answer in row}[choice] for choice in choices]]

    np.testing.assert_allclose(classify(prompt), softmax(sums), atol=1e-5)
    # The mean is over the tokens after the common ones, which are the tokens of "the ".
    (common_row,) = task.score([prompt.removesuffix("over")])
    common_sum = sum(token["log_probability"] for token in common_row)
    means = (sums - common_sum) / (counts - len(common_row))
    np.testing.assert_allclose(classify(prompt, reduction="mean"), softmax(means), atol=1e-5)
    if adds_start_token:
        other_sums, _ = sum_text_scores(task, "the film was ", choices)
        relative = classify("the film was ", unconditional_prompt=prompt)
        np.testing.assert_allclose(relative, softmax(other_sums - sums), atol=1e-5)


def test_choices_that_change_the_prompt_in_a_family_without_a_start_token():
    """The last token of "goo" differs between "goox" and "goo!", and all of its tokens between "good" and "goo!"."""
    model = tiny_task(CausalLM, GPT)
    choices = ["x", "!"]
    (row,) = model.classify(["goo"], choices, separator="", top_k=2)
    scores = {answer["label"]: answer["score"] for answer in row}
    expected = softmax(sum_text_scores(model, "goo", choices)[0])
    np.testing.assert_allclose([[scores[choice] for choice in choices]], expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"first token of `prompts\[0\]` depends on the choice or .* no start token"):
        model.classify(["goo"], ["d", "!"], separator="")
    with pytest.raises(ValueError, match=r"first token of `unconditional_prompt` depends on the choice"):
        model.classify(["the film "], ["d", "!"], separator="", unconditional_prompt="goo")


def test_a_choice_without_tokens_after_a_prompt_that_others_change():
    with pytest.raises(ValueError, match=r"`choices\[1\]`, '\\x00', has no tokens"):
        tiny_task(CausalLM, GPT).classify(["the goo"], ["d", "\x00"], separator="")


@pytest.mark.slow
def test_prompts_begin_with_the_start_token_if_it_is_added(model):
    started = CausalLM(model.backbone, model.preprocessor, add_start_token=True)
    for prompt in ("the film was", ""):
        answers = order_scores(started.classify([prompt], CHOICES, top_k=4))
        np.testing.assert_allclose(answers, softmax(sum_token_scores(model, prompt, CHOICES)), atol=1e-5)
    assert abs(answers - order_scores(model.classify(["the film was"], CHOICES, top_k=4))).max() > 1e-3


@pytest.mark.parametrize("carries_state", [False, True])
def test_recurrent_models_classify_from_zero_states(carries_state):
    model = tiny_task(CausalLM, LSTM_LM, carries_state=carries_state)
    model.add_start_token = True
    answers = order_scores(model.classify(PROMPTS[:2], CHOICES, top_k=4))
    expected = np.concatenate([sum_token_scores(model, prompt, CHOICES) for prompt in PROMPTS[:2]])
    np.testing.assert_allclose(answers, softmax(expected), atol=1e-5)


@pytest.mark.slow
def test_classify_follows_new_weights_and_quantization():
    model = tiny_task(CausalLM, FAMILY)
    before = order_scores(model.classify(PROMPTS, CHOICES, top_k=4))
    model.backbone.set_weights([2 * w for w in model.backbone.get_weights()])
    assert abs(order_scores(model.classify(PROMPTS, CHOICES, top_k=4)) - before).max() > 1e-3
    model.backbone.set_weights([w / 2 for w in model.backbone.get_weights()])
    model.quantize("int8")
    np.testing.assert_allclose(order_scores(model.classify(PROMPTS, CHOICES, top_k=4)), before, atol=0.05)


# === Tokens ===


def encode_choices(prompt, choices, separator=" "):
    preprocessor = tiny_preprocessor(FAMILY)
    return preprocessor.tokenizer, choice_scores.encode_choices(
        preprocessor, "`prompts[0]`", prompt, choices, separator, [0], 67
    )


def test_choices_of_one_token_share_a_sequence():
    tokenizer, (row,) = encode_choices("the film was", ["good", "bad", "dull"])
    assert row.token_ids == tokenizer.tokenize(["the film was"])[0]
    assert row.positions == [len(row.token_ids) - 1] * 3
    assert row.targets == tokenizer.tokenize([" good bad dull"])[0]
    _, rows = encode_choices("the film was", ["good", "good film", "bad plot", "bad"])
    length = len(row.token_ids) + 1
    assert [(len(row.token_ids), row.choices) for row in rows] == [(length, [1, 1, 0, 3]), (length, [2, 2])]


def test_a_token_of_prompt_and_choice_belongs_to_the_choice():
    """Without a separator, "go" + "od" is a single token, and the prompt keeps only the tokens before it."""
    tokenizer, rows = encode_choices("the go", ["od", "ose"], separator="")
    the = tokenizer.tokenize(["the"])[0]
    good = tokenizer.tokenize([" good"])[0]
    goose = tokenizer.tokenize([" goose"])[0]
    assert [row.token_ids for row in rows] == [the + goose[:-1]]
    assert rows[0].targets == goose + good
    assert rows[0].choices == [1] * len(goose) + [0]
    for prompt, suffix in (("the ", " good"), ("the\n", "good"), ("the", " good")):
        assert choice_scores.join_choice(prompt, "good", " ").endswith(suffix)
    assert choice_scores.join_choice("the", " good", " ") == "the good"
    assert choice_scores.join_choice("", "good", " ") == " good"


# === Errors ===


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((["a"], ["good"]), ValueError, "`choices` must be at least two texts, got"),
        ((["a"], ["good", " "]), ValueError, r"`choices\[1\]` is empty"),
        ((["a"], ["bad", "good", "bad"]), ValueError, r"`choices\[0\]` and `choices\[2\]` are both 'bad'"),
        ((["a"], ["good", " good"]), ValueError, r"`choices\[0\]` and `choices\[1\]` have the same tokens"),
        ((["a"], "good"), TypeError, "`choices` must be a list of strings, got one string"),
        ((["a"], ["good", None]), TypeError, r"`choices\[1\]` must be a string, got None"),
        (("a", CHOICES), TypeError, "`prompts` must be a list of strings, got one string"),
        ((["a", 3], CHOICES), TypeError, r"`prompts\[1\]` must be a string, got 3"),
        ((["a", "a " * 73], CHOICES), ValueError, r"`prompts\[1\]` has 73 tokens, .* more than the 73 tokens"),
        (
            (["a"], CHOICES, [("a " * 99, "bad")]),
            ValueError,
            r"`prompts\[0\]` after `examples` has 1\d\d tokens, which",
        ),
        ((["a"], CHOICES, [("a", "bda")]), ValueError, r"`examples\[0\]` has the choice 'bda', which is not one"),
        ((["a"], CHOICES, [("a", "bad"), "film"]), TypeError, r"`examples\[1\]` must be a pair"),
        ((["a"], CHOICES, [("a", "bad"), (None, "bad")]), TypeError, r"`prompts of `examples`\[1\]` must be a string"),
        ((["a"], CHOICES, (), "median"), ValueError, '`reduction` must be "sum" or "mean", got \'median\''),
        ((["a"], CHOICES, (), "sum", "a " * 99), ValueError, "`unconditional_prompt` has 99 tokens, which"),
        ((["a"], CHOICES, (), "sum", 7), TypeError, "`unconditional_prompt"),
        ((["a"], CHOICES, (), "sum", None, None), ValueError, "`separator` must be a string, got None"),
        ((["a"], CHOICES, (), "sum", None, " ", 0), ValueError, "`top_k` must be a positive integer, got 0"),
        ((["a"], CHOICES, (), "sum", None, " ", 1, 0), ValueError, "`batch_size` must be an integer of at least 1"),
    ],
)
def test_errors_before_the_first_step(model, monkeypatch, arguments, error, message):
    monkeypatch.setattr(choice_scores, "predict_encoded", None)
    with pytest.raises(error, match=message):
        model.classify(*arguments)


def test_a_family_without_a_start_token():
    model = tiny_task(CausalLM, GPT)
    assert len(model.classify(["the film"], CHOICES)) == 1
    with pytest.raises(ValueError, match=r"`prompts\[1\]` is empty, and the family has no start token"):
        model.classify(["the film", ""], CHOICES)
    with pytest.raises(ValueError, match="`unconditional_prompt` is empty"):
        model.classify(["the film"], CHOICES, unconditional_prompt="")
    with pytest.raises(ValueError, match=r"`choices\[0\]`, '\\x00', has no tokens"):
        model.classify(["the film"], ["\x00", "good"])
