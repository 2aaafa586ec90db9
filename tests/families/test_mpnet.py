"""MPNet against transformers where sequences are longer than its buckets, and its tokenizer on texts of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmzoo.checkpoints.tokenizers.files import read_tokenizer_and_packing, write_tokenizer
from lmzoo.errors import PresetError
from lmzoo.families.mpnet import FAMILY, MpnetBackbone, MpnetConfig
from lmzoo.files.preset_files import CONFIG_FILE, JsonFiles
from lmzoo.models import Backbone, MaskedLM
from lmzoo.presets.converting import save_checkpoint
from lmzoo.testing import tiny_backbone, tiny_preprocessor
from lmzoo.text import Preprocessor, WordPieceTokenizer
from tests.reference.weights import difference, run
from tests.text.varied import SOME, has_marks_in_order, sizes, varied_texts

LONGEST = 307  # well over the distance of 128, from which on there is one bucket
SMALL = {"num_layers": 2, "num_heads": 3, "hidden_dim": 39, "intermediate_dim": 47, "vocabulary_size": 151}
BROKEN = [
    "<mask", "<MASK>", " <mask>", "[MASK]", "[CLS]", "[PAD]", "<UNK>", "x<unk>y", "<s", ">", "é", "ok", " ", "\n", "东",
]  # fmt: skip


def batch(lengths: list[int]) -> dict[str, np.ndarray]:
    mask = (np.arange(max(lengths) + 2) < np.array(lengths)[:, None]).astype("int32")
    ids = np.random.default_rng(29).integers(2, 150, mask.shape)
    return {"token_ids": np.where(mask > 0, ids, 1).astype("int32"), "padding_mask": mask}


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A masked language model of transformers with random weights, and its folder."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("mpnet")
    config = transformers.MPNetConfig(
        vocab_size=151, num_hidden_layers=2, num_attention_heads=3, hidden_size=39, intermediate_size=47,
        max_position_embeddings=LONGEST + 4, layer_norm_eps=1e-5, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(31)
    model = transformers.MPNetForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        model.mpnet.encoder.relative_attention_bias.weight.mul_(10)  # the distance matters as much as the content
    model.save_pretrained(folder)
    return model, folder


def ask(model: Any, inputs: dict[str, np.ndarray]) -> Any:
    import torch

    with torch.no_grad():
        return model(
            torch.tensor(inputs["token_ids"]).long(),
            attention_mask=torch.tensor(inputs["padding_mask"]).long(),
            output_hidden_states=True,
            output_attentions=True,
        )


def test_long_sequences(peer):
    model, folder = peer
    backbone, inputs = Backbone.from_preset(folder), batch([LONGEST, 131, 5])
    assert isinstance(backbone, MpnetBackbone)
    expected, outputs = ask(model, inputs), run(backbone, inputs)
    real = inputs["padding_mask"] > 0
    for ours, theirs in zip(outputs["hidden_states"], expected.hidden_states, strict=True):
        assert difference(np.asarray(ours)[real], theirs.numpy()[real]) <= 1e-5
    for ours, theirs in zip(backbone.attention_scores(inputs), expected.attentions, strict=True):
        ours, theirs = (np.moveaxis(np.asarray(scores), 1, 2)[real] for scores in (ours, theirs.numpy()))
        assert difference(ours, theirs) <= 1e-5


def test_the_last_block_for_masks_alone(peer):
    """Its bias belongs to the positions of the masks."""
    model, folder = peer
    task = MaskedLM.from_preset(folder, preprocessor=tiny_preprocessor(FAMILY))
    inputs = batch([LONGEST, 131, 5])
    positions = np.array([[3, 299, 150], [130, 7, 7], [4, 0, 0]], "int32")
    logits = run(task, {**inputs, "mask_positions": positions})
    expected = np.take_along_axis(ask(model, inputs).logits.numpy(), positions[:, :, None], axis=1)
    assert difference(np.asarray(logits), expected) <= 1e-5


def test_the_number_of_buckets(tmp_path):
    for number in (3, 7, 512, 32.0):
        with pytest.raises(ValueError, match="`num_buckets` must be"):
            MpnetConfig(**SMALL, num_buckets=number)
    backbone = MpnetBackbone(**SMALL, num_buckets=510)
    assert backbone.position_bias.embeddings.shape == (510, 3)
    with pytest.raises(PresetError, match="`relative_attention_num_buckets` must be 32, got 510"):
        save_checkpoint(backbone, tmp_path / "more", to="hf")
    save_checkpoint(tiny_backbone(FAMILY), tmp_path / "usual", to="hf")
    file = tmp_path / "usual" / CONFIG_FILE
    stored = json.loads(file.read_text())
    assert stored["relative_attention_num_buckets"] == 32
    del stored["relative_attention_num_buckets"]  # which transformers then takes to be 32
    file.write_text(json.dumps(stored))
    assert Backbone.from_preset(tmp_path / "usual").num_buckets == 32
    file.write_text(json.dumps({**stored, "relative_attention_num_buckets": 64}))
    with pytest.raises(PresetError, match="`relative_attention_num_buckets` must be 32, got 64"):
        Backbone.from_preset(tmp_path / "usual")


# === Tokenizer ===


@pytest.fixture(scope="module", params=sizes(10_000))
def texts(request: pytest.FixtureRequest) -> list[str]:
    found = varied_texts(request.param, 2027, [*tokenizer([]).special_tokens, *BROKEN])
    return [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in found]


def tokenizer(characters: list[str], **settings: Any) -> WordPieceTokenizer:
    """One with the tokens of published ones: BERT's own are there, but they are not special."""
    roles = FAMILY.special_tokens
    words = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ok"]
    pieces = [piece for character in characters for piece in (character, f"##{character}")]
    return WordPieceTokenizer([*words, *pieces, "<mask>"], **settings, **roles)


