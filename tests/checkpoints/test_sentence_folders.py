"""Folders of Sentence Transformers that are damaged, odd or malicious, and files that keep what was read."""

from __future__ import annotations

import json
import os

import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.checkpoints.formats.safetensors import write_safetensors
from lmzoo.models import Backbone, MaskedLM, TextClassifier, TextEmbedder, TextRegressor
from lmzoo.presets import PresetError
from lmzoo.presets.converting import save_checkpoint
from lmzoo.testing import tiny_backbone, tiny_task
from lmzoo.text import AddedToken, Preprocessor, WordPieceTokenizer
from tests.checkpoints.sentence_folders import (
    OLD,
    PAIRS,
    TEXTS,
    WIDTH,
    dense,
    edit,
    edit_entry,
    embedder,
    families,
    pooling,
    transformer,
    write_folder,
)

pytestmark = pytest.mark.usefixtures("eager")
SETTINGS = "config_sentence_transformers.json"
LENGTH = "sentence_bert_config.json"


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a module of every kind."""
    modules = [pooling(), dense(), {"type": "LayerNorm", "dimension": 11}, {"type": "Dropout"}, {"type": "Normalize"}]
    return write_folder(tmp_path / "model", *modules, prompts={"query": "the "}, default_prompt_name="query")


# === Refused folders ===

WRONG_PATH = r"modules\.json, module 1: `path` must be the name of a folder inside of"


@pytest.mark.parametrize(
    "path",
    ["../1_Pooling", "1_Pooling/..", "/etc", "1_Pooling//", "/", "./../a", "..", "a\\b", "C:", "a\0b", None, 7, ["a"]],
    ids=repr,
)
def test_paths_out_of_the_folder_are_refused(path, folder):
    edit_entry(folder, 1, path=path)
    with pytest.raises(PresetError, match=WRONG_PATH):
        TextEmbedder.from_preset(folder)
    with pytest.raises(PresetError, match=WRONG_PATH):
        Backbone.from_preset(folder)


def test_a_slash_and_null_change_nothing(folder):
    """Sentence Transformers accepts a slash after a folder's name, and null for omitted keys of a Pooling."""
    expected = TextEmbedder.from_preset(folder)
    edit_entry(folder, 1, path="1_Pooling/")
    unset = dict.fromkeys(("pooling_mode_lasttoken", "pooling_mode_weightedmean_tokens", "embedding_dimension"))
    edit(folder / "1_Pooling/config.json", **unset)
    assert TextEmbedder.from_preset(folder).pooling == expected.pooling
    edit(folder / "1_Pooling/config.json", pooling_mode_lasttoken=1)
    with pytest.raises(PresetError, match="`pooling_mode_lasttoken` must be true or false, got 1"):
        TextEmbedder.from_preset(folder)


@pytest.mark.parametrize("name", ["1_Pooling", "2_Dense", "modules.json", SETTINGS])
def test_links_out_of_the_folder_are_refused(name, folder, tmp_path):
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PresetError, match=f"{name}.* is a link to .*elsewhere, which is outside the directory"):
        TextEmbedder.from_preset(folder)


def test_links_in_the_hub_cache_are_followed(folder, tmp_path):
    """Snapshots hold links to the files, also in folders."""
    blobs = tmp_path / "models--org--model/blobs"
    snapshot = tmp_path / "models--org--model/snapshots/0123abcd"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        target = snapshot / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(blobs / f"{number}")
        target.symlink_to(os.path.relpath(blobs / f"{number}", target.parent))
    assert TextEmbedder.from_preset(snapshot).projection[0]["units"] == 11
    link = snapshot / "2_Dense/model.safetensors"
    link.resolve().rename(tmp_path / "secret")
    link.unlink()
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(PresetError, match="which is outside the directory"):
        TextEmbedder.from_preset(snapshot)


NO_MODULE = (
    r"modules\.json, module 2: {} is not supported; supported are Transformer, Pooling, Dense, .*No code of a folder"
)


