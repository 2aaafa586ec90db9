"""Checks of the conformance kit that compare a family with its classes in transformers, on random weights."""

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
from lmzoo.registry.head_kinds import task_of
from lmzoo.tasks import Task, TextClassifier
from lmzoo.testing.tiny import SEED, tiny_backbone, tiny_examples, tiny_preprocessor, tiny_task

TOLERANCE = 1e-5
# Kinds of heads that transformers does not have.
_ELSEWHERE = {"embedding"}
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
    """Return the kinds of heads that the family's layout for transformers has, and "" for a model without a head."""
    if "hf" not in family.checkpoints:
        return []
    # Permutations are masks of attention in transformers: the family compares them in tests of its own.
    left_out = _ELSEWHERE | ({family.pretrained_head} if family.objective == "plm" else set())
    tasks = {kind: task_of(kind) for kind in family.checkpoints["hf"].heads if kind not in left_out}
    kinds = [kind for kind, task in tasks.items() if task is not None and task.supports(family)]
    return kinds if family.backbone.reads_source else ["", *kinds]


def check_peer_outputs(family: Family, head: str, variant: int = 0) -> None:
    """Read a model of transformers with random weights, and compare its hidden states, attention scores and logits."""
    with tempfile.TemporaryDirectory() as folder:
        peer = _make_peer(family, head, Path(folder), variant)
        model = _read(family, head, Path(folder) / "peer")
        inputs = _inputs_of(model, family)
        expected = _ask(peer, inputs, pads_left=bool(family.packing.last))
        tensors = {name: ops.convert_to_tensor(values) for name, values in inputs.items()}
        outputs = model(tensors)
        if "attentions" in expected and not head:
            outputs = {**outputs, "attentions": model.attention_scores(tensors)}
        outputs = keras.tree.map_structure(ops.convert_to_numpy, outputs)
        for name, (ours, theirs) in _pairs(head, outputs, expected, inputs).items():
            assert ours.shape == theirs.shape, f"{name} has shape {ours.shape}, in transformers {theirs.shape}"
            error = np.abs(ours - theirs).max()
            assert error <= TOLERANCE, f"{name} differs by {error:.2g} from {type(peer).__name__}'s"


def check_peer_files(family: Family, head: str, variant: int = 0) -> None:
    """Write a model that was read, and compare all tensors bit by bit, as transformers and lmzoo read them."""
    layout = family.checkpoints["hf"]
    with tempfile.TemporaryDirectory() as folder:
        peer = _make_peer(family, head, Path(folder), variant)
        model = _read(family, head, Path(folder) / "peer")
        save_checkpoint(model, Path(folder) / "ours", to="hf")
        stored, written = (SafetensorsFiles(Path(folder) / name) for name in ("peer", "ours"))
        names = canonical_names(layout, stored)  # as the layout spells them -> as the file does
        ignored = {name for known, name in names.items() if any(re.fullmatch(p, known) for p in layout.ignored)}
        # Tensors that all models of a family have in transformers, and in lmzoo only some.
        backbone = model.backbone if isinstance(model, Task) else model
        added = {names[known] for known in layout.complete(backbone.config)[1]}
        missing = set(stored.names()) - set(written.names())
        assert missing <= ignored, f"{missing - ignored} were read, but not written"
        for name in set(written.names()) - added:
            np.testing.assert_array_equal(written.read(name), stored.read(name), err_msg=name)
        _, report = type(peer).from_pretrained(Path(folder) / "ours", output_loading_info=True)
        assert set(report["missing_keys"]) <= missing, f"transformers misses {report['missing_keys']}"
        assert not report["unexpected_keys"], f"transformers ignores {report['unexpected_keys']}"
        again = _read(family, head, Path(folder) / "ours")
        optional = tuple(prefix for prefix in layout.optional if not any(n.startswith(prefix[:-1]) for n in names))
        for old, new in zip(model.weights, again.weights, strict=True):
            if not old.path.startswith(optional):  # what no file has is random
                np.testing.assert_array_equal(ops.convert_to_numpy(new), ops.convert_to_numpy(old), err_msg=old.path)


CHECKPOINT_CHECKS = (check_peer_outputs, check_peer_files)


def _make_peer(family: Family, head: str, folder: Path, variant: int) -> Any:
    """Return a model of transformers with random weights, whose files are in `folder / "peer"`.

    Its configuration is that of the family's tiny model, as lmzoo writes it.
    """
    import torch
    import transformers

    changed = dataclasses.replace(
        family, tiny=dataclasses.replace(family.tiny, **dict([{}, *family.variants][variant]))
    )
    task = task_of(head)
    if task is None:
        model = tiny_backbone(changed)
    else:
        activation = family.checkpoints["hf"].head_activation if head == "masked_lm" else None
        model = tiny_task(task, changed, **({} if activation is None else {"activation": activation}))
    save_checkpoint(model, folder / "configuration", to="hf")
    # The other implementations return no attention scores.
    config = transformers.AutoConfig.from_pretrained(folder / "configuration", attn_implementation="eager")
    torch.manual_seed(SEED)
    peer = getattr(transformers, config.architectures[0])(config).eval()
    with torch.no_grad():
        for parameter in peer.parameters():  # also biases and scales
            if parameter.requires_grad:  # sinusoidal positions are fixed
                parameter.add_(torch.randn_like(parameter) * 0.1)
    peer.save_pretrained(folder / "peer")
    return peer


