"""`lmzoo generate`: text as it comes, and lines of JSON."""

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


def run(*arguments, **options):
    return CliRunner().invoke(app, ["generate", *map(str, arguments)], **options)


def plain(result):
    """The output without the frame and line breaks of messages about options."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", result.output).split())


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
