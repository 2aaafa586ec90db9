"""Save tiny random models of transformers' TensorFlow classes, and the outputs of their PyTorch twins.

transformers 5 has no TensorFlow classes, so this was run once, on Python 3.11, in an environment of its own:

    pip install transformers==4.57.6 tensorflow-cpu==2.19.1 tf-keras==2.19.0 torch==2.13.0 sentencepiece
    TF_USE_LEGACY_KERAS=1 python tests/checkpoints/tensorflow_models/save.py

Each `<class>.zip` next to this file holds `config.json`, `tf_model.h5` or its parts, and `outputs.npz`: inputs and
expected outputs under lmzoo's names. `test_tensorflow_models.py` reads them. The expected outputs are those of the
PyTorch class, into which transformers itself loaded the weights; TensorFlow's class must compute the same.

Weights are multiples of 1/8, so that the archives are small.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import torch
import transformers
from transformers.modeling_tf_pytorch_utils import load_tf2_model_in_pytorch_model

HERE = Path(__file__).resolve().parent
TOLERANCE = 2e-5

# Square matrices are everywhere (query, key, value, pooler). Other dimensions are primes, each different.
COMMON = {"vocab_size": 67, "max_position_embeddings": 19}
BERT = {**COMMON, "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 23}
ROBERTA = {**BERT, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": 21}
ALBERT = {**BERT, "embedding_size": 13}
DISTILBERT = {**COMMON, "dim": 15, "n_layers": 2, "n_heads": 5, "hidden_dim": 23}
XLNET = {"vocab_size": 67, "d_model": 18, "n_layer": 2, "n_head": 3, "d_inner": 23}
GPT = {"vocab_size": 67, "n_embd": 15, "n_layer": 2, "n_head": 5, "n_positions": 19}
MARIAN = {
    **COMMON, "d_model": 10, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 5,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 23, "decoder_ffn_dim": 11, "pad_token_id": 66, "eos_token_id": 0,
    "decoder_start_token_id": 66, "activation_function": "swish", "scale_embedding": True,
}  # fmt: skip
CONFIGS = {
    "Bert": BERT, "Roberta": ROBERTA, "Albert": ALBERT, "DistilBert": DISTILBERT, "XLNet": XLNET, "GPT2": GPT,
    "OpenAIGPT": GPT, "Marian": MARIAN,
}  # fmt: skip
HEADS = (
    "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice",
    "ForQuestionAnswering",
)  # fmt: skip
CLASSES = [
    *(f"{family}{head}" for family in ("Bert", "Roberta", "Albert", "DistilBert") for head in HEADS),
    "BertForPreTraining", "AlbertForPreTraining", "XLNetModel", "XLNetLMHeadModel", "XLNetForSequenceClassification",
    "XLNetForTokenClassification", "XLNetForMultipleChoice", "XLNetForQuestionAnsweringSimple", "GPT2Model",
    "GPT2LMHeadModel", "OpenAIGPTLMHeadModel", "MarianMTModel",
]  # fmt: skip
LABELS = ["bad", "middling", "good"]
LABELED = ("ForSequenceClassification", "ForTokenClassification")
THEIRS = {
    "token_ids": "input_ids", "padding_mask": "attention_mask", "segment_ids": "token_type_ids",
    "decoder_token_ids": "decoder_input_ids", "decoder_padding_mask": "decoder_attention_mask",
}  # fmt: skip
MASK_POSITIONS = np.array([[3, 1], [2, 0], [1, 0]], "int32")


def get_family(name: str) -> str:
    return next(family for family in CONFIGS if name.startswith(family))


def make_inputs(name: str) -> dict[str, np.ndarray]:
    """Return padded inputs under lmzoo's names; XLNet, which pads on the left, gets three texts of equal length."""
    family, rng = get_family(name), np.random.default_rng(1303)
    shape = (2, 3, 7) if name.endswith("ForMultipleChoice") else (3, 7)
    lengths = np.resize([7, 4, 2], shape[:-1])
    mask = (np.arange(7) < lengths[..., None]).astype("int32")
    if family == "XLNet":
        mask = np.ones_like(mask)
    ids = np.where(mask > 0, rng.integers(2, 66, shape), 66 if family == "Marian" else 1).astype("int32")
    inputs = {"token_ids": ids, "padding_mask": mask}
    if family in ("Bert", "Albert", "XLNet"):
        inputs["segment_ids"] = np.broadcast_to([0, 0, 0, 1, 1, 1, 1], shape).astype("int32")
    if family == "Marian":
        inputs |= {"decoder_token_ids": ids[::-1], "decoder_padding_mask": mask[::-1]}
    return inputs


