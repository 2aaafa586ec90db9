"""Bidirectional language modeling, ELMo's pre-training objective."""

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
from lmzoo.registry.family import Family, get_family
from lmzoo.tasks.base.examples import Batch, BatchOptions, Examples, FeatureArrays, TrainingData
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.inputs import TaskInputs, are_documents, split_documents
from lmzoo.text import Preprocessor, WordTokenizer
from lmzoo.text.keras_input import keras_input
from lmzoo.text.tokenizers.characters import NO_BYTE
from lmzoo.training.lm_losses import Perplexity, UnrolledLoss
from lmzoo.training.optimizers import Adagrad

BATCH_SIZE = 128
_CHARACTER_MULTIPLE = 16  # character ids are trimmed to a multiple of this length, so that few shapes are compiled


@keras.saving.register_keras_serializable(package="lmzoo")
class BidirectionalLM(Task):
    """A pair of language models: one predicts each word from the words before it, the other from the words after it.

    See Peters et al. (2018), https://arxiv.org/abs/1802.05365. Training is the same as in the original implementation,
    bilm-tf.

    `fit`, `evaluate` and `perplexity` take documents, each a list of sentences: strings, which are split into words, or
    lists of words. The documents may be in any collection that can be iterated over repeatedly, and are streamed. Input
    words are represented by their characters; predicted words that are not in the vocabulary are `<UNK>`.

    A batch holds a sequence from each of `batch_size` streams of sentences, without padding, and the LSTMs continue
    each stream from their states in the previous batch; a pass over the documents begins with states of zeros. Each
    direction has its own streams: if `fit` shuffles a list of documents, the forward and the backward direction read it
    in different orders. The number of words determines the number of batches in an epoch; if documents end before the
    last batch is full, they start again.

    In training, the softmax is over a sample of the words (`lmzoo.layers.SampledSoftmax`), otherwise over all words. It
    is shared by both directions. The default optimizer is Adagrad with learning rate 0.2 and gradients clipped to norm
    10, and the default loss is the negative log-likelihood of a sequence, `lmzoo.training.UnrolledLoss`. The training
    perplexities that `fit` reports are based on the sampled softmax, and are lower than the true perplexities.

    `predict` also takes documents, and begins each with states of zeros. Its outputs are float32 (n, T, 2): the
    log-probabilities of each document's words and `</S>`, forward and backward, each in reading order, 0 at padding.

    Token features have an additional axis for the two directions: `character_ids` int32 (B, T, 2, W), the input words
    as W characters each, or `token_ids` (B, T, 2); `targets` int32 (B, T, 2), the frequency ranks of the next words, -1
    at padding; `goes_on` int32 (B,), 1 for sequences that continue a sequence of the previous batch.

    Args:
        backbone: an `ElmoBackbone`. Its layer mix is not trained.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        vocabulary: list or `lmzoo.text.WordTokenizer` of the words to predict: `<S>`, `</S>`, `<UNK>`, then other words
            in order of decreasing frequency; see `lmzoo.data.corpora.train_words`.
        num_sampled: int, number of words that the sampled softmax draws; all words if the vocabulary is not larger.
        unroll_steps: int, number of words in each sequence of a batch; gradients do not flow beyond it. Settable.
        name: name of the model.

    Raises:
        ValueError: If the backbone does not have LSTMs in both directions, or the vocabulary is missing or does not
            begin with the special words.

    Example:

    ```python
    import lmzoo
    from lmzoo.families.elmo import FAMILY
    from lmzoo.text import CharacterTokenizer, Preprocessor

    documents = [["The ship left the harbor at dawn.", "Nobody had seen the island."], ["The sea grew rough."]]
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
        if not self.supports(get_family(backbone)):
            raise ValueError(
                f"{type(backbone).__name__} has no LSTMs in both directions, which a BidirectionalLM trains."
            )
        word_tokenizer = _check_vocabulary(vocabulary)
        policy = backbone.dtype_policy
        ((input_name, ids),) = backbone.input.items()
        inputs = {
            input_name: keras.Input((None, 2, *ids.shape[2:]), dtype="int32", name=input_name),
            "targets": keras.Input((None, 2), dtype="int32", name="targets"),
            "goes_on": keras.Input((), dtype="int32", name="goes_on"),
        }
        streams = StreamedBiLM(backbone.bilm, backbone.config.dropout, dtype=policy, name="streams")
        head = SampledSoftmax(len(word_tokenizer.vocabulary), num_sampled, dtype=policy, name="softmax")
        vectors = streams(inputs[input_name], inputs["goes_on"])  # (B, T, P) for each direction
        # (B, T) for each direction
        log_probabilities = [head(x, inputs["targets"][:, :, direction]) for direction, x in enumerate(vectors)]
        super().__init__(backbone, preprocessor, inputs, ops.stack(log_probabilities, axis=-1), None, name)
        self.streams = streams
        self.head = head
        self.vocabulary = word_tokenizer
        self.num_sampled = num_sampled
        self.unroll_steps = unroll_steps
        self.compile()

    @property
    def unroll_steps(self) -> int:
        """The number of words in each sequence of a batch, beyond which gradients do not flow; settable.

        Raises:
            ValueError: If it is set to anything but a positive integer.
        """
        return self._unroll_steps

    @unroll_steps.setter
    def unroll_steps(self, steps: int) -> None:
        require(is_integer(steps, 1), "unroll_steps", "a positive integer", steps)
        self._unroll_steps = int(steps)

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the family is pre-trained with this objective."""
        return family.pretrained_head == cls.head_kind

    @property
    def unused_variables(self) -> list[keras.Variable]:
        """The variables that get no gradient from the task's loss: the weights of the layer mix."""
        return [] if self.backbone.scalar_mix is None else self.backbone.scalar_mix.variables

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        """Return Adagrad with the settings of bilm-tf."""
        return Adagrad(0.2, initial_accumulator_value=1.0, global_clipnorm=10.0)

    def default_loss(self) -> keras.losses.Loss:
        """Return the loss, the negative log-likelihood of a sequence's words."""
        return UnrolledLoss()

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return perplexity metrics for both directions together and for each direction."""
        return [Perplexity(), Perplexity(0, "forward_perplexity"), Perplexity(1, "backward_perplexity")]

    # === Fit, evaluate, predict ===

    def batches(self, inputs: TaskInputs, options: BatchOptions) -> TrainingData:
        """Return the data of `fit` and `evaluate` for Keras, with documents as streams of sentences.

        In training, documents are read repeatedly. Otherwise every sentence is read once, and streams that have ended
        are padded; padding adds nothing to the loss and is left out of the perplexities. With `steps_per_epoch`, words
        are not counted first, and an epoch continues where the previous one ended.

        Raises:
            TypeError: If a document is not a list of sentences; the message names its position.
            ValueError: If labels or weights are passed, or the words of the documents do not fill a batch.
        """
        documents = inputs.x
        if not are_documents(documents):
            return super().batches(inputs, options)
        self.check_unlabeled(inputs.y)
        if inputs.sample_weight is not None:
            raise ValueError("A document has no weight, since a batch holds parts of many.")
        batch_size = options.batch_size or BATCH_SIZE
        if not options.training:
            return self._make_test_streams(documents, batch_size, self.unroll_steps, options.verbose), None, None
        self.check_takes_text()
        shuffle = options.order == "shuffle"
        streams = DocumentStreams(
            documents, self._make_stream_batch, batch_size, self.unroll_steps, shuffle=shuffle, seed=options.seed
        )
        if options.steps is None:
            streams.count(options.verbose)
        self._make_room(batch_size, training=True)
        return streams, None, None

    def split_validation(self, inputs: TaskInputs, fraction: float) -> tuple[TaskInputs, TaskInputs]:
        """Hold out the last `fraction` of the documents, and return `(training, validation)`."""
        if not are_documents(inputs.x):
            return super().split_validation(inputs, fraction)
        training, validation = split_documents(inputs.x, fraction)
        return replace(inputs, x=training), replace(inputs, x=validation)

    def perplexity(
        self, documents: Iterable[Document], batch_size: int = 256, direction: str | None = None, verbose: bool = True
    ) -> float:
        """Return the perplexity of documents.

        It is the exponential of the mean negative log-likelihood of all words and ends of sentences. The softmax is
        over all words, words that are not in the vocabulary count as `<UNK>`, and states are carried from step to step,
        as in bilm-tf. However, bilm-tf stops when one of the streams ends, whereas here every word counts.

        Args:
            documents: documents, each a list of sentences.
            batch_size: int, number of streams. With 1, all sentences are read in order as a single stream.
            direction: `"forward"` or `"backward"`; None for both, averaging their log-likelihoods.
            verbose: whether to show progress.

        Returns:
            The perplexity.

        Raises:
            TypeError: If a document is not a list of sentences; the message names its position.
            ValueError: If there are no words, `direction` is unknown, or `batch_size` is not a positive integer.
        """
        slices_by_direction = {None: slice(None), "forward": slice(0, 1), "backward": slice(1, 2)}
        require(direction in slices_by_direction, "direction", '"forward", "backward" or None', direction)
        require(is_integer(batch_size, 1), "batch_size", "an integer of at least 1", batch_size)
        streams = self._make_test_streams(documents, batch_size, 1, verbose)
        with progress_bar("Evaluating", streams.num_batches, "batches", verbose) as advance:
            progress_callback = keras.callbacks.LambdaCallback(on_predict_batch_end=lambda batch, logs=None: advance(1))
            outputs = super().predict(keras_input(streams), verbose=0, callbacks=[progress_callback])
            log_probabilities = outputs[..., slices_by_direction[direction]]
        log_likelihood = log_probabilities.sum(dtype="float64")
        return float(np.exp(-log_likelihood / (streams.num_words * log_probabilities.shape[-1])))

    def _make_test_streams(
        self, documents: Iterable[Document], batch_size: int, steps: int, verbose: bool
    ) -> DocumentStreams:
        """Return streams that read every sentence once, in sequences of `steps` words, and allocate their states."""
        self.check_takes_text()
        streams = DocumentStreams(documents, self._make_stream_batch, batch_size, steps, once=True)
        streams.count(verbose)
        self._make_room(batch_size, training=False)
        return streams

    def _make_room(self, batch_size: int, training: bool) -> None:
        """Allocate the states of `batch_size` streams, and drop compiled functions that use states of another size."""
        if self.streams.make_room(batch_size, training):
            if training:
                self.train_function = None
            else:
                self.test_function = self.predict_function = None

    # === Documents as features ===

    def encode_inputs(self, x: Any) -> EncodedDocuments:
        """Encode documents, each as a separate sequence."""
        self.check_takes_text()
        return x if isinstance(x, EncodedDocuments) else EncodedDocuments.of(x)

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return features and targets for the documents at `indices`, each beginning with states of zeros."""
        features = self.features(examples.encoded, indices, width)
        return features, features["targets"]

    def features(self, encoded: EncodedDocuments, indices: np.ndarray, width: int) -> FeatureArrays:
        """Return the model's inputs for the documents at `indices`, padded to `width`."""
        return self._make_input_features([encoded.documents[index] for index in indices], width, goes_on=False)

    def _make_stream_batch(self, steps: list[list[Step]], width: int, goes_on: bool) -> Batch:
        """Return the features and targets of sequences of streams; see `_make_input_features`."""
        features = self._make_input_features(steps, width, goes_on)
        return features, features["targets"]

    def _make_input_features(self, steps: list[list[Step]], width: int, goes_on: bool) -> FeatureArrays:
        """Return the model's inputs for b sequences, padded to t steps.

        Args:
            steps: for each sequence, its steps; a step holds an (input word, next word) pair for each direction.
            width: int, the padded length t.
            goes_on: whether the sequences continue the sequences of the previous batch.

        Returns:
            `character_ids` int32 (b, t, 2, W), with W trimmed to roughly the longest word, or `token_ids` (b, t, 2);
            `targets` int32 (b, t, 2), -1 at padding; `goes_on` int32 (b,).
        """
        tokenizer = self.text_preprocessor.tokenizer
        is_word = np.arange(width) < np.array([len(sequence) for sequence in steps])[:, None]  # (b, t)
        pairs = list(itertools.chain.from_iterable(itertools.chain.from_iterable(steps)))
        input_words: Any = [pair[0] for pair in pairs]
        next_words: Any = [pair[1] for pair in pairs]
        flat_ids = tokenizer.as_array(tokenizer.tokenize([input_words])[0], len(pairs))  # (2n,) or (2n, W)
        ids = np.zeros((*is_word.shape, 2, *flat_ids.shape[1:]), "int32")
        ids[is_word] = flat_ids.reshape(-1, 2, *flat_ids.shape[1:])
        targets = np.full((*is_word.shape, 2), -1, "int32")
        targets[is_word] = np.array(self.vocabulary.tokenize([next_words])[0], "int32").reshape(-1, 2) - 1
        ((name, ids),) = tokenizer.features(ids, is_word).items()
        if flat_ids.ndim == 2:
            character_count = np.flatnonzero(np.any(flat_ids != NO_BYTE, axis=0)).max(initial=2) + 1
            ids = ids[..., : -(-character_count // _CHARACTER_MULTIPLE) * _CHARACTER_MULTIPLE]
        return {name: ids, "targets": targets, "goes_on": np.full(len(steps), int(goes_on), "int32")}

    def backbone_inputs(self, features: Features) -> Features:
        """Return the features that the backbone takes, with each direction as a separate sequence."""
        inputs = super().backbone_inputs(features)
        if not self.backbone.input.keys() <= inputs.keys():  # the backbone's own check reports missing inputs
            return inputs
        ((name, ids),) = inputs.items()
        ids = ops.swapaxes(ops.convert_to_tensor(ids), 1, 2)
        return {name: ops.reshape(ids, (-1, *ids.shape[2:]))}

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "vocabulary": self.vocabulary.vocabulary}


def _check_vocabulary(vocabulary: WordTokenizer | Sequence[str] | None) -> WordTokenizer:
    """Check that a vocabulary begins with the special words, and return it as a tokenizer."""
    if vocabulary is None:
        raise ValueError(
            "A BidirectionalLM needs `vocabulary`, the words that it predicts: "
            "`lmzoo.data.corpora.train_words(documents, vocabulary_size)` learns them."
        )
    word_tokenizer = vocabulary if isinstance(vocabulary, WordTokenizer) else WordTokenizer(vocabulary)
    special_tokens = WordTokenizer.special_tokens
    if (first_words := tuple(word_tokenizer.vocabulary[: len(special_tokens)])) != special_tokens:
        raise ValueError(f"`vocabulary` must begin with {', '.join(special_tokens)}, got {', '.join(first_words)}.")
    return word_tokenizer
