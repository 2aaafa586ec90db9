"""Layouts of ELMo checkpoints: options and weights of bilm-tf, which AllenNLP also reads."""

from lmzoo.checkpoints.config_table import ConfigTable
from lmzoo.checkpoints.engine import ONE_AXIS_MORE, Layout, Row, Table, skip_rows

_LSTM = {
    "lstm.dim": "lstm_dim",
    "lstm.projection_dim": "projection_dim",
    "lstm.n_layers": "num_layers",
    "lstm.cell_clip": "cell_clip",
    "lstm.proj_clip": "projection_clip",
    "lstm.use_skip_connections": "skip_connections",
}
_CHARACTERS = {
    "char_cnn.activation": "activation",
    "char_cnn.filters": "filters",
    "char_cnn.max_characters_per_token": "max_characters",
    "char_cnn.n_highway": "num_highway",
    "char_cnn.embedding.dim": "char_embedding_dim",
}
_DEFAULTS = {"lstm.n_layers": 1, "lstm.cell_clip": None, "lstm.proj_clip": None, "char_cnn.n_highway": 0}
_OMITTED = ("dropout", "freeze_bilm", "layer_norm")
_TRAINING = (
    "bidirectional", "dropout", "all_clip_norm_val", "n_epochs", "n_train_tokens", "batch_size", "n_tokens_vocab",
    "unroll_steps", "n_negative_samples_batch", "learning_rate", "sample_softmax", "share_embedding_softmax",
)  # fmt: skip


def _make_lstm_table() -> Table:
    """Return the mapping from the weights of the LSTMs to tensors in bilm-tf's files."""
    table = {}
    for direction_index, direction in enumerate(("forward", "backward")):
        cell_path = f"RNN_{direction_index}/RNN/MultiRNNCell/Cell{{i}}/LSTMCell"
        for weight, tensor in {"kernel": "W_0", "bias": "B", "projection": "W_P_0"}.items():
            table[f"bilm/lstm_{{i}}/{direction}_{weight}"] = Row(f"{cell_path}/{tensor}")
    return table


def _make_highway_table() -> Table:
    """Return the mapping from the weights of the highway layers to tensors in bilm-tf's files."""
    return {
        f"bilm/encoder/highway_{{h}}/{gate}/{weight}": Row(f"CNN_high_{{h}}/{tensor}_{gate}")
        for gate in ("carry", "transform")
        for weight, tensor in {"kernel": "W", "bias": "b"}.items()
    }


# These files have no scalar mix, since it belongs to a task.
BILM = Layout(
    name="bilm-tf",
    config=ConfigTable(
        keys={**_LSTM, **_CHARACTERS},
        defaults=_DEFAULTS,
        allowed={"char_cnn.n_characters": (261, 262)},  # 261 for training, 262 for inference
        ignored=_TRAINING,
        omitted=_OMITTED,
        written={"char_cnn.n_characters": 262},
    ),
    backbone={
        **_make_lstm_table(),
        **_make_highway_table(),
        # In these files, embeddings lack the first row (padding), and the kernels of convolutions have one more axis.
        "bilm/encoder/embedding": Row("char_embed", skip_rows(1)),
        "bilm/encoder/kernel_{k}": Row("CNN/W_cnn_{k}", ONE_AXIS_MORE),
        "bilm/encoder/bias_{k}": Row("CNN/b_cnn_{k}"),
        "bilm/encoder/projection/kernel": Row("CNN_proj/W_proj"),
        "bilm/encoder/projection/bias": Row("CNN_proj/b_proj"),
    },
    absent=("scalar_mix/",),
)

# A model with a token vocabulary. The files do not specify its size, which is the number of rows of the table.
BILM_OF_TOKENS = Layout(
    name="bilm-tf, token vocabulary",
    config=ConfigTable(keys=_LSTM, defaults=_DEFAULTS, ignored=_TRAINING, omitted=(*_OMITTED, "vocabulary_size")),
    backbone={**_make_lstm_table(), "bilm/token_embedding/embeddings": Row("embedding", skip_rows(1))},
    absent=("scalar_mix/",),
)
