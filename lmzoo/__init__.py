"""lmzoo: a Keras 3 model zoo of ELMo, BERT, RoBERTa, ALBERT, DistilBERT, XLNet, GPT, GPT-2 and Marian."""

from lmzoo import tensorflow_kernels, tensorflow_logs  # noqa: F401 - before what imports TensorFlow

# isort: split

from lmzoo import analysis, data, distribution, layers, models, text, training
from lmzoo.conversion import convert, save_checkpoint, verify
from lmzoo.presets.catalog import PresetInfo, list_presets
from lmzoo.presets.upload import upload_preset
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
