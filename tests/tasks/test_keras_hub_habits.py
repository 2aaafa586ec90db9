"""Names and arguments of KerasHub: they work, or the error says what to use instead."""

from __future__ import annotations

import itertools
import re

import keras
import numpy as np
import pytest

from lmzoo import models
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
    """Return a model that the tests share, so that each loop is compiled once."""
    model = tiny_task(CausalLM, GPT2, max_new_tokens=11)
    randomize(model)
    return model


@pytest.fixture(scope="module")
def bare_task(model):
    """Return the same model without a preprocessor."""
    return CausalLM(model.backbone, max_new_tokens=11)


# === generate ===


@pytest.mark.slow
def test_one_string_gives_one_string(model):
    texts = model.generate(PROMPTS)
    assert texts[0] != texts[1]
    assert model.generate(PROMPTS[0]) == texts[0]
    assert model.generate(PROMPTS[1].encode()) == model.generate(np.array(PROMPTS[1])) == texts[1]
    assert "".join(model.generate(PROMPTS[0], stream=True)) == texts[0]


@pytest.mark.slow
def test_one_source_gives_one_text(eager):
    task = tiny_task(Seq2SeqLM, MARIAN)
    sources = ["the film", "a plot was dull"]
    assert [task.generate(source, max_new_tokens=3) for source in sources] == task.generate(sources, max_new_tokens=3)
    assert [task.translate(source, max_new_tokens=3) for source in sources] == task.translate(sources, max_new_tokens=3)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"max_length": 64}, "Pass `max_new_tokens`: the number of new tokens"),
        ({"stop_token_ids": [3]}, "Pass `stop`: strings or token ids before which a text ends"),
        ({"strip_prompt": True}, "The result is always the new text alone"),
        ({"maxlen": 64}, "$"),
    ],
)
def test_unknown_arguments_of_generate_get_advice(model, arguments, advice):
    (name,) = arguments
    for generate in (model.generate, tiny_task(Seq2SeqLM, MARIAN).generate):
        with pytest.raises(TypeError, match=rf"^`generate` takes no argument `{name}`\. ?{advice}"):
            generate(PROMPTS, **arguments)


@pytest.mark.slow
def test_generate_takes_prompts_as_inputs(model, eager):
    assert model.generate(inputs=PROMPTS, max_new_tokens=3) == model.generate(PROMPTS, max_new_tokens=3)
    task = tiny_task(Seq2SeqLM, MARIAN)
    assert task.generate(inputs="the film", max_new_tokens=3) == task.generate("the film", max_new_tokens=3)
    for generate, name in ((model.generate, "prompts"), (task.generate, "texts")):
        with pytest.raises(ValueError, match=rf"^`{name}` must be texts or token ids, got None\."):
            generate(max_new_tokens=3)
        with pytest.raises(TypeError, match=r"^`generate` takes no argument `inputs`\."):
            generate("a", inputs="the film")


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"token_ids": [[3]]}, "Pass the texts first: `score` tokenizes them"),
        ({"padding_mask": [[1]]}, "Pass the texts first"),
        ({"scoring_mode": "logits"}, r"The result is always log-probabilities\. For logits call the task"),
        ({"layer_intercept_fn": print}, "For vectors of all layers call the backbone"),
        ({"target_ids": [[3]]}, "The targets are the tokens of the texts"),
        ({"modus": "loss"}, "$"),
    ],
)
def test_unknown_arguments_of_score_get_advice(model, arguments, advice):
    (name,) = arguments
    for texts in ((), (PROMPTS,)):
        with pytest.raises(TypeError, match=rf"^`score` takes no argument `{name}`\. ?{advice}"):
            model.score(*texts, **arguments)
    with pytest.raises(ValueError, match=r"^`texts` must be a list of strings, got None\."):
        model.score()


def tokenize(model, prompts):
    return model.preprocessor.tokenizer.tokenize(prompts)


