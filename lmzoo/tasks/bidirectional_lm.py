"""Training a bidirectional language model, ELMo's own objective."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.progress import progress_bar
from lmzoo.common.tensor_types import Features
from lmzoo.data.corpora.lm_batches import DocumentStreams, EncodedDocuments, Step
from lmzoo.data.corpora.word_vocabulary import Document
from lmzoo.families.backbone import Backbone
from lmzoo.layers import SampledSoftmax
from lmzoo.layers.stateful_bilm import StreamedBiLM
from lmzoo.registry.family import Family, family_of
from lmzoo.tasks.base.examples import Batch, BatchOptions, Examples, FeatureArrays, TrainingData
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.inputs import TaskInputs, are_documents, split_documents
from lmzoo.text import Preprocessor, WordTokenizer
from lmzoo.text.keras_input import keras_input
from lmzoo.text.tokenizers.characters import NO_BYTE
from lmzoo.training.lm_losses import Perplexity, UnrolledLoss
from lmzoo.training.optimizers import Adagrad

BATCH_SIZE = 128
_COLUMNS = 16  # the characters of a batch's words are cut to a multiple of this, so that few shapes are compiled


@keras.saving.register_keras_serializable(package="lmzoo")
class BidirectionalLM(Task):
    """A model of each word given the words before it and, independently, given those after it (Peters et al., 2018).

    https://arxiv.org/abs/1802.05365; the training is that of the original implementation, bilm-tf.

    `fit`, `evaluate` and `perplexity` take documents, each a list of sentences: strings, which are split into words, or
    lists of words. Any collection that can be iterated over repeatedly will do; it is read as needed. Words are read by
    their characters; words to be predicted that are not in the vocabulary are `<UNK>`.

    A batch holds a sequence from each of `batch_size` streams of sentences, without padding, and the LSTMs continue
    each stream from their states in the previous batch; a pass over the documents begins with zeros. Each direction has
    streams of its own: in `fit` the forward and the backward direction read the documents in different orders. An epoch
    has as many batches as the words make; where documents end before its last batch is full, they start again.

    In training the softmax is over a sample of the words (`lmzoo.layers.SampledSoftmax`), otherwise over all words. It
    is shared by both directions. The default optimizer is Adagrad with rate 0.2, gradients clipped to norm 10, and the
    default loss the negative log-likelihood of a sequence, `lmzoo.training.UnrolledLoss`. The training perplexities
    that `fit` reports are those of the sampled softmax, and smaller than the true ones.

    `predict` takes documents, too, and begins each with zeros. Its outputs are float32 (n, T, 2), log-probabilities of
    each document's words and `</S>`, forward and backward, each in the order of reading, 0 at padding.

    With token features the inputs are those of the backbone with one more axis, for the directions: `character_ids`
    int32 (B, T, 2, W), or `token_ids` (B, T, 2), the words that are read; `targets` int32 (B, T, 2), ranks of the words
    that come next, -1 at padding; `goes_on` int32 (B,), 1 for sequences that continue those of the previous batch.

    Args:
        backbone: an `ElmoBackbone`. Its mix is not trained.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        vocabulary: the words to predict: `<S>`, `</S>`, `<UNK>`, then others by falling frequency;
            `lmzoo.data.corpora.train_words` learns them. A list, or a `lmzoo.text.WordTokenizer`.
        num_sampled: int, words in the sample; a vocabulary that is not larger is taken as a whole.
        unroll_steps: int, words of a sequence in a batch, through which gradients flow. Settable.
        name: name of the model.

    Raises:
        ValueError: for a backbone without LSTMs in both directions, for no vocabulary, or for one that does not begin
            with the special words.

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

    predicts = "log-probabilities of words, forward and backward (n, T, 2)"
    head_kind = "bidirectional_lm"
    predicts_tokens = True
    replaceable = True
    learns_from = "documents alone"
    independent_rows = False
    per_token = True
    _unroll_steps: int

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        vocabulary: WordTokenizer | Sequence[str] | None = None,
        num_sampled: int = 8192,
        unroll_steps: int = 20,
        labels: None = None,
        name: str | None = None,
    ) -> None:
        if not self.supports(family_of(backbone)):
            raise ValueError(
                f"{type(backbone).__name__} has no LSTMs in both directions, which a BidirectionalLM trains."
            )
        words, policy = _checked(vocabulary), backbone.dtype_policy
        ((kind, ids),) = backbone.input.items()
        inputs = {
            kind: keras.Input((None, 2, *ids.shape[2:]), dtype="int32", name=kind),
            "targets": keras.Input((None, 2), dtype="int32", name="targets"),
            "goes_on": keras.Input((), dtype="int32", name="goes_on"),
        }
        streams = StreamedBiLM(backbone.bilm, backbone.config.dropout, dtype=policy, name="streams")
        head = SampledSoftmax(len(words.vocabulary), num_sampled, dtype=policy, name="softmax")
        vectors = streams(inputs[kind], inputs["goes_on"])  # (B, T, P) of each direction
        found = [head(x, inputs["targets"][:, :, side]) for side, x in enumerate(vectors)]  # (B, T)
        super().__init__(backbone, preprocessor, inputs, ops.stack(found, axis=-1), None, name)
        self.streams, self.head, self.vocabulary, self.num_sampled = streams, head, words, num_sampled
        self.unroll_steps = unroll_steps
        self.compile()

    @property
    def unroll_steps(self) -> int:
        """How many words of each stream a batch holds: gradients flow through these. Settable.

        Raises:
            ValueError: for a number below 1.
        """
        return self._unroll_steps

    @unroll_steps.setter
    def unroll_steps(self, steps: int) -> None:
        require(is_integer(steps, 1), "unroll_steps", "a positive integer", steps)
        self._unroll_steps = int(steps)

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the family's backbones can carry states in both directions from text to text."""
        return family.pretrained_head == cls.head_kind

    @property
    def unused_variables(self) -> list[keras.Variable]:
        """Variables that the task's loss does not reach: those of the mix."""
        return [] if self.backbone.scalar_mix is None else self.backbone.scalar_mix.variables

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        """Return the optimizer of bilm-tf."""
        return Adagrad(0.2, initial_accumulator_value=1.0, global_clipnorm=10.0)

    def default_loss(self) -> keras.losses.Loss:
        """Return the negative log-likelihood of the words of a sequence."""
        return UnrolledLoss()

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return perplexity, of both directions together and of each."""
        return [Perplexity(), Perplexity(0, "forward_perplexity"), Perplexity(1, "backward_perplexity")]

    # === Fit, evaluate, predict ===

    def batches(self, inputs: TaskInputs, options: BatchOptions) -> TrainingData:
        """See `Task.batches`: documents become streams of sentences.

        In training, documents are read repeatedly; otherwise every sentence is read once. Then streams that have ended
        are padded, which adds nothing to the loss and is left out of the perplexities. With `steps_per_epoch` the words
        need not be counted, and an epoch continues where the previous one ended.

        Raises:
            TypeError: naming the position of a document that is not a list of sentences.
            ValueError: for labels or weights, and if the words do not fill a batch.
        """
        documents = inputs.x
        if not are_documents(documents):
            return super().batches(inputs, options)
        self.check_unlabeled(inputs.y)
        if inputs.sample_weight is not None:
            raise ValueError("A document has no weight, since a batch holds parts of many.")
        size = options.batch_size or BATCH_SIZE
        if not options.training:
            return self._test_streams(documents, size, self.unroll_steps, options.verbose), None, None
        self.check_takes_text()
        shuffle, seed = options.order == "shuffle", options.seed
        streams = DocumentStreams(
            documents, self._make_stream_batch, size, self.unroll_steps, shuffle=shuffle, seed=seed
        )
        if options.steps is None:
            streams.count(options.verbose)
        self._make_room(size, training=True)
        return streams, None, None

    def split_validation(self, inputs: TaskInputs, fraction: float) -> tuple[TaskInputs, TaskInputs]:
        """Return the documents to train on, and the last `fraction` of them to validate on."""
        if not are_documents(inputs.x):
            return super().split_validation(inputs, fraction)
        first, last = split_documents(inputs.x, fraction)
        return replace(inputs, x=first), replace(inputs, x=last)

    def perplexity(
        self, documents: Iterable[Document], batch_size: int = 256, direction: str | None = None, verbose: bool = True
    ) -> float:
        """Return the exponential of the mean negative log-likelihood of all words and ends of sentences.

        The softmax is over all words, words that are not in the vocabulary count as `<UNK>`, and states are carried
        from step to step. All this is as in bilm-tf, except that bilm-tf stops when one of the streams ends, whereas
        here every word counts.

        Args:
            documents: documents, each a list of sentences.
            batch_size: int, streams. With 1, each sentence is read after all sentences before it.
            direction: `"forward"` or `"backward"`; None for both, with the mean of their logarithms.
            verbose: whether to show progress.

        Returns:
            The perplexity.

        Raises:
            TypeError: naming the position of a document that is not a list of sentences.
            ValueError: if there are no words, or for another `direction`.
        """
        sides = {None: slice(None), "forward": slice(0, 1), "backward": slice(1, 2)}
        require(direction in sides, "direction", '"forward", "backward" or None', direction)
        require(is_integer(batch_size, 1), "batch_size", "an integer of at least 1", batch_size)
        streams = self._test_streams(documents, batch_size, 1, verbose)
        with progress_bar("Evaluating", streams.num_batches, "batches", verbose) as advance:
            shown = keras.callbacks.LambdaCallback(on_predict_batch_end=lambda batch, logs=None: advance(1))
            found = super().predict(keras_input(streams), verbose=0, callbacks=[shown])[..., sides[direction]]
        return float(np.exp(-found.sum(dtype="float64") / (streams.num_words * found.shape[-1])))

    def _test_streams(
        self, documents: Iterable[Document], batch_size: int, steps: int, verbose: bool
    ) -> DocumentStreams:
        self.check_takes_text()
        streams = DocumentStreams(documents, self._make_stream_batch, batch_size, steps, once=True)
        streams.count(verbose)
        self._make_room(batch_size, training=False)
        return streams

    def _make_room(self, batch_size: int, training: bool) -> None:
        if self.streams.make_room(batch_size, training):
            if training:
                self.train_function = None
            else:
                self.test_function = self.predict_function = None

    # === Documents as features ===

    def encode_inputs(self, x: Any) -> EncodedDocuments:
        """Return documents, each by itself; see `Task.encode_inputs`."""
        self.check_takes_text()
        return x if isinstance(x, EncodedDocuments) else EncodedDocuments.of(x)

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return documents for training, each beginning with zeros: `(features, targets)`."""
        features = self.features(examples.encoded, indices, width)
        return features, features["targets"]

    def features(self, encoded: EncodedDocuments, indices: np.ndarray, width: int) -> FeatureArrays:
        """Return the model's inputs for some documents, padded to `width`."""
        return self._features_of([encoded.documents[index] for index in indices], width, goes_on=False)

    def _make_stream_batch(self, steps: list[list[Step]], width: int, goes_on: bool) -> Batch:
        features = self._features_of(steps, width, goes_on)
        return features, features["targets"]

    def _features_of(self, steps: list[list[Step]], width: int, goes_on: bool) -> FeatureArrays:
        """Return the model's inputs, padded to a width of t.

        Args:
            steps: for each sequence the words that are read, and those that come next, which the vocabulary predicts.
            width: t.
            goes_on: whether sequences continue those of the previous batch.

        Returns:
            `character_ids` int32 (b, t, 2, W), without columns at the end that no word needs, or `token_ids`
            (b, t, 2); `targets` int32 (b, t, 2), -1 at padding; `goes_on` int32 (b,).
        """
        tokenizer = self.text_preprocessor.tokenizer
        real = np.arange(width) < np.array([len(sequence) for sequence in steps])[:, None]  # (b, t)
        pairs = list(itertools.chain.from_iterable(itertools.chain.from_iterable(steps)))
        read: Any = [pair[0] for pair in pairs]
        following: Any = [pair[1] for pair in pairs]
        flat = tokenizer.as_array(tokenizer.tokenize([read])[0], len(pairs))  # (2n,) or (2n, W)
        ids = np.zeros((*real.shape, 2, *flat.shape[1:]), "int32")
        ids[real] = flat.reshape(-1, 2, *flat.shape[1:])
        targets = np.full((*real.shape, 2), -1, "int32")
        targets[real] = np.array(self.vocabulary.tokenize([following])[0], "int32").reshape(-1, 2) - 1
        ((name, ids),) = tokenizer.features(ids, real).items()
        if flat.ndim == 2:
            used = np.flatnonzero(np.any(flat != NO_BYTE, axis=0)).max(initial=2) + 1
            ids = ids[..., : -(-used // _COLUMNS) * _COLUMNS]
        return {name: ids, "targets": targets, "goes_on": np.full(len(steps), int(goes_on), "int32")}

    def backbone_inputs(self, features: Features) -> Features:
        """Return the words that are read, each direction as a sequence of its own; see `Task.backbone_inputs`."""
        inputs = super().backbone_inputs(features)
        if not self.backbone.input.keys() <= inputs.keys():  # which the backbone's own check says
            return inputs
        ((name, ids),) = inputs.items()
        ids = ops.swapaxes(ops.convert_to_tensor(ids), 1, 2)
        return {name: ops.reshape(ids, (-1, *ids.shape[2:]))}

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "vocabulary": self.vocabulary.vocabulary}


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
