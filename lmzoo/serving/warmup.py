"""Example requests: those that warm up a server before its first real one, and the one in the README."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, SignatureDef

    from lmzoo.serving.served_model import ServedModel

# TensorFlow Serving looks for this name.
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
_SHORT, _OTHER, _QUESTION = "A quiet, lovely {}.", "Dull.", "What is lovely?"


def string_signatures(meta_graph: MetaGraphDef) -> dict[str, SignatureDef]:
    """Return the signatures whose inputs are all strings, by name."""
    import tensorflow as tf

    return {
        name: signature
        for name, signature in sorted(meta_graph.signature_def.items())
        if signature.inputs and all(info.dtype == tf.string.as_datatype_enum for info in signature.inputs.values())
    }


def example_requests(task: ServedModel, signature: SignatureDef) -> Iterator[dict[str, np.ndarray]]:
    """Yield requests to a signature of strings: a short text, one that is too long and is cut, and a batch of both.

    The graph pads a batch to its longest sequence: the first two requests have the narrowest shape and the widest. If
    the task fills masks, the texts hold one.

    Yields:
        An array of strings for each input, in the order of their names.
    """
    short = _SHORT.format(task.preprocessor.tokenizer.mask_token if "mask_positions" in task.input else "film")
    long = short + " film" * task.served_length  # a word is a token or more
    for texts in ([short], [long], [short, long, short, short]):
        request = {}
        for name, info in sorted(signature.inputs.items()):
            values = np.array([_QUESTION] * len(texts) if name == "question" else texts, dtype=object)
            for _ in info.tensor_shape.dim[1:]:
                values = np.stack([values, np.full_like(values, _OTHER)], axis=-1)  # such as two choices
            request[name] = values
        yield request


def write_warmup(task: ServedModel, meta_graph: MetaGraphDef, folder: Path) -> None:
    """Write requests that TensorFlow Serving runs after loading a model and before it takes requests."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    file = folder / WARMUP_FILE
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for name, signature in string_signatures(meta_graph).items():
            for request in example_requests(task, signature):
                log = prediction_log_pb2.PredictionLog()
                log.predict_log.request.model_spec.signature_name = name
                for key, values in request.items():
                    log.predict_log.request.inputs[key].CopyFrom(tf.make_tensor_proto(values, tf.string))
                writer.write(log.SerializeToString(deterministic=True))


def read_warmup(folder: Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield the name of the signature and the inputs of each request that `write_warmup` wrote."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    for record in tf.data.TFRecordDataset(str(folder / WARMUP_FILE)):
        request = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
        yield request.model_spec.signature_name, {name: tf.make_ndarray(x) for name, x in request.inputs.items()}
