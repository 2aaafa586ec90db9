"""Detection of the format and family of a checkpoint."""

from __future__ import annotations

import contextlib

from lmzoo.checkpoints.bilm import find_bilm
from lmzoo.checkpoints.checkpoint import Checkpoint
from lmzoo.checkpoints.fairseq import find_fairseq
from lmzoo.checkpoints.google import find_google
from lmzoo.checkpoints.hugging_face.checkpoint import find_hugging_face, find_weights_file
from lmzoo.checkpoints.hugging_face.tensorflow import advise_on_weights
from lmzoo.checkpoints.keras_hub.checkpoint import find_keras_hub
from lmzoo.checkpoints.sentence_transformers.checkpoint import SentenceCheckpoint, find_sentence_transformers
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE, JsonFiles


def find_checkpoint(files: JsonFiles, family: str | None = None) -> Checkpoint | SentenceCheckpoint | None:
    """Return the checkpoint of another library in a directory, or None if there is none in a supported format.

    Weights with a configuration file of their own, such as `bert_config.json`, are also found next to a `config.json`
    without weights.

    Args:
        files: JSON files of the directory.
        family: Name of the family, such as "bert", for a checkpoint that does not specify it.

    Raises:
        PresetError: If the format is supported, but the family or the configuration is not; or if the directory has
            weights of another library that need a conversion or a missing configuration file.
    """
    directory = files.directory
    if (sentence_checkpoint := find_sentence_transformers(files, family)) is not None:
        return sentence_checkpoint
    if (directory / CONFIG_FILE).is_file():
        if "registered_name" in files.read(CONFIG_FILE):
            return find_keras_hub(files)
        if find_weights_file(directory) is None and (checkpoint := _find_loadable(files)) is not None:
            return checkpoint
        return find_hugging_face(files, family) or _find_without_config(files)
    if (checkpoint := _find_without_config(files)) is not None:
        return checkpoint
    if advice := advise_on_weights(directory):
        raise PresetError(f"{directory} has no {CONFIG_FILE}. {advice}")
    return None


def _find_without_config(files: JsonFiles) -> Checkpoint | None:
    """Return the checkpoint in a directory if it is in one of the formats without `config.json`, else None.

    Raises:
        PresetError: If the family or the configuration is not supported.
    """
    for find_in_format in (find_bilm, find_fairseq, find_google):
        if (checkpoint := find_in_format(files)) is not None:
            return checkpoint
    return None


def _find_loadable(files: JsonFiles) -> Checkpoint | None:
    """Return the checkpoint of `_find_without_config`, or None if it is not supported or its weights cannot be opened.

    The weights of the returned checkpoint are already open.
    """
    with contextlib.suppress(PresetError):
        if (checkpoint := _find_without_config(files)) is not None:
            checkpoint.weights.open()
            return checkpoint
    return None
