"""Sentence Transformers' models, loaded here, and our models, loaded by it: the same embeddings."""

from __future__ import annotations

import json
import re
import shutil

import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.models import Backbone, TextEmbedder, TextRegressor
from lmzoo.presets import PresetError
from lmzoo.presets.converting import save_checkpoint
from lmzoo.testing import randomize, tiny_task
from tests.checkpoints.sentence_folders import (
    OLD,
    PAIRS,
    TEXTS,
    WIDTH,
    edit,
    embedder,
    families,
    load_with_sentence_transformers,
    peer,
    transformer,
)

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from sentence_transformers import CrossEncoder  # noqa: E402 - after the check that it is installed
from sentence_transformers.sentence_transformer.modules import (  # noqa: E402
    Dense,
    Dropout,
    LayerNorm,
    Normalize,
    Pooling,
)

pytestmark = pytest.mark.usefixtures("eager")

MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
UNIT, RAW = 1e-6, 1e-5


def difference(ours, theirs) -> float:
    assert np.shape(ours) == np.shape(theirs)
    return float(np.abs(np.asarray(ours) - np.asarray(theirs)).max())


def check(task, model, limit, texts=TEXTS, **prompt) -> None:
    """Check that both give the same embeddings in padded batches of different texts."""
    expected = model.encode(texts, batch_size=4, **prompt)
    assert difference(task.embed(texts, batch_size=3, **prompt), expected) <= limit
    assert np.abs(expected[0] - expected[1]).max() > 100 * limit


# === Reading ===


@pytest.mark.quick_cases("lasttoken", "['mean', 'cls']", "['lasttoken', 'max', 'weightedmean']")
@pytest.mark.parametrize("mode", [*MODES, ["mean", "cls"], ["lasttoken", "max", "weightedmean"], MODES], ids=str)
def test_embeddings_of_each_pooling(mode, tmp_path):
    normalize = isinstance(mode, list)
    model = peer(tmp_path / "model", Pooling(WIDTH, mode), *([Normalize()] if normalize else []))
    task = TextEmbedder.from_preset(tmp_path / "model")
    assert (task.pooling, task.normalize, task.preprocessor.sequence_length) == (mode, normalize, 23)
    check(task, model, UNIT if normalize else RAW)


ACTIVATIONS = {
    "linear": "Identity", "gelu": "GELU", "relu": "ReLU", "sigmoid": "Sigmoid", "swish": "SiLU", "tanh": "Tanh",
}  # fmt: skip


@pytest.mark.slow
def test_embeddings_after_each_activation(tmp_path):
    layers = [Dense(WIDTH, WIDTH, ours != "gelu", getattr(torch.nn, name)()) for ours, name in ACTIVATIONS.items()]
    model = peer(tmp_path / "model", Pooling(WIDTH), *layers)
    task = TextEmbedder.from_preset(tmp_path / "model")
    assert [layer["activation"] for layer in task.projection] == [*ACTIVATIONS]
    check(task, model, RAW)
    save_checkpoint(task, tmp_path / "ours", "hf")
    check(task, load_with_sentence_transformers(tmp_path / "ours"), RAW)


def make_modules():
    """Return two dense layers, and several layers of most other kinds."""
    return [
        Pooling(WIDTH, ("max", "mean")),
        Normalize(),
        Dropout(0.3),
        Dense(2 * WIDTH, 17),
        LayerNorm(17),
        Dense(17, 11, bias=False, activation_function=torch.nn.ReLU()),
        Normalize(),
        LayerNorm(11),
        Dropout(),
    ]


@pytest.mark.slow
def test_embeddings_after_many_modules(tmp_path):
    model = peer(tmp_path / "model", *make_modules())
    task = TextEmbedder.from_preset(tmp_path / "model")
    check(task, model, RAW)
    assert not task.normalize
    kinds = [layer["kind"] for layer in task.projection]
    assert kinds == ["normalize", "dropout", "dense", "layer_norm", "dense", "normalize", "layer_norm", "dropout"]
    report = lmzoo.verify(tmp_path / "model")
    assert report["modules"] == (
        "Transformer, Pooling (max, mean), Normalize, Dropout (0.3), Dense (17, tanh), LayerNorm, Dense (11, relu), "
        "Normalize, LayerNorm, Dropout (0.2)"
    )
    assert report["tensors"].endswith("of the backbone, 7 of the head, in model.safetensors")


@pytest.mark.quick_cases("roberta")
@pytest.mark.parametrize("name", ["roberta", "gpt", "xlnet"])  # special tokens on both sides, on none, on the right
def test_embeddings_of_other_families(name, tmp_path):
    width = families()[name].tiny.hidden_dim
    mode = "weightedmean" if name == "xlnet" else ["lasttoken", "mean"]
    texts = TEXTS[:-1]  # without special tokens, "" has no tokens
    model = peer(tmp_path / "model", Pooling(width, mode), Normalize(), name=name)
    task = TextEmbedder.from_preset(tmp_path / "model")
    check(task, model, UNIT, texts)
    save_checkpoint(task, tmp_path / "ours", "hf")
    check(task, load_with_sentence_transformers(tmp_path / "ours"), UNIT, texts)