@pytest.mark.slow
def test_generate_continues_all_forms_of_token_ids(model, bare_task):
    """The results are the same with and without a preprocessor, for single prompts and for several."""
    tokenizer = model.preprocessor.tokenizer
    ids = tokenize(model, PROMPTS)
    lengths = [len(row) for row in ids]
    assert len(set(lengths)) == 2
    mask = np.arange(max(lengths)) >= max(lengths) - np.array(lengths)[:, None]  # padding on the left
    padded = np.full(mask.shape, 5, "int32")
    padded[mask] = [token for row in ids for token in row]
    expected = model.generate(PROMPTS, stop=None)
    for task in (model, bare_task):
        new = task.generate(ids, stop=None)
        assert [
            tokenizer.detokenize(prompt + row)[len(tokenizer.detokenize(prompt)) :]
            for prompt, row in zip(ids, new, strict=True)
        ] == expected
        assert all(len(row) == 11 for row in new)
        assert task.generate({"token_ids": padded, "padding_mask": mask}, stop=None) == new
        assert task.generate({"token_ids": keras.ops.convert_to_tensor([ids[1]])}, stop=None) == new[1:]
        for single in (ids[0], np.array(ids[0]), keras.ops.convert_to_tensor(ids[0])):
            assert task.generate(single, stop=None) == new[0]
        assert task.generate(np.array([ids[0], ids[0]]), stop=None) == [new[0], new[0]]


@pytest.mark.slow
def test_new_token_ids_are_streamed(model, bare_task):
    ids = tokenize(model, PROMPTS)
    for task in (model, bare_task):
        new = task.generate(ids, stop=None)
        chunks = [*task.generate(ids, stop=None, stream=True)]
        assert len(chunks) > 1
        assert [[*itertools.chain(*parts)] for parts in zip(*chunks, strict=True)] == new
        assert [*task.generate(ids[0], stop=None, stream=True)] == [
            parts[0] for parts in task.generate(ids[:1], stop=None, stream=True)
        ]


@pytest.mark.slow
def test_new_token_ids_end_before_a_stop_id(model, bare_task):
    ids = tokenize(model, PROMPTS)
    for task in (model, bare_task):
        new = task.generate(ids, stop=None)
        end = new[0][4]
        assert task.generate(ids[0], stop=end) == new[0][: new[0].index(end)] == task.generate(ids, stop=[end])[0]
    tokenizer = model.preprocessor.tokenizer
    end_id = tokenizer.token_to_id(tokenizer.end_token)
    assert model.generate(ids) == [row[: row.index(end_id)] if end_id in row else row for row in new]
    assert bare_task.generate(ids) == new


def test_texts_end_before_a_stop_id(model):
    (new_ids,) = model.generate(tokenize(model, PROMPTS[:1]))
    count = next(i for i in range(1, len(new_ids)) if new_ids[i] not in new_ids[:i])
    assert model.generate(PROMPTS[0], stop=new_ids[count]) == model.generate(PROMPTS[0], max_new_tokens=count)


def test_errors_of_token_ids(model, bare_task):
    size = model.backbone.vocabulary_size
    for task in (model, bare_task):
        for prompts, message in (
            ([[1, 2], [3, size]], rf"`prompts\[1\]\[1\]` must be a token id from 0 to {size - 1}, got {size}"),
            ([[1], []], r"`prompts\[1\]` must be a list of 1 to \d+ token ids, got \[\]"),
            ([[1] * 99], r"`prompts\[0\]` must be a list of 1 to \d+ token ids, got"),
        ):
            with pytest.raises(ValueError, match=message):
                task.generate(prompts)
        with pytest.raises(ValueError, match=r"`stop` must be token ids, as the prompts are, got \['x'\]"):
            task.generate([[1]], stop=["x"])
        with pytest.raises(TypeError, match="takes strings or token ids, got a dict of 'prompts', 'responses'"):
            task.generate({"prompts": PROMPTS, "responses": PROMPTS})
    for stop in (size, -1, b"x", 1.5, True):
        with pytest.raises(ValueError, match="`stop` must be a string that is not empty"):
            model.generate(PROMPTS, stop=stop)
    with pytest.raises(
        ValueError, match=r"This CausalLM has no preprocessor, so `generate` takes token ids, not text\. Pass"
    ):
        bare_task.generate(PROMPTS)
    with pytest.raises(TypeError, match=r"`prompts\[0\]` must be a string, got \[1, 'a'\]"):
        model.generate([[1, "a"]])


