"""Models of transformers with random weights, their files, and functions that change the files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmzoo.models import Backbone
from tests.reference.weights import LENGTHS, difference, padded_batch, run

TOLERANCE = 1e-5
CHOICES = 3
LABELS = ["bad", "middling", "good", "grand", "best"]
COMMON = {
    "vocab_size": 131,
    "hidden_size": 35,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 53,
    "max_position_embeddings": 67,
    "id2label": dict(enumerate(LABELS)),
}
ALBERT = {**COMMON, "embedding_size": 13, "num_hidden_layers": 4}
SHARED = {name: COMMON[name] for name in ("vocab_size", "max_position_embeddings", "id2label")}
DISTILBERT = {**SHARED, "dim": 35, "n_layers": 3, "n_heads": 5, "hidden_dim": 53}
XLNET = {"vocab_size": 131, "d_model": 36, "n_layer": 3, "n_head": 3, "d_inner": 53, "id2label": COMMON["id2label"]}
GPT2 = {**SHARED, "n_embd": 35, "n_layer": 3, "n_head": 5, "n_inner": 53, "n_positions": 67}
del GPT2["max_position_embeddings"]
CONFIGS = {
    "bert": ("Bert", COMMON),
    "bert tanh": ("Bert", {**COMMON, "hidden_act": "gelu_new", "layer_norm_eps": 1e-7}),
    "roberta": ("Roberta", {**COMMON, "max_position_embeddings": 69, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "albert": ("Albert", ALBERT),
    "albert 2x2 relu": ("Albert", {**ALBERT, "num_hidden_groups": 2, "inner_group_num": 2, "hidden_act": "relu"}),
    "albert E = H": ("Albert", {**ALBERT, "embedding_size": 35}),
    "distilbert": ("DistilBert", DISTILBERT),
    "xlnet": ("XLNet", XLNET),
    "gpt2": ("GPT2", GPT2),
    "gpt": ("OpenAIGPT", {name: value for name, value in GPT2.items() if name != "n_inner"}),
}
# Heads with a fixed number of outputs, which labels would change.
UNLABELED = ("ForQuestionAnswering", "ForMultipleChoice", "ForPreTraining")


def peer(
    case: str,
    head: str,
    directory: Path,
    save: Mapping[str, Any] | None = None,
    seed: int = 1409,
    **settings: Any,
) -> Any:
    """Save a transformers model with random weights in `directory` and return it.

    Args:
        case: Key of `CONFIGS`.
        head: End of the name of its class, such as "ForMaskedLM".
        directory: Directory for the files.
        save: Arguments of `save_pretrained`.
        seed: Seed of the weights.
        **settings: Further keys of the configuration. `num_labels` replaces `LABELS`.
    """
    import torch
    import transformers

    family, common = CONFIGS[case]
    if head in UNLABELED or "num_labels" in settings:
        common = {name: value for name, value in common.items() if name != "id2label"}
    config = getattr(transformers, f"{family}Config")(**{**common, **settings})
    torch.manual_seed(seed)
    model = getattr(transformers, family + head)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # also biases and scales, which begin as 0 and 1
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory, **(save or {}))
    return model


def run_peer(model: Any, batch: Mapping[str, np.ndarray], **arguments: Any) -> Any:
    """Return the outputs of a transformers model for inputs under lmzoo's names."""
    import torch

    names = {"token_ids": "input_ids", "padding_mask": "attention_mask", "segment_ids": "token_type_ids"}
    inputs = {names[name]: torch.tensor(values, dtype=torch.long) for name, values in batch.items()}
    with torch.no_grad():
        return model(**inputs, **arguments)


def batch_for(backbone: Any, lengths: tuple[int, ...] = LENGTHS) -> dict[str, np.ndarray]:
    """Return padded inputs of a backbone, (len(lengths), 19)."""
    batch = padded_batch(lengths, 19)
    # RoBERTa counts positions by the padding id 1, an ordinary id for other families.
    batch["token_ids"] = np.where(batch["padding_mask"] > 0, np.maximum(batch["token_ids"], 2), 1).astype("int32")
    return {name: batch[name] for name in backbone.input}


def padded_rows(backbone: Any, *shape: int) -> dict[str, np.ndarray]:
    """Return padded inputs of a backbone, (*shape, 19)."""
    lengths = np.random.default_rng(29).integers(1, 20, int(np.prod(shape)))
    return {name: values.reshape(*shape, 19) for name, values in batch_for(backbone, tuple(lengths)).items()}


def check_hidden_states(theirs: Any, backbone: Any) -> None:
    """Check that a transformers model and a backbone compute the same hidden states and pooled output."""
    batch = batch_for(backbone)
    real = batch["padding_mask"] > 0
    ours, expected = run(backbone, batch), run_peer(theirs, batch, output_hidden_states=True)
    assert len(ours["hidden_states"]) == len(expected.hidden_states)
    for a, b in zip(ours["hidden_states"], expected.hidden_states, strict=True):
        assert difference(np.asarray(a)[real], b.numpy()[real]) <= TOLERANCE
    if getattr(expected, "pooler_output", None) is not None and "Roberta" not in type(theirs).__name__:
        assert difference(ours["pooled_output"], expected.pooler_output.numpy()) <= TOLERANCE


def load_with_transformers(cls: Any, directory: Path, without: str | None = None) -> Any:
    """Return the model as transformers loads it, which must not miss or ignore a tensor.

    Args:
        cls: Class of transformers.
        directory: Directory with the files.
        without: Part of the names of tensors that may be missing.
    """
    import torch

    model, report = cls.from_pretrained(directory, output_loading_info=True)
    missing = [name for name in report["missing_keys"] if without is None or without not in name]
    assert (missing, list(report["unexpected_keys"]), list(report["mismatched_keys"])) == ([], [], [])
    with torch.no_grad():
        for parameter in model.parameters():
            # Copy it, as the tensors of a file are mapped from it, and products depend on the alignment of rows.
            parameter.data = parameter.data.clone()
    return model.eval()


def load(directory: Path, cls: Any = None, **arguments: Any) -> Any:
    """Load a backbone, or a task of class `cls`, from files without a tokenizer."""
    if cls is None:
        return Backbone.from_preset(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmzoo.checkpoints.checkpoint.Checkpoint.preprocessor", lambda self: None)
        return cls.from_preset(directory, **arguments)


def read_state(directory: Path) -> dict[str, np.ndarray]:
    """Return the tensors in `directory` by their names."""
    from safetensors.torch import load_file

    return {name: tensor.numpy() for name, tensor in load_file(directory / "model.safetensors").items()}


def assert_same_state(ours: Path, theirs: Path, without: str | None = None) -> None:
    """Check that two directories hold bit-identical tensors, except those with `without` in their names."""
    actual = read_state(ours)
    expected = read_state(theirs)
    expected = {name: array for name, array in expected.items() if without is None or without not in name}
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


def rewrite(directory: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace the state dict in `directory` by what `change` makes of it."""
    from safetensors.torch import load_file, save_file

    file = directory / "model.safetensors"
    state = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(change(state), file, {"format": "pt"})


def configure(directory: Path, *removed: str, **changes: Any) -> None:
    """Remove and change keys of the configuration in `directory`."""
    path = next(path for path in directory.glob("*.json") if path.name in ("config.json", "bert_config.json"))
    config = {key: value for key, value in json.loads(path.read_text()).items() if key not in removed}
    path.write_text(json.dumps({**config, **changes}))
