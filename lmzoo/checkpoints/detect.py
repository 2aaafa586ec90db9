"""Detection of the format and family of a checkpoint."""

from __future__ import annotations

from lmzoo.checkpoints.bilm import find_bilm
from lmzoo.checkpoints.checkpoint import Checkpoint
from lmzoo.checkpoints.fairseq import find_fairseq
from lmzoo.checkpoints.google import find_google
from lmzoo.checkpoints.hugging_face.checkpoint import find_hugging_face
from lmzoo.checkpoints.hugging_face.tensorflow import advise_on_weights
from lmzoo.checkpoints.keras_hub.checkpoint import find_keras_hub
from lmzoo.checkpoints.sentence_transformers.checkpoint import SentenceCheckpoint, find_sentence_transformers
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE, JsonFiles


def find_checkpoint(files: JsonFiles, family: str | None = None) -> Checkpoint | SentenceCheckpoint | None:
    """Return the checkpoint of another library in a directory, or None if there is none in a supported format.

    Args:
        files: JSON files of the directory.
        family: Name of the family, such as "bert", for a checkpoint that does not specify it.

    Raises:
        PresetError: If the format is supported, but the family or the configuration is not.
    """
    directory = files.directory
    if (sentence_checkpoint := find_sentence_transformers(files, family)) is not None:
        return sentence_checkpoint
    if (directory / CONFIG_FILE).is_file():
        return find_hugging_face(files, family) or find_keras_hub(files)
    for find in (find_bilm, find_fairseq, find_google):
        if (checkpoint := find(files)) is not None:
            return checkpoint
    if advice := advise_on_weights(directory):
        raise PresetError(f"{directory} has no {CONFIG_FILE}. {advice}")
    return None
