"""The experiment of `multi30k` with transformers: the same shape, pairs, tokens and recipe, in a torch loop.

    python -m benchmarks.multi30k_peer --data DATA/mt_multi30k --work FOLDER

FOLDER is the directory of `multi30k`, which holds the preset. Training ends with the first epoch that exceeds the
training time of `multi30k`, or after as many epochs; a stopped run continues from its last epoch. Batches hold
sequences of similar lengths, as transformers' trainer groups them. The model starts from transformers' own initial
weights, or with `--initial lmzoo` from lmzoo's. The scores are the same as in `multi30k`; results, with the loss of
each epoch, are stored in `results/multi30k_peer.json` or `results/multi30k_peer_lmzoo.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import MarianMTModel, get_inverse_sqrt_schedule

import lmzoo
from benchmarks.common import RESULTS, SHARED, console, save
from benchmarks.multi30k import POSITIONS, read
from lmzoo.evaluation.translations import compare_translations
from lmzoo.presets.converting import save_checkpoint

GROUP = 50  # number of batches that are sorted by length together
DECAY, SMOOTHING, BEAMS = 0.01, 0.1, 4
Ids = list[torch.Tensor]


def build_untrained(preset: Path, initial: str) -> tuple[MarianMTModel, Any]:
    """Return an untrained model of the preset's shape, initialized by either library, and the preset's tokenizer."""
    trained = lmzoo.models.Seq2SeqLM.from_preset(str(preset))
    backbone = type(trained.backbone).from_config(trained.backbone.get_config())
    task = lmzoo.models.Seq2SeqLM(backbone, trained.preprocessor)
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(task, folder, "hf")
        initial_model = MarianMTModel.from_pretrained(folder)
    return initial_model if initial == "lmzoo" else MarianMTModel(
        initial_model.config
    ), task.text_preprocessor.tokenizer


def encode(texts: list[str], tokenizer: Any, end: int) -> Ids:
    """Return the token ids of texts, each with an end token."""
    return [torch.tensor([*ids[: POSITIONS - 1], end]) for ids in tokenizer.tokenize(texts)]


def draw_batches(sources: Ids, targets: Ids, size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the indices of the pairs in each batch of an epoch, in random order, grouped by length."""
    order, batch_rows = rng.permutation(len(sources)), []
    for start in range(0, len(order), GROUP * size):
        rows = sorted(order[start : start + GROUP * size], key=lambda row: (len(sources[row]), len(targets[row])))
        batch_rows += [np.array(rows[i : i + size]) for i in range(0, len(rows), size)]
    return [batch_rows[i] for i in rng.permutation(len(batch_rows))]


def train(
    model: MarianMTModel, sources: Ids, targets: Ids, options: dict[str, Any], most: float, file: Path
) -> tuple[list[float], float]:
    """Train for the epochs in `options`, or until `most` seconds are over; continue a stopped run from `file`.

    Returns:
        The mean loss of each epoch, and the seconds.
    """
    pad = model.config.pad_token_id
    undecayed = [n for n, _ in model.named_parameters() if n.endswith("bias") or "layer_norm" in n]
    groups = [
        {"params": [p for n, p in model.named_parameters() if (n in undecayed) == without], "weight_decay": decay}
        for without, decay in ((False, DECAY), (True, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=options["learning_rate"], betas=(0.9, 0.98), eps=1e-6)
    steps = options["epochs"] * -(-len(sources) // options["batch_size"])
    schedule = get_inverse_sqrt_schedule(optimizer, math.ceil(steps / 10))
    parts, means, seconds = {"model": model, "optimizer": optimizer, "schedule": schedule}, [], 0.0
    if file.exists():
        states = torch.load(file)
        means, seconds = states["losses"], states["seconds"]
        for name, part in parts.items():
            part.load_state_dict(states[name])
    model.train()
    for epoch in range(len(means), options["epochs"]):
        if seconds >= most:
            break
        start, losses, rng = time.perf_counter(), [], np.random.default_rng([options["seed"], epoch])
        for rows in draw_batches(sources, targets, options["batch_size"], rng):
            source, target = (
                pad_sequence([ids[row] for row in rows], batch_first=True, padding_value=pad)
                for ids in (sources, targets)
            )
            first = torch.full_like(target[:, :1], model.config.decoder_start_token_id)  # (B, 1)
            logits = model(
                input_ids=source,
                attention_mask=(source != pad).long(),
                decoder_input_ids=torch.cat([first, target[:, :-1]], 1),
            ).logits  # (B, S, V)
            loss = cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=pad, label_smoothing=SMOOTHING)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        seconds += time.perf_counter() - start
        means.append(float(np.mean(losses)))
        console.print(f"epoch {epoch + 1} of {options['epochs']}: loss {means[-1]:.3f}, {seconds:,.0f} s")
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**states, "losses": means, "seconds": seconds}, file)
    return means, seconds


@torch.inference_mode()
def translate(model: MarianMTModel, sources: Ids, tokenizer: Any) -> list[str]:
    """Return translations by beam search."""
    model.eval()
    pad, translations = model.config.pad_token_id, []
    for start in range(0, len(sources), 32):
        source = pad_sequence(sources[start : start + 32], batch_first=True, padding_value=pad)
        ids = model.generate(
            input_ids=source,
            attention_mask=(source != pad).long(),
            num_beams=BEAMS,
            length_penalty=1.0,
            early_stopping=True,
            max_new_tokens=2 * source.shape[1] + 16,
        )
        special = {pad, model.config.eos_token_id}
        translations += [tokenizer.detokenize([token for token in row if token not in special]) for row in ids.tolist()]
    return translations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data/mt_multi30k", help="directory of the four files")
    parser.add_argument("--work", type=Path, required=True, help="directory of `multi30k`")
    parser.add_argument("--name", default="multi30k", help="name of the result file of `multi30k`")
    parser.add_argument("--initial", choices=("transformers", "lmzoo"), default="transformers", help="initial weights")
    parser.add_argument("--seconds", type=float, help="of training at most; by default those of `multi30k`")
    args = parser.parse_args()
    stored_results = json.loads((RESULTS / f"{args.name}.json").read_text("utf-8"))
    options, most = stored_results["options"], args.seconds or stored_results["seconds"]
    torch.manual_seed(options["seed"])
    keras.utils.set_random_seed(options["seed"])
    model, tokenizer = build_untrained(args.work / "preset", args.initial)
    (sources, targets), (tests, references) = (read(args.data, part, options["limit"]) for part in ("train", "val"))
    end = model.config.eos_token_id
    encoded = encode(sources, tokenizer, end), encode(targets, tokenizer.target_side, end)
    name = "peer" if args.initial == "transformers" else "peer_lmzoo"
    losses, seconds = train(model, *encoded, options, most, args.work / f"{name}.pt")
    translations = translate(model, encode(tests, tokenizer, end), tokenizer.target_side)
    scores = compare_translations(translations, references).scores
    console.print(
        f"lmzoo {stored_results['scores']}, {stored_results['seconds']:,.0f} s; transformers {scores}, {seconds:,.0f} s"
    )
    settings = {**options, "initial weights": args.initial, "transformers": transformers.__version__}
    save(f"{args.name}_{name}", settings, scores=scores, seconds=seconds, losses=losses)


if __name__ == "__main__":
    main()
