"""Writing texts from others in exported models: strings in, strings out.

Letters in shape comments: B sources, T tokens of the longest, L positions of targets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmzoo.serving.export import signature, strings
from lmzoo.serving.served_model import Signatures
from lmzoo.tasks.beam_search import BeamSampler
from lmzoo.tasks.generation import TokenGenerator

if TYPE_CHECKING:
    import tensorflow as tf


def translation_signatures(task: Any) -> Signatures:
    """Return the signatures of a model that writes a text from another one: see `Seq2SeqLM.signatures`."""
    import tensorflow as tf

    from lmzoo.text.graphs import graph_packer

    pack = graph_packer(task.text_preprocessor)

    def from_strings(text: tf.Tensor) -> dict[str, tf.Tensor]:
        features = pack(text)
        truncated = features.pop("truncated")
        return {"text": translated(task, features), "truncated": truncated}

    specs = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in ("token_ids", "padding_mask")}
    return pack, {
        "serving_default": signature(from_strings, strings("text")),
        "tokens": signature(lambda features: {"text": translated(task, features)}, [specs]),
    }


def translated(task: Any, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return the texts that a model writes from sources, in TensorFlow ops.

    Args:
        task: a `Seq2SeqLM`.
        features: `token_ids` and `padding_mask`, int32 (B, T), of sources.

    Returns:
        `tf.string` (B,).
    """
    import tensorflow as tf

    from lmzoo.text.graphs import graph_detokenizer

    tokenizer = task.text_preprocessor.tokenizer
    (end,) = task.text_preprocessor.special_ids()[2]
    source = {name: features[name] for name in ("token_ids", "padding_mask")}
    length = tf.reduce_sum(source["padding_mask"], axis=1)  # (B,)
    limit = 1 + task.most_new_tokens(length)  # (B,)
    last = tf.reduce_max(tf.concat([limit, [2]], axis=0))
    made = TokenGenerator(task, tokenizer.vocabulary_size).generate_in_graph(
        BeamSampler(task.num_beams, task.length_penalty),
        prompt=tf.fill(tf.stack([tf.size(length), last]), tokenizer.pad_id),
        read=tf.fill(tf.stack([tf.size(length), 1]), tokenizer.pad_id),
        length=tf.ones_like(length),
        limit=limit,
        start=tf.constant(1),
        end=last,
        stops=tf.constant([end]),
        temperature=tf.constant(1.0),
        source=source,
    )  # (B, L)
    place = tf.range(tf.shape(made)[1])  # (L,)
    within = (place >= 1) & (place < limit[:, None])  # (B, L)
    ended = within & ((made == end) | (made >= tokenizer.vocabulary_size))
    kept = within & (tf.cumsum(tf.cast(ended, tf.int32), axis=1) == 0)
    return graph_detokenizer(tokenizer)(tf.ragged.boolean_mask(made, kept))
