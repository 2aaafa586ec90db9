"""Ops that TensorFlow Serving supports, and ops that it lacks."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")
tf_text = pytest.importorskip("tensorflow_text")

from lmzoo.serving import allowed_ops as served  # noqa: E402
from lmzoo.serving.allowed_ops import check_ops, list_ops  # noqa: E402

STRINGS = tf.TensorSpec([None], tf.string)


def graph_of(function, *specs):
    return tf.function(function).get_concrete_function(*specs).graph.as_graph_def()


def test_ops_of_both_libraries_pass():
    graph = graph_of(lambda x: tf.strings.length(tf_text.normalize_utf8(x)), STRINGS)
    assert {"NormalizeUTF8", "StringLength"} <= list_ops(graph)
    check_ops(graph)


def test_python_functions_in_nested_graphs_are_refused():
    def through_python(text):
        return tf.ensure_shape(tf.numpy_function(bytes.upper, [text], tf.string), [])

    graph = graph_of(lambda texts: tf.map_fn(through_python, texts), STRINGS)
    assert {node.op for node in graph.node}.isdisjoint({"PyFunc", "EagerPyFunc"})
    with pytest.raises(ValueError, match=r"It uses (Eager)?PyFunc, and servers"):
        check_ops(graph)


def test_newer_ops_and_attributes_are_refused():
    def item(handle, index, shape):
        return tf.raw_ops.TensorListGetItem(
            input_handle=handle, index=index, element_shape=shape, element_dtype=tf.float32
        )

    def use_newer_op(*inputs):
        tf.raw_ops.DecodeJxl(contents="")
        return item(*inputs)

    specs = [tf.TensorSpec([], tf.variant), tf.TensorSpec([], tf.int32)]
    check_ops(graph_of(item, *specs, tf.TensorSpec([1], tf.int32)))
    with pytest.raises(ValueError, match=r"uses DecodeJxl, TensorListGetItem\(Tshape\), and"):
        check_ops(graph_of(use_newer_op, *specs, tf.TensorSpec([1], tf.int64)))


def test_the_tables_match_this_tensorflow():
    """For another TensorFlow, compare its ops with the ops of the oldest server again."""
    assert tf.__version__.split(".")[:2] == ["2", "21"]
    assert set(dir(tf.raw_ops)) >= served._LATER_OPS | served._PYTHON_OPS
    assert served._TEXT_OPS.isdisjoint(dir(tf.raw_ops))