@pytest.mark.slow
def test_a_decoder_reads_texts_without_an_end(tmp_path):
    model = peer(tmp_path / "model", Pooling(families()["gpt2"].tiny.hidden_dim, "lasttoken"), name="gpt2")
    task = TextEmbedder.from_preset(tmp_path / "model")
    check(task, model, RAW, TEXTS[:-1])
    save_checkpoint(task, tmp_path / "ours", "hf")
    check(task, load_with_sentence_transformers(tmp_path / "ours"), RAW, TEXTS[:-1])
    default = tiny_task(TextEmbedder, families()["gpt2"])
    with pytest.raises(PresetError, match=r"cannot express '<\|endoftext\|>' at the end of a text.*`end=\"\"`"):
        save_checkpoint(default, tmp_path / "no", "hf")
    assert not (tmp_path / "no").exists()


def write_old_folder(tmp_path, **settings):
    """Write a folder as in 2020: the Transformer in a folder, pickled weights, and the older names of all keys."""
    model = peer(tmp_path / "model", Pooling(WIDTH, ("mean", "cls")), Dense(2 * WIDTH, 11), Normalize())
    new, old = tmp_path / "model", tmp_path / "old"
    (old / "0_Transformer").mkdir(parents=True)
    for file in transformer(tmp_path / "weights").iterdir():
        if file.name != "model.safetensors":
            shutil.copy(file, old / "0_Transformer")
    shutil.copytree(new / "2_Dense", old / "2_Dense")
    torch.save(model[0].model.state_dict(), old / "0_Transformer/pytorch_model.bin")
    torch.save(model[2].state_dict(), old / "2_Dense/pytorch_model.bin")
    (old / "2_Dense/model.safetensors").unlink()
    (old / "2_Dense/config.json").write_text(json.dumps({
        "in_features": 2 * WIDTH, "out_features": 11, "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }))  # fmt: skip
    (old / "1_Pooling").mkdir()
    (old / "1_Pooling/config.json").write_text(json.dumps({
        "word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False,
    }))  # fmt: skip
    paths = {"Transformer": "0_Transformer", "Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_Normalize"}
    entries = [{"idx": i, "name": str(i), "path": p, "type": f"{OLD}.{k}"} for i, (k, p) in enumerate(paths.items())]
    (old / "modules.json").write_text(json.dumps(entries))
    (old / "0_Transformer/sentence_roberta_config.json").write_text(json.dumps(settings))
    return old


@pytest.mark.slow
def test_embeddings_of_a_folder_of_2020(tmp_path):
    folder = write_old_folder(tmp_path, max_seq_length=7, do_lower_case=False)
    task = TextEmbedder.from_preset(folder)
    assert (task.pooling, task.preprocessor.sequence_length) == (["cls", "mean"], 7)
    with pytest.warns(lmzoo.text.TextWarning, match="2 of 7 texts were truncated to 7 tokens"):
        vectors = task.embed(TEXTS)
    assert difference(vectors, load_with_sentence_transformers(folder).encode(TEXTS)) <= UNIT
    Backbone.from_preset(folder)


@pytest.mark.slow
def test_text_may_be_lowercased_before_a_cased_tokenizer(tmp_path):
    folder = write_old_folder(tmp_path, max_seq_length=None, do_lower_case=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        file = folder / "0_Transformer" / name
        file.write_text(re.sub(r'"(lowercase|do_lower_case)": ?true', r'"\1": false', file.read_text()))
    texts = ["Good FILM", "é É İ ǅ ß", "the Plot"]
    task = TextEmbedder.from_preset(folder)
    assert (task.preprocessor.tokenizer.lowercase, task.preprocessor.tokenizer.strip_accents) == (True, False)
    check(task, load_with_sentence_transformers(folder), UNIT, texts)
    assert difference(task.embed(texts[:1]), task.embed(["good film"])) == 0
    edit(folder / "0_Transformer/sentence_roberta_config.json", do_lower_case=False)
    assert difference(TextEmbedder.from_preset(folder).embed(texts[:1]), task.embed(texts[:1])) > 0.01


# === Writing ===


PROJECTION = [
    {"kind": "normalize"},
    {"kind": "dense", "units": 17, "activation": "tanh"},
    {"kind": "layer_norm"},
    {"kind": "dropout", "rate": 0.3},
    {"kind": "dense", "units": 11, "use_bias": False},
]
WRITTEN = {
    "plain": {},
    "cls": {"pooling": "cls", "normalize": False},
    "several": {"pooling": ["cls", "mean_sqrt_len_tokens", "lasttoken"]},
    "several in another order": {"pooling": ["weightedmean", "max", "cls"], "normalize": False},
    "projected": {"projection": PROJECTION, "prompts": {"query": "the "}},
    "projected last": {"projection": PROJECTION, "normalize": False},
    "truncated": {
        "projection": [*PROJECTION, {"kind": "normalize"}, {"kind": "truncate", "units": 5}],
        "normalize": False,
    },
    "prompted": {"prompts": {"query": "the ", "passage": ""}, "default_prompt": "query"},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRITTEN)
def test_sentence_transformers_loads_our_embedders(case, tmp_path):
    task = embedder(**WRITTEN[case])
    randomize(task)
    task.preprocessor.sequence_length = 23
    save_checkpoint(task, tmp_path / "model", "hf")
    model = load_with_sentence_transformers(tmp_path / "model")
    assert model.max_seq_length == 23
    check(task, model, UNIT if task.normalize else RAW)
    reloaded = TextEmbedder.from_preset(tmp_path / "model")
    keys = ("pooling", "normalize", "projection", "prompts", "default_prompt")
    assert [reloaded.get_config()[key] for key in keys] == [task.get_config()[key] for key in keys]
    for ours, theirs in zip(task.weights, reloaded.weights, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (ours, theirs)))
    model.save(str(tmp_path / "theirs"), create_model_card=False)
    assert difference(TextEmbedder.from_preset(tmp_path / "theirs").embed(TEXTS), task.embed(TEXTS)) <= UNIT


# === Prompts ===


@pytest.mark.slow
def test_prompts_are_put_before_texts(tmp_path):
    prompts = {"query": "good film ", "passage": "the plot", "none": ""}
    model = peer(tmp_path / "model", Pooling(WIDTH), Normalize(), prompts=prompts, default_prompt_name="query")
    task = TextEmbedder.from_preset(tmp_path / "model")
    assert task.prompts == {**prompts, "document": ""}
    assert task.default_prompt == "query"
    for prompt in ({}, {"prompt_name": "passage"}, {"prompt_name": "none"}, {"prompt": "bad "}, {"prompt": ""}):
        check(task, model, UNIT, **prompt)
    check(task, model, UNIT, PAIRS)
    np.testing.assert_array_equal(task.predict(TEXTS, verbose=0), task.embed(TEXTS))
    assert lmzoo.verify(tmp_path / "model")["prompts"] == "passage, query; by default query"


@pytest.mark.slow
def test_embeddings_are_truncated(tmp_path):
    model = peer(tmp_path / "model", Pooling(WIDTH), Normalize(), truncate_dim=5, similarity_fn_name="dot")
    task = TextEmbedder.from_preset(tmp_path / "model")
    assert task.embed(TEXTS).shape == (7, 5)
    check(task, model, UNIT)
    assert "not used: similarity_fn_name" not in lmzoo.verify(tmp_path / "model")


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_search_scores_with_the_stored_similarity(name, tmp_path):
    model = peer(tmp_path / "model", Pooling(WIDTH), similarity_fn_name=name)
    task = TextEmbedder.from_preset(tmp_path / "model")
    assert task.similarity == name
    save_checkpoint(task, tmp_path / "ours", "hf")
    assert load_with_sentence_transformers(tmp_path / "ours").similarity_fn_name == name
    expected = model.similarity(model.encode(TEXTS[:2]), model.encode(TEXTS)).numpy()
    for row, hits in zip(expected, task.search(TEXTS[:2], TEXTS, top_k=7), strict=True):
        assert difference([hit["score"] for hit in hits], row[[hit["index"] for hit in hits]]) <= 10 * RAW
        assert difference([hit["score"] for hit in hits], -np.sort(-row)) <= 10 * RAW


def test_an_unknown_similarity_is_the_cosine(tmp_path):
    peer(tmp_path / "model", Pooling(WIDTH))
    edit(tmp_path / "model/config_sentence_transformers.json", similarity_fn_name="tanimoto")
    assert TextEmbedder.from_preset(tmp_path / "model").similarity == "cosine"
    assert "tanimoto" in lmzoo.verify(tmp_path / "model")["not used: similarity_fn_name"]


# Sentence Transformers 6.2 puts nothing before documents if a folder has "passage" but not "document", although its
# documentation says otherwise.
@pytest.mark.parametrize(
    "prompts",
    [
        {"query": "the ", "document": "a "},
        {"query": "", "document": "bad "},
        {"the": "the "},
        {"document": "is ", "passage": "bad "},
        {},
    ],
    ids=str,
)
def test_queries_and_documents_have_prompts(prompts, tmp_path):
    default = next(iter(prompts), None)
    model = peer(tmp_path / "model", Pooling(WIDTH), Normalize(), prompts=prompts, default_prompt_name=default)
    task = TextEmbedder.from_preset(tmp_path / "model")
    assert difference(task.embed_queries(TEXTS), model.encode_query(TEXTS)) <= UNIT
    assert difference(task.embed_documents(TEXTS), model.encode_document(TEXTS)) <= UNIT


# === Cross-encoders ===


def write_cross_encoder(folder, name="bert", **arguments):
    """Write a tiny cross-encoder without the key of its activation, and load it."""
    task = tiny_task(TextRegressor, families()[name])
    randomize(task)
    save_checkpoint(task, folder, "hf")
    edit(folder / "config.json", sentence_transformers=...)
    return load_cross_encoder(folder, **arguments)


def load_cross_encoder(folder, **arguments):
    return CrossEncoder(str(folder), device="cpu", local_files_only=True, **arguments)


def check_scores(folder, model, activation) -> TextRegressor:
    task = TextRegressor.from_preset(folder)
    assert task.output_activation == activation
    expected = model.predict(PAIRS)
    assert difference(task.score(PAIRS), expected) <= UNIT
    assert np.ptp(expected) > 1e-3
    return task


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["sigmoid", "linear", "tanh"])
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_cross_encoders_give_the_same_scores(name, activation, tmp_path):
    model = write_cross_encoder(tmp_path / "plain", name, activation_fn=getattr(torch.nn, ACTIVATIONS[activation])())
    model.save(str(tmp_path / "model"), create_model_card=False)
    task = check_scores(tmp_path / "model", model, activation)
    assert lmzoo.verify(tmp_path / "model")["answers"] == f"after the activation {activation!r}"
    save_checkpoint(task, tmp_path / "ours", "hf")
    check_scores(tmp_path / "ours", load_cross_encoder(tmp_path / "ours"), activation)


@pytest.mark.quick_cases("sigmoid-sentence_transformers")
@pytest.mark.parametrize("key", ["sentence_transformers", "sbert_ce_default_activation_function"])
@pytest.mark.parametrize("activation", ["sigmoid", "linear"])
def test_cross_encoders_of_earlier_versions_give_the_same_scores(key, activation, tmp_path):
    write_cross_encoder(tmp_path / "model")
    kind = "activation" if activation == "sigmoid" else "linear"
    name = f"torch.nn.modules.{kind}.{ACTIVATIONS[activation]}"
    stored = {"activation_fn": name, "version": "5.2.0"} if key == "sentence_transformers" else name
    edit(tmp_path / "model/config.json", **{key: stored})
    check_scores(tmp_path / "model", load_cross_encoder(tmp_path / "model"), activation)


def test_a_regressor_that_stores_no_activation_returns_what_it_computes(tmp_path):
    write_cross_encoder(tmp_path / "model")
    task = TextRegressor.from_preset(tmp_path / "model")
    assert task.output_activation == "linear"
    assert max(map(abs, task.score(PAIRS))) > 0


def test_the_length_of_a_cross_encoder_is_read(tmp_path):
    model = write_cross_encoder(tmp_path / "plain", max_length=7)
    model.save(str(tmp_path / "model"), create_model_card=False)
    assert TextRegressor.from_preset(tmp_path / "model").preprocessor.sequence_length == 7


QUERY = "a good film"


# The forms of cross-encoder/ms-marco-* (BERTs that state the identity) and of BAAI/bge-reranker-* (XLM-RoBERTas that
# state nothing: their own library returns logits, and CrossEncoder computes the sigmoid).
@pytest.mark.parametrize(("name", "stored"), [("bert", "torch.nn.modules.linear.Identity"), ("xlm_roberta", None)])
def test_rankings_equal_those_of_published_rerankers(name, stored, tmp_path):
    write_cross_encoder(tmp_path / "model", name)
    if stored:
        edit(tmp_path / "model/config.json", sentence_transformers={"activation_fn": stored, "version": "4.1.0"})
    model = load_cross_encoder(tmp_path / "model")
    for top_k in (None, 3):
        hits = TextRegressor.from_preset(tmp_path / "model").rank(QUERY, TEXTS, top_k, batch_size=3)
        expected = model.rank(QUERY, TEXTS, top_k, return_documents=True, activation_fn=torch.nn.Identity())
        assert [hit["index"] for hit in hits] == [hit["corpus_id"] for hit in expected]
        assert [hit["text"] for hit in hits] == [hit["text"] for hit in expected]
        assert difference([hit["score"] for hit in hits], [hit["score"] for hit in expected]) <= RAW
    assert [hit["corpus_id"] for hit in model.rank(QUERY, TEXTS, 3)] == [hit["index"] for hit in hits]  # of sigmoids