def randomize(model: Any, seed: int) -> None:
    """Give every weight multiples of 1/8; scales are around 1, so that outputs depend on each."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if "embed_positions" in weight.name:  # Marian's sinusoids
            continue
        center = 1.0 if weight.name.endswith("gamma:0") else 0.0
        weight.assign((center + rng.integers(-3, 4, weight.shape) / 8).astype("float32"))
    if hasattr(model, "predictions"):  # ALBERT's class for PyTorch has one bias for both
        model.predictions.bias.assign(model.predictions.decoder_bias)


def arguments_of(name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs under their names. XLNet predicts the tokens at `mask_positions`, the first one last."""
    arguments = {THEIRS[key]: values for key, values in inputs.items()}
    if name == "XLNetLMHeadModel":
        order = np.zeros((3, 7), "int32")
        np.put_along_axis(order, MASK_POSITIONS, 1, axis=1)
        arguments["perm_mask"] = np.repeat(order[:, None], 7, axis=1).astype("float32")
        arguments["target_mapping"] = np.eye(7, dtype="float32")[MASK_POSITIONS]
        inputs |= {"order": order, "mask_positions": MASK_POSITIONS}
    elif name.endswith(("ForMaskedLM", "ForPreTraining")):
        inputs["mask_positions"] = MASK_POSITIONS
    return arguments


def outputs_of(name: str, answer: Any) -> dict[str, np.ndarray]:
    """Return the outputs of a model of this class under lmzoo's names."""

    def masked(logits: Any) -> np.ndarray:
        return np.take_along_axis(np.asarray(logits), MASK_POSITIONS[:, :, None], axis=1)

    if name.endswith("ForPreTraining"):
        sentence = "sop_logits" if name.startswith("Albert") else "seq_relationship_logits"
        return {"masked_lm": masked(answer["prediction_logits"]), "sentence": np.asarray(answer[sentence])}
    if name == "XLNetLMHeadModel":
        return {"masked_lm": np.asarray(answer["logits"])}
    if "ForQuestionAnswering" in name:
        return {"logits": np.stack([answer["start_logits"], answer["end_logits"]], axis=-1)}
    if "logits" in answer:
        return {"logits": masked(answer["logits"]) if name.endswith("ForMaskedLM") else np.asarray(answer["logits"])}
    outputs = {"sequence_output": np.asarray(answer["last_hidden_state"])}
    if get_family(name) in ("Bert", "Albert"):
        outputs["pooled_output"] = np.asarray(answer["pooler_output"])
    return outputs


def save(name: str, seed: int, stem: str, shard_bytes: int | None = None, **settings: Any) -> None:
    """Write a model of a class, its inputs and its outputs."""
    config = {**CONFIGS[get_family(name)], **settings}
    if name.endswith(LABELED) and "num_labels" not in settings:
        config["id2label"] = dict(enumerate(LABELS))
    family_config = getattr(transformers, f"{get_family(name)}Config")(**config)
    model = getattr(transformers, f"TF{name}")(family_config)
    model.build_in_name_scope()
    randomize(model, seed)
    inputs = make_inputs(name)
    arguments = arguments_of(name, inputs)
    shards = {"max_shard_size": shard_bytes} if shard_bytes else {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, safe_serialization=False, **shards)
        twin = load_tf2_model_in_pytorch_model(getattr(transformers, name)(family_config), model)
        if get_family(name) == "Marian":  # a buffer, which transformers leaves out
            twin.final_logits_bias = torch.tensor(model.bias_layer.bias.numpy())
        tensors = {key: torch.tensor(values.copy()) for key, values in arguments.items()}
        tensors = {key: values.long() if values.dtype == torch.int32 else values for key, values in tensors.items()}
        with torch.no_grad():
            expected = outputs_of(name, twin.eval()(**tensors))
        theirs = outputs_of(name, model({key: tf.constant(a) for key, a in arguments.items()}, training=False))
        if get_family(name) != "OpenAIGPT":  # its TensorFlow class always computes the exact GELU
            check(name, inputs, expected, theirs)
        data = io.BytesIO()
        expected = {f"expected {key}": values for key, values in expected.items()}
        np.savez_compressed(data, **inputs, **expected)
        with zipfile.ZipFile(HERE / f"{stem}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for file in sorted(Path(folder).iterdir()):
                if file.name != "generation_config.json":
                    archive.writestr(zipfile.ZipInfo(file.name), file.read_bytes(), zipfile.ZIP_DEFLATED)
            archive.writestr(zipfile.ZipInfo("outputs.npz"), data.getvalue())
    print(stem, (HERE / f"{stem}.zip").stat().st_size, model.weights[0].name)


def check(name: str, inputs: dict[str, np.ndarray], expected: dict[str, np.ndarray], theirs: dict[str, Any]) -> None:
    """Check that both classes compute the same, except at padding."""
    real = inputs.get("decoder_padding_mask", inputs["padding_mask"]) > 0
    for key, values in expected.items():
        difference = np.abs(values - theirs[key])
        if values.shape[: real.ndim] == real.shape and real.ndim == 2:
            difference = difference[real]
        assert difference.max() <= TOLERANCE, (name, key, difference.max())
        assert np.ptp(values) > 0.01, (name, key)


if __name__ == "__main__":
    for seed, name in enumerate(CLASSES):
        save(name, seed, f"TF{name}")
    save("AlbertModel", 100, "TFAlbertModel of two groups", num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2)
    # The scope of a second model of a class has a number.
    save("BertForPreTraining", 101, "TFBertForPreTraining in parts", shard_bytes=9000)
    save("BertForSequenceClassification", 102, "TFBertForSequenceClassification of one output", num_labels=1)
