"""The tables of the page for users of KerasHub: both calls of each row run, with the result of the row."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import lmzoo
from tests.checkpoints.keras_hub_models import peer_backbone, peer_task, peer_tokenizer
from tests.coming_from.calls import PAGES, Call, assert_equal, names_in, run, with_tables
from tests.coming_from.keras_hub_calls import CALLS

TASKS = {
    "classifier": ("bert", "TextClassifier", {"num_classes": 3, "dropout": 0.0}),
    "masked_lm": ("bert", "MaskedLM", {}),
    "embedder": ("bert", "TextEmbedder", {}),
    "causal_lm": ("gpt2", "CausalLM", {}),
}
TEXTS = ["good film", "the plot was never dull .", "a very bad film"]
SECOND_TEXTS = ["the end", "dull", "a film"]
LABELS = [1, 0, 2]
FEATURES = {
    "token_ids": np.array([[2, 7, 8, 4, 9, 3]], "int32"),
    "padding_mask": np.ones((1, 6), "int32"),
    "segment_ids": np.zeros((1, 6), "int32"),
    "mask_positions": np.array([[3]], "int32"),
}
PROMPTS = {
    "token_ids": np.array([[7, 8, 0, 0, 0], [9, 4, 0, 0, 0]], "int32"),
    "padding_mask": np.array([[1, 1, 0, 0, 0]] * 2, "int32"),
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Return a function that makes the objects that code names: of one library, in a directory, and new or shared."""
    keras_hub = pytest.importorskip("keras_hub")
    modules = {"KerasHub": [keras_hub.models], "lmzoo": [lmzoo.models, lmzoo.text]}

    @functools.cache
    def preset(task: str) -> str:
        family, kind, arguments = TASKS[task]
        folder = tmp_path_factory.mktemp(task)
        model = peer_task(family, kind, peer_backbone(family), peer_tokenizer(family), 13, **arguments)
        model.save_to_preset(str(folder))
        return str(folder)

    def load(task: str, library: str) -> Any:
        loaded = getattr(modules[library][0], TASKS[task][1]).from_preset(preset(task))
        if library == "KerasHub":
            loaded.run_eagerly = True
            if task == "causal_lm":
                loaded.compile(sampler="greedy", run_eagerly=True)
        return loaded

    load_once = functools.cache(load)

    def causal_features(name: str) -> Any:
        features, targets, _ = load_once("causal_lm", "KerasHub").preprocessor(TEXTS)
        return features["token_ids"] if name == "token_ids" else targets

    def make(code: str, library: str, folder: Path, new: bool) -> dict[str, Any]:
        def task(name: str = "classifier") -> Any:
            return (load if new else load_once)(name, library)

        makers: dict[str, Callable[[], Any]] = {
            "texts": lambda: TEXTS,
            "second_texts": lambda: SECOND_TEXTS,
            "labels": lambda: LABELS,
            "dataset": dataset,
            "features": lambda: FEATURES,
            "ids": lambda: [7, 8, 9],
            "token_ids": lambda: causal_features("token_ids"),
            "prompts": lambda: PROMPTS,
            "targets": lambda: causal_features("targets"),
            "folder": lambda: str(folder / library),
            "lora_file": lambda: str(folder / f"{library}.lora.h5"),
            "file": lambda: str(folder / f"{library}.keras"),
            "keras": lambda: keras,
            "optimizer": lambda: keras.optimizers.SGD(0.1),
            "loss": lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "lmzoo": lambda: lmzoo,
            "TopKSampler": lambda: keras_hub.samplers.TopKSampler,
            "preset": lambda: preset("classifier"),
            "masked_lm_preset": lambda: preset("masked_lm"),
            "causal_lm_preset": lambda: preset("causal_lm"),
            "backbone": lambda: task().backbone,
            "preprocessor": lambda: task().preprocessor,
            "tokenizer": lambda: task().preprocessor.tokenizer,
            **{name: functools.partial(task, name) for name in TASKS},
        }
        names = names_in(code)
        classes = {
            name: getattr(module, name) for module in modules[library] for name in names if hasattr(module, name)
        }
        return {**classes, **{name: makers[name]() for name in names if name in makers}}

    return make


def dataset() -> Any:
    """Return texts and labels as a `tf.data.Dataset` of one batch."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).batch(3)


ROWS = [
    pytest.param(call, marks=[pytest.mark.slow] * call.slow, id=f"{topic} {number}")
    for topic, calls in CALLS.items()
    for number, call in enumerate(calls)
]


@pytest.mark.slow_cases("Generate 0", "Generate 4")
@pytest.mark.tf_only  # KerasHub's tokenizers
@pytest.mark.usefixtures("eager")
@pytest.mark.filterwarnings(
    "ignore:The head of .* is not used",
    "ignore:Layer .* does not have a `quantize` method:UserWarning",
    "ignore:`shuffle=True` was passed, but will be ignored:UserWarning",  # KerasHub passes its own dataset to Keras
    "ignore:`compile\\(\\)` was not called as part of model loading:UserWarning",  # of KerasHub's tasks
)
@pytest.mark.parametrize("call", ROWS)
def test_both_sides_run_with_the_result_of_the_row(
    call: Call, objects: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    theirs, ours = (
        run(code, objects(code, library, tmp_path, call.changes)) if code else None
        for code, library in zip(call.codes, ("KerasHub", "lmzoo"), strict=True)
    )
    if call.compare is not None:
        assert_equal(*call.compare(theirs, ours))


def test_the_page_has_the_tables() -> None:
    """To write the tables, run `python -m tests.coming_from.calls`."""
    page = (PAGES / "keras_hub.md").read_text("utf-8")
    assert with_tables(page, CALLS, "KerasHub") == page


def test_each_topic_needs_a_place_in_the_page() -> None:
    with pytest.raises(ValueError, match="The page has places for Load, Nothing; there are calls for Load, "):
        with_tables(PLACES.format("Load") + PLACES.format("Nothing"), CALLS, "KerasHub")
    page = with_tables(PLACES.format("One"), {"One": [Call("a - b", result="c")]}, "KerasHub")
    assert "\n\n| KerasHub | lmzoo | Result |\n| --- | --- | --- |\n| `a - b` | `a - b` | c |\n\n<!-- end" in page
    assert with_tables(page, {"One": [Call("a - b", result="c")]}, "KerasHub") == page
    with pytest.raises(ValueError, match=r"A cell cannot hold '\|', got '`a \| b`'"):
        with_tables(page, {"One": [Call("a | b")]}, "KerasHub")


PLACES = "# A page\n\n<!-- calls: {} -->\nold\n<!-- end of calls -->\n"