def _read(family: Family, head: str, directory: Path) -> Backbone | Task:
    task = task_of(head)
    if task is None:
        return Backbone.from_preset(directory)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* holds no generator")  # which transformers keeps apart
        return task.from_preset(directory, preprocessor=tiny_preprocessor(family))


def _inputs_of(model: Backbone | Task, family: Family) -> dict[str, np.ndarray]:
    """Return padded inputs of a model. Values at padding must not matter, so they are not zero."""
    task = model if isinstance(model, Task) else tiny_task(TextClassifier, family)
    encoded = task.encode_inputs(tiny_examples(task)[0])
    count = len(encoded)
    inputs = task.features(encoded, np.arange(count), int(encoded.lengths.max()) + 2)
    if "draws" in model.input:  # nothing is replaced
        inputs |= {"mask_positions": np.zeros((count, 1), "int32"), "draws": np.zeros((count, 1), "float32")}
    elif "mask_positions" in model.input:
        inputs["mask_positions"] = np.random.default_rng(SEED).integers(0, encoded.lengths.min(), (count, 3), "int32")
    if "padding_mask" in inputs:
        for name in ("token_ids", "segment_ids"):
            if name in inputs:
                inputs[name] = np.where(inputs["padding_mask"] > 0, inputs[name], 1).astype("int32")
    return {name: inputs[name] for name in model.input}


def _ask(peer: Any, inputs: dict[str, np.ndarray], pads_left: bool) -> dict[str, Any]:
    """Return the outputs of a model of transformers by name, as arrays in the order of the inputs.

    With `pads_left` it gets padding before the tokens, for models whose vector of a text is at the last position.
    """
    import torch

    named = {theirs: inputs[ours] for ours, theirs in _INPUTS.items() if ours in inputs}
    mask = named["attention_mask"]
    # Stable: tokens keep their order behind the padding.
    order = np.argsort(mask, axis=-1, kind="stable") if pads_left else np.zeros_like(mask) + np.arange(mask.shape[-1])
    tensors = {name: torch.tensor(np.take_along_axis(values, order, -1)).long() for name, values in named.items()}
    with torch.no_grad():
        outputs = peer(**tensors, output_hidden_states=True, output_attentions=not pads_left)

    def align(tensor: Any) -> np.ndarray:
        values = tensor.numpy()
        if values.shape[: mask.ndim] != mask.shape:  # not one for each token
            return values
        back = np.argsort(order, axis=-1).reshape(*mask.shape, *[1] * (values.ndim - mask.ndim))
        return np.take_along_axis(values, back, axis=mask.ndim - 1)

    return {name: keras.tree.map_structure(align, outputs[name]) for name in _OUTPUTS if name in outputs}


def _pairs(
    head: str, ours: Tensors, theirs: dict[str, Any], inputs: dict[str, np.ndarray]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return our outputs and theirs by name, without those for padding."""
    mask = inputs.get("decoder_padding_mask", inputs["padding_mask"]) > 0
    pairs: dict[str, tuple[Any, Any]] = {}
    if not head:
        for i, (a, b) in enumerate(zip(ours["hidden_states"], theirs["hidden_states"], strict=True)):
            pairs[f"hidden_states[{i}]"] = a[mask], b[mask]
        for i, (a, b) in enumerate(zip(ours.get("attentions", ()), theirs.get("attentions", ()), strict=True)):
            pairs[f"attention_scores[{i}]"] = np.moveaxis(a, 1, 2)[mask], np.moveaxis(b, 1, 2)[mask]  # (n, heads, T)
        return pairs
    if head == "question_answering":
        logits: Any = np.stack([theirs["start_logits"], theirs["end_logits"]], axis=-1)  # (B, T, 2)
    else:
        logits = theirs.get("logits", theirs.get("prediction_logits"))
    if head == "replaced_tokens":
        return {"replaced_tokens": (ours["replaced_tokens"][mask], logits[mask])}
    if "mask_positions" in inputs:
        logits = np.take_along_axis(logits, inputs["mask_positions"][:, :, None], axis=1)  # (B, M, V)
    elif logits.shape[: mask.ndim] == mask.shape:  # one for each token
        return {"logits": (ours[mask], logits[mask])}
    elif mask.ndim == 3:  # of several choices for each prompt
        chosen = mask.any(axis=-1)  # (B, C)
        return {"logits": (ours[chosen], logits[chosen])}
    if not isinstance(ours, dict):
        return {"logits": (ours, logits)}
    pairs["masked_lm"] = ours["masked_lm"], logits
    if "sentence" in ours:
        pairs["sentence"] = ours["sentence"], theirs.get("seq_relationship_logits", theirs.get("sop_logits"))
    return pairs
