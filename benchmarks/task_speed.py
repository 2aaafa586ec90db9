"""Tagging and question answering: an epoch of fine-tuning, and predictions from text to answers.

The data are WNUT-17's sentences and SQuAD's questions; the model is a 4 x 256 BERT with random weights and BERT's
30,522 tokens, trained with AdamW. transformers tokenizes, pads and decodes as in its scripts `run_ner` and `run_qa`:
sentences are padded to the longest of a batch, and windows to 384 tokens; `-dynamic` also pads windows to the longest
of a batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, SHARED, TENSORFLOW, TORCH, interleave, ready, save, show, time_call
from benchmarks.models import SIZES, get_shape, transformers_config
from lmzoo.data.readers import read_conll, read_squad

PEERS = {
    "lmzoo-tf": TENSORFLOW,
    "lmzoo-tf-crf": TENSORFLOW,  # with a conditional random field
    "lmzoo-jax": JAX,
    "lmzoo-jax-crf": JAX,
    "transformers": TORCH,
    "transformers-dynamic": TORCH,
}
MEASURES = ("train seconds", "predict seconds")
VOCABULARY = SHARED / "data/tokenizers/bert-base-uncased/vocab.txt"
WINDOW, STRIDE = 384, 128
WORDS, QUESTIONS = SHARED / "data/ner_wnut17/wnut17train.conll", SHARED / "data/squad/dev-v1.1.open.json.gz"

Steps = tuple[Callable[[], Any], Callable[[], Any]]


def read(task: str, count: int) -> tuple[Any, Any]:
    """Return the first examples as lists, with only the first answer to each question."""
    if task == "tagging":
        x, y = read_conll(WORDS)
        return x[:count], y[:count]
    (questions, contexts), y = read_squad(QUESTIONS)
    order = np.random.default_rng(0).permutation(len(y))[:count]
    return ([questions[i] for i in order], [contexts[i] for i in order]), [y[i][0] for i in order]


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model; a round is one epoch and one prediction on the same examples."""
    vocabulary = VOCABULARY.read_text("utf-8").split("\n")[:-1]
    x, y = read(options["task"], options["examples"])
    build = _build_lmzoo if peer.startswith("lmzoo") else _build_transformers
    train, predict = build(peer, options, vocabulary, x, y)
    return lambda: dict(zip(MEASURES, (time_call(train), time_call(predict)), strict=True))


def _build_lmzoo(peer: str, options: dict[str, Any], vocabulary: list[str], x: Any, y: Any) -> Steps:
    import keras

    import lmzoo
    from lmzoo.registry.family import families
    from lmzoo.text import Preprocessor, WordPieceTokenizer
    from lmzoo.training import AdamW

    backbone = lmzoo.models.BertBackbone(vocabulary_size=len(vocabulary), **get_shape(options["size"]))
    preprocessor = Preprocessor(WordPieceTokenizer(vocabulary), families()["bert"].packing, WINDOW)
    if options["task"] == "tagging":
        labels = sorted({tag for tags in y for tag in tags})
        task = lmzoo.models.TokenClassifier(backbone, preprocessor, labels=labels, crf=peer.endswith("crf"))
    else:
        task = lmzoo.models.QuestionAnswerer(backbone, preprocessor, doc_stride=STRIDE)
    task.compile(optimizer=AdamW(options["learning_rate"]), metrics=[])
    constant = keras.callbacks.LearningRateScheduler(
        lambda epoch: options["learning_rate"]
    )  # without warm-up and decay
    verb = task.tag if options["task"] == "tagging" else task.answer
    return lambda: task.fit(x, y, batch_size=options["batch_size"], callbacks=[constant], verbose=0), lambda: verb(x)


def _build_transformers(peer: str, options: dict[str, Any], vocabulary: list[str], x: Any, y: Any) -> Steps:
    import torch
    from transformers import BertForQuestionAnswering, BertForTokenClassification, BertTokenizerFast

    labels = sorted({tag for tags in y for tag in tags}) if options["task"] == "tagging" else ["start", "end"]
    config = transformers_config(options["size"], len(vocabulary), len(labels))
    tokenizer = BertTokenizerFast(vocab={token: i for i, token in enumerate(vocabulary)}, do_lower_case=True)
    kind = BertForTokenClassification if options["task"] == "tagging" else BertForQuestionAnswering
    model = kind(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options["learning_rate"], weight_decay=0.01, fused=True)
    encode = _encode_words if options["task"] == "tagging" else _encode_questions
    full = options["task"] == "questions" and not peer.endswith("dynamic")
    padding = {"padding": "max_length", "max_length": WINDOW} if full else {"padding": "longest"}

    def batch(rows: list[dict[str, Any]], index: list[int]) -> dict[str, Any]:
        inputs = [{k: rows[i][k] for k in ("input_ids", "token_type_ids", "attention_mask")} for i in index]
        return dict(tokenizer.pad(inputs, return_tensors="pt", **padding))

    def targets(rows: list[dict[str, Any]], index: list[int], length: int) -> dict[str, Any]:
        if options["task"] == "tagging":
            padded = [rows[i]["labels"] + [-100] * (length - len(rows[i]["labels"])) for i in index]
            return {"labels": torch.tensor(padded)}
        return {k: torch.tensor([rows[i][k] for i in index]) for k in ("start_positions", "end_positions")}

    def train() -> None:
        model.train()
        rows = encode(tokenizer, x, y, labels)
        order = torch.randperm(len(rows)).tolist()
        for start in range(0, len(order), options["batch_size"]):
            index = order[start : start + options["batch_size"]]
            inputs = batch(rows, index)
            model(**inputs, **targets(rows, index, inputs["input_ids"].shape[1])).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    @torch.inference_mode()
    def predict() -> list[Any]:
        model.eval()
        rows, results = encode(tokenizer, x, y, labels), []
        for start in range(0, len(rows), 32):
            index = list(range(start, min(start + 32, len(rows))))
            results.append((index, model(**batch(rows, index))))
        decode = _decode_words if options["task"] == "tagging" else _decode_questions
        return decode(rows, results, x, labels)

    return train, predict