@pytest.mark.parametrize(
    "name",
    [
        f"{OLD}.CNN",
        f"{OLD}.WeightedLayerPooling",
        "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling",
        "sentence_transformers",
        "sentence_transformers.models.Dense.",
        "modeling_own.Dense",
        "os.system",
        "torch.nn.modules.linear.Identity",
        "",
        None,
        7,
    ],
)
def test_other_modules_are_refused_and_no_code_is_run(name, folder):
    (folder / "modeling_own.py").write_text("raise SystemExit('code of the folder ran')")
    edit_entry(folder, 2, type=name)
    pattern = repr(name).replace(".", r"\.")
    with pytest.raises(PresetError, match=NO_MODULE.format(pattern)):
        TextEmbedder.from_preset(folder)


def change(file, **changes):
    return lambda folder: edit(folder / file, **changes)


def change_entry(number, **changes):
    return lambda folder: edit_entry(folder, number, **changes)


def write(file, content):
    return lambda folder: (folder / file).write_text(content)


def write_tensors(file, *shapes):
    def save(folder):
        write_safetensors(folder / file, [(name, np.zeros(shape, "float32")) for name, shape in shapes])

    return save


DENSE = "2_Dense/model.safetensors"
REFUSED = {
    "no list": (write("modules.json", "{}"), r"modules\.json must hold a list of objects"),
    "an empty list": (write("modules.json", "[]"), r"modules\.json must hold a list of objects"),
    "no objects": (write("modules.json", '["a"]'), r"modules\.json must hold a list of objects"),
    "no JSON": (write("modules.json", "[{"), r"modules\.json cannot be read as JSON"),
    "deep": (write("modules.json", "[" * 100_000), r"modules\.json cannot be read as JSON"),
    "no type": (write("modules.json", '[{"path": ""}]'), r"modules\.json, module 0 lacks the key 'type'"),
    "too many": (write("modules.json", json.dumps([{}] * 35)), r"lists 35 modules, expected at most 34"),
    "a name twice": (change_entry(2, name="1"), r"modules\.json lists two modules of the name '1'"),
    "arguments": (change_entry(1, kwargs={"task": 7}), r"module 1: `kwargs` must be"),
    "no Transformer": (
        change_entry(0, type=f"{OLD}.Pooling"),
        r"modules\.json begins with a Pooling, expected a Transformer",
    ),
    "two Transformers": (change_entry(2, type=f"{OLD}.Transformer"), "expected one Transformer, then one Pooling"),
    "two poolings": (change_entry(2, type=f"{OLD}.Pooling"), "expected one Transformer, then one Pooling"),
    "no pooling": (change_entry(1, type=f"{OLD}.Normalize"), "expected one Transformer, then one Pooling"),
    "a Transformer elsewhere": (change_entry(0, path="1_Pooling"), r"1_Pooling holds no model of Hugging Face's|lacks"),
    "no folder": (change_entry(1, path="7_Pooling"), r"7_Pooling has no config\.json, which is needed"),
    "no mode": (change("1_Pooling/config.json", pooling_mode="median"), "1_Pooling.*: `pooling_mode` must"),
    "modes": (change("1_Pooling/config.json", pooling_mode=["mean", 7]), "1_Pooling.*: `pooling_mode` must"),
    "a mode twice": (change("1_Pooling/config.json", pooling_mode=["max"] * 2), "`pooling_mode` must be one of"),
    "a width": (change("1_Pooling/config.json", embedding_dimension=7), f"must be the Transformer's, {WIDTH}, got 7"),
    "no bool": (change("1_Pooling/config.json", pooling_mode_max_tokens="no"), "`pooling_mode_max_tokens` must be"),
    "prompts left out": (change("1_Pooling/config.json", include_prompt=False), "`include_prompt` must be True"),
    "an activation": (
        change("2_Dense/config.json", activation_function="torch.nn.modules.activation.Softplus"),
        r"2_Dense/config\.json: `activation_function` must be one of torch\.nn\.Identity.*Softplus",
    ),
    "code": (change("2_Dense/config.json", activation_function="os.system"), "`activation_function` must .*os.system"),
    "code in torch": (change("2_Dense/config.json", activation_function="torch.hub.load"), "`activation_function`"),
    "no activation": (change("2_Dense/config.json", activation_function=None), "`activation_function` must be one of"),
    "a residual": (change("2_Dense/config.json", use_residual=True), "`use_residual` must be False, got True"),
    "other inputs": (change("2_Dense/config.json", module_input_name="token_embeddings"), "`module_input_name`"),
    "no bias": (change("2_Dense/config.json", bias="no"), r"2_Dense/config\.json: `bias` must be true or false"),
    "no units": (change("2_Dense/config.json", out_features=0), r"`out_features` must be a positive integer, got 0"),
    "half a unit": (change("2_Dense/config.json", in_features=1.5), "`in_features` must be a positive integer"),
    "other inputs' width": (change("2_Dense/config.json", in_features=7), f"must take vectors of width {WIDTH} here"),
    "huge": (
        lambda folder: (
            edit(folder / "2_Dense/config.json", out_features=2**40),
            edit(folder / "3_LayerNorm/config.json", dimension=2**40),
        ),
        r"2_Dense/model\.safetensors: 'linear\.weight' .* `out_features` is 1,099,511,627,776\. Nothing was built",
    ),
    "no weights": (lambda folder: (folder / DENSE).unlink(), "2_Dense holds a configuration but no weights"),
    "empty weights": (write(DENSE, ""), r"2_Dense/model\.safetensors is empty"),
    "a missing bias": (write_tensors(DENSE, ("linear.weight", (11, WIDTH))), "lacks 'modules.0.linear.bias'"),
    "one tensor more": (
        write_tensors(DENSE, ("linear.weight", (11, WIDTH)), ("linear.bias", (11,)), ("residual.weight", (11, WIDTH))),
        r"2_Dense/model\.safetensors holds 'modules\.0\.residual\.weight' .*not part of the model",
    ),
    "a shape": (write_tensors(DENSE, ("linear.weight", (11, 7)), ("linear.bias", (11,))), r"has shape \(11, 7\), exp"),
    "another width": (change("3_LayerNorm/config.json", dimension=7), "LayerNorm must take vectors of width 11 here"),
    "a rate": (change("4_Dropout/config.json", dropout=1), "4_Dropout.*: `dropout` must be a number in"),
    "no rate": (change("4_Dropout/config.json", dropout="0.1"), "`dropout` must be a number in"),
    "tokens' lengths": (change("5_Normalize/config.json", module_input_name="token_embeddings"), "`module_input_name`"),
    "a sparse model": (change(SETTINGS, model_type="SparseEncoder"), "`model_type` must be Sentence"),
    "no prompts": (change(SETTINGS, prompts=["a"]), f"{SETTINGS}: `prompts` must be an object with texts"),
    "no texts": (change(SETTINGS, prompts={"query": 7}), f"{SETTINGS}: `prompts` must be an object with texts"),
    "no Unicode": (change(SETTINGS, prompts={"query": "\ud800"}), f"{SETTINGS}: `prompts` must be valid Unicode"),
    "no such prompt": (change(SETTINGS, default_prompt_name="no"), r"`default_prompt_name` must be one of \['query'\]"),
    "no name": (change(SETTINGS, default_prompt_name=[]), "`default_prompt_name` must be one of"),
    "cut to nothing": (change(SETTINGS, truncate_dim=0), "`truncate_dim` must be a positive integer, got 0"),
    "a length": (write(LENGTH, '{"max_seq_length": 0}'), f"{LENGTH}: `max_seq_length` must be"),
    "no length": (write(LENGTH, '{"max_seq_length": true}'), "`max_seq_length` must be a positive integer, got True"),
    "lower case": (write(LENGTH, '{"do_lower_case": "yes"}'), "`do_lower_case` must be true or false, got 'yes'"),
    "another task": (write(LENGTH, '{"transformer_task": "fill-mask"}'), "`transformer_task` must be"),
    "images": (write(LENGTH, '{"modality_config": {"image": {}}}'), "`modality_config` must be"),
    "arguments of the model": (write(LENGTH, '{"model_args": {"a": 1}}'), "`model_args` must be {} or None"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_damaged_folders_are_refused(case, folder):
    damage, message = REFUSED[case]
    damage(folder)
    with pytest.raises(PresetError, match=message) as caught:
        TextEmbedder.from_preset(folder)
    assert str(folder) in str(caught.value)
    with pytest.raises(PresetError, match=message):
        lmzoo.verify(folder)


def test_added_tokens_are_no_parts_of_lowercase_words(tmp_path):
    """`foo` matches only as a whole word, so the vocabulary has no token for "foobar"."""
    words = [*WordPieceTokenizer.special_tokens, "##bar"]
    tokenizer = WordPieceTokenizer(words, lowercase=False, added_tokens=[AddedToken("foo", single_word=True)])
    backbone = tiny_backbone(families()["bert"])
    preprocessor = Preprocessor(tokenizer, families()["bert"].packing, 13)
    save_checkpoint(TextEmbedder(backbone, preprocessor), tmp_path, to="hf")
    (tmp_path / LENGTH).write_text('{"do_lower_case": true}')
    lowercasing = Preprocessor.from_preset(tmp_path).tokenizer
    assert lowercasing.lowercase
    assert lowercasing.tokenize(["foo foobar"]) == tokenizer.tokenize(["foo foobar"]) == [[6, 1]]


def test_text_cannot_be_lowercased_before_byte_pairs(tmp_path):
    folder = transformer(tmp_path / "model", "roberta")
    (folder / "1_Pooling").mkdir()
    width = families()["roberta"].tiny.hidden_dim
    (folder / "1_Pooling/config.json").write_text(json.dumps({"embedding_dimension": width, "pooling_mode": "mean"}))
    entries = [{"name": "0", "path": "", "type": f"{OLD}.Transformer"}]
    entries.append({"name": "1", "path": "1_Pooling", "type": f"{OLD}.Pooling"})
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / LENGTH).write_text('{"do_lower_case": true}')
    message = "model: `do_lower_case` is true next to `max_seq_length`, but a BytePairTokenizer keeps"
    with pytest.raises(PresetError, match=message):
        TextEmbedder.from_preset(folder)


# === Accepted folders ===


def test_modules_may_lack_folders(folder):
    """Git stores no empty folders."""
    for name in ("4_Dropout", "5_Normalize"):
        (folder / name / "config.json").unlink()
        (folder / name).rmdir()
    task = TextEmbedder.from_preset(folder)
    assert task.projection[-1] == {"kind": "dropout", "rate": 0.2}
    assert task.normalize


@pytest.mark.quick_cases("5_Normalize/config.json", "config_sentence_transformers.json")
@pytest.mark.parametrize("file", ["1_Pooling/config.json", "2_Dense/config.json", "5_Normalize/config.json", SETTINGS])
def test_unknown_keys_are_ignored_with_a_warning(file, folder):
    """A published folder has this key."""
    edit(folder / file, output_key="sentence_embedding")
    with pytest.warns(UserWarning, match=rf"{file}: ignoring unknown keys: `output_key` \('sentence_embedding'\)\."):
        task = TextEmbedder.from_preset(folder)
    assert task.embed(TEXTS).shape == (7, 11)
    with pytest.warns(UserWarning, match="ignoring unknown keys"):
        report = lmzoo.verify(folder)
    assert report[f"not read: keys of {file}"] == "`output_key` ('sentence_embedding')"


def test_the_default_activation_is_tanh(folder):
    assert TextEmbedder.from_preset(folder).projection[0]["activation"] == "tanh"


@pytest.mark.parametrize("modes", [["cls", "mean"], ["mean", "cls"]])
def test_the_order_of_poolings_is_written(modes, tmp_path):
    save_checkpoint(embedder(pooling=modes), tmp_path / "model", "hf")
    assert TextEmbedder.from_preset(tmp_path / "model").pooling == modes


def test_the_default_pooling_is_the_mean(folder):
    edit(folder / "1_Pooling/config.json", pooling_mode_mean_tokens=False)
    assert TextEmbedder.from_preset(folder).pooling == "mean"


def test_newer_keys_have_priority(folder):
    edit(folder / "1_Pooling/config.json", pooling_mode="max", embedding_dimension=WIDTH, word_embedding_dimension=7)
    assert TextEmbedder.from_preset(folder).pooling == "max"


def test_the_folders_length_has_priority_over_the_tokenizers(folder):
    assert TextEmbedder.from_preset(folder).preprocessor.sequence_length == 23
    for length, expected in ((29, 29), (10_000, families()["bert"].tiny.max_sequence_length), (None, 23)):
        (folder / LENGTH).write_text(json.dumps({"max_seq_length": length}))
        assert TextEmbedder.from_preset(folder).preprocessor.sequence_length == expected


def test_a_folder_may_lack_modules(tmp_path):
    task = TextEmbedder.from_preset(transformer(tmp_path / "model"))
    assert (task.pooling, task.normalize, task.projection, task.prompts) == ("mean", True, [], {})
    assert lmzoo.verify(tmp_path / "model")["head"] == "none"


def test_a_folder_without_weights_gives_random_ones(folder):
    for file in folder.rglob("model.safetensors"):
        file.unlink()
    task = TextEmbedder.from_preset(folder, load_weights=False)
    assert task.embed(TEXTS).shape == (7, 11)
    with pytest.raises(PresetError, match="holds a configuration but no weights"):
        TextEmbedder.from_preset(folder)


def test_other_tasks_start_from_the_transformer_without_a_warning(folder):
    task = TextClassifier.from_preset(folder, num_classes=3)
    embedder = TextEmbedder.from_preset(folder)
    for ours, theirs in zip(Backbone.from_preset(folder).weights, embedder.backbone.weights, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (ours, theirs)))
    assert len(task.weights) == len(embedder.backbone.weights) + 2


