"""The measurements of `quality` with transformers: a score that is low in both libraries is not a bug of lmzoo.

A preset's weights are fine-tuned with Hugging Face's tokenizer and model in a torch loop, with the same datasets,
recipe and learning rate as in `quality`.

    python -m benchmarks.quality_peer --data DATA [--preset bert_nano_en_uncased] [--only sst2 stsb ...]

The learning rate comes from the preset's results in `results/quality.json`; results are stored in
`results/quality_peer.json`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.progress import track
from torch.nn.functional import cross_entropy, mse_loss
from transformers import AutoModel, AutoTokenizer, get_linear_schedule_with_warmup

import lmzoo
from benchmarks.common import RESULTS, SHARED, console, save
from benchmarks.quality import DATASETS, SEEDS, Dataset, Examples, find_best_rate, select_best_rate, split, spread
from lmzoo.presets.converting import save_checkpoint

SETS = ("sst2", "cola", "rte", "stsb")
DECAY, DROPOUT = 0.01, 0.1


class Peer(torch.nn.Module):
    """An encoder, the mean over the real tokens, dropout and a linear layer, with the `predict` and `score` of tasks.

    Args:
        folder: Checkpoint in Hugging Face's layout.
        outputs: Number of outputs for each text; 1 for a regressor.
    """

    def __init__(self, folder: Path, outputs: int) -> None:
        super().__init__()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        self.dropout, self.head = torch.nn.Dropout(DROPOUT), torch.nn.Linear(self.encoder.config.hidden_size, outputs)
        torch.nn.init.trunc_normal_(self.head.weight, std=0.02, a=-0.04, b=0.04)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, texts: tuple[list[str], ...]) -> torch.Tensor:
        """Return outputs (B, `outputs`) of texts or pairs."""
        length = self.encoder.config.max_position_embeddings
        features = self.tokenizer(*texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
        hidden = self.encoder(**features).last_hidden_state  # (B, T, H)
        mask = features["attention_mask"][..., None]  # (B, T, 1)
        return self.head(self.dropout((hidden * mask).sum(1) / mask.sum(1)))

    def fit(self, examples: Examples, rate: float, epochs: int, batch_size: int, seed: int) -> None:
        """Train with AdamW, a warm-up over a tenth of the steps, linear decay, and gradients clipped to norm 1."""
        columns, labels = _make_columns(examples[0]), torch.tensor(examples[1])
        undecayed = [n for n, _ in self.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
        groups = [
            {"params": [p for n, p in self.named_parameters() if (n in undecayed) == without], "weight_decay": decay}
            for without, decay in ((False, DECAY), (True, 0.0))
        ]
        optimizer = torch.optim.AdamW(groups, lr=rate, eps=1e-6)
        steps = epochs * -(-len(labels) // batch_size)
        schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
        regression = self.head.out_features == 1
        if regression:
            torch.nn.init.constant_(self.head.bias, labels.mean().item())
        rng = np.random.default_rng(seed)
        self.train()
        for _ in range(epochs):
            for rows in np.array_split(rng.permutation(len(labels)), -(-len(labels) // batch_size)):
                outputs, targets = self(tuple([column[i] for i in rows] for column in columns)), labels[rows]
                loss = mse_loss(outputs[:, 0], targets.float()) if regression else cross_entropy(outputs, targets)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()

    @torch.inference_mode()
    def predict(self, x: Any, verbose: int = 0) -> np.ndarray:
        """Return outputs, float32 (n, `outputs`)."""
        self.eval()
        columns = _make_columns(x)
        starts = range(0, len(columns[0]), 64)
        return np.concatenate([self(tuple(column[i : i + 64] for column in columns)).numpy() for i in starts])

    def score(self, x: Any) -> list[float]:  # type: ignore[override]
        """Return outputs of a regressor."""
        return self.predict(x)[:, 0].tolist()


def _make_columns(x: Any) -> tuple[list[str], ...]:
    return x if isinstance(x, tuple) else (x,)


def run(folder: Path, dataset: Dataset, parts: list[Examples], rate: float, seed: int) -> dict[str, float]:
    """Fine-tune the peer and return its scores on the test examples."""
    torch.manual_seed(seed)
    peer = Peer(folder, dataset.arguments.get("num_classes", 1))
    peer.fit(parts[0], rate, dataset.epochs, dataset.batch_size, seed)
    return {"rate": rate, "seed": seed, **dataset.score(peer, *parts[2])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="parent directory of the datasets")
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS), metavar="SET")
    args = parser.parse_args()
    lmzoo_rows = json.loads((RESULTS / "quality.json").read_text("utf-8"))["rows"]
    path = RESULTS / "quality_peer.json"
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "hugging_face"
        task = lmzoo.models.TextEmbedder.from_preset(args.preset)
        save_checkpoint(task.backbone, folder, "hf", preprocessor=task.preprocessor)
        for name in args.only:
            dataset, key = DATASETS[name], f"{name} {args.preset}"
            train, dev = dataset.read(args.data)
            parts = [*split(train), dev]
            runs = lmzoo_rows[f"{key} pre-trained"]
            seeds = track(SEEDS, key, console=console, transient=True)
            rows[key] = [run(folder, dataset, parts, find_best_rate(runs), seed) for seed in seeds]
            measure = list(rows[key][0])[2]
            spreads = spread(select_best_rate(runs), measure), spread(rows[key], measure)
            console.print("{}, {}: lmzoo {}, transformers {}".format(key, measure, *spreads))
            save("quality_peer", {"transformers": transformers.__version__}, rows=rows)


if __name__ == "__main__":
    main()
