"""`lmzoo generate`: text as it comes, and lines of JSON."""

from __future__ import annotations

import json

import keras
import pytest
from typer.testing import CliRunner

from lmzoo.cli.main import app
from lmzoo.families.bert import FAMILY as BERT
from lmzoo.families.gpt2 import FAMILY
from lmzoo.models import CausalLM, MaskedLM
from lmzoo.testing import randomize, tiny_task

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
    assert "Error: There is no sampler 'gredy'. Did you mean 'greedy'?" in run(model, "a", "--sampler", "gredy").output
    tiny_task(MaskedLM, BERT).save(tmp_path / "masked.keras")
    message = "holds a MaskedLM, which does not generate text: use `lmzoo predict`."
    assert message in run(tmp_path / "masked.keras", "a").output.replace("\n", " ")