@pytest.mark.slow
def test_the_head_of_the_transformer_is_read(tmp_path):
    """The Transformer of some folders is a masked language model."""
    folder = write_folder(tmp_path / "model", pooling())
    task = tiny_task(MaskedLM, families()["bert"])
    save_checkpoint(task, tmp_path / "masked", "hf")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "masked" / name).replace(folder / name)
    embedder = TextEmbedder.from_preset(folder)
    (expected,), (predictions,) = (model.fill(["good [MASK]"]) for model in (task, MaskedLM.from_preset(folder)))
    assert [prediction["token"] for prediction in predictions] == [prediction["token"] for prediction in expected]
    assert embedder.embed(TEXTS).shape == (7, WIDTH)


def test_another_projection_starts_from_scratch(folder):
    with pytest.warns(UserWarning, match="is not used, since `projection` is another: it starts from scratch"):
        task = TextEmbedder.from_preset(folder, projection=[{"kind": "dense", "units": 5}])
    assert task.embed(TEXTS).shape == (7, 5)
    assert TextEmbedder.from_preset(folder, normalize=False, default_prompt=None).default_prompt is None


# === Saved and exported folders ===


def test_presets_and_keras_files_keep_the_modules(folder, tmp_path):
    task = TextEmbedder.from_preset(folder)
    expected = task.embed(TEXTS)
    assert np.abs(expected - task.embed(TEXTS, prompt="")).max() > 0.001
    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "task.keras")
    lmzoo.convert(folder, tmp_path / "converted")
    for reloaded in (
        TextEmbedder.from_preset(tmp_path / "preset"),
        keras.saving.load_model(tmp_path / "task.keras"),
        TextEmbedder.from_preset(tmp_path / "converted"),
        task.copy_with(dropout=0.3),
    ):
        np.testing.assert_allclose(reloaded.embed(TEXTS), expected, atol=1e-6)
        assert reloaded.preprocessor.sequence_length == 23


