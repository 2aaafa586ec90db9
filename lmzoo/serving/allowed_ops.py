"""A check for ops that the stock TensorFlow Serving lacks.

Without it, an unknown op would only be noticed when a server rejects the exported model. TensorFlow Serving 2.20 is
built with TensorFlow 2.20 and all of TF.Text 2.20's `ops_lib`; the tables below list the differences from the
TensorFlow that writes the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

# Ops in `tf.raw_ops` of TensorFlow 2.21, but not of TensorFlow 2.20.
_LATER_OPS = frozenset({"DecodeJxl"})

# The only attribute that TensorFlow 2.21 added, with its op. SavedModels omit it if it has its default, int32.
_LATER_ATTRIBUTE = ("TensorListGetItem", "Tshape")
_DT_INT32 = 3

# Ops that call back into the Python process that created them.
_PYTHON_OPS = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})

# Prefixes of ops for accelerators that the stock server is not built for.
_ACCELERATORS = ("Nccl", "TPU", "Xla")

# Ops that TF.Text 2.20 registers.
_TEXT_OPS = frozenset(
    {
        "CaseFoldUTF8", "ConstrainedSequence", "FastBertNormalize", "FastWordpieceTokenizeWithOffsets",
        "FindSourceOffsets", "MaxSpanningTree", "NormalizeUTF8", "NormalizeUTF8WithOffsetsMap",
        "PhraseTokenize", "RegexSplitWithOffsets", "RougeL", "SentenceFragments", "SentenceFragmentsV2",
        "SentencepieceDetokenizeOp", "SentencepieceIdToStringOp", "SentencepieceOp",
        "SentencepieceStringToIdOp", "SentencepieceTokenizeOp", "SentencepieceTokenizeWithOffsetsOp",
        "SentencepieceVocabSizeOp", "SplitMergeTokenizeWithOffsets", "TFText>BoiseTagsToOffsets",
        "TFText>ByteSplitByOffsets", "TFText>ByteSplitWithOffsets", "TFText>FastSentencepieceDetokenize",
        "TFText>FastSentencepieceTokenize", "TFText>FastWordpieceDetokenize", "TFText>NgramsStringJoin",
        "TFText>OffsetsToBoiseTags", "TFText>PhraseDetokenize", "TFText>RoundRobinGenerateMasks",
        "TFText>RoundRobinTrim", "TFText>Utf8Binarize", "TFText>WhitespaceTokenizeWithOffsetsV2",
        "TokenizerFromLogits", "UnicodeScriptTokenizeWithOffsets", "WhitespaceTokenizeWithOffsets",
        "WordpieceTokenizeWithOffsets",
    }
)  # fmt: skip


def list_ops(graph: GraphDef) -> set[str]:
    """Return the names of the ops in a graph and in its functions.

    Returns:
        A set of names, without the graph's own functions. An op with an attribute that servers do not support is listed
        as `op(attribute)`.

    Example:

    ```python
    import tensorflow as tf
    from lmzoo.serving.allowed_ops import list_ops

    double = tf.function(lambda x: x + x).get_concrete_function(tf.TensorSpec([None]))
    assert "AddV2" in list_ops(double.graph.as_graph_def())
    ```
    """
    op, attribute = _LATER_ATTRIBUTE
    ops = set()
    for node in (*graph.node, *(node for function in graph.library.function for node in function.node_def)):
        is_unsupported = node.op == op and attribute in node.attr and node.attr[attribute].type != _DT_INT32
        ops.add(f"{op}({attribute})" if is_unsupported else node.op)
    return ops - {function.signature.name for function in graph.library.function}


def check_ops(graph: GraphDef) -> None:
    """Check that TensorFlow Serving 2.20 and later versions support every op of a graph.

    Raises:
        ValueError: If TensorFlow Serving lacks an op of the graph; the message names all such ops.

    Example:

    ```python
    import tensorflow as tf
    from lmzoo.serving.allowed_ops import check_ops

    double = tf.function(lambda x: x + x).get_concrete_function(tf.TensorSpec([None]))
    check_ops(double.graph.as_graph_def())
    ```
    """
    import tensorflow as tf

    public_ops = {name for name in dir(tf.raw_ops) if not name.startswith(("_", *_ACCELERATORS))}
    if unknown_ops := sorted(list_ops(graph) - (public_ops - _LATER_OPS - _PYTHON_OPS) - _TEXT_OPS):
        raise ValueError(
            f"TensorFlow Serving cannot run this model. It uses {', '.join(unknown_ops)}, and servers have the ops of "
            "TensorFlow 2.20 and TF.Text 2.20, none that call Python and none for TPUs. Use other ops in the layer or "
            "in the task's `signatures`."
        )
