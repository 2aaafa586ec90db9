"""Comparison of tokenizers and packers in TensorFlow graphs with Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmzoo.text import Preprocessor, Tokenizer
from lmzoo.text.validate_text import collect_warnings

PROGRAM = """
import sys
import tensorflow as tf
{more_imports}
loaded = tf.saved_model.load(sys.argv[1])
assert not {absent} & set(sys.modules)
texts = tf.constant(open(sys.argv[2], "rb").read().split(b"\\n\\n"))
{code}
"""
PRINT_FEATURES = """
for outputs in (loaded.single(texts), loaded.pair(texts, texts[::-1])):
    for name in sorted(outputs):
        print(*tf.cast(outputs[name], tf.int32).numpy().ravel())
"""


def check_graph(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Check that a graph has the ids and offsets of the Python path, and return the ids."""
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    from lmzoo.text.graphs import graph_tokenizer

    ids, spans = graph_tokenizer(tokenizer).with_offsets(tf.constant([text.encode() for text in texts]))
    assert ids.to_list() == tokenizer.tokenize(texts)
    expected = tokenizer.tokenize_with_offsets(texts)
    assert spans.to_list() == [[[*span[2:]] for span in row] for row in expected]
    return ids.to_list()


def check_packer(pack: Callable[..., dict[str, Any]], preprocessor: Preprocessor, *inputs: Sequence[str]) -> None:
    """Check that a packer gives the features of a preprocessor, and the number of truncated texts."""
    import tensorflow as tf

    outputs = pack(*(tf.constant(column, tf.string) for column in inputs))
    features = {name: value.numpy() for name, value in outputs.items()}
    with collect_warnings():
        expected = preprocessor(inputs if len(inputs) > 1 else inputs[0])
        num_truncated = preprocessor.encode(*inputs).truncated
    truncated = features.pop("truncated")
    assert truncated.dtype == bool
    assert truncated.shape == (len(inputs[0]),)
    assert truncated.sum() == num_truncated
    assert features.keys() == expected.keys()
    for name, value in expected.items():
        assert features[name].dtype == np.int32
        np.testing.assert_array_equal(features[name], value, err_msg=name)


def packing_module(preprocessor: Preprocessor) -> Any:
    """Return a module with a packer, and its traced functions for texts and for pairs.

    Each test needs its own: TensorFlow frees a SentencePiece model when the next test sets the seed.
    """
    import tensorflow as tf

    from lmzoo.text.graphs import graph_packer

    strings = tf.TensorSpec([None], tf.string)
    module = tf.Module()
    module.packer = graph_packer(preprocessor)
    module.single = tf.function(module.packer.__call__, input_signature=[strings])
    module.pair = tf.function(module.packer.__call__, input_signature=[strings, strings])
    return module


def check_saved_packer(preprocessor: Preprocessor, texts: list[bytes], folder: Path, **settings: bool) -> None:
    """Check that a saved packer gives the features of a preprocessor in a process without lmzoo."""
    module = packing_module(preprocessor)
    expected = []
    for inputs in ((texts,), (texts, texts[::-1])):
        with collect_warnings():
            features = preprocessor(inputs if len(inputs) > 1 else texts)
            num_truncated = preprocessor.encode(*inputs).truncated
        features["truncated"] = module.packer(*inputs)["truncated"].numpy()
        assert features["truncated"].sum() == num_truncated > 0
        expected += [features[name].ravel().tolist() for name in sorted(features)]
    assert run_saved(module, texts, PRINT_FEATURES, folder, **settings) == expected


def run_saved(
    module: Any, texts: list[bytes], code: str, folder: Path, with_tensorflow_text: bool = False
) -> list[list[int]]:
    """Save a module, run code on it in a process without lmzoo, and return the numbers of each line that it prints.

    The code reads the module as `loaded`, and the texts as a tensor `texts`.
    """
    import tensorflow as tf

    tf.saved_model.save(module, folder / "saved")
    (folder / "texts").write_bytes(b"\n\n".join(texts))
    absent = {"lmzoo", "tokenizers", "sentencepiece", "keras_hub"}
    if not with_tensorflow_text:
        absent.add("tensorflow_text")
    more_imports = "import tensorflow_text" if with_tensorflow_text else ""
    program = PROGRAM.format(more_imports=more_imports, absent=absent, code=code)
    command = [sys.executable, "-c", program, folder / "saved", folder / "texts"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert process.returncode == 0, process.stderr
    return [[int(number) for number in line.split()] for line in process.stdout.splitlines()]
