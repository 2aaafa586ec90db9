"""The whole way from text to a preset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from lmzoo.files.manifest import write_manifest
from lmzoo.presets.loading import save_preset
from lmzoo.pretraining.card import write_card
from lmzoo.pretraining.encoders import train_encoder
from lmzoo.pretraining.language_model import train_language_model
from lmzoo.pretraining.recipe import Recipe
from lmzoo.pretraining.run import Run
from lmzoo.pretraining.training_texts import Text, divided
from lmzoo.tasks import Task

# By the kind of the head that a family is pre-trained with; see `lmzoo.pretraining.recipe.METHODS`.
_TRAINERS = {"bidirectional_lm": train_language_model, "pretraining": train_encoder}


def pretrain(
    corpus: str | Path | Iterable[str | Path] | Iterable[Sequence[str]],
    output: str | Path,
    recipe: Recipe | None = None,
    validation: str | Path | Iterable[str | Path] | Iterable[Sequence[str]] | None = None,
    work: str | Path | None = None,
    overwrite: bool = False,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    metadata: Mapping[str, Any] | None = None,
    verbose: bool = True,
    say: Callable[[str], None] | None = None,
    field: str = "text",
    split: bool = True,
) -> dict[str, float]:
    r"""Learns a vocabulary and a model from text, and writes them as a preset with a model card.

    What is done already is found again in `work`: the vocabulary, the tokenised corpus, the newest state of the
    training. A run that was stopped goes on when it is started again.

    Args:
        corpus: files, folders or patterns, see `lmzoo.data.corpora.read_documents`; or documents, each a list of
            sentences, as anything that can be gone through again and again.
        output: the preset's directory, which is written at the end.
        recipe: how to train.
        validation: text to evaluate on, like `corpus`. By default a hundredth of the corpus' documents is held out for
            it, of fewer than a hundred the last one.
        work: folder of the run; by default `output` with ".work" behind.
        overwrite: whether an existing preset may be replaced.
        callbacks: more of them for `fit`.
        metadata: entries for the preset's `metadata.json`, such as `languages` and `licence`.
        verbose: whether to show progress.
        say: takes a line at each step; by default they are printed if `verbose`.
        field: the key of the text in JSON lines.
        split: whether lines are split into sentences by `lmzoo.text.split_sentences`; False if each line is one.

    Returns:
        Scores on the validation text.

    Raises:
        FileNotFoundError: if there is no text.
        FileExistsError: if there is a preset already.
        InterruptedError: on SIGTERM while it trains, after its state was saved.
        TypeError: for documents that can be gone through only once.
        ValueError: at once, if `work` holds a run of another recipe or on other text, or there is nothing to evaluate
            on; later, if the text is too small for the vocabulary.

    Example:

    ```python
    from pathlib import Path
    from lmzoo.pretraining import Recipe, pretrain

    lines = ["The ship left the harbour at dawn.", "Nobody had seen the island before.", "The sea grew rough."]
    Path("sea.txt").write_text("\n\n".join("\n".join(lines[i % 3 :] + lines[: i % 3]) for i in range(200)))
    recipe = Recipe(tokens=5_000, vocabulary_size=70, sequence_length=16, positions=16, batch_size=8)
    pretrain("sea.txt", "my_bert", recipe, overwrite=True, verbose=False)
    ```
    """
    recipe, output = recipe or Recipe(), Path(output)
    say = say or (print if verbose else lambda line: None)
    work = Path(f"{output}.work" if work is None else work)
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} exists already. Pass `overwrite=True` to replace it.")
    text = Text(corpus, field, split)
    other = None if validation is None else Text(validation, field, split)
    known = {"corpus": text.identity(), "validation": other and other.identity(), "field": field, "split": split}
    recipe.remember(work, known)
    texts = divided(text, other)
    run = Run(recipe, work, list(callbacks), verbose, say)
    keras.utils.set_random_seed(recipe.seed)
    model, facts = _TRAINERS[recipe.of.pretrained_head](run, *texts)
    _write_preset(model, run, output, facts, metadata or {})
    say(f"written to {output}")
    return facts["scores"]


def _write_preset(model: Task, run: Run, output: Path, facts: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Saves the model, as fine-tuning wants it, with its card."""
    kept = {name: value for name, value in model.backbone.get_config().items() if name != "remat"}
    changed = {"dropout": 0.1, "dtype": model.dtype_policy.variable_dtype}
    config = {**model.get_config(), "backbone": type(model.backbone)(**{**kept, **changed})}
    task = type(model)(**{**config, "preprocessor": model.preprocessor})
    task.set_weights(model.get_weights())
    recipe = run.recipe
    description = f"{recipe.family} of size {recipe.size}, {facts['tokens'] / 1e6:.3g}M tokens."
    metadata = {"description": description, **metadata}
    save_preset(task, output, preprocessor=task.preprocessor, **metadata)
    write_card(task, output, recipe, facts, metadata, run.work / "log.csv")
    write_manifest(output)