@pytest.fixture(scope="module")
def known(texts) -> list[str]:
    """Most of the characters that are words or parts of them."""
    characters = sorted({c for text in texts for c in text.lower() if c.strip() and c.isprintable()})
    return [c for i, c in enumerate(characters) if i % 17]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("pipeline", [True, False], ids=["pipeline", "vocabulary"])
def test_ids_and_offsets_of_transformers(texts, known, tmp_path, lowercase, pipeline):
    transformers = pytest.importorskip("transformers")
    write_tokenizer(tokenizer(known, lowercase=lowercase), tmp_path, 67, "MPNetTokenizer")
    (tmp_path / CONFIG_FILE).write_text('{"model_type": "mpnet"}')
    if not pipeline:
        (tmp_path / "tokenizer.json").unlink()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__ == "MPNetTokenizer"
    ours, packing = read_tokenizer_and_packing(JsonFiles(tmp_path), FAMILY, len(theirs))
    assert packing == FAMILY.packing
    encoded = theirs(texts, add_special_tokens=False, return_offsets_mapping=True)
    rows = ours.tokenize_with_offsets(texts)
    pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    for text, row, (ids, offsets) in zip(texts, rows, pairs, strict=True):
        assert [span.id for span in row] == ids, ascii(text)
        assert [(span.start, span.end) for span in row] == offsets, ascii(text)
    assert len(texts) > SOME
    assert sum(ours.mask_id in ids for ids in encoded["input_ids"]) > len(texts) / 20
    first, second = texts[: len(texts) // 2], texts[len(texts) // 2 : len(texts) // 2 * 2]
    packed = theirs(first, second)["input_ids"]
    features = Preprocessor(ours, packing, max(map(len, packed)))((first, second))
    real = np.asarray(features["padding_mask"]) > 0
    assert [ids[mask].tolist() for ids, mask in zip(features["token_ids"], real, strict=True)] == packed
    assert {*np.asarray(features["token_ids"])[~real]} == {theirs.pad_token_id}


def test_the_files_say_how_pairs_are_packed(tmp_path):
    """Also to programs that know no class of transformers."""
    tokenizers = pytest.importorskip("tokenizers")
    ours = tokenizer(["a", "b"])
    write_tokenizer(ours, tmp_path, 67)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "MPNetTokenizer"
    encoded = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("a", "b")
    assert encoded.tokens == ["<s>", "a", "</s>", "</s>", "b", "</s>"]
    assert encoded.type_ids == [0] * 6


@pytest.mark.tf_only
def test_ids_and_offsets_in_graphs(texts, known):
    import tensorflow as tf

    from lmzoo.text.graphs import graph_tokenizer

    ours = tokenizer(known)
    ids, spans = tf.function(graph_tokenizer(ours).with_offsets)(tf.constant(texts))
    expected = ours.tokenize_with_offsets(texts)
    assert ids.to_list() == [[span.id for span in row] for row in expected]
    for text, row, found in zip(texts, expected, spans.to_list(), strict=True):
        if has_marks_in_order(text):
            assert [[span.start, span.end] for span in row] == found, ascii(text)


def test_the_record():
    assert FAMILY.tiny.num_segments == 0
    assert FAMILY.mask_token == "<mask>"
    with pytest.raises(ValueError, match="`num_segments` must be 0, since the family has no segments"):
        MpnetConfig(**SMALL, num_segments=2)