@pytest.mark.slow
def test_conversion_to_the_same_format_replaces_all_modules(folder, tmp_path):
    lmzoo.convert(folder, tmp_path / "converted", "hf")
    reloaded = TextEmbedder.from_preset(tmp_path / "converted")
    np.testing.assert_allclose(reloaded.embed(TEXTS), TextEmbedder.from_preset(folder).embed(TEXTS), atol=1e-6)
    lmzoo.convert(transformer(tmp_path / "plain"), tmp_path / "converted", "hf", overwrite=True)
    assert not [*(tmp_path / "converted").glob("*_*/")], "modules of the previous model are left"
    assert not (tmp_path / "converted/modules.json").exists()


@pytest.mark.tf_only
def test_an_export_adds_the_default_prompt(folder, tmp_path):
    import tensorflow as tf

    task = TextEmbedder.from_preset(folder)
    task.export(tmp_path / "model/1", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model/1")).signatures
    vectors = served["serving_default"](text=tf.constant(TEXTS))["embedding"]
    np.testing.assert_allclose(vectors, task.embed(TEXTS), atol=1e-6)
    firsts, seconds = map(list, zip(*PAIRS, strict=True))
    vectors = served["pair"](text=tf.constant(firsts), text_pair=tf.constant(seconds))["embedding"]
    np.testing.assert_allclose(vectors, task.embed(PAIRS), atol=1e-6)


def test_the_output_activation_of_a_regressor_is_kept(tmp_path):
    task = tiny_task(TextRegressor, families()["bert"], output_activation="sigmoid")
    plain = tiny_task(TextRegressor, families()["bert"])
    logits = np.array(plain.score(PAIRS))
    expected = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(task.score(PAIRS), expected, atol=1e-6)
    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "task.keras")
    save_checkpoint(task, tmp_path / "hf", "hf")
    for reloaded in (
        TextRegressor.from_preset(tmp_path / "preset"),
        keras.saving.load_model(tmp_path / "task.keras"),
        TextRegressor.from_preset(tmp_path / "hf"),
    ):
        np.testing.assert_allclose(reloaded.score(PAIRS), expected, atol=1e-6)
    linear = TextRegressor.from_preset(tmp_path / "hf", output_activation="linear")
    np.testing.assert_allclose(linear.score(PAIRS), logits, atol=1e-5)
    with pytest.raises(PresetError, match="cannot express `output_activation='sigmoid'`"):
        save_checkpoint(task, tmp_path / "tf1", "tf1")


