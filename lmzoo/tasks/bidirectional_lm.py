"""Training a bidirectional language model, ELMo's own objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.data.corpora.lm_batches import DocumentStreams, EncodedDocuments, Step
from lmzoo.families.backbone import Backbone
from lmzoo.family import Family, family_of
from lmzoo.layers import SampledSoftmax
from lmzoo.layers.stateful_bilm import StreamedBiLM
from lmzoo.progress import progress_bar
from lmzoo.tasks.base.examples import BatchOptions, Examples
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.language_model_inputs import are_documents, features_of_steps, split_documents
from lmzoo.text import Encoded, Preprocessor, WordTokenizer
from lmzoo.text.batching import keras_input
from lmzoo.training.lm_losses import Perplexity, UnrolledLoss
from lmzoo.training.optimizers import Adagrad

BATCH_SIZE = 128  # rows


@keras.saving.register_keras_serializable(package="lmzoo")
class BidirectionalLM(Task):
    """Predicts each word from those before it and, apart from that, from those after it (Peters et al., 2018).

    https://arxiv.org/abs/1802.05365; the training is that of the original implementation, bilm-tf.

    `fit`, `evaluate` and `perplexity` take documents, each a list of sentences: strings, which are split into words, or
    lists of words. Anything that can be gone through again will do; it is read as it is needed. Words are read as they
    are spelt; those to be predicted that the vocabulary lacks are `<UNK>`.

    A batch has a row for each of `batch_size` streams of sentences and no padding, and the LSTMs of a row go on where
    they ended in the batch before; a pass through the documents begins with zeros. What is read backward is a stream of
    its own: in `fit` documents are read in an order of their own in each direction. An epoch has as many batches as
    the words make, and where documents end before its last one is full, they begin anew.

    In training the softmax is over a sample of the words (`lmzoo.layers.SampledSoftmax`), else over all of them. It is
    shared by both directions. The default optimizer is Adagrad with rate 0.2, gradients clipped to norm 10, and the
    default loss a row's negative log-likelihood, `lmzoo.training.UnrolledLoss`. The perplexities that `fit` reports of
    training are those of the sampled softmax, and smaller than the true ones.

    `predict` takes documents, too, and begins each with zeros. Its outputs are float32 (n, T, 2), log-probabilities of
    each document's words and `</S>`, forward and backward, each in the order of reading, 0 at padding.

    With token features the inputs are those of the backbone with one more axis, of both directions: `character_ids`
    int32 (B, T, 2, W), or `token_ids` (B, T, 2), what is read; `targets` int32 (B, T, 2), ranks of the words that come
    next, -1 at padding; `goes_on` int32 (B,), 1 for rows that go on with the batch before.

    Args:
        backbone: an `ElmoBackbone`. Its mix is not trained.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        vocabulary: the words to predict: `<S>`, `</S>`, `<UNK>`, then others by falling frequency;
            `lmzoo.data.corpora.train_words` learns them. A list, or a `lmzoo.text.WordTokenizer`.
        num_sampled: int, words in the sample; if the vocabulary has no more, all are taken.
        unroll_steps: int, words of a row of a batch, through which gradients flow. Settable.
        name: name of the model.

    Raises:
        ValueError: for a backbone without the two stacks, or without a vocabulary that begins with the special words.

    Example:

    ```python
    import lmzoo
    from lmzoo.families.elmo import FAMILY
    from lmzoo.text import CharacterTokenizer, Preprocessor

    documents = [["The ship left the harbour at dawn.", "Nobody had seen the island."], ["The sea grew rough."]]
    model = lmzoo.models.BidirectionalLM(
        lmzoo.models.ElmoBackbone(lstm_dim=12, projection_dim=6, filters=((1, 5), (2, 8))),
        Preprocessor(CharacterTokenizer(), FAMILY.packing),
        vocabulary=lmzoo.data.corpora.train_words(documents, vocabulary_size=10),
        unroll_steps=3,
    )
    model.fit(documents, batch_size=2, epochs=2, verbose=0)
    model.perplexity([["The ship had left.", "Dawn!"]], verbose=False)
    ```
    """

    head_kind, pretrains = "bidirectional_lm", True
    needs_labels = False
    learns_from = "documents"
    independent_rows = False
    per_token = True

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        vocabulary: WordTokenizer | Sequence[str] | None = None,
        num_sampled: int = 8192,
        unroll_steps: int = 20,
        labels: None = None,
        name: str = "bidirectional_lm",
    ) -> None:
        if not self.supports(family_of(backbone)):
            raise ValueError(f"{type(backbone).__name__} has no LSTMs of two directions: it cannot learn to predict.")
        words, policy = _checked(vocabulary), backbone.dtype_policy
        ((kind, ids),) = backbone.input.items()
        inputs = {
            kind: keras.Input((None, 2, *ids.shape[2:]), dtype="int32", name=kind),
            "targets": keras.Input((None, 2), dtype="int32", name="targets"),
            "goes_on": keras.Input((), dtype="int32", name="goes_on"),
        }
        streams = StreamedBiLM(backbone.bilm, backbone.config.dropout, dtype=policy, name="streams")
        head = SampledSoftmax(len(words.vocabulary), num_sampled, dtype=policy, name="softmax")
        vectors = streams(inputs[kind], inputs["goes_on"])  # of both directions (B, T, P)
        found = [head(x, inputs["targets"][:, :, side]) for side, x in enumerate(vectors)]  # (B, T)
        super().__init__(backbone, preprocessor, inputs, ops.stack(found, axis=-1), None, name)
        self.streams, self.head, self.vocabulary, self.num_sampled = streams, head, words, num_sampled
        self.unroll_steps = unroll_steps

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Whether the family's backbones carry a state from text to text."""
        return hasattr(family.backbone, "call_with_state")

    @property
    def unused_variables(self) -> list[Any]:
        """Variables that no loss of the task reaches: those of the mix."""
        return [] if self.backbone.scalar_mix is None else self.backbone.scalar_mix.variables

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        """That of bilm-tf."""
        return Adagrad(0.2, initial_accumulator_value=1.0, global_clipnorm=10.0)

    def default_loss(self) -> keras.losses.Loss:
        """The negative log-likelihood of a row's words."""
        return UnrolledLoss()

    def default_metrics(self) -> list[Any]:
        """Perplexity, of both directions and of each."""
        return [Perplexity(), Perplexity(0, "forward_perplexity"), Perplexity(1, "backward_perplexity")]

    # === Fit, evaluate, predict ===

    def batches(self, x: Any, y: Any, sample_weight: Any, options: BatchOptions) -> tuple[Any, Any, Any]:
        """See `Task.batches`: documents become streams of sentences.

        To learn from, documents are read again and again; otherwise every sentence is read once. Rows get shorter
        where there are none left then, which the loss counts as nothing and the perplexities do not count. With
        `steps_per_epoch` the words need not be counted, and an epoch goes on where the one before ended.

        Raises:
            TypeError: for a document that is no list of sentences, naming its position.
            ValueError: for labels or weights, and if the words do not fill a batch.
        """
        if not are_documents(x):
            return super().batches(x, y, sample_weight, options)
        self.check_unlabelled(y)
        if sample_weight is not None:
            raise ValueError("A document has no weight, since a batch holds parts of many.")
        size = options.batch_size or BATCH_SIZE
        if not options.training:
            return self._test_streams(x, size, self.unroll_steps, options.verbose), None, None
        self.check_takes_text()
        shuffle, seed = options.order == "shuffle", options.seed
        streams = DocumentStreams(x, self._make_stream_batch, size, self.unroll_steps, shuffle=shuffle, seed=seed)
        if options.steps is None:
            streams.count(options.verbose)
        self._make_room(size, training=True)
        return streams, None, None

    def split_validation(self, x: Any, y: Any, sample_weight: Any, share: float) -> tuple[tuple[Any, Any, Any], Any]:
        """See `Task.split_validation`: whole documents are held out."""
        if not are_documents(x):
            return super().split_validation(x, y, sample_weight, share)
        train, held_out = split_documents(x, share)
        return (train, y, sample_weight), (held_out,)

    def perplexity(
        self, documents: Any, batch_size: int = 256, direction: str | None = None, verbose: bool = True
    ) -> float:
        """Exponential of the mean negative log-likelihood of all words and ends of sentences.

        The softmax is over all words, words that the vocabulary lacks count as `<UNK>`, and the rows' states are
        carried on from step to step. All that is as in bilm-tf, but that it leaves out what the other rows have left
        when one of them ends, where here every word counts.

        Args:
            documents: documents, each a list of sentences.
            batch_size: int, rows. With one, each sentence is read after all the others before it.
            direction: `"forward"` or `"backward"`; None for the mean of both, of the logarithms.
            verbose: whether to show progress.

        Returns:
            The perplexity.

        Raises:
            TypeError: for a document that is no list of sentences, naming its position.
            ValueError: if there are no words, or for another `direction`.
        """
        sides = {None: slice(None), "forward": slice(0, 1), "backward": slice(1, 2)}
        if direction not in sides:
            raise ValueError(f'`direction` must be "forward", "backward" or None, got {direction!r}.')
        streams = self._test_streams(documents, batch_size, 1, verbose)
        with progress_bar("Evaluating", streams.num_batches, "batches", verbose) as advance:
            shown = keras.callbacks.LambdaCallback(on_predict_batch_end=lambda batch, logs=None: advance(1))
            found = super().predict(keras_input(streams), verbose=0, callbacks=[shown])[..., sides[direction]]
        return float(np.exp(-found.sum(dtype="float64") / (streams.num_words * found.shape[-1])))

    def _test_streams(self, documents: Any, rows: int, steps: int, verbose: bool) -> DocumentStreams:
        self.check_takes_text()
        streams = DocumentStreams(documents, self._make_stream_batch, rows, steps, once=True)
        streams.count(verbose)
        self._make_room(rows, training=False)
        return streams

    def _make_room(self, rows: int, training: bool) -> None:
        if self.streams.make_room(rows, training):
            if training:
                self.train_function = None
            else:
                self.test_function = self.predict_function = None

    # === Documents as features ===

    def encode_inputs(self, x: Any) -> Any:
        """Documents, each by itself; see `Task.encode_inputs`."""
        self.check_takes_text()
        return x if isinstance(x, Encoded) else EncodedDocuments.of(x)

    def make_batch(self, examples: Examples, rows: np.ndarray, width: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """Documents to learn from, each from zeros on: `(features, targets)`."""
        features = self.features(examples.encoded, rows, width)
        return features, features["targets"]

    def features(self, encoded: EncodedDocuments, rows: np.ndarray, width: int) -> dict[str, np.ndarray]:
        """The model's inputs for some documents, padded to `width`."""
        steps = [encoded.documents[row] for row in rows]
        return features_of_steps(self.text_preprocessor.tokenizer, self.vocabulary, steps, width, goes_on=False)

    def _make_stream_batch(self, rows: list[list[Step]], width: int, goes_on: bool) -> tuple[Any, ...]:
        features = features_of_steps(self.text_preprocessor.tokenizer, self.vocabulary, rows, width, goes_on)
        return features, features["targets"]

    def backbone_inputs(self, features: dict[str, Any]) -> dict[str, Any]:
        """What is read, both directions as rows of their own; see `Task.backbone_inputs`."""
        ((name, ids),) = super().backbone_inputs(features).items()
        ids = ops.swapaxes(ops.convert_to_tensor(ids), 1, 2)
        return {name: ops.reshape(ids, (-1, *ids.shape[2:]))}

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "vocabulary": self.vocabulary.vocabulary,
            "num_sampled": self.num_sampled,
            "unroll_steps": self.unroll_steps,
        }


def _checked(vocabulary: WordTokenizer | Sequence[str] | None) -> WordTokenizer:
    if vocabulary is None:
        raise ValueError(
            "A BidirectionalLM needs `vocabulary`, the words that it predicts: "
            "`lmzoo.data.corpora.train_words(documents, vocabulary_size)` learns them."
        )
    words = vocabulary if isinstance(vocabulary, WordTokenizer) else WordTokenizer(vocabulary)
    special = WordTokenizer.special_tokens
    if (first := tuple(words.vocabulary[: len(special)])) != special:
        raise ValueError(f"`vocabulary` must begin with {', '.join(special)}, got {', '.join(first)}.")
    return words
