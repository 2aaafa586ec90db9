"""Tensors that hold several weights side by side, such as the kernels of query, key and value."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

from lmzoo.checkpoints.config_table import ConfigTable
from lmzoo.checkpoints.engine import SAME, TRANSPOSED, Layout, Row, convert_to_tensors, plan
from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.errors import PresetError

# Different widths, as in models with fewer heads of keys and values than of queries.
WIDTHS = {"query": 7, "key": 3, "value": 5}
H = 11


def make_layout(transform=SAME, **changed):
    table = {
        f"block_{{i}}/{layer}/{kind}": Row(f"h.{{i}}.c_attn.{theirs}", transform if kind == "kernel" else SAME, part)
        for part, layer in enumerate(WIDTHS)
        for kind, theirs in (("kernel", "weight"), ("bias", "bias"))
    }
    return Layout(name="a format", config=ConfigTable(keys={}), backbone={**table, "scale": Row("scale"), **changed})


def make_weights(blocks=2):
    rng = np.random.default_rng(5)
    shapes = {
        f"block_{i}/{layer}/{kind}": (H, width) if kind == "kernel" else (width,)
        for i in range(blocks)
        for layer, width in reversed(WIDTHS.items())  # in another order than in the tensors
        for kind in ("kernel", "bias")
    }
    return {path: keras.Variable(rng.normal(size=shape)) for path, shape in {**shapes, "scale": (H,)}.items()}


class Tensors(TensorFile):
    """Tensors in memory that count their reads."""

    path = "memory"

    def __init__(self, arrays):
        self.arrays, self.reads = arrays, []

    def names(self):
        return self.arrays.keys()

    def shape(self, name):
        return self.arrays[name].shape

    def dtype(self, name):
        return self.arrays[name].dtype.name

    def file_of(self, name):
        return self.path

    def read(self, name):
        self.reads.append(name)
        return self.arrays[name]


@pytest.mark.parametrize("transform", [SAME, TRANSPOSED], ids=["same", "transposed"])
def test_parts_are_written_side_by_side_and_read_once(transform):
    ours = make_weights()
    values = {path: keras.ops.convert_to_numpy(weight) for path, weight in ours.items()}
    file = Tensors(dict(convert_to_tensors(make_layout(transform), ours)))
    kernels = np.concatenate([values[f"block_1/{layer}/kernel"] for layer in WIDTHS], axis=1)  # (H, 15)
    np.testing.assert_array_equal(file.arrays["h.1.c_attn.weight"], kernels if transform is SAME else kernels.T)
    biases = np.concatenate([values[f"block_0/{layer}/bias"] for layer in WIDTHS])
    np.testing.assert_array_equal(file.arrays["h.0.c_attn.bias"], biases)
    for weight in ours.values():
        weight.assign(np.zeros(weight.shape))
    plan(make_layout(transform), file, ours).run()
    assert sorted(file.reads) == sorted(file.arrays)
    for path, weight in ours.items():
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), values[path], err_msg=path)


def test_a_tensor_that_lacks_a_part_is_not_read():
    file = Tensors(dict(convert_to_tensors(make_layout(), make_weights())))
    file.arrays["h.1.c_attn.weight"] = file.arrays["h.1.c_attn.weight"][:, :10]
    message = r"'h.1.c_attn.weight' has shape \(11, 10\), expected \(11, 15\) for block_1/query/kernel and block_1/key"
    with pytest.raises(PresetError, match=message):
        plan(make_layout(), file, make_weights())
    assert not file.reads


def test_a_model_that_lacks_a_part_is_refused():
    file = Tensors(dict(convert_to_tensors(make_layout(), make_weights())))
    for layer, message in (("key", "does not say which part"), ("value", r"\(11, 15\), expected \(11, 10\)")):
        ours = make_weights()
        del ours[f"block_1/{layer}/kernel"]
        with pytest.raises(PresetError, match=message):
            plan(make_layout(), file, ours)
    assert not file.reads


@pytest.mark.parametrize(
    "change", [{"part": 0}, {"part": None}, {"transform": TRANSPOSED}], ids=["repeated", "none", "layout"]
)
def test_a_table_must_tell_the_parts_apart(change):
    key = "block_{i}/key/kernel"
    wrong = make_layout(**{key: dataclasses.replace(make_layout().backbone[key], **change)})
    file = Tensors(dict(convert_to_tensors(make_layout(), make_weights())))
    with pytest.raises(PresetError, match=r"'a format' does not say which part of 'h\.0\.c_attn\.weight' is block_0/"):
        plan(wrong, file, make_weights())
    with pytest.raises(PresetError, match="does not say which part"):
        list(convert_to_tensors(wrong, make_weights()))


def test_a_tensor_belongs_to_one_weight():
    twice = make_layout(scale=Row("g"), shift=Row("g"))
    ours = {path: keras.Variable(0.0) for path in ("scale", "shift")}
    with pytest.raises(PresetError, match="does not say which part of 'g' is scale, shift"):
        plan(twice, Tensors({"g": np.zeros((), "float32")}), ours)
