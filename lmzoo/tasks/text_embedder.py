"""One vector for a text, or for each of its words."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.families.backbone import Backbone
from lmzoo.family import family_of
from lmzoo.layers import MaxPooler, MeanPooler, unit_vectors
from lmzoo.tasks.base.data_adapter import as_array
from lmzoo.tasks.base.examples import Examples
from lmzoo.tasks.base.input_kinds import split_segments
from lmzoo.tasks.base.labels import encode_numbers
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.word_vectors import LayerModels, embed_words
from lmzoo.text import Encoded, EncodedTexts, Preprocessor
from lmzoo.text.validate_text import clean_columns
from lmzoo.training.contrastive import MultipleNegativesRanking, PairAccuracy, PairCorrelation, PairCosineError


@dataclass(frozen=True)
class EncodedPairs(Encoded):
    """Pairs of texts that are encoded each on its own.

    Attributes:
        texts: 2n rows; 2i and 2i + 1 are pair i.
    """

    texts: EncodedTexts

    @property
    def lengths(self) -> np.ndarray:
        """Int64 (n,), that of the longer text of each pair."""
        return self.texts.lengths.reshape(-1, 2).max(axis=1)

    def select(self, rows: Any) -> EncodedPairs:
        """The given pairs, in the given order."""
        return EncodedPairs(self.texts.select(self.rows_of(rows)))

    @staticmethod
    def rows_of(pairs: Any) -> np.ndarray:
        """Int64 (2m,), the rows of m pairs."""
        return (2 * np.asarray(pairs, "int64")[:, None] + [0, 1]).reshape(-1)


@keras.saving.register_keras_serializable(package="lmzoo")
class TextEmbedder(Task):
    """Gives a text a vector, so that texts can be compared (Reimers and Gurevych, 2019).

    The model's output is float32 (B, H). It has no weights of its own.

    `fit` takes pairs of texts, each of which is encoded on its own, as a tuple of two lists or a list of 2-tuples.
    With `objective="contrastive"` they belong together (a question and its answer, two wordings of a sentence, or twice
    the same text, which dropout tells apart), there are no labels, and each text learns to find its partner among
    those of its batch: see `lmzoo.training.MultipleNegativesRanking`; the larger the batch, the better. With
    `"cosine"` each pair has a label between -1 and 1, to which the cosine of its vectors is fitted:
    `lmzoo.training.PairCosineError`.

    Batches of token features hold pairs as rows 2i and 2i + 1, with a label and a weight for each row, and are not
    shuffled.

    Args:
        backbone: `lmzoo.models.Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        pooling: `"mean"` or `"max"` over the real tokens, or `"cls"`, the last layer's vector of the first token. (That
            is not `pooling="first"` of `TextClassifier`, which is the backbone's `pooled_output`: BERT's has a dense
            layer more, trained for another task.)
        normalize: bool, whether to divide vectors by their lengths, so that their products are cosines.
        objective: `"contrastive"` or `"cosine"`, what `fit` trains.
        temperature: float above 0, of the contrastive objective.
        name: name of the model.

    Raises:
        ValueError: for an unknown `pooling` or `objective`, a `temperature` that is not positive, or `"cls"` where rows
            begin with no token of their own (ELMo).

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    embedder.fit([("How old is it?", "It is ten years old."), ("Who wrote it?", "Jane Austen did.")], verbose=0)
    question, *answers = embedder.embed(["How old are you?", "She is nine.", "In the garden."])
    [float(question @ answer) for answer in answers]  # cosines
    ```
    """

    head_kind = "embedding"
    uses_pooler = False
    independent_rows = False
    _layer_models: LayerModels | None = None
    learns_from = "pairs"

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        pooling: str = "mean",
        normalize: bool = True,
        objective: str = "contrastive",
        temperature: float = 0.05,
        labels: None = None,
        name: str = "text_embedder",
    ) -> None:
        if pooling not in ("cls", "mean", "max"):
            raise ValueError(f'`pooling` must be "cls", "mean" or "max", got {pooling!r}.')
        if pooling == "cls" and not family_of(backbone).packing.start:
            raise ValueError(
                f'A {type(backbone).__name__} has no first token that stands for the text: choose "mean" or "max".'
            )
        if objective not in ("contrastive", "cosine"):
            raise ValueError(f'`objective` must be "contrastive" or "cosine", got {objective!r}.')
        if not isinstance(temperature, numbers.Real) or not temperature > 0:
            raise ValueError(f"`temperature` must be a positive number, got {temperature!r}.")
        inputs = backbone.input
        mask = backbone.padding_mask(inputs)  # (B, T)
        if pooling == "cls":
            first = ops.zeros_like(mask[:, :1], dtype="int32")  # (B, 1)
            pooled = backbone.vectors_at(inputs, first)[:, 0]  # (B, H)
        else:
            pooler = (MaxPooler if pooling == "max" else MeanPooler)(dtype=backbone.dtype_policy, name="pooler")
            pooled = pooler(backbone(inputs)["sequence_output"], mask)  # (B, H)
        outputs = unit_vectors(pooled) if normalize else ops.cast(pooled, "float32")
        super().__init__(backbone, preprocessor, inputs, outputs, None, name)
        self.objective: str = objective
        self.needs_labels = objective == "cosine"
        self.temperature: float = float(temperature)
        self.pooling: str = pooling
        self.normalize: bool = normalize

    def default_loss(self) -> Any:
        """That of the objective."""
        return PairCosineError() if self.objective == "cosine" else MultipleNegativesRanking(self.temperature)

    def default_metrics(self) -> list[Any]:
        """How often partners find each other, or the correlation of cosines and labels."""
        return [PairCorrelation() if self.objective == "cosine" else PairAccuracy()]

    @property
    def unused_variables(self) -> list[Any]:
        """Also ELMo's gamma: it scales all vectors, which vectors of length 1 do not show."""
        mix = self.backbone.scalar_mix
        return super().unused_variables + ([mix.gamma] if mix is not None and self.normalize else [])

    def forget_compiled(self) -> None:
        """Also drops the models that `embed` made for single layers."""
        super().forget_compiled()
        self._layer_models = None

    @property
    def layer_models(self) -> LayerModels:
        """The models that `embed` makes for single layers, compiled as the task is."""
        if self._layer_models is None:
            compiled = {"jit_compile": self.jit_compile, "run_eagerly": self.run_eagerly}
            self._layer_models = LayerModels(self.backbone, **compiled)
        return self._layer_models

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "pooling": self.pooling,
            "normalize": self.normalize,
            "objective": self.objective,
            "temperature": self.temperature,
        }

    # === Pairs ===

    def encode_examples(self, x: Any, y: Any = None, sample_weight: Any = None) -> Examples:
        """Pairs of texts, their labels, if the objective has any, and weights."""
        self.check_takes_text()
        self.check_unlabelled(y)
        pairs = x if isinstance(x, EncodedPairs) else self._encode_pairs(x)
        examples = Examples(pairs, self.encode_labels(y), as_array(sample_weight))
        self.check_counts(len(pairs), examples.labels, examples.weights)
        return examples

    def check_unlabelled(self, y: Any) -> None:
        """See `Task.check_unlabelled`; also says what takes labels."""
        try:
            super().check_unlabelled(y)
        except ValueError as error:
            raise ValueError(
                f'{error} For pairs with similarities build it with `objective="cosine"`. '
                "The elements of a `tf.data.Dataset` of pairs are ((firsts, seconds),)."
            ) from None

    def _encode_pairs(self, x: Any) -> EncodedPairs:
        words = self.text_preprocessor.tokenizer.takes_words
        firsts, seconds = split_segments(x, words)
        if seconds is None:
            raise ValueError(
                f"{type(self).__name__} is trained on pairs of texts: pass (firsts, seconds), two lists, or a list of "
                "2-tuples. To tell texts apart by dropout alone, pass (texts, texts)."
            )
        firsts, seconds = clean_columns({"texts": firsts, "pairs": seconds}, words)
        if len(firsts) != len(seconds):
            raise ValueError(f"Pairs need as many second texts as first: got {len(firsts)} and {len(seconds)}.")
        both = [text for pair in zip(firsts, seconds, strict=True) for text in pair]
        return EncodedPairs(self.text_preprocessor.encode(both))

    def encode_labels(self, y: Any) -> np.ndarray | None:
        """Similarities as float32 (n,), each checked to be a number between -1 and 1."""
        if y is None or not self.needs_labels:
            return as_array(y)
        array = encode_numbers(y)
        wrong = np.flatnonzero(np.abs(array) > 1)
        if len(wrong):
            raise ValueError(
                f"Label {array[wrong[0]]:g} at position {wrong[0]} is no cosine: labels are between -1 and 1. Divide "
                "those of another scale by its highest value (STS-B's by 5)."
            )
        return array

    def make_batch(self, examples: Examples, rows: np.ndarray, width: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """`(features, y (2b,))` and perhaps weights (2b,): each text is a row.

        Without labels, `y` numbers the texts, so that equal texts can be told.
        """
        pairs, labels, weights = examples
        features = self.features(pairs.texts, pairs.rows_of(rows), width)
        if labels is None:
            numbers_of: dict[bytes, int] = {}
            ids = next(features[name] for name in ("character_ids", "token_ids") if name in features)
            targets = np.array([numbers_of.setdefault(row.tobytes(), len(numbers_of)) for row in ids], "int32")
        else:
            targets = np.repeat(labels[rows], 2)
        return (features, targets) if weights is None else (features, targets, np.repeat(weights[rows], 2))

    # === Vectors ===

    def embed(self, texts: Sequence[Any], batch_size: int = 32, level: str = "text", layers: Any = None) -> Any:
        """The vectors of texts, or of their words.

        A word's vector is the mean over the tokens that it is made of, in the text as it stands, and is not divided by
        its length. If several words share a token and have no other, each has that token's vector. Words that do not
        fit into the model, or of which the tokenizer leaves nothing, are zeros, with a warning.

        Args:
            texts: a list of strings. For vectors of texts, a pair as one text is allowed, too: a tuple of two lists or
                a list of 2-tuples. For vectors of words a text may also be a list of words; strings are split by
                `lmzoo.text.word_splitting.split_words`.
            batch_size: int.
            level: `"text"` or `"word"`.
            layers: for words, where their vectors are taken from. None: the backbone's `sequence_output`, which is the
                last layer, or ELMo's mix as it was trained. An int: one of `hidden_states`, 0 being what enters the
                first layer, -1 the last. A list of ints: their mean. A dict from ints to floats: their sum with these
                weights. `"all"`: all of them, apart.

        Returns:
            For texts, float32 (n, H). For words, a list of n `WordVectors(words, offsets, vectors)`: the words, int64
            (w, 2) where they stand in the text, and float32 (w, H), or (w, L, H) for `"all"`.

        Raises:
            TypeError: naming the position of an entry that is not text.
            ValueError: for another level, for pairs at the level of words, or for layers that the model does not have.

        Example:

        ```python
        import lmzoo

        embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
        embedder.embed(["A quiet film."]).shape  # (1, 128)
        (found,) = embedder.embed(["She sat on the bank."], level="word", layers=[-1, -2])
        found.vectors[found.words.index("bank")]  # float32 (128,)
        ```
        """
        if level == "word":
            self.compile_by_default()
            self.check_takes_text()
            singles, seconds = split_segments(texts, words=True)
            if seconds is not None:
                raise ValueError('`level="word"` takes single texts, each a string or a list of words; got pairs.')
            return embed_words(self, self.layer_models, singles, layers, batch_size)
        if level != "text":
            raise ValueError(f'`level` must be "text" or "word", got {level!r}.')
        if layers is not None:
            raise ValueError('`layers` are for `level="word"`: the vector of a text is the output of the model.')
        return self.predict(texts, batch_size=batch_size, verbose=0)

    verb = "embed"
    served_outputs = ("embedding",)
    output_name = "embedding"

    def serve(self, features: dict[str, Any]) -> dict[str, Any]:
        """The exported model's answers, as TensorFlow ops: `embedding`, float32 (B, H), vectors of texts."""
        return {"embedding": self(features, training=False)}
