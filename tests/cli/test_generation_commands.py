"""`lmzoo generate` and `lmzoo classify`: streamed text and JSON lines."""

from __future__ import annotations

import re
from typing import get_args

import keras
import pytest

from lmzoo.families.bert import FAMILY as BERT
from lmzoo.families.gpt2 import FAMILY
from lmzoo.models import CausalLM, MaskedLM
from lmzoo.tasks.generation import SAMPLERS
from lmzoo.testing import randomize, tiny_task
from lmzoo_cli.generation_commands import Sampler
from tests.cli.commands import error_of, json_lines, run

PROMPTS = ["the film", "a plot"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    task = tiny_task(CausalLM, FAMILY)
    randomize(task)
    path = tmp_path_factory.mktemp("model") / "model.keras"
    task.save(path)
    return path


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory):
    path = tmp_path_factory.mktemp("masked") / "masked.keras"
    tiny_task(MaskedLM, BERT).save(path)
    return path


def plain(result):
    """Return the output without the frame and line breaks of messages about options."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", result.output).split())


@pytest.mark.slow
def test_json_and_streamed_text_equal_generate(model):
    settings = ["--max-new-tokens", 5, "--sampler", "beam"]
    result = run("generate", model, *settings, "--json", stdin="\n".join(PROMPTS))
    texts = keras.saving.load_model(model).generate(PROMPTS, 5, "beam")
    expected = [{"prompt": prompt, "text": text} for prompt, text in zip(PROMPTS, texts, strict=True)]
    assert json_lines(result) == expected
    assert run("generate", model, PROMPTS[0], *settings).stdout == f"{PROMPTS[0]}{texts[0]}\n"


@pytest.mark.slow
def test_generate_errors(model, masked_lm):
    assert get_args(Sampler) == tuple(sorted(SAMPLERS, key=get_args(Sampler).index))
    for option, value, message in (
        ("--sampler", "gredy", "'gredy' is not one of 'greedy', 'random',"),
        ("--temperature", 0, "it must be above 0; its limit of 0 is --sampler greedy"),
    ):  # before the model is looked for
        assert message in plain(run("generate", "nowhere", "a", option, value, code=2))
    message = error_of("generate", model, "a " * 701, "--max-new-tokens", 4)
    assert "`prompts[0]` has 702 tokens, which with `max_new_tokens=4` is more than the" in message
    assert message.endswith(" Option: --max-new-tokens.\n")
    message = "holds a MaskedLM, which does not continue texts: use `lmzoo predict`."
    assert message in error_of("generate", masked_lm, "a")


def test_classify_equals_the_method(model, tmp_path):
    choices = ["--choice", "good", "--choice", "very bad"]
    (tmp_path / "shots.csv").write_text('label,text\nvery bad,"a film,"\ngood,the plot\n')
    settings = ["--examples", tmp_path / "shots.csv", "--reduction", "mean", "--unconditional-prompt", "", "--top-k", 2]
    rows = json_lines(run("classify", model, *choices, *settings, "--separator", "\n", stdin="\n".join(PROMPTS)))
    task = keras.saving.load_model(model)
    examples = [("a film,", "very bad"), ("the plot", "good")]
    expected = task.classify(PROMPTS, ["good", "very bad"], examples, "mean", "", separator="\n", top_k=2)
    assert [row["prompt"] for row in rows] == PROMPTS
    for row, answers in zip(rows, expected, strict=True):
        assert [answer["label"] for answer in row["answers"]] == [answer["label"] for answer in answers]
        assert [a["score"] for a in row["answers"]] == pytest.approx([a["score"] for a in answers], rel=1e-4)
    (row,) = json_lines(run("classify", model, PROMPTS[0], *choices))
    (answer,) = task.classify(PROMPTS[:1], ["good", "very bad"])
    assert row == {"prompt": PROMPTS[0], **answer, "score": pytest.approx(answer["score"], rel=1e-4)}


@pytest.mark.filterwarnings("default::lmzoo.text.TextWarning")
def test_invalid_utf8_in_arguments_is_replaced_with_a_warning(model):
    result = run("classify", model, "a caf\udce9", "--choice", "good", "--choice", "b\udce9d", "--top-k", 2)
    (row,) = json_lines(result)
    assert row["prompt"] == "a caf\ufffd"
    assert {answer["label"] for answer in row["answers"]} == {"good", "b\ufffdd"}
    for count in (1, 2):
        assert f"Warning: 1 of {count} texts held invalid UTF-8; it was read as U+FFFD.\n" in result.stderr


def test_without_choices_classify_names_the_command_for_classifiers():
    message = plain(run("classify", "sentiment.keras", PROMPTS[0], code=2))  # the model is not looked for
    assert "Invalid value for '--choice': a fine-tuned classifier answers with `lmzoo predict`" in message


def test_classify_errors(model, masked_lm, tmp_path):
    (tmp_path / "shots.csv").write_text("text,label\na,good\nb,fine\n")
    choices = ["--choice", "good", "--choice", "bad"]
    missing_file = run("classify", model, PROMPTS[0], *choices, "--examples", tmp_path / "no.csv", code=2)
    assert "does not exist" in plain(missing_file)
    message = "`choices` must be at least two texts, got ['good']. Option: --choice."
    assert message in error_of("classify", model, PROMPTS[0], "--choice", "good")
    message = "`examples[1]` has the choice 'fine', which is not one of `choices`: correct it. Option: --examples."
    assert message in error_of("classify", model, PROMPTS[0], *choices, "--examples", tmp_path / "shots.csv")
    message = "holds a MaskedLM, which does not continue texts: use `lmzoo predict`."
    assert message in error_of("classify", masked_lm, "a", *choices)
