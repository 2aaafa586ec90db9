"""Pre-training from text files to a preset."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from lmzoo.common.arguments import require
from lmzoo.errors import ArgumentError, PathExistsError
from lmzoo.files.atomic import check_replaceable
from lmzoo.files.manifest import describe_files
from lmzoo.files.preset_files import METADATA_FILE, PRESET_ENTRIES
from lmzoo.files.urls import exists, make_absolute
from lmzoo.parallel.processes import check_same, has_several_processes, main_process_first, process_index
from lmzoo.presets import resolve
from lmzoo.presets.keras_preset import WEIGHTS_DTYPES, save_preset
from lmzoo.pretraining.card import write_card
from lmzoo.pretraining.encoders import train_encoder
from lmzoo.pretraining.estimate import estimate_training_seconds
from lmzoo.pretraining.fine_tuning import choose_recipes_by_size
from lmzoo.pretraining.language_model import train_language_model
from lmzoo.pretraining.recipe import Recipe
from lmzoo.pretraining.run import Facts, Run
from lmzoo.pretraining.training_texts import Text, TextSource, identify_texts, read_texts, split_held_out
from lmzoo.tasks import Task
from lmzoo.text.validate_text import is_column, is_text

# Training functions by kind of pre-training head, like `lmzoo.pretraining.recipe.METHODS`.
_TRAINERS = {
    "bidirectional_lm": train_language_model,
    "causal_lm": train_encoder,
    "pretraining": train_encoder,
    "seq2seq_lm": train_encoder,
}


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
    r"""Pre-train a tokenizer and a model on text, and write them as a preset with a model card.

    Intermediate results are stored in `work`: the vocabulary, the tokenized corpus and the latest states of the
    training. An interrupted run continues from these when it is started again.

    If `keras.distribution` has devices in several processes, call this function in each process, with the same
    arguments and with folders that all processes can read. Process 0 trains the tokenizer, tokenizes the text, writes
    the files and shows progress.

    Args:
        corpus: text to train on: files, folders or patterns, as for `lmzoo.data.corpora.read_documents`; or documents,
            each a list of sentences, in a list or another object that can be iterated over several times; or a mixture
            of texts, a dict from files, folders or patterns to weights, such as `{"films/": 2, "books/": 1}`. Two
            thirds of the tokens are then from the films; texts are repeated as needed. The tokenizer is trained on the
            same mixture.
        output: path of the preset's directory, which is written at the end.
        recipe: settings of the training; None for the defaults.
        validation: held-out text to evaluate on, of the same types as `corpus`. By default one of every hundred
            documents of each text is held out, or the last document if there are fewer than a hundred.
        work: folder of the run; by default `output` followed by ".work".
        overwrite: bool, whether to replace an existing preset.
        callbacks: additional Keras callbacks for the training.
        metadata: dict, entries for the preset's `metadata.json`, such as `languages` (a list of codes such as "en") and
            `license`. The names of arguments of `save_preset`, such as `model`, are reserved.
        verbose: bool, whether to show progress.
        say: function that is called with a line of text at each stage; by default lines are printed if `verbose`.
        field: str, key of the text in JSON lines, as for `lmzoo.data.corpora.read_documents`.
        split: bool, whether to split lines into sentences, as for `lmzoo.data.corpora.read_documents`.
        confirm: function that is called before a new run with the estimated training time on this machine in seconds;
            it may raise an error to cancel the run. It is not called if there are several processes.
        weights_dtype: str, dtype of the weights in the preset's files, "float16", "float32" or "int8". Models are
            loaded in float32 in each case.
        states: folder, or fsspec URL such as s3:// or gs://, for the states of the training; by default `work`. If the
            other files in `work` are lost, the run recreates them and continues.

    Returns:
        Scores on the held-out text by name. For a mixture, these are means weighted by the shares of its texts; scores
        on each text, such as `loss_films`, are added.

    Raises:
        FileNotFoundError: If a file does not exist, or a folder or pattern yields no text files.
        FileExistsError: If `output` exists and `overwrite` is False, or `output` is a file, is a directory of another
            kind or contains the working directory.
        InterruptedError: After SIGTERM during the training; its state has been saved.
        KeyboardInterrupt: After Ctrl-C; during the training, its state has been saved.
        ProcessesError: If several processes have different arguments, or one of them has ended.
        TypeError: If documents can be iterated over only once, or `metadata` cannot be written as JSON.
        ValueError: If `languages` in `metadata` is not a list of strings, or a key of `metadata` is reserved; if
            `output`, `work` or `states` is in a folder of the text, or `work` holds a run with another recipe or text;
            if there is no held-out text, the text is too small for the vocabulary, or a text is too short for a
            sequence.

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
    recipe = recipe or Recipe()
    output = Path(output).expanduser()
    require(weights_dtype in WEIGHTS_DTYPES, "weights_dtype", f"one of {', '.join(WEIGHTS_DTYPES)}", weights_dtype)
    verbose = verbose and process_index() == 0
    if say is None or process_index():
        say = print if verbose else lambda line: None
    work = Path(f"{output}.work" if work is None else work).expanduser()
    metadata = metadata or {}
    _check_preset_arguments(output, overwrite, metadata)
    texts = read_texts(corpus, field, split)
    validation_texts = None if validation is None else read_texts(validation, field, split)
    _check_outside_of_texts([*texts, *(validation_texts or [])], output=output, work=work, states=states or work)
    run_identity = {
        "corpus": identify_texts(texts),
        "validation": validation_texts and identify_texts(validation_texts),
        "field": field,
        "split": split,
    }
    if recipe.init is not None:
        file_descriptions = {
            name: file_description
            for name, file_description in describe_files(resolve(recipe.init)).items()
            if name != "README.md"
        }
        digest = hashlib.sha256(json.dumps(file_descriptions, sort_keys=True).encode()).hexdigest()[:16]
        run_identity["init"] = {"preset": recipe.init, "sha256": digest}
    check_same(**{**dataclasses.asdict(recipe), **run_identity})
    with main_process_first():
        recipe.remember(work, run_identity)
    training_documents, held_out_documents = split_held_out(texts, validation_texts)
    run = Run(recipe, work, work if states is None else make_absolute(states), list(callbacks), verbose, say)
    if confirm is not None and not has_several_processes() and not exists(run.get_states().folder):
        say("estimating the time")
        confirm(estimate_training_seconds(recipe))
    keras.utils.set_random_seed(recipe.seed)
    model, facts = _TRAINERS[recipe.family_record.pretrained_head](run, training_documents, held_out_documents)
    _write_preset(model, run, output, overwrite, facts, metadata, weights_dtype)
    say(f"written to {output}")
    text_scores = {
        f"{name}_{text}": value for text, scores in facts["of_texts"].items() for name, value in scores.items()
    }
    return {**facts["scores"], **text_scores}


