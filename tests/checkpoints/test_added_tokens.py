"""Tokens that users added to a tokenizer: ids and offsets of transformers, in Python, in graphs and in exports."""

import json
import random

import keras
import numpy as np
import pytest

from lmzoo.checkpoints.tokenizers.files import read_tokenizer, write_tokenizer
from lmzoo.checkpoints.tokenizers.keras_hub import read_keras_hub_tokenizer, write_keras_hub_tokenizer
from lmzoo.errors import PresetError
from lmzoo.models import BertBackbone, MaskedLM, RobertaBackbone, TextClassifier
from lmzoo.registry.family import families, get_family
from lmzoo.testing.tiny import tiny_backbone
from lmzoo.text import (
    AddedToken,
    BytePairTokenizer,
    CharacterPairTokenizer,
    CharacterTokenizer,
    DebertaV3Tokenizer,
    NormalizedBytePairTokenizer,
    Preprocessor,
    SentencePieceTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    XlmRobertaTokenizer,
)
from lmzoo.text.tokenizers.bpe import ONLY_END_OF_TEXT
from tests.serving.bare import BareProcess
from tests.text.varied import has_marks_in_order, sizes, symbol

transformers = pytest.importorskip("transformers")

SIZES = {"num_heads": 1, "hidden_dim": 7, "intermediate_dim": 11, "max_sequence_length": 61}
WORDS = ["good", "film", "covid", "a", "x"]
FLAGS = {
    "[E1]": {"special": True},
    "[E1]x": {"lstrip": True},
    "<r>": {"rstrip": True, "special": True},
    "CoVid": {"single_word": True, "normalized": True},
    "c++": {"normalized": True},
    "x]y": {},
    "É1": {"single_word": True, "lstrip": True, "rstrip": True, "normalized": True},
    "中b": {"normalized": True},
    "<a b>": {"single_word": True},
    "<|endoftext|>y": {"rstrip": True, "lstrip": True},
}
PARTS = [
    *FLAGS, "covid", "COVID", " ", " ", "  ", "\n", "\u3000", "\u00a0", "C++", "é1", "e\u03011", "中", " 中 b",
    "[MASK]", "<mask>", "[PAD]", "a", "_", "9", "good", "film", "Ω", "\u0301", "\u200d", "😀", "x", "[", "]", "<", "ﬁ",
    "\ufffd", "\0", "İ", ".", "<|endoftext|>", "</s>", "<sep>",
]  # fmt: skip


def make_tokenizer(name: str) -> Tokenizer:
    if name == "wordpiece":
        words = [*"axé中c+19[]<>_.", "good", "film", "covid", "", "##x", "##9", "##1"]
        return WordPieceTokenizer([*WordPieceTokenizer.special_tokens, *words])
    if name == "cased":
        return WordPieceTokenizer([*WordPieceTokenizer.special_tokens, *"aCc+Éé1", "CoVid", "##x"], lowercase=False)
    if name == "bytes":
        return BytePairTokenizer.of_words(WORDS, 293)
    if name == "normalized":
        return NormalizedBytePairTokenizer.of_words(WORDS, 293)
    if name == "gpt2":
        return BytePairTokenizer.of_words(WORDS, 293, **ONLY_END_OF_TEXT)
    if name == "characters":
        return CharacterPairTokenizer.of_words(WORDS, 67)
    return SentencePieceTokenizer.of_words([*WORDS, "9"], 31)


PEERS = {"gpt2": "GPT2Tokenizer"}  # classes of transformers, if they differ from the class of the first family
TIES = {"sentencepiece": 0.1}  # fraction of texts of which another segmentation has the same score
NAMES = ["wordpiece", "cased", "bytes", "normalized", "gpt2", "characters", "sentencepiece"]


@pytest.fixture(scope="module", params=sizes(10_000))
def texts(request: pytest.FixtureRequest) -> list[str]:
    rng = random.Random(1709)
    return [
        "".join(rng.choice(PARTS) if rng.random() < 0.8 else symbol(rng) for _ in range(rng.randrange(1, 14)))
        for _ in range(request.param)
    ]


def added_tokens() -> list[AddedToken]:
    return [AddedToken(content, **{"normalized": False, **flags}) for content, flags in FLAGS.items()]


