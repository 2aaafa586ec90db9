"""Conformance checks that compare a family with its classes in transformers, using random weights."""

from __future__ import annotations

import dataclasses
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.checkpoints.engine import canonical_names
from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles
from lmzoo.common.tensor_types import Tensors
from lmzoo.families.backbone import Backbone
from lmzoo.presets.converting import save_checkpoint
from lmzoo.registry.family import Family
from lmzoo.registry.head_kinds import get_task_class
from lmzoo.tasks import Task, TextClassifier
from lmzoo.testing.tiny import SEED, tiny_backbone, tiny_examples, tiny_preprocessor, tiny_task

TOLERANCE = 1e-5
_HEADS_WITHOUT_PEERS = {"embedding"}  # kinds of heads that are not in transformers
_INPUTS = {
    "token_ids": "input_ids",
    "padding_mask": "attention_mask",
    "segment_ids": "token_type_ids",
    "decoder_token_ids": "decoder_input_ids",
    "decoder_padding_mask": "decoder_attention_mask",
}
_OUTPUTS = (
    "attentions", "hidden_states", "logits", "start_logits", "end_logits", "prediction_logits",
    "seq_relationship_logits", "sop_logits",
)  # fmt: skip


def peer_heads(family: Family) -> list[str]:
    """Return the kinds of heads to compare with transformers ("" for no head), or [] without an "hf" layout."""
    if "hf" not in family.checkpoints:
        return []
    # Pre-training heads are excluded if transformers has no equal head. For permutation language modeling ("plm"), it
    # takes attention masks, which the family's own tests compare. For replaced-token detection ("rtd"), its head is of
    # another kind than in `Pretrainer`.
    pretraining_head = {family.pretrained_head} if family.objective in ("plm", "rtd") else set()
    excluded_kinds = _HEADS_WITHOUT_PEERS | pretraining_head
    task_classes = {kind: get_task_class(kind) for kind in family.checkpoints["hf"].heads if kind not in excluded_kinds}
    kinds = [kind for kind, cls in task_classes.items() if cls is not None and cls.supports(family)]
    return kinds if family.backbone.reads_source else ["", *kinds]


def check_peer_outputs(family: Family, head: str, variant: int = 0) -> None:
    """Check that a model from transformers has the same outputs in lmzoo.

    The outputs are the head's logits or, without a head, the hidden states and the attention scores.

    Args:
        family: the family to check.
        head: kind of head, or "" for none; see `peer_heads`.
        variant: index of the configuration: 0 for `family.tiny`, or i + 1 for `family.variants[i]`.
    """
    with tempfile.TemporaryDirectory() as folder:
        peer = _make_peer(family, head, Path(folder), variant)
        model = _load(family, head, Path(folder) / "peer")
        inputs = _make_inputs(model, family)
        expected = _compute_peer_outputs(peer, inputs, pads_left=bool(family.packing.last))
        tensors = {name: ops.convert_to_tensor(values) for name, values in inputs.items()}
        outputs = model(tensors)
        if "attentions" in expected and not head:
            outputs = {**outputs, "attentions": model.attention_scores(tensors)}
        outputs = keras.tree.map_structure(ops.convert_to_numpy, outputs)
        for name, (actual, desired) in _compute_output_pairs(head, outputs, expected, inputs).items():
            assert actual.shape == desired.shape, f"{name} has shape {actual.shape}, in transformers {desired.shape}"
            max_difference = np.abs(actual - desired).max()
            assert max_difference <= TOLERANCE, f"{name} differs by {max_difference:.2g} from {type(peer).__name__}'s"


