"""What people who come from KerasHub type: it works, or the error says what to type instead."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.families.gpt import FAMILY as GPT
from lmzoo.families.gpt2 import FAMILY as GPT2
from lmzoo.families.marian import FAMILY as MARIAN
from lmzoo.models import CausalLM, MaskedLM, Seq2SeqLM, TextClassifier, TextEmbedder, TokenClassifier
from lmzoo.presets.converting import save_checkpoint
from lmzoo.registry.family import families
from lmzoo.testing import randomize, tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.text.validate_text import TextWarning

BERT = families()["bert"]
PROMPTS = ["the film", "a"]


@pytest.fixture(scope="module")
def model():
    """One for all tests, so that each loop is compiled once."""
    model = tiny_task(CausalLM, GPT2, max_new_tokens=11)
    randomize(model)
    return model


# === generate ===


def test_one_string_gives_one_string(model):
    texts = model.generate(PROMPTS)
    assert texts[0] != texts[1]
    assert model.generate(PROMPTS[0]) == texts[0]
    assert model.generate(PROMPTS[1].encode()) == texts[1]
    assert "".join(model.generate(PROMPTS[0], stream=True)) == texts[0]


def test_one_source_gives_one_text(eager):
    task = tiny_task(Seq2SeqLM, MARIAN)
    sources = ["the film", "a plot was dull"]
    assert [task.generate(source, max_new_tokens=3) for source in sources] == task.generate(sources, max_new_tokens=3)
    assert [task.translate(source, max_new_tokens=3) for source in sources] == task.translate(sources, max_new_tokens=3)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"max_length": 64}, "Pass `max_new_tokens`: the number of new tokens"),
        ({"stop_token_ids": [3]}, "A CausalLM takes `stop`: strings"),
        ({"strip_prompt": True}, "The result is always the new text alone"),
        ({"maxlen": 64}, "$"),
    ],
)
def test_arguments_of_generate(model, arguments, advice):
    (name,) = arguments
    for generate in (model.generate, tiny_task(Seq2SeqLM, MARIAN).generate):
        with pytest.raises(TypeError, match=rf"^`generate` takes no argument `{name}`\. ?{advice}"):
            generate(PROMPTS, **arguments)


def test_token_ids_are_refused(model):
    for generate in (CausalLM(model.backbone).generate, model.generate):
        with pytest.raises(TypeError, match=r"takes strings, got a dict of 'token_ids', 'padding_mask'\. Pass"):
            generate({"token_ids": np.ones((1, 3)), "padding_mask": np.ones((1, 3))})


# === The start token ===


def test_a_start_token_before_each_prompt(model, tmp_path):
    task = CausalLM(model.backbone, model.preprocessor, max_new_tokens=11, add_start_token=True)
    plain = model.generate(PROMPTS)
    started = model.generate([f"<|endoftext|>{prompt}" for prompt in PROMPTS])
    assert task.generate(PROMPTS) == started != plain
    assert task.generate("") == model.generate("")  # which is the start token already
    task.save(tmp_path / "task.keras")
    task.save_to_preset(tmp_path / "preset")
    for loaded in (keras.saving.load_model(tmp_path / "task.keras"), CausalLM.from_preset(tmp_path / "preset")):
        assert loaded.add_start_token
    loaded.add_start_token = False
    assert loaded.generate(PROMPTS) == plain
    long = " film" * 72
    count = 1 + len(task.preprocessor.tokenizer.tokenize([long])[0])
    with pytest.raises(ValueError, match=rf"`prompts\[0\]` has {count} tokens"):
        task.generate(long, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The format 'KerasHub' holds no")
def test_texts_are_those_of_keras_hub(model, tmp_path):
    hub = pytest.importorskip("keras_hub").models
    save_checkpoint(model.backbone, tmp_path / "hub", to="keras_hub", preprocessor=model.preprocessor)
    folder = str(tmp_path / "hub")
    preprocessor = hub.GPT2CausalLMPreprocessor(hub.GPT2Tokenizer.from_preset(folder), sequence_length=29)
    theirs = hub.GPT2CausalLM(hub.GPT2Backbone.from_preset(folder), preprocessor)
    theirs.compile(sampler="greedy")
    task = CausalLM(model.backbone, model.preprocessor, add_start_token=True)
    for prompt in PROMPTS:
        count = 1 + len(model.preprocessor.tokenizer.tokenize([prompt])[0])
        expected = theirs.generate(prompt, max_length=count + 11, strip_prompt=True)
        assert task.generate(prompt, max_new_tokens=11) == expected
        assert model.generate(prompt, max_new_tokens=11) != expected


@pytest.mark.tf_only
def test_the_exported_model_adds_the_start_token(model, tmp_path):
    import tensorflow as tf

    task = CausalLM(model.backbone, model.preprocessor, max_new_tokens=11, add_start_token=True)
    task.export(tmp_path / "1", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    prompts = [*PROMPTS, ""]
    answer = served(text=tf.constant(prompts))
    assert [text.decode() for text in answer["text"].numpy()] == task.generate(prompts)


def test_families_without_a_start_token():
    with pytest.raises(ValueError, match=r"This CharacterPairTokenizer has no start token to put before prompts\."):
        tiny_task(CausalLM, GPT, add_start_token=True)
    with pytest.raises(ValueError, match="`add_start_token` must be True or False, got 'yes'"):
        tiny_task(CausalLM, GPT2, add_start_token="yes")


# === Constructors ===


def test_the_number_of_classes_in_second_place():
    backbone, preprocessor = tiny_backbone(BERT), tiny_preprocessor(BERT)
    for cls in (TextClassifier, TokenClassifier):
        for arguments in ((backbone, 3), (backbone, 3, preprocessor)):
            with pytest.raises(TypeError, match=r"got 3\. Pass the number of classes by name: `num_classes=3`\."):
                cls(*arguments)


@pytest.mark.parametrize(
    ("cls", "name", "advice"),
    [
        (TextClassifier, "activation", "`predict` returns logits, and `classify` returns probabilities"),
        (TextClassifier, "hidden_dim", "The family determines the layers of the head"),
        (TextClassifier, "pooling_mode", 'Pass `pooling`: "first" or "mean"'),
        (TextEmbedder, "pooling_mode", 'Pass `pooling`, such as "mean" or "cls"'),
        (MaskedLM, "pooling_mode", "$"),
    ],
)
def test_arguments_of_constructors(cls, name, advice, tmp_path):
    task = tiny_task(cls, BERT)
    with pytest.raises(TypeError, match=rf"^`{cls.__name__}` takes no argument `{name}`\. ?{advice}"):
        cls(task.backbone, task.preprocessor, **{name: "mean"})
    task.save_to_preset(tmp_path / "preset")
    with pytest.raises(TypeError, match=rf"^`{cls.__name__}` takes no argument `{name}`\."):
        cls.from_preset(tmp_path / "preset", **{name: "mean"})


# === summary and predict ===


def test_a_summary_shows_the_tokenizer(capsys):
    task = tiny_task(TextClassifier, BERT)
    parts: list[str] = []
    task.summary(print_fn=parts.append)
    size = task.preprocessor.tokenizer.vocabulary_size
    assert parts[0].startswith(f"Preprocessor: WordPieceTokenizer, vocabulary size {size}, sequences of at most ")
    assert "classifier" in "".join(parts[1:])
    assert not capsys.readouterr().out
    task.summary()
    assert capsys.readouterr().out.startswith(parts[0])
    parts.clear()
    TextClassifier(task.backbone, num_classes=3).summary(60, None, parts.append)
    assert parts
    assert "Preprocessor" not in "".join(parts)


def test_predictions_without_a_mask_say_so(eager):
    task = tiny_task(MaskedLM, BERT)
    with pytest.warns(TextWarning, match=r"^1 of 3 texts, the first at position 1, hold no \[MASK\], so their outputs"):
        logits = task.predict(["the [MASK]", "the film", "[MASK] [MASK]"], verbose=0)
    assert logits.shape[:2] == (3, 2)
    with pytest.warns(TextWarning, match="1 of 1 texts"):
        task.predict_on_batch(["the film"])
