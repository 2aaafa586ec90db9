"""Masked-LM pre-training: real tokens per second, with data in the form that each library usually gets.

The texts are paragraphs of books and textbooks. lmzoo trains on its tokenized shards, packed into sequences of whole
sentences. KerasHub (`BertMaskedLM` with its preprocessor) tokenizes, truncates and pads each paragraph to one sequence;
with `packed`, the text is cut to the length of a sequence first, so that there is hardly any padding. transformers
trains on sequences that were packed beforehand, masked by its collator. All mask 15% of the tokens. Real tokens are
neither padding nor truncated. Each round continues the training for the same number of steps.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.common import JAX, SHARED, TENSORFLOW, TORCH, interleave, ready, save, show
from benchmarks.models import SIZES, get_shape, transformers_config
from lmzoo.data.corpora import read_documents

PEERS = {
    "lmzoo-tf": TENSORFLOW,
    "kerashub-tf": TENSORFLOW,
    "kerashub-tf-packed": TENSORFLOW,
    "kerashub-tf-default": TENSORFLOW,
    "transformers-torch": TORCH,
    "lmzoo-jax": JAX,
}
MEASURES = ("tokens per second", "seconds per step")
VOCABULARY = SHARED / "data/tokenizers/bert-base-uncased/vocab.txt"
DATA = SHARED / "data/pretrain"
Round = Callable[[], float]  # trains, and returns the number of real tokens


def read_paragraphs(options: dict[str, Any]) -> list[str]:
    """Return the first `options["paragraphs"]` paragraphs of a training file."""
    documents = read_documents(DATA / options["file"], split=False)
    all_paragraphs = (paragraph for document in documents for paragraph in document)
    return [next(all_paragraphs) for _ in range(options["paragraphs"])]


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model and the sequences; a round is `options["steps"]` steps."""
    vocabulary = VOCABULARY.read_text("utf-8").split("\n")[:-1]
    build = {"l": _build_lmzoo, "k": _build_keras_hub, "t": _build_transformers}[peer[0]]
    train = build(peer, options, vocabulary, read_paragraphs(options))

    def round() -> dict[str, float]:
        start = time.perf_counter()
        tokens = train()
        seconds = time.perf_counter() - start
        return dict(zip(MEASURES, (tokens / seconds, seconds / options["steps"]), strict=True))

    return round


def _build_lmzoo(peer: str, options: dict[str, Any], vocabulary: list[str], texts: list[str]) -> Round:
    import lmzoo
    from lmzoo.data.corpora import pack_sentences, write_corpus
    from lmzoo.registry.family import families
    from lmzoo.text import Preprocessor, WordPieceTokenizer, split_sentences
    from lmzoo.training import AdamW

    backbone = lmzoo.models.BertBackbone(
        vocabulary_size=len(vocabulary),
        **get_shape(options["size"]),
    )
    preprocessor = Preprocessor(WordPieceTokenizer(vocabulary), families()["bert"].packing, options["length"])
    model = lmzoo.models.MaskedLM(backbone, preprocessor)
    model.compile(optimizer=AdamW(options["learning_rate"]))
    folder = tempfile.mkdtemp()
    documents = map(split_sentences, texts)
    sequences = pack_sentences(write_corpus(documents, preprocessor.tokenizer, folder, verbose=False), preprocessor)
    steps, size, round_number = options["steps"], options["batch_size"], 0

    def train() -> float:
        nonlocal round_number
        round_number += 1
        model.fit(sequences, batch_size=size, steps_per_epoch=steps, seed=round_number, verbose=0)
        return steps * size * float(sequences.lengths.mean())

    return train


def _build_keras_hub(peer: str, options: dict[str, Any], vocabulary: list[str], texts: list[str]) -> Round:
    import keras
    import keras_hub
    import tensorflow as tf

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=len(vocabulary),
        **get_shape(options["size"]),
        max_sequence_length=512,
    )
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=vocabulary, lowercase=True)
    length, size, steps = options["length"], options["batch_size"], options["steps"]
    sizes = {} if peer.endswith("default") else {"sequence_length": length, "mask_selection_length": length * 15 // 100}
    preprocessor = keras_hub.models.BertMaskedLMPreprocessor(tokenizer, **sizes)
    model = keras_hub.models.BertMaskedLM(backbone, preprocessor=None)
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.AdamW(options["learning_rate"], weight_decay=0.01),
        weighted_metrics=["sparse_categorical_accuracy"],
    )
    if peer.endswith("packed"):
        texts = list(_regroup(texts, tokenizer, length - 2))
    once = tf.data.Dataset.from_tensor_slices(texts).batch(size).map(preprocessor)
    real = sum(float(tf.reduce_sum(tf.cast(x["padding_mask"], "float32"))) for x, _, _ in once) / len(texts)
    batches = tf.data.Dataset.from_tensor_slices(texts).repeat().shuffle(len(texts)).batch(size)
    batches = batches.map(preprocessor, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def train() -> float:
        model.fit(batches, steps_per_epoch=steps, verbose=0)
        return steps * size * real

    return train


def _regroup(texts: list[str], tokenizer: Any, tokens: int) -> Iterator[str]:
    """Yield the words of the texts, regrouped into texts of about `tokens` tokens."""
    words, count = [], 0
    for text in texts:
        for word, ids in zip(text.split(), tokenizer(text.split()), strict=True):
            words, count = [*words, word], count + len(ids)
            if count >= tokens:
                yield " ".join(words)
                words, count = [], 0


def _build_transformers(peer: str, options: dict[str, Any], vocabulary: list[str], texts: list[str]) -> Round:
    import torch
    from transformers import BertForMaskedLM, BertTokenizerFast, DataCollatorForLanguageModeling

    tokenizer = BertTokenizerFast(vocab={token: i for i, token in enumerate(vocabulary)}, do_lower_case=True)
    config = transformers_config(options["size"], len(vocabulary))
    model = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options["learning_rate"], weight_decay=0.01, fused=True)
    encoded = tokenizer(texts, return_special_tokens_mask=True)
    length, size = options["length"], options["batch_size"]
    columns = {key: np.concatenate(encoded[key]) for key in encoded}
    sequences = [
        {key: values[start : start + length] for key, values in columns.items()}
        for start in range(0, len(columns["input_ids"]) - length, length)
    ]
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    rng = np.random.default_rng(0)

    def train() -> float:
        for _ in range(options["steps"]):
            batch = collate([sequences[i] for i in rng.choice(len(sequences), size, replace=False)])
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(options["steps"] * size * length)

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="nano")
    parser.add_argument("--file", default="expository-train-00.txt.xz", help="name of the text file")
    parser.add_argument("--paragraphs", type=int, default=4000)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60, help="steps of a round")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--rounds", type=int, default=4, help="the first of them compiles")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--name", default="pretrain_speed", help="name of the result file")
    options = vars(parser.parse_args())
    if not ready(VOCABULARY, DATA / options["file"]):
        return
    rows = interleave("pretrain_speed", {p: PEERS[p] for p in options["peers"]}, options, options["rounds"])
    title = f"masked LM, {options['size']}, sequences of {options['length']}"
    save(options["name"], options, rows=rows, summary=show(title, rows, MEASURES, skip=1))


if __name__ == "__main__":
    main()
