"""lmzoo: a Keras 3 model zoo, language models from ELMo to BERT, RoBERTa and ALBERT."""

from lmzoo.common import tensorflow_kernels, tensorflow_logs  # noqa: F401 - before what imports TensorFlow

# isort: split

from lmzoo import analysis, data, distribution, layers, models, text, training
from lmzoo.presets import (
    PresetInfo,
    list_presets,
    text_parts,  # noqa: F401 - gives tokenizers and preprocessors their `from_preset`
)
from lmzoo.presets.converting import convert, save_checkpoint
from lmzoo.presets.upload import upload_preset
from lmzoo.presets.verifying import verify
from lmzoo.version import __version__

__all__ = [
    "PresetInfo",
    "__version__",
    "analysis",
    "convert",
    "data",
    "distribution",
    "layers",
    "list_presets",
    "models",
    "save_checkpoint",
    "text",
    "training",
    "upload_preset",
    "verify",
]
