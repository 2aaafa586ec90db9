"""Pre-training from text to a preset."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from lmzoo.common.arguments import require
from lmzoo.errors import PathExistsError
from lmzoo.files.manifest import listed_files
from lmzoo.files.urls import absolute, exists
from lmzoo.parallel.processes import check_same, first_process_first, process_index, several_processes
from lmzoo.presets import resolve
from lmzoo.presets.keras_preset import save_preset
from lmzoo.pretraining.card import write_card
from lmzoo.pretraining.encoders import train_encoder
from lmzoo.pretraining.estimate import training_seconds
from lmzoo.pretraining.fine_tuning import recipes_by_size
from lmzoo.pretraining.language_model import train_language_model
from lmzoo.pretraining.recipe import Recipe
from lmzoo.pretraining.run import Facts, Run
from lmzoo.pretraining.training_texts import Text, identity_of, read_texts, split_held_out
from lmzoo.tasks import Task

# By the kind of the family's pre-training head, like `lmzoo.pretraining.recipe.METHODS`.
_TRAINERS = {"bidirectional_lm": train_language_model, "causal_lm": train_encoder, "pretraining": train_encoder}
WEIGHTS_DTYPES = ("float16", "float32")


def pretrain(
    corpus: Text,
    output: str | Path,
    recipe: Recipe | None = None,
    validation: Text | None = None,
    work: str | Path | None = None,
    overwrite: bool = False,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    metadata: Mapping[str, Any] | None = None,
    verbose: bool = True,
    say: Callable[[str], None] | None = None,
    field: str = "text",
    split: bool = True,
    confirm: Callable[[float], None] | None = None,
    weights_dtype: str = "float16",
    states: str | Path | None = None,
) -> dict[str, float]:
    r"""Learn a vocabulary and a model from text, and write them as a preset with a model card.

    Intermediate results are kept in `work`: the vocabulary, the tokenized corpus and the latest states of the training.
    A run that was stopped continues from them when it is started again.

    If `keras.distribution` has devices in several processes, all of them call this with the same arguments and folders
    that all can read. Process 0 learns the vocabulary, tokenizes the text, writes the files and shows progress.

    Args:
        corpus: files, folders or patterns, see `lmzoo.data.corpora.read_documents`; or documents, each a list of
            sentences, in a list or another object that can be iterated over several times; or a mixture of texts, such
            as `{"films/": 2, "books/": 1}`: files, folders or patterns, and a weight for each. Two thirds of the
            tokens are then from the films: each text is repeated as often as its share needs. The vocabulary is learned
            with the same shares.
        output: the preset's directory, which is written at the end.
        recipe: how to train.
        validation: text to evaluate on, given like `corpus`. By default one of every hundred documents of the corpus is
            held out, or the last one if there are fewer than a hundred; of each text of a mixture.
        work: folder of the run; by default `output` followed by ".work".
        overwrite: whether an existing preset may be replaced.
        callbacks: additional callbacks for `fit`.
        metadata: entries for the preset's `metadata.json`, such as `languages` and `license`.
        verbose: whether to show progress.
        say: called with a line of text at each stage; by default lines are printed if `verbose`.
        field: see `lmzoo.data.corpora.read_documents`.
        split: see `lmzoo.data.corpora.read_documents`.
        confirm: called before a new run starts, with the estimated seconds of its training on this machine; it may
            raise an error to prevent it. Without it, and in several processes, nothing is estimated.
        weights_dtype: how the preset's files hold the weights: "float16", in half as many bytes, or "float32". Models
            that are loaded from them are in float32 in any case.
        states: where the states of the training are saved, a folder or a URL of fsspec such as s3:// or gs://; by
            default in `work`. A machine that has lost `work` makes the rest of it again and continues.

    Returns:
        Scores on the validation text. For a mixture they are means by the weights of its texts, and the scores on each
        text are there, too, such as `loss_films`.

    Raises:
        FileNotFoundError: if there is no text.
        FileExistsError: if the preset exists already.
        InterruptedError: after SIGTERM during the training; its state has been saved.
        KeyboardInterrupt: after Ctrl-C; during the training, its state has been saved.
        ProcessesError: if several processes have other arguments, or one of them has ended.
        TypeError: for documents that can be iterated over only once.
        ValueError: at once, if `work` holds a run with another recipe or on other text, or there is nothing to evaluate
            on; later, if the text is too small for the vocabulary.

    Example:

    ```python
    from pathlib import Path
    from lmzoo.pretraining import Recipe, pretrain

    lines = ["The ship left the harbour at dawn.", "Nobody had seen the island before.", "The sea grew rough."]
    Path("sea.txt").write_text("\n\n".join("\n".join(lines[i % 3 :] + lines[: i % 3]) for i in range(200)))
    recipe = Recipe(tokens=1_000, vocabulary_size=70, sequence_length=16, positions=16, batch_size=8)
    pretrain("sea.txt", "my_bert", recipe, overwrite=True, verbose=False)
    ```
    """
    recipe, output = recipe or Recipe(), Path(output).expanduser()
    require(weights_dtype in WEIGHTS_DTYPES, "weights_dtype", f"one of {', '.join(WEIGHTS_DTYPES)}", weights_dtype)
    verbose = verbose and process_index() == 0
    if say is None or process_index():
        say = print if verbose else lambda line: None
    work = Path(f"{output}.work" if work is None else work).expanduser()
    if output.exists() and not overwrite:
        raise PathExistsError(f"{output} exists already. Pass `overwrite=True` to replace it.")
    texts = read_texts(corpus, field, split)
    others = None if validation is None else read_texts(validation, field, split)
    known = {"corpus": identity_of(texts), "validation": others and identity_of(others), "field": field, "split": split}
    if recipe.init is not None:
        files = {name: seen for name, seen in listed_files(resolve(recipe.init)).items() if name != "README.md"}
        digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
        known["init"] = {"preset": recipe.init, "sha256": digest}
    check_same(**{**dataclasses.asdict(recipe), **known})
    with first_process_first():
        recipe.remember(work, known)
    train, held = split_held_out(texts, others)
    run = Run(recipe, work, work if states is None else absolute(states), list(callbacks), verbose, say)
    if confirm is not None and not several_processes() and not exists(run.saved().folder):
        say("estimating the time")
        confirm(training_seconds(recipe))
    keras.utils.set_random_seed(recipe.seed)
    model, facts = _TRAINERS[recipe.family_record.pretrained_head](run, train, held)
    half_precision = weights_dtype == "float16"
    _write_preset(model, run, output, overwrite, facts, metadata or {}, half_precision)
    say(f"written to {output}")
    of_texts = {f"{name}_{text}": value for text, found in facts["of_texts"].items() for name, value in found.items()}
    return {**facts["scores"], **of_texts}


def _write_preset(
    model: Task,
    run: Run,
    output: Path,
    overwrite: bool,
    facts: Facts,
    metadata: Mapping[str, Any],
    half_precision: bool,
) -> None:
    """Save the model, with dropout, dtype and recipes for fine-tuning, and its model card: both or neither."""
    changes: dict[str, Any] = {"remat": False} if "remat" in model.backbone.get_config() else {}
    recipe = run.recipe
    found = model.backbone.fine_tuning if recipe.init is not None else {}  # searched for, perhaps
    fine_tuning = found or recipes_by_size(model)
    changes |= {"dropout": 0.1, "dtype": model.dtype_policy.variable_dtype, "fine_tuning": fine_tuning}
    task = model.copy_with(**changes)
    begun = "" if recipe.init is None else f", after the weights of {recipe.init}"
    description = f"{recipe.family} of size {recipe.size}, {facts['tokens'] / 1e6:.3g}M tokens{begun}."
    metadata = {"description": description, **metadata}

    def add_card(folder: Path) -> None:
        write_card(task, folder, output.name, recipe, facts, metadata, run.work / "log.csv")

    with first_process_first():
        if process_index() == 0:
            save_preset(task, output, overwrite, task.preprocessor, add_card, half_precision, **metadata)