@pytest.mark.slow
def test_seq2seq_generates_from_token_ids(eager):
    task = tiny_task(Seq2SeqLM, MARIAN)
    randomize(task)
    sources = ["the film", "a plot was dull"]
    tokenizer = task.preprocessor.tokenizer
    encoded = task.encode_sources(sources)
    features = task.preprocessor.features(encoded, np.arange(2), int(encoded.lengths.max()))
    ids = [row.tolist() for row in encoded.by_sequence(encoded.token_ids)]
    (end_id,) = task.preprocessor.special_ids()[2]
    bare_task = Seq2SeqLM(task.backbone, None)
    bare_task.output_bias.bias.assign(task.output_bias.bias)
    features_with_start = {**features, "decoder_token_ids": np.full((2, 1), tokenizer.pad_id)}
    new = task.generate(ids, max_new_tokens=5)
    assert [tokenizer.detokenize(row) for row in new] == task.generate(sources, max_new_tokens=5)
    assert task.generate(ids[1], max_new_tokens=5) == new[1]
    assert task.generate(features, max_new_tokens=5) == new
    assert tokenizer.detokenize(task.translate(ids, max_new_tokens=5)[0]) == task.translate(
        sources[0], max_new_tokens=5
    )
    assert bare_task.generate(features_with_start, max_new_tokens=5, stop=end_id) == new
    unstopped = bare_task.generate(features_with_start, max_new_tokens=5)
    assert [len(row) for row in unstopped] == [5, 5]
    continued_features = {**features, "decoder_token_ids": [[tokenizer.pad_id, row[0]] for row in unstopped]}
    assert bare_task.generate(continued_features, max_new_tokens=4) == [row[1:] for row in unstopped]
    with pytest.raises(ValueError, match="has no preprocessor, so it does not know the token that begins a target"):
        bare_task.generate(ids)
    with pytest.raises(ValueError, match="This Seq2SeqLM has no preprocessor, so `generate` takes token ids, not text"):
        bare_task.translate(sources)
    with pytest.raises(ValueError, match=r"`decoder_token_ids\[0\]\[0\]` must be a token id from 0 to"):
        bare_task.generate({**features, "decoder_token_ids": [[-1], [0]]})
    with pytest.raises(ValueError, match="`stop` must be token ids or None, got"):
        task.generate(sources, stop="x")


# === The start token ===