def _check_preset_arguments(output: Path, overwrite: bool, metadata: Mapping[str, Any]) -> None:
    """Check before the training that the preset can be written after it.

    Raises:
        FileExistsError: If `output` exists, and `overwrite` is False or it cannot be replaced.
        TypeError: If the metadata cannot be written as JSON.
        ValueError: If the languages are not a list of strings, or a key of the metadata is an argument of
            `save_preset`.
    """
    if output.exists() and not overwrite:
        raise PathExistsError(f"{output} exists already. Pass `overwrite=True` to replace it.")
    check_replaceable(output, METADATA_FILE, PRESET_ENTRIES)
    try:
        json.dumps(dict(**metadata))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`metadata` cannot be written as JSON: {error}. Use strings as keys, and strings, numbers, lists or dicts "
            "as values."
        ) from None
    parameters = inspect.signature(save_preset).parameters.values()
    reserved_keys = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    for key in metadata:
        require(key not in reserved_keys, "metadata", f"a dict without the keys {', '.join(reserved_keys)}", metadata)
    languages = metadata.get("languages", [])
    is_valid = is_column(languages) and all(map(is_text, languages))
    require(is_valid, "metadata['languages']", "a list of strings, such as ['en']", languages)


def _check_outside_of_texts(texts: Sequence[TextSource], **folders: str | Path) -> None:
    """Check that the files of the run would not be read as documents.

    Args:
        texts: texts to train on and to evaluate on.
        **folders: folders or URLs to write, by the name of the argument.

    Raises:
        ValueError: If a folder is, or is in, a folder of a text, or holds a file that matches a pattern of a text.
    """
    for argument, folder in folders.items():
        for text in texts:
            if source := text.find_source_around(folder):
                raise ArgumentError(
                    f"`{argument}`, {folder}, holds files that would be read as documents, since {source} is among the "
                    "texts. Choose another folder.",
                    argument,
                )


def _write_preset(
    model: Task,
    run: Run,
    output: Path,
    overwrite: bool,
    facts: Facts,
    metadata: Mapping[str, Any],
    weights_dtype: str,
) -> None:
    """Save the model as a preset for fine-tuning, with dropout, fine-tuning recipes and a model card.

    Args:
        model: the trained model.
        run: the training run, with its recipe and folder.
        output: directory of the preset.
        overwrite: whether to replace an existing directory.
        facts: facts about the training, for the card.
        metadata: additional metadata of the preset.
        weights_dtype: dtype in which weights are stored.
    """
    config_changes: dict[str, Any] = {"remat": False} if "remat" in model.backbone.get_config() else {}
    recipe = run.recipe
    # Keep the recipes of an initial preset, which may come from a search.
    init_recipes = model.backbone.fine_tuning if recipe.init is not None else {}
    fine_tuning = init_recipes or choose_recipes_by_size(model)
    config_changes |= {"dropout": 0.1, "dtype": model.dtype_policy.variable_dtype, "fine_tuning": fine_tuning}
    task = model.copy_with(**config_changes)
    origin = "" if recipe.init is None else f", after the weights of {recipe.init}"
    description = f"{recipe.family} of size {recipe.size}, {facts['tokens'] / 1e6:.3g}M tokens{origin}."
    metadata = {"description": description, **metadata}

    def add_card(folder: Path) -> None:
        write_card(task, folder, output.name, recipe, facts, metadata, run.work / "log.csv")

    with main_process_first():
        if process_index() == 0:
            save_preset(task, output, overwrite, task.preprocessor, add_card, weights_dtype, **metadata)
