"""Functions with which the watched process loads a malicious file, one for each way that the library offers."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import tempfile
from pathlib import Path
from unittest import mock

import keras

from lmzoo.checkpoints.formats import torch as torch_files
from lmzoo.checkpoints.formats.hdf5 import Hdf5File
from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles
from lmzoo.checkpoints.formats.torch import TorchFile
from lmzoo.checkpoints.hugging_face.tensorflow import open_tensorflow_model
from lmzoo.data.corpora import TokenCorpus
from lmzoo.files.archives import unpack
from lmzoo.models import Backbone, Task, TextClassifier, TextEmbedder
from lmzoo.presets.source import open_source
from lmzoo_cli.model_loading import load_task

with contextlib.suppress(ImportError):  # so that torch imports its modules now, not under the audit hook
    import torch as _torch

    _file = io.BytesIO()
    _torch.save({}, _file)
    _torch.load(io.BytesIO(_file.getvalue()), weights_only=True)


def nothing(path: str) -> None:
    """Do nothing: the request imports this module, which takes memory."""


def with_keras(path: str) -> None:
    """Load a `.keras` file with Keras' function instead of lmzoo's."""
    keras.saving.load_model(path)


def with_lmzoo(path: str) -> None:
    Task.load(path)


def preset(path: str) -> None:
    TextClassifier.from_preset(path)


def trusted_preset(path: str) -> None:
    """Load a preset while Keras trusts files: lmzoo must still build its own classes only."""
    keras.config.enable_unsafe_deserialization()
    try:
        TextClassifier.from_preset(path)
    finally:
        keras.backend.clear_session()  # Keras distrusts files again


def embedder(path: str) -> None:
    TextEmbedder.from_preset(path)


def backbone(path: str) -> None:
    Backbone.from_preset(path)


def archive(path: str) -> None:
    """Unpack an archive into a directory and check that nothing appears beside it."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "in/here")
        folder.mkdir(parents=True)
        try:
            unpack(Path(path), folder)
        finally:
            assert [*os.listdir(parent), *os.listdir(folder.parent)] == ["in", "here"]


def torch(path: str) -> None:
    file = TorchFile(path)
    for name in file.names():
        file.read(name)


def torch_alone(path: str) -> None:
    """Load a file with torch's own protection, `weights_only`, without lmzoo's check."""
    with mock.patch.object(torch_files, "_check_pickle"):
        TorchFile(path)


def hdf5(path: str) -> None:
    file = Hdf5File(path)
    for name in file.names():
        file.read(name)


def tf_model(path: str) -> None:
    with contextlib.closing(open_tensorflow_model(Path(path))) as file:
        for name in file.names():
            file.read(name)


def safetensors(path: str) -> None:
    file = SafetensorsFiles(path)
    for name in file.names():
        file.read(name)


def corpus(path: str) -> None:
    token_corpus = TokenCorpus(path)
    token_corpus.tokenizer.tokenize(["a"])
    for shard in token_corpus.shards:
        shard.token_ids.sum()


def saved_model(path: str) -> None:
    from lmzoo.serving.model_versions import ModelVersion

    ModelVersion(Path(path)).predict({"inputs": ["a"]})


def on_the_command_line(path: str) -> None:
    load_task(str(path))


def checkpoint(path: str) -> None:
    """Load the tokenizer and the backbone."""
    source = open_source(path)
    source.preprocessor()
    Backbone.from_preset(path)


# === Actions that the audit hook must see ===


def runs_a_command(path: str) -> None:
    os.system("true")


def writes_a_file(path: str) -> None:
    Path(path).write_text("")


def makes_a_folder(path: str) -> None:
    Path(path).mkdir()


def runs_a_script(path: str) -> None:
    runpy.run_path(str(Path(path).with_name("script.py")))
