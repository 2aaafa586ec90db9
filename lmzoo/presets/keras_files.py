"""Loading of untrusted `.keras` files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import keras

from lmzoo.files.archives import unpack
from lmzoo.files.atomic import check_path


def load_keras_file(filepath: str | Path, compile: bool = True) -> keras.Model:
    """Load a model from a `.keras` file, which may be untrusted.

    Args:
        filepath: Path of the file.
        compile: Whether to compile the model as it was when saved.

    Raises:
        ValueError: If the file is not a Keras model, is damaged, or needs classes that are not imported.
    """
    check_path(filepath)
    path = Path(filepath).expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a directory, not a `.keras` file: `from_preset` loads a preset's directory.")
    with tempfile.TemporaryDirectory(prefix="lmzoo-") as folder:
        unpack(path, Path(folder))
        if not Path(folder, "config.json").is_file():
            raise ValueError(f"{path} is not a Keras model: it holds no config.json.")
        try:
            model = keras.saving.load_model(folder, compile=compile)
            if (preprocessor := getattr(model, "preprocessor", None)) is not None:
                _ = preprocessor.tokenizer.vocabulary  # raises an error without a vocabulary
        except UnboundLocalError as error:  # Keras tries to close weights that it failed to open
            raise ValueError(f"The weights in {path} cannot be read: {error.__context__}") from None
        except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{path} is damaged, or of classes that are not imported: {reason:.1000}") from error
        return model