def test_a_start_token_before_each_prompt(model, save_and_load):
    task = CausalLM(model.backbone, model.preprocessor, max_new_tokens=11, add_start_token=True)
    plain = model.generate(PROMPTS)
    started = model.generate([f"<|endoftext|>{prompt}" for prompt in PROMPTS])
    assert task.generate(PROMPTS) == started != plain
    assert task.generate("") == model.generate("")  # an empty prompt already becomes the start token
    for loaded in save_and_load(task):
        assert loaded.add_start_token
    loaded.add_start_token = False
    assert loaded.generate(PROMPTS) == plain
    long = " film" * 72
    count = 1 + len(task.preprocessor.tokenizer.tokenize([long])[0])
    with pytest.raises(ValueError, match=rf"`prompts\[0\]` has {count} tokens"):
        task.generate(long, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The format 'KerasHub' holds no")
def test_generate_gives_the_texts_of_keras_hub(model, tmp_path):
    hub = pytest.importorskip("keras_hub").models
    save_checkpoint(model.backbone, tmp_path / "hub", to="keras_hub", preprocessor=model.preprocessor)
    folder = str(tmp_path / "hub")
    preprocessor = hub.GPT2CausalLMPreprocessor(hub.GPT2Tokenizer.from_preset(folder), sequence_length=29)
    hub_task = hub.GPT2CausalLM(hub.GPT2Backbone.from_preset(folder), preprocessor)
    hub_task.compile(sampler="greedy")
    task = CausalLM(model.backbone, model.preprocessor, add_start_token=True)
    for prompt in PROMPTS:
        count = 1 + len(model.preprocessor.tokenizer.tokenize([prompt])[0])
        expected = hub_task.generate(prompt, max_length=count + 11, strip_prompt=True)
        assert task.generate(prompt, max_new_tokens=11) == expected
        assert model.generate(prompt, max_new_tokens=11) != expected


@pytest.mark.slow
@pytest.mark.tf_only
def test_the_exported_model_adds_the_start_token(model, tmp_path):
    import tensorflow as tf

    task = CausalLM(model.backbone, model.preprocessor, max_new_tokens=11, add_start_token=True)
    task.export(tmp_path / "1", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    prompts = [*PROMPTS, ""]
    answer = served(text=tf.constant(prompts))
    assert [text.decode() for text in answer["text"].numpy()] == task.generate(prompts)


def test_errors_of_add_start_token():
    with pytest.raises(ValueError, match=r"This CharacterPairTokenizer has no start token to put before prompts\."):
        tiny_task(CausalLM, GPT, add_start_token=True)
    with pytest.raises(ValueError, match="`add_start_token` must be True or False, got 'yes'"):
        tiny_task(CausalLM, GPT2, add_start_token="yes")


# === Names ===


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("sampler", "`generate` takes it as an argument"),
        ("make_generate_function", "`generate` compiles the loop itself"),
        ("preprocess_samples", r"call `preprocessor\(texts, labels\)`"),
        ("call_with_cache", "`generate` makes the cache itself"),
        ("backbone_cls", r"`type\(task.backbone\)`"),
        ("save_task_weights", "`save_to_preset` and `from_preset` write and read a task"),
        ("export_to_transformers", '`lmzoo.save_checkpoint\\(task, directory, to="hf"\\)`'),
    ],
)
def test_unknown_attributes_of_tasks_get_advice(model, name, advice):
    with pytest.raises(AttributeError, match=rf"^'CausalLM' object has no attribute '{name}': {advice}"):
        getattr(model, name)
    assert not hasattr(model, "nothing")


def test_unknown_attributes_of_text_classes_get_advice(model):
    tokenizer = model.preprocessor.tokenizer
    assert [tokenizer.id_to_token(id) for id in tokenizer.special_token_ids] == [*tokenizer.special_tokens]
    with pytest.raises(AttributeError, match=r"has no attribute 'set_vocabulary': pass the vocabulary to the constr"):
        _ = tokenizer.set_vocabulary
    with pytest.raises(AttributeError, match=r"'generate_preprocess': `generate` of a task takes and returns text"):
        _ = model.preprocessor.generate_preprocess
    with pytest.raises(AttributeError, match=r"'mask_selection_rate': `masking` of a task holds the rates"):
        _ = model.preprocessor.mask_selection_rate
    with pytest.raises(AttributeError, match=r"'cls_token_index': `pooled_output` is computed from the first token"):
        _ = model.backbone.cls_token_index
    with pytest.raises(TypeError, match=r"`packing` must be .*, got None\. Pass the packing of the model's family"):
        type(model.preprocessor)(tokenizer, sequence_length=8)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("BertTextClassifier", "Use `TextClassifier`, which is one class for all families"),
        ("GPT2CausalLM", "Use `CausalLM`, which"),
        ("GPT2Backbone", "Use `Gpt2Backbone`\\."),
        ("BertTokenizer", "Use `lmzoo.text.Tokenizer`, whose `from_preset` loads"),
        ("TextClassifierPreprocessor", "Use `lmzoo.text.Preprocessor`, whose"),
        ("BartBackbone", "Did you mean 'BertBackbone'"),
    ],
)
def test_unknown_classes_get_advice(name, advice):
    with pytest.raises(AttributeError, match=f"^`lmzoo.models` has no class '{name}'\\. {advice}"):
        getattr(models, name)