def _encode_words(tokenizer: Any, x: Any, y: Any, labels: list[str]) -> list[dict[str, Any]]:
    encoded = tokenizer(x, is_split_into_words=True, truncation=True, max_length=WINDOW)
    number, rows = {label: i for i, label in enumerate(labels)}, []
    for i, tags in enumerate(y):
        words = encoded.word_ids(i)
        first = [w is not None and (j == 0 or words[j - 1] != w) for j, w in enumerate(words)]
        row = {k: encoded[k][i] for k in encoded}
        rows.append(
            {
                **row,
                "labels": [number[tags[w]] if f else -100 for w, f in zip(words, first, strict=True)],
            }
        )
    return rows


def _decode_words(rows: list[dict], results: list[Any], x: Any, labels: list[str]) -> list[Any]:
    tags = []
    for index, output in results:
        best = output.logits.argmax(-1).tolist()
        for i, row in zip(index, best, strict=True):
            tags.append([labels[b] for b, label in zip(row, rows[i]["labels"], strict=False) if label != -100])
    return tags


def _encode_questions(tokenizer: Any, x: Any, y: Any, labels: list[str]) -> list[dict[str, Any]]:
    encoded = tokenizer(
        *x,
        truncation="only_second",
        max_length=WINDOW,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    rows = []
    for i, example in enumerate(encoded["overflow_to_sample_mapping"]):
        offsets, sequence, answer = encoded["offset_mapping"][i], encoded.sequence_ids(i), y[example]
        start, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        inside = [j for j, s in enumerate(sequence) if s == 1]
        starts = [j for j in inside if offsets[j][0] <= start < offsets[j][1]]
        ends = [j for j in inside if offsets[j][0] < end <= offsets[j][1]]
        first, last = (starts[0], ends[0]) if starts and ends else (0, 0)
        row = {k: encoded[k][i] for k in ("input_ids", "token_type_ids", "attention_mask")}
        rows.append(
            {
                **row,
                "start_positions": first,
                "end_positions": last,
                "example": example,
                "offsets": [o if s == 1 else None for o, s in zip(offsets, sequence, strict=True)],
            }
        )
    return rows


def _decode_questions(rows: list[dict], results: list[Any], x: Any, labels: list[str]) -> list[Any]:
    """Return the text with the highest score for each question, from the 20 best starts and ends of each window."""
    best: dict[int, tuple[float, int, int]] = {}
    for index, output in results:
        starts, ends = output.start_logits.numpy(), output.end_logits.numpy()
        for n, i in enumerate(index):
            offsets = rows[i]["offsets"]
            for a in np.argsort(starts[n])[-1:-21:-1]:
                for b in np.argsort(ends[n])[-1:-21:-1]:
                    if max(a, b) >= len(offsets) or offsets[a] is None or offsets[b] is None or not a <= b < a + 30:
                        continue
                    pair = (float(starts[n][a] + ends[n][b]), offsets[a][0], offsets[b][1])
                    best[rows[i]["example"]] = max(best.get(rows[i]["example"], pair), pair)
    return [x[1][example][start:end] for example, (_, start, end) in sorted(best.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--tasks", nargs="+", choices=("tagging", "questions"), default=["tagging", "questions"])
    parser.add_argument("--sentences", type=int, default=1024)
    parser.add_argument("--questions", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--rounds", type=int, default=4, help="epochs, the first of them cold")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--name", default="task_speed", help="name of the result file")
    options = vars(parser.parse_args())
    if not ready(VOCABULARY, WORDS, QUESTIONS):
        return
    results: dict[str, Any] = {"rows": {}, "summary": {}}
    for task in options["tasks"]:
        examples = options["sentences" if task == "tagging" else "questions"]
        unused_suffix = "-crf" if task == "questions" else "-dynamic"
        chosen = {p: PEERS[p] for p in options["peers"] if not p.endswith(unused_suffix)}
        rows = interleave("task_speed", chosen, {**options, "task": task, "examples": examples}, options["rounds"])
        results["rows"][task] = rows
        results["summary"][task] = show(f"{task}, {examples} examples, {options['size']}", rows, MEASURES, skip=1)
    save(options["name"], options, **results)


if __name__ == "__main__":
    main()
