"""`lmzoo generate` and `lmzoo classify`: text as it comes, and lines of JSON."""

from __future__ import annotations

import json
import re
from typing import get_args

import keras
import pytest
from typer.testing import CliRunner

from lmzoo.families.bert import FAMILY as BERT
from lmzoo.families.gpt2 import FAMILY
from lmzoo.models import CausalLM, MaskedLM
from lmzoo.tasks.generation import SAMPLERS
from lmzoo.testing import randomize, tiny_task
from lmzoo_cli.generation_commands import Sampler
from lmzoo_cli.main import app

PROMPTS = ["the film", "a plot"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    task = tiny_task(CausalLM, FAMILY)
    randomize(task)
    path = tmp_path_factory.mktemp("model") / "model.keras"
    task.save(path)
    return path


def run(*arguments, command="generate", **options):
    return CliRunner().invoke(app, [command, *map(str, arguments)], **options)


def plain(result):
    """The output without the frame and line breaks of messages about options."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", result.output).split())


@pytest.mark.slow
def test_text_and_json(model):
    settings = ["--max-new-tokens", 5, "--sampler", "beam"]
    result = run(model, *settings, "--json", input="\n".join(PROMPTS))
    assert result.exit_code == 0, result.output
    texts = keras.saving.load_model(model).generate(PROMPTS, 5, "beam")
    expected = [{"prompt": prompt, "text": text} for prompt, text in zip(PROMPTS, texts, strict=True)]
    assert [json.loads(line) for line in result.stdout.splitlines()] == expected
    # Pieces of the same text, one prompt after the other.
    plain = run(model, PROMPTS[0], *settings)
    assert plain.stdout == f"{PROMPTS[0]}{texts[0]}\n"


@pytest.mark.slow
def test_errors(model, tmp_path):
    assert get_args(Sampler) == tuple(sorted(SAMPLERS, key=get_args(Sampler).index))
    for option, value, message in (
        ("--sampler", "gredy", "'gredy' is not one of 'greedy', 'random',"),
        ("--temperature", 0, "it must be above 0; its limit of 0 is --sampler greedy"),
    ):  # before the model is looked for
        assert message in plain(run("nowhere", "a", option, value))
    message = "Error: `prompts[0]` has 702 tokens, which with `max_new_tokens=4` is more than the"
    shown = plain(run(model, "a " * 701, "--max-new-tokens", 4))
    assert message in shown
    assert shown.endswith(" Option: --max-new-tokens.")
    tiny_task(MaskedLM, BERT).save(tmp_path / "masked.keras")
    message = "holds a MaskedLM, which does not continue texts: use `lmzoo predict`."
    assert message in run(tmp_path / "masked.keras", "a").output.replace("\n", " ")


def test_classify(model, tmp_path):
    choices = ["--choice", "good", "--choice", "very bad"]
    (tmp_path / "shots.csv").write_text('label,text\nvery bad,"a film,"\ngood,the plot\n')
    settings = ["--examples", tmp_path / "shots.csv", "--reduction", "mean", "--unconditional-prompt", "", "--top-k", 2]
    result = run(model, *choices, *settings, "--separator", "\n", command="classify", input="\n".join(PROMPTS))
    assert result.exit_code == 0, result.output
    task = keras.saving.load_model(model)
    examples = [("a film,", "very bad"), ("the plot", "good")]
    expected = task.classify(PROMPTS, ["good", "very bad"], examples, "mean", "", separator="\n", top_k=2)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["prompt"] for line in lines] == PROMPTS
    for line, answers in zip(lines, expected, strict=True):
        assert [answer["label"] for answer in line["answers"]] == [answer["label"] for answer in answers]
        assert [a["score"] for a in line["answers"]] == pytest.approx([a["score"] for a in answers], rel=1e-4)
    (line,) = run(model, PROMPTS[0], *choices, command="classify").stdout.splitlines()
    (answer,) = task.classify(PROMPTS[:1], ["good", "very bad"])
    assert json.loads(line) == {"prompt": PROMPTS[0], **answer, "score": pytest.approx(answer["score"], rel=1e-4)}


def test_classify_errors(model, tmp_path):
    (tmp_path / "shots.csv").write_text("text,label\na,good\nb,fine\n")
    for arguments, message in (
        ((PROMPTS[0],), "Missing option '--choice'"),
        ((PROMPTS[0], "--choice", "good"), "`choices` must be at least two texts, got ['good']. Option: --choice."),
        (
            (PROMPTS[0], "--choice", "good", "--choice", "bad", "--examples", tmp_path / "shots.csv"),
            "`examples[1]` has the choice 'fine', which is not one of `choices`: correct it. Option: --examples.",
        ),
        ((PROMPTS[0], "--choice", "a", "--choice", "b", "--examples", tmp_path / "no.csv"), "does not exist"),
    ):
        shown = run(model, *arguments, command="classify")
        assert shown.exit_code
        assert message in plain(shown)
    tiny_task(MaskedLM, BERT).save(tmp_path / "masked.keras")
    result = run(tmp_path / "masked.keras", "a", "--choice", "b", "--choice", "c", command="classify")
    message = "holds a MaskedLM, which does not continue texts: use `lmzoo predict`."
    assert message in result.output.replace("\n", " ")