def write_peer(folder, name: str):
    """Write our files and return transformers' tokenizer for them, to which the same tokens are added."""
    write_tokenizer(make_tokenizer(name), folder, 512, PEERS.get(name))
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    peer.add_tokens([token.to_library() for token in added_tokens()])
    return peer


def check_equal(tokenizer: Tokenizer, peer, texts: list[str], ties: float = 0.0) -> None:
    """Check ids and offsets, except where SentencePiece and `tokenizers` choose other pieces of the same score."""
    encoded = peer(texts, add_special_tokens=False, return_offsets_mapping=True)
    rows = tokenizer.tokenize_with_offsets(texts)
    assert [[span.id for span in row] for row in rows] == tokenizer.tokenize(texts)
    different = 0
    for text, row, ids, offsets in zip(texts, rows, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        if [span.id for span in row] != ids and ties:
            different += 1
            continue
        assert [span.id for span in row] == ids, ascii(text)
        if not ties:  # our offsets of spaces differ, see test_sentencepiece
            assert [(span.start, span.end) for span in row] == offsets, ascii(text)
    assert different <= ties * len(texts)


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_offsets_equal_those_of_transformers(name, texts, tmp_path):
    tokenizer, peer = make_tokenizer(name), write_peer(tmp_path, name)
    assert tokenizer.add_tokens(added_tokens()) == len(FLAGS.keys() - {*tokenizer.base_vocabulary})
    check_equal(tokenizer, peer, texts, TIES.get(name, 0))


@pytest.mark.parametrize("name", NAMES)
def test_files_of_transformers_are_read_and_written(name, texts, tmp_path):
    for folder in ("ours", "theirs", "again"):
        (tmp_path / folder).mkdir()
    tokenizer, peer = make_tokenizer(name), write_peer(tmp_path / "ours", name)
    if name == "gpt2":
        peer.add_special_tokens({"pad_token": "[PAD]"})
    peer.save_pretrained(tmp_path / "theirs")
    special_tokens = {role: getattr(tokenizer, role) for role in tokenizer.roles}
    special_tokens["other_tokens"] = tokenizer.other_tokens
    read = read_tokenizer(tmp_path / "theirs", type(tokenizer), len(peer), special_tokens=special_tokens)
    assert read.vocabulary_size == len(peer)
    assert read.pad_token == peer.pad_token
    assert {token.content for token in read.added_tokens} >= {*FLAGS}
    check_equal(read, peer, texts[:997], TIES.get(name, 0))
    write_tokenizer(read, tmp_path / "again", 512, PEERS.get(name))
    reloaded = read_tokenizer(tmp_path / "again", type(tokenizer), special_tokens=special_tokens)
    assert reloaded.get_config() == read.get_config()
    check_equal(
        reloaded, transformers.AutoTokenizer.from_pretrained(tmp_path / "again"), texts[:997], TIES.get(name, 0)
    )


@pytest.mark.quick_cases("some-normalized")
@pytest.mark.tf_only
@pytest.mark.parametrize("name", NAMES)
def test_graphs_give_the_ids_and_offsets_of_python(name, texts):
    import tensorflow as tf

    from lmzoo.text.graphs import graph_tokenizer

    tokenizer = make_tokenizer(name)
    tokenizer.add_tokens(added_tokens())
    ids, spans = tf.function(graph_tokenizer(tokenizer).with_offsets)(tf.constant(texts))
    expected = tokenizer.tokenize_with_offsets(texts)
    assert ids.to_list() == [[span.id for span in row] for row in expected]
    assert graph_tokenizer(tokenizer)(tf.constant(texts)).to_list() == ids.to_list()
    for text, row, offsets in zip(texts, expected, spans.to_list(), strict=True):
        if has_marks_in_order(text):
            assert [[span.start, span.end] for span in row] == offsets, ascii(text)


def check_graph(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Check that a graph gives the ids and offsets of Python."""
    from lmzoo.text.graphs import graph_tokenizer

    ids, spans = graph_tokenizer(tokenizer).with_offsets(texts)
    rows = tokenizer.tokenize_with_offsets(texts)
    assert ids.to_list() == [[span.id for span in row] for row in rows]
    assert spans.to_list() == [[[span.start, span.end] for span in row] for row in rows]


@pytest.mark.tf_only
@pytest.mark.parametrize("name", ["bytes", "normalized", "gpt2"])
def test_a_token_can_be_the_letter_of_a_byte(name):
    """A token of one letter that stands for a byte is that byte where words are split into it."""
    tokenizer = make_tokenizer(name)
    assert tokenizer.add_tokens([AddedToken(letter, normalized=False, special=True) for letter in "°§Ġ"]) == 0
    check_graph(tokenizer, ["°C §2 Ġ°", "±\u0167 a 中", " \x10°\xa0§ ", "é😀° film", ""])
    assert tokenizer.bytes_of("°") == b"\xb0"


@pytest.mark.tf_only
@pytest.mark.parametrize("name", ["bytes", "normalized"])
def test_offsets_exclude_whitespace_around_tokens(name):
    """Offsets exclude whitespace at both ends of what a token matches."""
    tokenizer = make_tokenizer(name)
    flags = {"\t": {}, "\n": {"rstrip": True}, "  ": {"rstrip": True}, "[E1]": {"lstrip": True, "rstrip": True}}
    flags |= {" x ": {}, "e\u0301": {"rstrip": True}}
    tokenizer.add_tokens([AddedToken(content, **fields) for content, fields in flags.items()])
    check_graph(tokenizer, ["\t", "a\t\n  b", "  \f", " [E1]  good", "a x film", "\ufb02e\u0301 \tfilm", "\n\n [E1]\n"])


@pytest.mark.tf_only
def test_a_chinese_character_survives_tokens_with_spaces():
    """Normalization puts spaces around the character, even if a token takes one of them."""
    tokenizer = make_tokenizer("wordpiece")
    tokenizer.add_tokens([" a", "a ", "\n", AddedToken("x", rstrip=True, normalized=True)])
    check_graph(tokenizer, ["文", "中a中", "x文a 文", "文文 中\n中", "a x中", ""])
    unknown = tokenizer.token_to_id("[UNK]")
    assert unknown in tokenizer.tokenize(["文a中"])[0]


@pytest.mark.tf_only
def test_whitespace_belongs_to_one_token():
    """Whitespace is matched once, and the following texts of the batch stay as they are."""
    tokenizer = make_tokenizer("bytes")
    tokens = [AddedToken("(", rstrip=True, normalized=False), AddedToken("\t", lstrip=True, normalized=False)]
    tokenizer.add_tokens(tokens)
    check_graph(tokenizer, ["(\t", "a(\tx", "good", "(\t", " \t", "film"])


@pytest.mark.tf_only
@pytest.mark.parametrize("cls", [SentencePieceTokenizer, DebertaV3Tokenizer, XlmRobertaTokenizer])
def test_tokens_match_after_the_rules_of_the_model(cls):
    """The rules make several characters of one, or remove it; tokens match in the result."""
    from sentencepiece import SentencePieceNormalizer, sentencepiece_model_pb2

    from lmzoo.text.tokenizers.sentencepiece import read_model

    rules = SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_normalizer_spec()
    proto = read_model(cls.of_words([*WORDS, "i"], 29).model)
    charsmap = sentencepiece_model_pb2.NormalizerSpec.FromString(rules).precompiled_charsmap
    proto.normalizer_spec.precompiled_charsmap = charsmap
    tokenizer = cls(proto.SerializeToString(deterministic=True))
    tokenizer.add_tokens(["f", "kg x", '"', AddedToken("half½", rstrip=True)])
    texts = ["ﬁ good", "a\x01 ㎏\u3000x film", "``a ＇＇ \x1c''", "good half1⁄2 \tﬁlm", "a\u200bf\x7f\u00a0㎏", ""]
    check_graph(tokenizer, texts)
    assert [span.token for span in tokenizer.tokenize_with_offsets(["ﬁ"])[0]] == ["f", "▁i"]


@pytest.mark.slow
@pytest.mark.tf_only
def test_a_ligature_can_be_two_tokens():
    tokenizer = make_tokenizer("sentencepiece")
    tokenizer.add_tokens(["f", "i"])
    texts = ["ﬁ", "a ﬁ f", "ﬁﬁ good", ""]
    assert tokenizer.tokenize(texts[:1]) == [[tokenizer.token_to_id("f"), tokenizer.token_to_id("i")]]
    check_graph(tokenizer, texts)


@pytest.mark.parametrize(("name", "kind"), [("wordpiece", "BertTokenizer"), ("bytes", "RobertaTokenizer")])
def test_keras_hub_keeps_special_tokens(name, kind, tmp_path):
    tokenizer = make_tokenizer(name)
    if name == "wordpiece":  # KerasHub needs a token for each id
        tokenizer = WordPieceTokenizer([token for token in tokenizer.vocabulary if token])
    tokenizer.add_tokens(["[E1]", "[E1]x"], special_tokens=True)
    write_keras_hub_tokenizer(tokenizer, tmp_path, kind)
    read, _ = read_keras_hub_tokenizer(tmp_path, json.loads((tmp_path / "tokenizer.json").read_text("utf-8")), {})
    text = "good [E1]x film[E1]"
    assert read.tokenize([text]) == tokenizer.tokenize([text])
    tokenizer.add_tokens(["covid"])
    with pytest.raises(PresetError, match="cannot find the token 'covid' as lmzoo does"):
        write_keras_hub_tokenizer(tokenizer, tmp_path / "other", kind)


@pytest.mark.parametrize("name", NAMES)
def test_configurations_keep_added_tokens(name, tmp_path):
    tokenizer = make_tokenizer(name)
    tokenizer.add_tokens(added_tokens())
    tokenizer.save_assets(tmp_path)
    copied = type(tokenizer).from_config(json.loads(json.dumps(tokenizer.get_config())))
    copied.load_assets(tmp_path)
    assert copied.vocabulary == tokenizer.vocabulary
    assert copied.base_vocabulary == make_tokenizer(name).vocabulary
    assert copied.tokenize(["[E1] CoVid"]) == tokenizer.tokenize(["[E1] CoVid"])


def test_the_last_flags_of_a_token_count():
    """Adding a token again changes its flags, not its id."""
    tokenizer = make_tokenizer("wordpiece")
    size = tokenizer.vocabulary_size
    assert tokenizer.add_tokens(["[E1]", "covid", "[E1]"]) == 1
    assert tokenizer.tokenize(["a[e1]b covids"])[0][1:3] == [size, tokenizer.token_to_id("[UNK]")]
    assert tokenizer.add_tokens(["[E1]", "[E2]"], special_tokens=True) == 1
    assert tokenizer.tokenize(["[e1][E1][E2]"])[0][-2:] == [size, size + 1]
    assert tokenizer.special_tokens[-2:] == ("[E1]", "[E2]")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([""], "at least one character"),
        ([7], "at least one character, got 7"),
        ("[E1]", "must be a list"),
        ([{"content": "[E1]", "left": True}], "has a `content` and flags"),
        ([{"content": "[E1]", "lstrip": 1}], "`lstrip` of the token '.E1.' must be True or False, got 1"),
    ],
)
def test_invalid_tokens_are_refused(tokens, message):
    with pytest.raises(ValueError, match=message):
        make_tokenizer("wordpiece").add_tokens(tokens)


@pytest.mark.parametrize("name", ["wordpiece", "sentencepiece"])
def test_a_token_that_normalization_removes_is_refused(name):
    """`tokenizers` would match it everywhere, and exhaust the memory."""
    tokenizer = make_tokenizer(name)
    message = r"Nothing of the token '.*' is left after normalization.*Pass `AddedToken\('.*', normalized=False\)`"
    with pytest.raises(ValueError, match=message):
        tokenizer.add_tokens(["[E1]", "\u0301"])
    assert tokenizer.vocabulary == make_tokenizer(name).vocabulary
    assert tokenizer.added_tokens == ()
    assert tokenizer.add_tokens([AddedToken("\u0301", normalized=False)]) == 1
    config = {**tokenizer.get_config(), "added_tokens": ["\u0301"]}
    stored = {"model": tokenizer.model} if name == "sentencepiece" else {"vocabulary": tokenizer.base_vocabulary}
    with pytest.raises(ValueError, match=message):
        type(tokenizer)(**stored, **config)


@pytest.mark.parametrize("name", ["wordpiece", "sentencepiece"])
def test_added_tokens_that_normalization_makes_equal_are_refused(name):
    """`tokenizers` would choose one of them at random."""
    tokenizer = make_tokenizer(name)
    tokenizer.add_tokens(["SciFi"])
    message = r"The added tokens 'SciFi' and 'SCIFI' are equal after normalization\. .*'SCIFI', normalized=False\)`"
    with pytest.raises(ValueError, match=message):
        tokenizer.add_tokens(["x", "SCIFI"])
    assert [token.content for token in tokenizer.added_tokens] == ["SciFi"]
    assert tokenizer.add_tokens([AddedToken("SCIFI", normalized=False), "SciFi"]) == 1


@pytest.mark.quick_cases("wordpiece")
@pytest.mark.tf_only
@pytest.mark.parametrize("name", ["wordpiece", "sentencepiece"])
def test_equal_added_tokens_in_files_are_told_apart(name):
    """Files may hold them: the first is matched regardless of case, and the others as they are written."""
    stored = make_tokenizer(name)
    size = stored.vocabulary_size
    arguments = {"model": stored.model} if name == "sentencepiece" else {"vocabulary": stored.vocabulary}
    for _ in range(3):
        with pytest.warns(UserWarning, match="'SCIFI' 'scifi' are equal to .* matched exactly, as with `norm"):
            tokenizer = type(stored)(**arguments, added_tokens=["SciFi", "SCIFI", "scifi"])
        ids = tokenizer.tokenize(["SCIFI sciFi scifi"])[0]
        assert [i - size for i in ids if i >= size] == [1, 0, 2]
    check_graph(tokenizer, ["SCIFI sciFi scifi", "good SciFi"])


def test_tokenizers_of_words_take_no_added_tokens():
    with pytest.raises(ValueError, match="A CharacterTokenizer takes no added tokens"):
        CharacterTokenizer().add_tokens(["[E1]"])


def test_ids_of_added_tokens_must_be_consecutive(tmp_path):
    write_peer(tmp_path, "wordpiece")
    file = tmp_path / "tokenizer.json"
    pipeline = json.loads(file.read_text("utf-8"))
    token = {"id": 97, "content": "[E1]", "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    pipeline["added_tokens"].append({**token, "special": True})
    file.write_text(json.dumps(pipeline), "utf-8")
    with pytest.raises(PresetError, match=r"adds the token '\[E1\]' with the id 97, but \d\d is the next"):
        read_tokenizer(tmp_path, WordPieceTokenizer)


# === Embeddings ===


@pytest.mark.parametrize("size", [29, 37])
def test_resizing_keeps_rows_and_draws_new_ones(size):
    """New rows have the mean and the variance of the old ones."""
    backbone = BertBackbone(
        vocabulary_size=31, num_layers=2, num_heads=1, hidden_dim=7, intermediate_dim=11, max_sequence_length=13
    )
    table = backbone.embeddings.token_embedding.embeddings
    table.assign(np.random.default_rng(3).normal(5, 0.01, table.shape))
    resized = backbone.resize_token_embeddings(size)
    ids = np.array([[2, 7, 28, 0, 0]])
    inputs = {"token_ids": ids, "padding_mask": ids > 0, "segment_ids": 0 * ids}
    expected = keras.ops.convert_to_numpy(backbone(inputs)["sequence_output"])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(resized(inputs)["sequence_output"]), expected)
    assert resized.vocabulary_size == size
    rows = keras.ops.convert_to_numpy(resized.embeddings.token_embedding.embeddings)
    assert rows.shape == (size, 7)
    if size > 31:
        assert abs(rows[31:].mean() - 5) < 0.01
        assert 0.003 < rows[31:].std() < 0.03


@pytest.mark.slow
def test_resizing_keeps_the_logits_of_old_tokens():
    """New tokens get embeddings and biases."""
    tokenizer = make_tokenizer("wordpiece")
    backbone = BertBackbone(vocabulary_size=tokenizer.vocabulary_size, num_layers=1, **SIZES)
    task = MaskedLM(backbone, Preprocessor(tokenizer, get_family(BertBackbone).packing, 17))
    rng = np.random.default_rng(5)
    task.set_weights([rng.normal(0.5, 0.1, weight.shape) for weight in task.weights])
    expected = task.predict(["good [MASK]"], verbose=0)
    tokenizer.add_tokens(["[E1]", "[E2]"], special_tokens=True)
    resized = task.resize_token_embeddings(28)
    logits = resized.predict(["good [MASK]"], verbose=0)
    assert logits.shape == (1, 1, 28)
    np.testing.assert_allclose(logits[..., :26], expected, rtol=1e-5)
    bias = keras.ops.convert_to_numpy(resized.head.output_bias)
    assert bias.shape == (28,)
    assert bias[26:].min() > 0.1
    with pytest.raises(ValueError, match=r"take `resize_token_embeddings\(28\)`, a new model"):
        task.resize_token_embeddings(27)


@pytest.mark.slow
@pytest.mark.compiled
def test_the_original_of_a_resized_model_can_be_trained():
    """A compiled step on JAX deletes the arrays that it replaces, so a copy must not share any."""
    tokenizer = make_tokenizer("wordpiece")
    backbone = BertBackbone(vocabulary_size=tokenizer.vocabulary_size, num_layers=1, **SIZES)
    packing = get_family(BertBackbone).packing
    resized = backbone.resize_token_embeddings(28)
    inputs = {name: np.ones((1, 3), "int32") for name in resized.input}
    expected = keras.ops.convert_to_numpy(resized(inputs)["sequence_output"])
    task = TextClassifier(backbone, Preprocessor(tokenizer, packing, 17), num_classes=2)
    task.fit(["good", "bad"], [0, 1], epochs=1, verbose=0)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(resized(inputs)["sequence_output"]), expected)


def test_some_embeddings_cannot_be_resized():
    with pytest.raises(ValueError, match="`size` must be a positive integer, got 0"):
        tiny_backbone(families()["bert"]).resize_token_embeddings(0)
    with pytest.raises(ValueError, match="reads the characters of words"):
        tiny_backbone(families()["elmo"]).resize_token_embeddings(37)
    backbone = tiny_backbone(families()["bert"])
    backbone.enable_lora(2)
    with pytest.raises(ValueError, match="quantized or has LoRA"):
        backbone.resize_token_embeddings(997)


@pytest.mark.usefixtures("eager")
def test_a_task_with_new_tokens_is_trained_and_saved(tmp_path):
    tokenizer = make_tokenizer("wordpiece")
    backbone = BertBackbone(vocabulary_size=tokenizer.vocabulary_size, num_layers=1, **SIZES)
    preprocessor = Preprocessor(tokenizer, get_family(BertBackbone).packing, 17)
    assert tokenizer.add_tokens(["[E1]", "[E2]"], special_tokens=True) == 2
    with pytest.raises(ValueError, match=r"take `resize_token_embeddings\(28\)`, a new model"):
        TextClassifier(backbone, preprocessor, num_classes=2)
    task = TextClassifier(backbone.resize_token_embeddings(28), preprocessor, num_classes=2)
    texts = ["[E1] good [E2]", "[E1]film [E2]", "good [E1][E2]"]
    before = keras.ops.convert_to_numpy(task.backbone.embeddings.token_embedding.embeddings)
    task.fit(texts, [0, 1, 0], batch_size=3, verbose=0)
    after = keras.ops.convert_to_numpy(task.backbone.embeddings.token_embedding.embeddings)
    assert np.abs(after - before)[26:].max() > 0
    expected = task.predict(texts, verbose=0)
    task.save(tmp_path / "task.keras")
    task.save_to_preset(tmp_path / "preset")
    for loaded in (keras.saving.load_model(tmp_path / "task.keras"), TextClassifier.from_preset(tmp_path / "preset")):
        np.testing.assert_array_equal(loaded.predict(texts, verbose=0), expected)


@pytest.mark.slow
@pytest.mark.tf_only
@pytest.mark.parametrize("name", ["wordpiece", "bytes"])
def test_an_export_knows_the_added_tokens(name, texts, tmp_path):
    """Run it in a process without lmzoo."""
    tokenizer = make_tokenizer(name)
    tokenizer.add_tokens(added_tokens())
    backbone = (BertBackbone if name == "wordpiece" else RobertaBackbone)(
        vocabulary_size=tokenizer.vocabulary_size, num_layers=1, **SIZES
    )
    task = TextClassifier(backbone, Preprocessor(tokenizer, get_family(type(backbone)).packing, 61), num_classes=3)
    for weight in task.weights:
        weight.assign(np.random.default_rng(5).normal(0, 0.3, weight.shape))
    task.export(tmp_path / "1")
    texts = texts[:97]
    with BareProcess() as process:
        outputs = process.ask(tmp_path / "1", "serving_default", text=texts)
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(task.predict(texts, verbose=0)))
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)