def test_unknown_arguments_of_text_classes_get_advice(model, tmp_path):
    preprocessor = model.preprocessor
    cls = type(preprocessor)
    preprocessor.save_to_preset(tmp_path)
    for name, advice in (
        ("sequence_length", "Set `preprocessor.sequence_length`, a limit"),
        ("truncate", "Pairs are always truncated at the longer text"),
        ("add_start_token", "`CausalLM` takes it"),
        ("mask_selection_rate", "`masking` of a task holds the rates"),
        ("pad", "$"),
    ):
        with pytest.raises(TypeError, match=rf"^`preprocessor` takes no argument `{name}`\. ?{advice}"):
            preprocessor(PROMPTS, **{name: 7})
        if name != "sequence_length":
            with pytest.raises(TypeError, match=rf"^`Preprocessor` takes no argument `{name}`\. ?{advice}"):
                cls(preprocessor.tokenizer, preprocessor.packing, **{name: 7})
            with pytest.raises(TypeError, match=rf"^`from_preset` takes no argument `{name}`\. ?{advice}"):
                cls.from_preset(tmp_path, **{name: 7})
    with pytest.raises(TypeError, match=r"^`from_preset` takes no argument `lowercase`\. The preset determines"):
        type(preprocessor.tokenizer).from_preset(tmp_path, lowercase=True)
    with pytest.raises(ValueError, match=r"^`sample_weight` needs labels: pass `y`\."):
        preprocessor(PROMPTS, sample_weight=[1.0, 2.0])


def test_unknown_arguments_of_save_to_preset_get_advice(model, tmp_path):
    for part in (model, model.backbone):
        for arguments, advice in (({"max_shard_size": 10}, "The weights of a preset are one file"), ({"size": 3}, "$")):
            with pytest.raises(TypeError, match=rf"^`save_to_preset` takes no argument `{min(arguments)}`\. ?{advice}"):
                part.save_to_preset(tmp_path / "preset", **arguments)
    assert not (tmp_path / "preset").exists()


def test_presets_lists_the_names_of_presets(model):
    assert type(model.backbone).presets.keys() == type(model.backbone).list_presets().keys() < CausalLM.presets.keys()


def test_unknown_arguments_of_compile_get_advice(model):
    for arguments, message in (
        ({"sampler": "top_k"}, "`sampler`. Pass `sampler` to `generate`."),
        ({"optimiser": "adam"}, "`optimiser`. Did you mean `optimizer`?"),
    ):
        with pytest.raises(TypeError, match=f"^`compile` takes no argument {re.escape(message)}$"):
            model.compile(**arguments)


# === Texts for models of token features ===


@pytest.mark.parametrize("method", ["__call__", "predict", "fit", "evaluate", "predict_on_batch"])
def test_backbones_take_no_text(method):
    backbone = tiny_backbone(BERT)
    column = keras.ops.convert_to_tensor if keras.backend.backend() == "tensorflow" else np.array
    for texts in (PROMPTS, "a", (PROMPTS, PROMPTS), np.array(PROMPTS), np.array(PROMPTS, object), column(PROMPTS)):
        with pytest.raises(TypeError, match=r"^This BertBackbone takes token features, not text\. Call `preprocessor"):
            getattr(backbone, method)(texts)
    if method in ("__call__", "predict"):
        with pytest.raises(ValueError, match=r"^This BertBackbone takes a dict of 'token_ids'.*; got "):
            getattr(backbone, method)(np.ones((2, 3), "int32"))


