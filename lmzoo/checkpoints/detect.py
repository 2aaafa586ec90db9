"""Which format, and which family, a directory holds."""

from __future__ import annotations

from pathlib import Path

from lmzoo.checkpoints.bilm import find_bilm
from lmzoo.checkpoints.checkpoint import Checkpoint
from lmzoo.checkpoints.fairseq import find_fairseq
from lmzoo.checkpoints.google import find_google
from lmzoo.checkpoints.hugging_face import find_hugging_face
from lmzoo.checkpoints.keras_hub import find_keras_hub
from lmzoo.files.preset_files import CONFIG_FILE

_WITH_CONFIG = (find_hugging_face, find_keras_hub)
_WITHOUT_CONFIG = (find_bilm, find_fairseq, find_google)


def find_checkpoint(directory: Path) -> Checkpoint | None:
    """The checkpoint of another library in a directory; None if there is none that we know.

    Raises:
        PresetError: if it is of a family, or has a configuration, that our models cannot follow.
    """
    finders = _WITH_CONFIG if (directory / CONFIG_FILE).is_file() else _WITHOUT_CONFIG
    return next((found for find in finders if (found := find(directory))), None)