def check_peer_files(family: Family, head: str, variant: int = 0) -> None:
    """Check that lmzoo writes a loaded transformers model with bit-identical tensors, and that both libraries load it.

    Args:
        family: the family to check.
        head: kind of head, or "" for none; see `peer_heads`.
        variant: index of the configuration: 0 for `family.tiny`, or i + 1 for `family.variants[i]`.
    """
    layout = family.checkpoints["hf"]
    with tempfile.TemporaryDirectory() as folder:
        peer = _make_peer(family, head, Path(folder), variant)
        model = _load(family, head, Path(folder) / "peer")
        save_checkpoint(model, Path(folder) / "ours", to="hf")
        original_tensors, written_tensors = (SafetensorsFiles(Path(folder) / name) for name in ("peer", "ours"))
        names = canonical_names(layout, original_tensors)  # name in the layout -> name in the file
        ignored_names = {
            name for layout_name, name in names.items() if any(re.fullmatch(p, layout_name) for p in layout.ignored)
        }
        # Tensors that only some models of the family have in lmzoo, but all have in transformers.
        backbone = model.backbone if isinstance(model, Task) else model
        added_names = {names[layout_name] for layout_name in layout.complete(backbone.config)[1]}
        missing_names = set(original_tensors.names()) - set(written_tensors.names())
        assert missing_names <= ignored_names, f"{missing_names - ignored_names} were read, but not written"
        for name in set(written_tensors.names()) - added_names:
            np.testing.assert_array_equal(written_tensors.read(name), original_tensors.read(name), err_msg=name)
        _, loading_info = type(peer).from_pretrained(Path(folder) / "ours", output_loading_info=True)
        assert set(loading_info["missing_keys"]) <= missing_names, f"transformers misses {loading_info['missing_keys']}"
        assert not loading_info["unexpected_keys"], f"transformers ignores {loading_info['unexpected_keys']}"
        reloaded_model = _load(family, head, Path(folder) / "ours")
        optional_prefixes = tuple(
            prefix for prefix in layout.optional if not any(n.startswith(prefix[:-1]) for n in names)
        )
        for weight, reloaded_weight in zip(model.weights, reloaded_model.weights, strict=True):
            if not weight.path.startswith(optional_prefixes):  # weights that are in no file are random
                np.testing.assert_array_equal(
                    ops.convert_to_numpy(reloaded_weight), ops.convert_to_numpy(weight), err_msg=weight.path
                )


CHECKPOINT_CHECKS = (check_peer_outputs, check_peer_files)


def _make_peer(family: Family, head: str, folder: Path, variant: int) -> Any:
    """Save a transformers model with random weights to `folder / "peer"`, and return the model.

    The model has the configuration that lmzoo writes for the tiny model of the family's `variant`.
    """
    import torch
    import transformers

    family_variant = dataclasses.replace(
        family, tiny=dataclasses.replace(family.tiny, **dict([{}, *family.variants][variant]))
    )
    task_class = get_task_class(head)
    if task_class is None:
        model = tiny_backbone(family_variant)
    else:
        activation = family.checkpoints["hf"].head_activation if head == "masked_lm" else None
        model = tiny_task(task_class, family_variant, **({} if activation is None else {"activation": activation}))
    save_checkpoint(model, folder / "configuration", to="hf")
    # Only the eager implementation returns attention scores.
    config = transformers.AutoConfig.from_pretrained(folder / "configuration", attn_implementation="eager")
    torch.manual_seed(SEED)
    peer = getattr(transformers, config.architectures[0])(config).eval()
    with torch.no_grad():
        for parameter in peer.parameters():  # so that biases and scales are random
            if parameter.requires_grad:  # sinusoidal positions are fixed
                parameter.add_(torch.randn_like(parameter) * 0.1)
    peer.save_pretrained(folder / "peer")
    return peer


def _load(family: Family, head: str, directory: Path) -> Backbone | Task:
    """Load a transformers checkpoint as a backbone or, if `head` is not empty, as a task."""
    task_class = get_task_class(head)
    if task_class is None:
        return Backbone.from_preset(directory)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* holds no generator")  # transformers saves generators separately
        return task_class.from_preset(directory, preprocessor=tiny_preprocessor(family))


