"""Example requests for exported models, which warm up servers and appear in the README."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, SignatureDef

    from lmzoo.serving.served_model import ServedModel

# TensorFlow Serving expects this name.
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
_TEXT = "A quiet, lovely {}."
_SECOND_CHOICE = "Dull."
_QUESTION = "What is lovely?"


def string_signatures(meta_graph: MetaGraphDef) -> dict[str, SignatureDef]:
    """Return, by name, the signatures of a graph that take only strings."""
    import tensorflow as tf

    return {
        name: signature
        for name, signature in sorted(meta_graph.signature_def.items())
        if signature.inputs and all(info.dtype == tf.string.as_datatype_enum for info in signature.inputs.values())
    }


def example_requests(task: ServedModel, signature: SignatureDef) -> Iterator[dict[str, np.ndarray]]:
    """Yield example requests for a signature: a short text, a text longer than `served_length`, and a batch of both.

    The graph pads batches to their longest sequence, so the first two requests have the smallest and the largest shape.
    If the task fills masks, each text contains a mask token.

    Yields:
        A dict of string arrays by input name, sorted by name.
    """
    short_text = _TEXT.format(task.preprocessor.tokenizer.mask_token if "mask_positions" in task.input else "film")
    long_text = short_text + " film" * task.served_length  # each word has at least one token
    for texts in ([short_text], [long_text], [short_text, long_text, short_text, short_text]):
        request = {}
        for name, info in sorted(signature.inputs.items()):
            values = np.array([_QUESTION] * len(texts) if name == "question" else texts, dtype=object)
            for _ in info.tensor_shape.dim[1:]:
                values = np.stack([values, np.full_like(values, _SECOND_CHOICE)], axis=-1)  # such as two choices
            request[name] = values
        yield request


def write_warmup(task: ServedModel, meta_graph: MetaGraphDef, folder: Path) -> None:
    """Write the warm-up requests that TensorFlow Serving runs after loading a model."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    warmup_path = folder / WARMUP_FILE
    warmup_path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(warmup_path)) as writer:
        for name, signature in string_signatures(meta_graph).items():
            for request in example_requests(task, signature):
                log_entry = prediction_log_pb2.PredictionLog()
                log_entry.predict_log.request.model_spec.signature_name = name
                for key, values in request.items():
                    log_entry.predict_log.request.inputs[key].CopyFrom(tf.make_tensor_proto(values, tf.string))
                writer.write(log_entry.SerializeToString(deterministic=True))


def read_warmup(folder: Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield `(signature name, dict of input arrays by name)` for each request that `write_warmup` wrote."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    for record in tf.data.TFRecordDataset(str(folder / WARMUP_FILE)):
        request = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
        yield request.model_spec.signature_name, {name: tf.make_ndarray(x) for name, x in request.inputs.items()}
