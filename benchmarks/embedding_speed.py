"""Embedding texts of 32 and of 256 tokens: texts per second, in the shape of MiniLM-L6 by default.

All peers read one directory in Sentence Transformers' layout, with random weights, a vocabulary of numbered words, and
mean pooling. All texts have the same number of tokens, so that no peer gains from less padding. In each round, a peer
embeds all texts in batches of 32; it has embedded one batch before the first round, and so has compiled its code. The
ONNX peer exports its file with Sentence Transformers, in fp32, when it starts, which needs
`pip install 'sentence-transformers[onnx]'`. Where this installs transformers 4, use an environment of its own, and set
`USE_TF=0`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import JAX, TENSORFLOW, TORCH, interleave, ready, save, show, time_call

PEERS = {
    "lmzoo-tf": TENSORFLOW,
    "lmzoo-tf-jit": TENSORFLOW,
    "lmzoo-jax": JAX,
    "sentence-transformers-torch": TORCH,
    "sentence-transformers-onnx": TORCH,
}
SIZES = {  # layers, heads, hidden width, intermediate width
    "tiny": (2, 2, 64, 128),
    "minilm": (6, 12, 384, 1536),
    "base": (12, 12, 768, 3072),
}
WORDS = 30_000
MEASURES = ("texts/s",)


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Load the embedder, embed a batch, and return a function that embeds all texts."""
    embed = (_build_lmzoo if peer.startswith("lmzoo") else _build_sentence_transformers)(peer, options)
    numbers = np.random.default_rng(0).integers(
        WORDS, size=(options["texts"], options["length"] - 2)
    )  # two special tokens are added
    texts = [" ".join(f"w{number}" for number in row) for row in numbers]
    embed(texts[:32])
    return lambda: {"texts/s": len(texts) / time_call(lambda: embed(texts))}


def _build_lmzoo(peer: str, options: dict[str, Any]) -> Callable[[list[str]], np.ndarray]:
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset(options["folder"])
    embedder.compile(jit_compile=peer.endswith("-jit") or peer.endswith("-jax"))
    return embedder.embed


def _build_sentence_transformers(peer: str, options: dict[str, Any]) -> Callable[[list[str]], np.ndarray]:
    from sentence_transformers import SentenceTransformer

    backend = peer.rpartition("-")[2]
    settings = {"model_kwargs": {"provider": "CPUExecutionProvider"}} if backend == "onnx" else {}
    model = SentenceTransformer(options["folder"], device="cpu", backend=backend, **settings)
    return lambda texts: model.encode(texts, batch_size=32)


def write_folder(folder: Path, size: str) -> None:
    """Write an embedder with random weights for all peers."""
    import lmzoo
    from lmzoo.text import Preprocessor, WordPieceTokenizer

    layers, heads, width, inner = SIZES[size]
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(WORDS))])
    backbone = lmzoo.models.BertBackbone(
        vocabulary_size=WORDS + 5, num_layers=layers, num_heads=heads, hidden_dim=width, intermediate_dim=inner
    )
    preprocessor = Preprocessor(tokenizer, lmzoo.registry.family.get_family(backbone).packing, 512)
    lmzoo.save_checkpoint(lmzoo.models.TextEmbedder(backbone, preprocessor), folder, to="hf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="minilm")
    parser.add_argument("--lengths", nargs="+", type=int, default=[32, 256], help="tokens of a text")
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--name", default="embedding_speed", help="name of the result file")
    options = vars(parser.parse_args())
    ready()
    peers = {peer: PEERS[peer] for peer in options["peers"]}
    results: dict[str, Any] = {"rows": {}, "summary": {}}
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "embedder"
        write_folder(folder, options["size"])
        for length in options["lengths"]:
            settings = {**options, "folder": str(folder), "length": length}
            rows = interleave("embedding_speed", peers, settings, options["rounds"])
            results["rows"][length] = rows
            results["summary"][length] = show(f"{options['texts']} texts of {length} tokens", rows, MEASURES)
    save(options["name"], options, **results)


if __name__ == "__main__":
    main()
