"""Exported language models generate the texts of `generate`, without lmzoo and over REST."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.families.gpt2 import FAMILY
from lmzoo.models import CausalLM
from lmzoo.serving.json_tensors import RequestError
from lmzoo.serving.model_versions import ModelVersions
from lmzoo.testing import randomize, tiny_task
from lmzoo.text import Preprocessor

pytestmark = pytest.mark.tf_only

PROMPTS = ["the film", "a", "the plot was never dull . the good", "", "é", "<|endoftext|> good"]
SAMPLERS = ("random", "top_k", "top_p")


@pytest.fixture(scope="module")
def model():
    """Return a model that ends some texts, as the end token is slightly more likely than one word."""
    model = tiny_task(CausalLM, FAMILY, max_new_tokens=9)
    randomize(model)
    embeddings = model.backbone.embeddings.token_embedding.embeddings
    tokenizer, table = model.preprocessor.tokenizer, np.array(embeddings)
    table[tokenizer.token_to_id(tokenizer.end_token)] = 1.01 * table[tokenizer.token_to_id("Ġdull")]
    embeddings.assign(table)
    return model


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "writer"
    model.export(folder / "1", verbose=False)
    return folder


@pytest.fixture(scope="module")
def served(folder):
    return ModelVersions(folder).get()


@pytest.mark.slow
def test_greedy_texts_equal_those_of_generate(model, folder, bare):
    outputs = bare.ask(folder / "1", "serving_default", text=PROMPTS)
    assert outputs == {"text": model.generate(PROMPTS), "truncated": [False] * len(PROMPTS)}
    assert outputs["text"] != model.generate(PROMPTS, stop=None)  # some end early
    assert len(set(outputs["text"])) > 3
    for prompt, text in zip(PROMPTS, outputs["text"], strict=True):
        assert bare.ask(folder / "1", "serving_default", text=[prompt])["text"] == [text]
    invalid = bare.ask(folder / "1", "serving_default", text=[b"the \xff film", b"\xc3"])
    assert invalid["text"] == model.generate(["the \ufffd film", "\ufffd"])


@pytest.mark.slow
def test_sampled_texts_equal_those_of_generate(model, served):
    settings = [{"seed": seed, "temperature": 0.5 + seed % 3} for seed in range(len(PROMPTS))]
    for sampler in SAMPLERS:
        rows = [{"text": text, **row} for text, row in zip(PROMPTS, settings, strict=True)]
        predictions = served.predict({"signature_name": sampler, "instances": rows})["predictions"]
        expected = [model.generate([row["text"]], sampler=sampler, **settings[i])[0] for i, row in enumerate(rows)]
        assert [row["text"] for row in predictions] == expected
        # A text does not depend on the other texts.
        backwards = served.predict({"signature_name": sampler, "instances": rows[::-1]})["predictions"]
        assert [row["text"] for row in backwards] == expected[::-1]
    for wrong, message in (({"temperature": 0.0}, "`temperature` must be pos"), ({"seed": -1}, "`seed` must not be")):
        with pytest.raises(RequestError, match=message):
            served.predict({"signature_name": "random", "instances": [{**rows[0], **wrong}]})


@pytest.mark.slow
def test_long_prompts_keep_their_end(model, served):
    long = "a very " * 80 + "good film"
    tokenizer = model.preprocessor.tokenizer
    tail = tokenizer.detokenize(tokenizer.tokenize([long])[0][-(73 - 9) :])
    (truncated,) = served.predict({"instances": [long]})["predictions"]
    assert truncated == {"text": model.generate([tail])[0], "truncated": True}
    (short,) = served.predict({"instances": [tail]})["predictions"]
    assert short == {**truncated, "truncated": False}


@pytest.mark.slow
def test_ids_give_the_same_texts(model, served):
    encoded = model.preprocessor.tokenizer.tokenize(PROMPTS[:3])
    width = 3 + max(map(len, encoded))  # more padding changes nothing, whatever it holds
    ids = [[*row, *[7] * (width - len(row))] for row in encoded]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in encoded]
    answer = served.predict({"signature_name": "tokens", "inputs": {"token_ids": ids, "padding_mask": mask}})
    assert answer["outputs"] == model.generate(PROMPTS[:3])
    # Nor does the end token of the preprocessor.
    features = {name: values.tolist() for name, values in model.preprocessor([*PROMPTS[:3], ""]).items()}
    answer = served.predict({"signature_name": "tokens", "inputs": features})
    assert answer["outputs"] == model.generate([*PROMPTS[:3], ""])
    # An empty prompt without a start token gives an empty text.
    empty = {"token_ids": ids, "padding_mask": [*mask[:2], [0] * width]}
    answer = served.predict({"signature_name": "tokens", "inputs": empty})
    assert answer["outputs"] == [*model.generate(PROMPTS[:2]), ""]
    too_long = {"token_ids": [[5] * 65], "padding_mask": [[1] * 65]}
    with pytest.raises(RequestError, match="A prompt may have 64 tokens, so that 9 more fit into the model"):
        served.predict({"signature_name": "tokens", "inputs": too_long})


@pytest.mark.slow
def test_a_tokenizer_may_lack_start_and_end_tokens(model, tmp_path):
    original = model.preprocessor.tokenizer
    special = {**FAMILY.special_tokens, "start_token": None, "end_token": None}
    tokenizer = FAMILY.tokenizer(original.vocabulary, original.merges, **special)
    packing = type(FAMILY.packing)(start="", end="", between=("",), segments=False)
    task = CausalLM(model.backbone, Preprocessor(tokenizer, packing, 73), max_new_tokens=9)
    task.export(tmp_path / "m" / "1", verbose=False)
    version = ModelVersions(tmp_path / "m").get()
    predictions = version.predict({"instances": PROMPTS[:4]})["predictions"]
    assert [row["text"] for row in predictions] == [*model.generate(PROMPTS[:3], stop=None), ""]


@pytest.mark.slow
def test_the_readme_names_signatures_and_the_longest_prompt(folder):
    text = (folder / "1" / "README.md").read_text()
    assert "They are truncated to 64 tokens" in text
    assert all(f"### {name}\n" in text for name in (*SAMPLERS, "serving_default", "tokens"))