@pytest.mark.parametrize("key", ["sentence_transformers", "sbert_ce_default_activation_function"])
def test_unknown_activations_of_cross_encoders_are_refused(key, tmp_path):
    save_checkpoint(tiny_task(TextRegressor, families()["bert"]), tmp_path / "model", "hf")
    stored = "os.system"
    edit(tmp_path / "model/config.json", sentence_transformers=...)
    edit(
        tmp_path / "model/config.json", **{key: {"activation_fn": stored} if key == "sentence_transformers" else stored}
    )
    with pytest.raises(PresetError, match=rf"model/config\.json: `{key}.*` must be one of .*, got 'os\.system'"):
        TextRegressor.from_preset(tmp_path / "model")


WRITTEN = [
    ({"projection": [{"kind": "truncate", "units": 5}, {"kind": "normalize"}]}, "only at the end of a `projection`"),
    ({"projection": [{"kind": "truncate", "units": 5}]}, "cannot express `normalize=True` after `truncate`: .*=False`"),
    (
        {"projection": [{"kind": "dense", "units": 5, "activation": "gelu_tanh"}]},
        "cannot express the activation 'gelu_ta",
    ),
]


@pytest.mark.quick_cases("arguments0-only at the end of a `projection`")
@pytest.mark.parametrize(("arguments", "message"), WRITTEN)
def test_some_projections_cannot_be_written(arguments, message, tmp_path):
    with pytest.raises(PresetError, match=message):
        save_checkpoint(embedder(**arguments), tmp_path / "model", "hf")
    assert not (tmp_path / "model").exists()
    with pytest.raises(PresetError, match="has no place for the head of a TextEmbedder"):
        save_checkpoint(embedder(), tmp_path / "model", "tf1")
