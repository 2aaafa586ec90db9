"""What the process that is watched does with a malicious file: each function loads it in one of the library's ways."""

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

with contextlib.suppress(ImportError):  # what it imports is imported now, and not under the audit hook
    import torch as _torch

    _file = io.BytesIO()
    _torch.save({}, _file)
    _torch.load(io.BytesIO(_file.getvalue()), weights_only=True)


def nothing(path: str) -> None:
    """Imports this module, which takes memory."""


def with_keras(path: str) -> None:
    """As people load `.keras` files without lmzoo's own function."""
    keras.saving.load_model(path)


def with_lmzoo(path: str) -> None:
    Task.load(path)


def preset(path: str) -> None:
    TextClassifier.from_preset(path)


def trusted_preset(path: str) -> None:
    """Where Keras was told to trust files: a preset's parts are built by us, from our classes alone."""
    keras.config.enable_unsafe_deserialization()
    try:
        TextClassifier.from_preset(path)
    finally:
        keras.backend.clear_session()  # which makes it distrustful again


def embedder(path: str) -> None:
    TextEmbedder.from_preset(path)


def backbone(path: str) -> None:
    Backbone.from_preset(path)


def archive(path: str) -> None:
    """Unpacks it into a folder, next to which nothing may appear."""
    with tempfile.TemporaryDirectory() as outside:
        folder = Path(outside, "in/here")
        folder.mkdir(parents=True)
        try:
            unpack(Path(path), folder)
        finally:
            assert [*os.listdir(outside), *os.listdir(folder.parent)] == ["in", "here"]


def torch(path: str) -> None:
    file = TorchFile(path)
    for name in file.names():
        file.read(name)


def torch_alone(path: str) -> None:
    """The second line of defence, `weights_only`, without the first."""
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
    read = TokenCorpus(path)
    read.tokenizer.tokenize(["a"])
    for shard in read.shards:
        shard.token_ids.sum()


def saved_model(path: str) -> None:
    from lmzoo.serving.model_versions import ModelVersion

    ModelVersion(Path(path)).predict({"inputs": ["a"]})


def on_the_command_line(path: str) -> None:
    load_task(str(path))


def checkpoint(path: str) -> None:
    """The tokenizer, too."""
    source = open_source(path)
    source.preprocessor()
    Backbone.from_preset(path)


# === To see that the audit hook is awake ===


def runs_a_command(path: str) -> None:
    os.system("true")


def writes_a_file(path: str) -> None:
    Path(path).write_text("")


def makes_a_folder(path: str) -> None:
    Path(path).mkdir()


def runs_a_script(path: str) -> None:
    runpy.run_path(str(Path(path).with_name("script.py")))
