"""Checkpoints of transformers without `model_type`, or with classes of other families or of users."""

from __future__ import annotations

import json
import re

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

from lmzoo import convert, verify
from lmzoo.checkpoints.family_names import names_in_transformers
from lmzoo.errors import PresetError
from lmzoo.models import Backbone, MaskedLM
from lmzoo.presets.converting import save_checkpoint
from lmzoo.presets.source import open_source
from lmzoo.registry.family import families, find_families_by_format
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo_cli.main import app
from tests.checkpoints.model_files import configure

FAMILIES = {family.name: family for family in find_families_by_format("hf")}
SHARED_NAMES = ("bert", "roberta", "xlm_roberta")  # families whose tensors have the same names


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "model"


def save(family, directory, tokenizer=False) -> None:
    """Write a backbone that does not name its family, by default without its tokenizer."""
    preprocessor = tiny_preprocessor(families()[family]) if tokenizer else None
    save_checkpoint(tiny_backbone(families()[family]), directory, to="hf", preprocessor=preprocessor)
    configure(directory, "model_type", "architectures")


@pytest.mark.slow_cases("marian")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_class_or_the_tensors_tell_the_family(name, directory):
    save(name, directory)
    configure(directory, architectures=[names_in_transformers(FAMILIES[name]).architecture(None)])
    assert type(Backbone.from_preset(directory)) is FAMILIES[name].backbone
    if name not in SHARED_NAMES:
        configure(directory, architectures=None, model_type=None)
        assert type(Backbone.from_preset(directory)) is FAMILIES[name].backbone


@pytest.mark.slow_cases("roberta")
@pytest.mark.parametrize("name", SHARED_NAMES)
def test_families_with_the_same_tensors_are_told_apart(name, directory):
    """The tokenizer tells the family, or the prefix of the names next to a head, or else the caller."""
    save(name, directory)
    # A BERT's file has a pooler.
    sharing = ["bert", *(["electra"] if name != "bert" else []), "roberta", "xlm_roberta"]
    message = (
        f"model/config.json has no `model_type`, and the tensors' names are those of {' or '.join(sharing)}. "
        "Pass " + " or ".join(f'`family="{family}"`' for family in sharing)
    )
    with pytest.raises(PresetError, match=re.escape(message)):
        Backbone.from_preset(directory)
    cls = FAMILIES[name].backbone
    assert type(Backbone.from_preset(directory, family=name)) is cls
    save(name, directory.with_name("with tokenizer"), tokenizer=True)
    with pytest.warns(UserWarning, match=f'The files of the tokenizer are those of {name}: pass `family="{name}"`'):
        assert type(Backbone.from_preset(directory.with_name("with tokenizer"))) is cls
    headed = directory.with_name("with head")
    save_checkpoint(tiny_task(MaskedLM, FAMILIES[name]), headed, to="hf")
    configure(headed, "model_type", "architectures")
    for file in (*headed.glob("*vocab*"), *headed.glob("*.bpe.model")):
        file.unlink()
    (headed / "tokenizer.json").unlink()
    if name == "bert":
        with pytest.warns(UserWarning, match="holds no pooler"):
            assert type(Backbone.from_preset(headed)) is cls
    else:
        with pytest.raises(PresetError, match="are those of roberta or xlm_roberta"):
            Backbone.from_preset(headed)


def test_tensors_of_no_family_are_refused(directory):
    from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles, write_safetensors

    save("bert", directory)
    tensors = SafetensorsFiles(directory)
    renamed = [(f"tower.{name.replace('embeddings', 'table')}", tensors.read(name)) for name in tensors.names()]
    write_safetensors(directory / "model.safetensors", renamed)
    with pytest.raises(PresetError, match=r'those of no supported family\. Pass `family="albert"` or'):
        Backbone.from_preset(directory)


def test_a_wrong_family_is_refused(directory):
    save("bert", directory)
    with pytest.raises(ValueError, match=r"`family` must be one of .*roberta.*, got 'no_such_family'"):
        Backbone.from_preset(directory, family="no_such_family")
    with pytest.raises(PresetError, match=r"`num_hidden_groups` is 1, but .* holds 0 of them"):
        Backbone.from_preset(directory, family="albert")
    headed = directory.with_name("with head")
    save_checkpoint(tiny_task(MaskedLM, FAMILIES["roberta"]), headed, to="hf")
    configure(headed, "model_type", "architectures")
    with pytest.raises(PresetError, match=r"the tensors' names are those of \w+, but `family` is 'bert'"):
        Backbone.from_preset(headed, family="bert")
    configure(directory, model_type="bert")
    with pytest.raises(ValueError, match="is of the family 'bert', but `family` is 'roberta'"):
        Backbone.from_preset(directory, family="roberta")
    with pytest.raises(ValueError, match="is of the family 'bert', but `family` is 'gpt2'"):
        MaskedLM.from_preset("bert_nano_en_uncased", family="gpt2")