@pytest.mark.slow
def test_seq2seq_takes_pairs_by_keras_hubs_names(eager):
    datasets = pytest.importorskip("tensorflow").data.Dataset
    task = tiny_task(Seq2SeqLM, MARIAN)
    sources, targets = ["the film", "a plot"], ["a", "the the film"]
    named = {"encoder_text": sources, "decoder_text": targets}
    expected = task.predict((sources, targets), verbose=0)
    for x in (named, datasets.from_tensor_slices((named,)).batch(2)):
        np.testing.assert_allclose(task.predict(x, verbose=0), expected, atol=1e-6)
    assert task.evaluate(named, verbose=0) == task.evaluate((sources, targets), verbose=0)
    assert task.report(named, verbose=0) == task.report((sources, targets), verbose=0)
    assert task.generate({"encoder_text": sources}, 3) == task.generate(sources, 3)
    with pytest.raises(TypeError, match=r"may also have `decoder_token_ids`, beginnings of the targets\."):
        task.generate(named)


# === Constructors ===


def test_num_classes_must_be_passed_by_name():
    backbone, preprocessor = tiny_backbone(BERT), tiny_preprocessor(BERT)
    for cls in (TextClassifier, TokenClassifier):
        for arguments in ((backbone, 3), (backbone, 3, preprocessor)):
            with pytest.raises(TypeError, match=r"got 3\. Pass the number of classes by name: `num_classes=3`\."):
                cls(*arguments)
    for cls in (TextClassifier, models.Backbone):
        with pytest.raises(ValueError, match=r"^`load_weights` must be True or False, got 3\. .* `num_classes=2`\.$"):
            cls.from_preset("bert_nano_en_uncased", 3)


@pytest.mark.parametrize(
    ("cls", "name", "advice"),
    [
        (TextClassifier, "activation", "`predict` returns logits, and `classify` returns probabilities"),
        (TextClassifier, "hidden_dim", "The family determines the layers of the head"),
        (TextClassifier, "pooling_mode", 'Pass `pooling`: "first", "mean" or a list'),
        (TextEmbedder, "pooling_mode", 'Pass `pooling`, such as "mean" or "cls"'),
        (TextClassifier, "compile", "A task is compiled with its defaults"),
        (TextEmbedder, "embedding_dim", "Pass `projection`"),
        (MaskedLM, "mask_selection_rate", r"Pass `masking`, such as `lmzoo.text.Masking\(0.2\)`"),
        (MaskedLM, "pooling_mode", "$"),
    ],
)
def test_unknown_arguments_of_constructors_get_advice(cls, name, advice, tmp_path):
    task = tiny_task(cls, BERT)
    with pytest.raises(TypeError, match=rf"^`{cls.__name__}` takes no argument `{name}`\. ?{advice}"):
        cls(task.backbone, task.preprocessor, **{name: "mean"})
    task.save_to_preset(tmp_path / "preset")
    with pytest.raises(TypeError, match=rf"^`{cls.__name__}` takes no argument `{name}`\."):
        cls.from_preset(tmp_path / "preset", **{name: "mean"})


# === summary and predict ===


def test_a_summary_shows_the_tokenizer(capsys):
    task = tiny_task(TextClassifier, BERT)
    printed: list[str] = []
    task.summary(print_fn=printed.append)
    size = task.preprocessor.tokenizer.vocabulary_size
    assert printed[0].startswith(f"Preprocessor: WordPieceTokenizer, vocabulary size {size}, sequences of at most ")
    assert "classifier" in "".join(printed[1:])
    assert not capsys.readouterr().out
    task.summary()
    assert capsys.readouterr().out.startswith(printed[0])
    printed.clear()
    TextClassifier(task.backbone, num_classes=3).summary(60, None, printed.append)
    assert printed
    assert "Preprocessor" not in "".join(printed)


def test_predict_warns_of_texts_without_a_mask(eager):
    task = tiny_task(MaskedLM, BERT)
    with pytest.warns(TextWarning, match=r"^1 of 3 texts, the first at position 1, hold no \[MASK\], so their outputs"):
        logits = task.predict(["the [MASK]", "the film", "[MASK] [MASK]"], verbose=0)
    assert logits.shape[:2] == (3, 2)
    with pytest.warns(TextWarning, match="1 of 1 texts"):
        task.predict_on_batch(["the film"])
