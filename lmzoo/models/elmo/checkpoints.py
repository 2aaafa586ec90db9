"""The files of bilm-tf and AllenNLP: options as JSON, weights as HDF5."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lmzoo.models.elmo.backbone import ElmoConfig

# In our configuration, of options that shape the model. Where a key may be missing, the value that this means.
_LSTM = {
    "dim": "lstm_dim",
    "projection_dim": "projection_dim",
    "n_layers": "num_layers",
    "cell_clip": "cell_clip",
    "proj_clip": "projection_clip",
    "use_skip_connections": "skip_connections",
}
_CHARACTERS = {
    "activation": "activation",
    "filters": "filters",
    "max_characters_per_token": "max_characters",
    "n_highway": "num_highway",
}
_DEFAULTS = {"n_layers": 1, "cell_clip": None, "proj_clip": None, "n_highway": 0}
_TRAINING = {
    "bidirectional", "dropout", "all_clip_norm_val", "n_epochs", "n_train_tokens", "batch_size", "n_tokens_vocab",
    "unroll_steps", "n_negative_samples_batch", "learning_rate", "sample_softmax", "share_embedding_softmax",
}  # fmt: skip


def config_of(options: dict[str, Any], **overrides: Any) -> ElmoConfig:
    """The configuration that an `options.json` describes.

    Args:
        options: the file's content.
        **overrides: fields of `ElmoConfig` to set instead; `vocabulary_size` for a model of a token vocabulary.

    Raises:
        ValueError: for an option that is missing, or that is not known and so might change the numbers.
    """
    _check_keys(options, {"lstm", "char_cnn"} | _TRAINING, "")
    lstm, characters = options["lstm"], options.get("char_cnn")
    _check_keys(lstm, set(_LSTM), "lstm.")
    config = {ours: _option(lstm, theirs, "lstm.") for theirs, ours in _LSTM.items()}
    if characters is not None:
        _check_keys(characters, {*_CHARACTERS, "embedding", "n_characters"}, "char_cnn.")
        config |= {ours: _option(characters, theirs, "char_cnn.") for theirs, ours in _CHARACTERS.items()}
        config["char_embedding_dim"] = characters["embedding"]["dim"]
        if characters.get("n_characters") not in (261, 262):  # in training, in use
            raise ValueError(f"`char_cnn.n_characters` must be 262, got {characters.get('n_characters')!r}.")
    return ElmoConfig(**{**config, **overrides})


def _check_keys(options: dict[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(set(options) - known):
        raise ValueError(f"Unknown option `{where}{unknown[0]}`: what it changes is not known, so nothing is loaded.")


def _option(options: dict[str, Any], key: str, where: str) -> Any:
    if key not in options and key not in _DEFAULTS:
        raise ValueError(f"The options lack `{where}{key}`.")
    return options.get(key, _DEFAULTS.get(key))


def datasets(config: ElmoConfig) -> Iterator[tuple[str, str]]:
    """Pairs of a weight's path below `bilm` and its dataset's name.

    A table's dataset lacks the first row, that of no token, and a convolution's has one more axis.
    """
    if config.vocabulary_size is not None:
        yield "token_embedding/embeddings", "embedding"
    else:
        yield "encoder/embedding", "char_embed"
        for i in range(len(config.filters)):
            yield f"encoder/kernel_{i}", f"CNN/W_cnn_{i}"
            yield f"encoder/bias_{i}", f"CNN/b_cnn_{i}"
        for i in range(config.num_highway):
            for name in ("carry", "transform"):
                yield f"encoder/highway_{i}/{name}/kernel", f"CNN_high_{i}/W_{name}"
                yield f"encoder/highway_{i}/{name}/bias", f"CNN_high_{i}/b_{name}"
        if config.num_filters != config.projection_dim:
            yield "encoder/projection/kernel", "CNN_proj/W_proj"
            yield "encoder/projection/bias", "CNN_proj/b_proj"
    for d, direction in enumerate(("forward", "backward")):
        for layer in range(config.num_layers):
            cell = f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            yield f"lstm_{layer}/{direction}_kernel", f"{cell}/W_0"
            yield f"lstm_{layer}/{direction}_bias", f"{cell}/B"
            if config.lstm_dim != config.projection_dim:
                yield f"lstm_{layer}/{direction}_projection", f"{cell}/W_P_0"