OTHER_CLASSES = [
    "RobertaModel", "ChineseBertForMaskedLM", "ChineseBertModel", "BertPreLayerNormModel", "FlaubertModel",
    "BertPreLayerNormForMaskedLM", "ElectraForSequenceClassification", "GPT2LMHeadModel",
]  # fmt: skip


def test_a_class_of_another_family_is_refused(directory):
    save("bert", directory)
    for name in OTHER_CLASSES:
        configure(directory, model_type="bert", architectures=[name])
        message = f"model/config.json: `architectures` names '{name}', a class of another family"
        with pytest.raises(PresetError, match=message):
            Backbone.from_preset(directory)


def test_general_class_names_are_accepted(directory):
    save("bert", directory)
    for names in ("BertModel", ["BertLMHeadModel"], ["AutoModel"], ["AutoModelForSequenceClassification"], [], None):
        configure(directory, model_type="bert", architectures=names)
        Backbone.from_preset(directory)


def test_an_old_class_name_is_accepted(directory):
    """The first files of t5-small and others have it."""
    save("t5", directory)
    configure(directory, model_type="t5", architectures=["T5WithLMHeadModel"])
    assert open_source(directory).backbone_class is FAMILIES["t5"].backbone
    configure(directory, model_type="nothing")
    with pytest.raises(PresetError, match=r"'nothing' are not supported; .*roberta, .*t5, .*xlm-roberta"):
        open_source(directory)


def test_a_users_class_gives_a_warning(directory):
    save("bert", directory)
    configure(directory, model_type="bert", architectures=["SentimentModel"])
    message = "model/config.json: `architectures` names 'SentimentModel', which is no class of"
    with pytest.warns(UserWarning, match=message):
        Backbone.from_preset(directory)


def test_architectures_must_be_names(directory):
    save("bert", directory)
    configure(directory, model_type="bert", architectures=[7])
    with pytest.raises(PresetError, match=r"`architectures` must be a list of names of classes, got \[7\]"):
        Backbone.from_preset(directory)


def test_verify_and_convert_take_the_family(directory, tmp_path):
    save("bert", directory, tokenizer=True)
    (directory / "vocab.txt").rename(tmp_path / "vocab.txt")
    (directory / "tokenizer.json").unlink()
    for do in (verify, lambda source: convert(source, tmp_path / "out")):
        with pytest.raises(PresetError, match=r"are those of bert or .*roberta"):
            do(directory)
    (tmp_path / "vocab.txt").rename(directory / "words.txt")
    assert verify(directory, family="bert")["model"] == "BertBackbone"
    with pytest.warns(UserWarning, match="no tokenizer files"):
        convert(directory, tmp_path / "ours", family="bert")
    assert json.loads((tmp_path / "ours/config.json").read_text())["class_name"] == "BertBackbone"


def test_the_command_line_takes_the_family(directory, tmp_path):
    def command(*arguments):
        return CliRunner().invoke(app, [*map(str, arguments)])

    save("roberta", directory, tokenizer=True)
    (directory / "tokenizer.json").unlink()
    (directory / "merges.txt").rename(directory / "merges")
    failed = command("verify", directory)
    assert failed.exit_code == 1
    assert re.search('Pass `family="bert"` or .*`family="roberta"`.*[.] Option: --family[.]\n', failed.stderr)
    assert "model\tRobertaBackbone" in command("verify", directory, "--family", "roberta").stdout
    (directory / "merges").rename(directory / "merges.txt")
    converted = command("convert", directory, tmp_path / "ours", "--family", "roberta")
    assert converted.exit_code == 0, converted.output


def test_a_checkpoint_in_spanberts_form_is_loaded(directory):
    """A BERT with a pooler and prefix in `pytorch_model.bin`, a vocabulary, and no names of types and classes."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 21, "intermediate_size": 29}
    peer = transformers.BertForPreTraining(transformers.BertConfig(vocab_size=131, **sizes)).eval()
    directory.mkdir()
    weights = {name: value for name, value in peer.state_dict().items() if name.startswith("bert.")}
    torch.save(weights, directory / "pytorch_model.bin")
    config = {**sizes, "vocab_size": 131, "type_vocab_size": 2, "hidden_act": "gelu", "directionality": "bidi"}
    (directory / "config.json").write_text(json.dumps(config))
    tokens = tiny_preprocessor(families()["bert"]).tokenizer.vocabulary
    (directory / "vocab.txt").write_text("\n".join(tokens), "utf-8")
    backbone = Backbone.from_preset(directory)
    ids = np.arange(5, 16)[None]
    features = {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    with torch.no_grad():
        expected = peer.bert(torch.tensor(ids)).last_hidden_state.numpy()
    np.testing.assert_allclose(keras.ops.convert_to_numpy(backbone(features)["sequence_output"]), expected, atol=1e-5)
