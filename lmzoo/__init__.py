"""lmzoo: a Keras 3 model zoo of language models, from ELMo to BERT, RoBERTa and ALBERT."""

from lmzoo.common.tensorflow_kernels import turn_on_onednn

turn_on_onednn()  # sets TF_ENABLE_ONEDNN_OPTS, which TensorFlow reads when the next lines import it

from lmzoo import analysis, data, layers, models, parallel, search, text, training
from lmzoo.files.compilation_cache import use_compilation_cache
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
    "layers",
    "list_presets",
    "models",
    "parallel",
    "save_checkpoint",
    "search",
    "text",
    "training",
    "upload_preset",
    "use_compilation_cache",
    "verify",
]
