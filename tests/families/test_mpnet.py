"""MPNet: sequences longer than its buckets, compared with transformers, and its tokenizer on varied texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmzoo.checkpoints.tokenizers.files import read_tokenizer_and_packing, write_tokenizer
from lmzoo.data.corpora import train_tokenizer
from lmzoo.errors import PresetError
from lmzoo.families.mpnet import FAMILY, MpnetBackbone
from lmzoo.files.preset_files import CONFIG_FILE, JsonFiles
from lmzoo.models import Backbone, MaskedLM
from lmzoo.presets.converting import save_checkpoint
from lmzoo.testing import tiny_backbone, tiny_preprocessor
from lmzoo.text import Preprocessor, WordPieceTokenizer
from lmzoo.text.validate_text import collect_warnings
from tests.families.comparing import add_noise
from tests.families.config_files import edit_config
from tests.reference.weights import difference, run
from tests.text.varied import SOME, has_marks_in_order, sizes, varied_texts

LONGEST = 307  # well over 128, the distance from which on all share a bucket
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
    """Return a masked language model of transformers with random weights, and its directory."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("mpnet")
    config = transformers.MPNetConfig(
        vocab_size=151, num_hidden_layers=2, num_attention_heads=3, hidden_size=39, intermediate_size=47,
        max_position_embeddings=LONGEST + 4, layer_norm_eps=1e-5, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(31)
    model = transformers.MPNetForMaskedLM(config).eval()
    add_noise(model)
    with torch.no_grad():
        model.mpnet.encoder.relative_attention_bias.weight.mul_(10)  # the distance matters as much as the content
    model.save_pretrained(directory)
    return model, directory


def run_peer(model: Any, inputs: dict[str, np.ndarray]) -> Any:
    import torch

    with torch.no_grad():
        return model(
            torch.tensor(inputs["token_ids"]).long(),
            attention_mask=torch.tensor(inputs["padding_mask"]).long(),
            output_hidden_states=True,
            output_attentions=True,
        )


def test_long_sequences_equal_transformers(peer):
    model, directory = peer
    backbone, inputs = Backbone.from_preset(directory), batch([LONGEST, 131, 5])
    assert isinstance(backbone, MpnetBackbone)
    expected, outputs = run_peer(model, inputs), run(backbone, inputs)
    real = inputs["padding_mask"] > 0
    for ours, theirs in zip(outputs["hidden_states"], expected.hidden_states, strict=True):
        assert difference(np.asarray(ours)[real], theirs.numpy()[real]) <= 1e-5
    for ours, theirs in zip(backbone.attention_scores(inputs), expected.attentions, strict=True):
        ours, theirs = (np.moveaxis(np.asarray(scores), 1, 2)[real] for scores in (ours, theirs.numpy()))
        assert difference(ours, theirs) <= 1e-5


def test_the_last_block_may_run_for_masks_only(peer):
    """Its position bias is for the positions of the masks."""
    model, directory = peer
    task = MaskedLM.from_preset(directory, preprocessor=tiny_preprocessor(FAMILY))
    inputs = batch([LONGEST, 131, 5])
    positions = np.array([[3, 299, 150], [130, 7, 7], [4, 0, 0]], "int32")
    logits = run(task, {**inputs, "mask_positions": positions})
    expected = np.take_along_axis(run_peer(model, inputs).logits.numpy(), positions[:, :, None], axis=1)
    assert difference(np.asarray(logits), expected) <= 1e-5


def test_the_number_of_buckets_is_checked_and_stored(tmp_path):

    backbone = MpnetBackbone(**SMALL, num_buckets=510)
    assert backbone.position_bias.embeddings.shape == (510, 3)
    with pytest.raises(PresetError, match="`relative_attention_num_buckets` must be 32, got 510"):
        save_checkpoint(backbone, tmp_path / "more", to="hf")
    save_checkpoint(tiny_backbone(FAMILY), tmp_path / "default", to="hf")
    stored = json.loads((tmp_path / "default" / CONFIG_FILE).read_text())
    assert stored["relative_attention_num_buckets"] == 32
    edit_config(tmp_path / "default", "relative_attention_num_buckets")  # transformers' default is 32
    assert Backbone.from_preset(tmp_path / "default").num_buckets == 32
    edit_config(tmp_path / "default", relative_attention_num_buckets=64)
    with pytest.raises(PresetError, match="`relative_attention_num_buckets` must be 32, got 64"):
        Backbone.from_preset(tmp_path / "default")


# === Tokenizer ===


@pytest.fixture(scope="module", params=sizes(10_000))
def texts(request: pytest.FixtureRequest) -> list[str]:
    varied = varied_texts(request.param, 2027, [*tokenizer([]).special_tokens, *BROKEN])
    return [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in varied]


def tokenizer(characters: list[str], **settings: Any) -> WordPieceTokenizer:
    """Return a tokenizer with the tokens of published ones; BERT's own are words, but not special."""
    roles = FAMILY.special_tokens
    words = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ok"]
    pieces = [piece for character in characters for piece in (character, f"##{character}")]
    return WordPieceTokenizer([*words, *pieces, "<mask>"], **settings, **roles)


@pytest.fixture(scope="module")
def characters(texts) -> list[str]:
    """Return most of the characters of the texts, which become words or parts of words."""
    characters = sorted({c for text in texts for c in text.lower() if c.strip() and c.isprintable()})
    return [c for i, c in enumerate(characters) if i % 17]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("pipeline", [True, False], ids=["pipeline", "vocabulary"])
def test_ids_and_offsets_equal_transformers(texts, characters, tmp_path, lowercase, pipeline):
    transformers = pytest.importorskip("transformers")
    write_tokenizer(tokenizer(characters, lowercase=lowercase), tmp_path, 67, "MPNetTokenizer")
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
    half = len(texts) // 2
    first, second = texts[:half], texts[half : 2 * half]
    packed = theirs(first, second)["input_ids"]
    features = Preprocessor(ours, packing, max(map(len, packed)))((first, second))
    real = np.asarray(features["padding_mask"]) > 0
    assert [ids[mask].tolist() for ids, mask in zip(features["token_ids"], real, strict=True)] == packed
    assert {*np.asarray(features["token_ids"])[~real]} == {theirs.pad_token_id}


def test_a_vocabulary_need_not_hold_berts_mask(tmp_path):
    preprocessor = tiny_preprocessor(FAMILY)
    assert "[MASK]" not in preprocessor.tokenizer.vocabulary
    task = MaskedLM(tiny_backbone(FAMILY), preprocessor)
    save_checkpoint(task, tmp_path, to="hf")
    assert MaskedLM.from_preset(tmp_path).preprocessor.tokenizer.get_config() == preprocessor.tokenizer.get_config()


def test_new_vocabularies_pad_with_the_id_that_transformers_expects(tmp_path):
    """There, positions count the tokens whose id is not 1, whatever `pad_token_id` is."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    with collect_warnings():
        ours = train_tokenizer(
            ["a fine film", "a day"] * 3, FAMILY.tokenizer, 41, verbose=False, **FAMILY.special_tokens
        )
    assert ours.vocabulary[:5] == ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    backbone, preprocessor = tiny_backbone(FAMILY), Preprocessor(ours, FAMILY.packing, 17)
    save_checkpoint(backbone, tmp_path / "hf", to="hf", preprocessor=preprocessor)
    texts = ["a 漢 film 漢", "day"]
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()(**encoded).last_hidden_state
    real = encoded["attention_mask"].numpy() > 0
    states = np.asarray(run(backbone, preprocessor(texts))["sequence_output"])[:, : real.shape[1]]
    assert difference(states[real], expected.numpy()[real]) <= 1e-5
    by_role = WordPieceTokenizer(["<pad>", "[UNK]", "<s>", "</s>", "<mask>", "film"], **FAMILY.special_tokens)
    with pytest.raises(PresetError, match=r"requires the padding token at id 1, but '<pad>' has id 0.*'\[UNK\]'"):
        save_checkpoint(backbone, tmp_path / "old", "hf", preprocessor=Preprocessor(by_role, FAMILY.packing, 17))
    assert not (tmp_path / "old").exists()


def test_tokenizer_files_hold_the_packing_of_pairs(tmp_path):
    """Programs that know no class of transformers also read it."""
    tokenizers = pytest.importorskip("tokenizers")
    ours = tokenizer(["a", "b"])
    write_tokenizer(ours, tmp_path, 67)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "MPNetTokenizer"
    encoded = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("a", "b")
    assert encoded.tokens == ["<s>", "a", "</s>", "</s>", "b", "</s>"]
    assert encoded.type_ids == [0] * 6


@pytest.mark.tf_only
def test_ids_and_offsets_in_graphs(texts, characters):
    import tensorflow as tf

    from lmzoo.text.graphs import graph_tokenizer

    ours = tokenizer(characters)
    ids, spans = tf.function(graph_tokenizer(ours).with_offsets)(tf.constant(texts))
    expected = ours.tokenize_with_offsets(texts)
    assert ids.to_list() == [[span.id for span in row] for row in expected]
    for text, row, offsets in zip(texts, expected, spans.to_list(), strict=True):
        if has_marks_in_order(text):
            assert [[span.start, span.end] for span in row] == offsets, ascii(text)
