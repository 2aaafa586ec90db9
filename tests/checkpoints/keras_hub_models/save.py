"""Saves tiny random models of KerasHub's development version, and what they compute.

The released version has no ModernBERT yet, so this was run once, in an environment of its own:

    pip install keras-hub-nightly==0.33.0.dev202610250352
    KERAS_BACKEND=tensorflow python tests/checkpoints/keras_hub_models/save.py

Each `<class>.zip` next to this file holds a preset and `outputs.npz`: inputs, their tokens and the expected outputs.
`test_newer_keras_hub.py` reads them. Weights are multiples of 1/8, so that the archives are small.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

import keras
import keras_hub
import numpy as np

HERE = Path(__file__).resolve().parent
TEXTS = ["good film", "a  [MASK] plot", "naïve\n[MASK]", "", "dull[SEP]film"]
SIZES = {
    "hidden_dim": 12,
    "intermediate_dim": 17,
    "num_layers": 3,
    "num_heads": 3,
    "local_attention_window": 4,
    "global_attn_every_n_layers": 2,
    "rotary_max_wavelength": 70_000,
    "local_rotary_max_wavelength": 9_000,
    "layer_norm_epsilon": 1e-3,
}


def make_tokenizer() -> keras_hub.models.ModernBertTokenizer:
    """Return a tokenizer of all bytes and a few merges."""
    bytes_as_characters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in bytes_as_characters]
    alphabet = [chr(byte) for byte in bytes_as_characters] + [chr(256 + index) for index in range(len(others))]
    merges = ["o d", "g o", "go od", "Ġ f", "i l", "Ġf il", "Ġfil m"]
    tokens = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", *alphabet, *(merge.replace(" ", "") for merge in merges), "[MASK]"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    return keras_hub.models.ModernBertTokenizer(vocabulary=vocabulary, merges=merges)


def randomize(variables: list[keras.Variable], generator: np.random.Generator) -> None:
    for variable in variables:
        center = 8 if variable.name == "gamma" else 0
        variable.assign((generator.integers(-3, 4, variable.shape) + center) / 8)


def archive(task: keras.Model, name: str, outputs: dict[str, np.ndarray]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        task.save_to_preset(folder)
        with zipfile.ZipFile(HERE / f"{name}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
            for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                file.write(path, path.relative_to(folder))
            buffer = io.BytesIO()
            np.savez(buffer, **outputs)
            file.writestr("outputs.npz", buffer.getvalue())


def main() -> None:
    generator = np.random.default_rng(11)
    tokenizer = make_tokenizer()
    backbone = keras_hub.models.ModernBertBackbone(vocabulary_size=tokenizer.vocabulary_size(), **SIZES)
    preprocessor = keras_hub.models.ModernBertMaskedLMPreprocessor(tokenizer, sequence_length=29)
    masked_lm = keras_hub.models.ModernBertMaskedLM(backbone, preprocessor=preprocessor)
    head = [masked_lm.mlm_head_dense.kernel, masked_lm.mlm_head_norm.gamma, masked_lm.mlm_head_decoder_bias]
    randomize([*backbone.weights, *head], generator)
    features = {
        "token_ids": generator.integers(4, tokenizer.vocabulary_size(), (3, 19)).astype("int32"),
        "padding_mask": (np.arange(19) < np.array([[19], [11], [5]])).astype("int32"),
    }
    positions = np.array([[1, 17], [2, 10], [0, 4]], "int32")
    logits = masked_lm({**features, "mask_positions": positions})
    rows = [np.array(tokenizer(text), "int32") for text in TEXTS]
    outputs = {
        **features,
        "mask_positions": positions,
        "states": keras.ops.convert_to_numpy(backbone(features)),
        "logits": keras.ops.convert_to_numpy(logits),
        "texts": np.array(TEXTS),
        "text_ids": np.concatenate(rows),
        "text_lengths": np.array([len(row) for row in rows]),
    }
    archive(masked_lm, "ModernBertMaskedLM", outputs)
    classifier_preprocessor = keras_hub.models.ModernBertTextClassifierPreprocessor(tokenizer, sequence_length=29)
    classifier = keras_hub.models.ModernBertTextClassifier(
        backbone, num_classes=5, preprocessor=classifier_preprocessor
    )
    archive(classifier, "ModernBertTextClassifier", {})


if __name__ == "__main__":
    main()