def _make_inputs(model: Backbone | Task, family: Family) -> dict[str, np.ndarray]:
    """Return padded inputs of a model; inputs at padding are not zero, to check that they do not matter."""
    task = model if isinstance(model, Task) else tiny_task(TextClassifier, family)
    encoded = task.encode_inputs(tiny_examples(task)[0])
    batch_size = len(encoded)
    inputs = task.features(encoded, np.arange(batch_size), int(encoded.lengths.max()) + 2)
    if "draws" in model.input:  # with these values, no token is replaced
        inputs |= {"mask_positions": np.zeros((batch_size, 1), "int32"), "draws": np.zeros((batch_size, 1), "float32")}
    elif "mask_positions" in model.input:
        inputs["mask_positions"] = np.random.default_rng(SEED).integers(
            0, encoded.lengths.min(), (batch_size, 3), "int32"
        )
    if "padding_mask" in inputs:
        for name in ("token_ids", "segment_ids"):
            if name in inputs:
                inputs[name] = np.where(inputs["padding_mask"] > 0, inputs[name], 1).astype("int32")
    return {name: inputs[name] for name in model.input}


def _compute_peer_outputs(peer: Any, inputs: dict[str, np.ndarray], pads_left: bool) -> dict[str, Any]:
    """Return a transformers model's outputs by name, aligned with the positions of `inputs`.

    With `pads_left`, the padding is moved to the left, for models that represent a text by its last position.
    """
    import torch

    peer_inputs = {peer_name: inputs[name] for name, peer_name in _INPUTS.items() if name in inputs}
    mask = peer_inputs["attention_mask"]
    # A stable sort keeps the order of the tokens.
    order = np.argsort(mask, axis=-1, kind="stable") if pads_left else np.zeros_like(mask) + np.arange(mask.shape[-1])
    tensors = {name: torch.tensor(np.take_along_axis(values, order, -1)).long() for name, values in peer_inputs.items()}
    with torch.no_grad():
        outputs = peer(**tensors, output_hidden_states=True, output_attentions=not pads_left)

    def align(tensor: Any) -> np.ndarray:
        values = tensor.numpy()
        if values.shape[: mask.ndim] != mask.shape:  # not one entry per token
            return values
        inverse_order = np.argsort(order, axis=-1).reshape(*mask.shape, *[1] * (values.ndim - mask.ndim))
        return np.take_along_axis(values, inverse_order, axis=mask.ndim - 1)

    return {name: keras.tree.map_structure(align, outputs[name]) for name in _OUTPUTS if name in outputs}


def _compute_output_pairs(
    head: str, outputs: Tensors, peer_outputs: dict[str, Any], inputs: dict[str, np.ndarray]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the pairs of outputs to compare, from lmzoo and transformers, by name and without padding."""
    mask = inputs.get("decoder_padding_mask", inputs["padding_mask"]) > 0
    pairs: dict[str, tuple[Any, Any]] = {}
    if not head:
        for i, (a, b) in enumerate(zip(outputs["hidden_states"], peer_outputs["hidden_states"], strict=True)):
            pairs[f"hidden_states[{i}]"] = a[mask], b[mask]
        for i, (a, b) in enumerate(zip(outputs.get("attentions", ()), peer_outputs.get("attentions", ()), strict=True)):
            pairs[f"attention_scores[{i}]"] = np.moveaxis(a, 1, 2)[mask], np.moveaxis(b, 1, 2)[mask]  # (n, heads, T)
        return pairs
    if head == "question_answering":
        logits: Any = np.stack([peer_outputs["start_logits"], peer_outputs["end_logits"]], axis=-1)  # (B, T, 2)
    else:
        logits = peer_outputs.get("logits", peer_outputs.get("prediction_logits"))
    if head == "replaced_tokens":
        return {"replaced_tokens": (outputs["replaced_tokens"][mask], logits[mask])}
    if "mask_positions" in inputs:
        logits = np.take_along_axis(logits, inputs["mask_positions"][:, :, None], axis=1)  # (B, M, V)
    elif logits.shape[: mask.ndim] == mask.shape:  # logits for each token
        return {"logits": (outputs[mask], logits[mask])}
    elif mask.ndim == 3:  # several choices for each prompt
        is_present = mask.any(axis=-1)  # (B, C)
        return {"logits": (outputs[is_present], logits[is_present])}
    if not isinstance(outputs, dict):
        return {"logits": (outputs, logits)}
    pairs["masked_lm"] = outputs["masked_lm"], logits
    if "sentence" in outputs:
        sentence_logits = peer_outputs.get("seq_relationship_logits", peer_outputs.get("sop_logits"))
        pairs["sentence"] = outputs["sentence"], sentence_logits
    return pairs
