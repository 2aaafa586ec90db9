"""Classification of words: tagging and named entity recognition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypedDict

import keras
import numpy as np

from lmzoo.common.arguments import require
from lmzoo.common.span_marks import OUTSIDE, SpanScheme, marks_spans
from lmzoo.common.tensor_types import Tensor
from lmzoo.data.corpora.tokenized_documents import group_items
from lmzoo.evaluation.reports import Judged, Report, compare_tags
from lmzoo.families.backbone import Backbone
from lmzoo.layers import ClassificationHead, TransitionScores
from lmzoo.layers.crf import decode
from lmzoo.serving.export import class_answers, signature, strings, tokens_signature
from lmzoo.serving.served_model import Signatures
from lmzoo.tasks.base.examples import Batch, EncodedInputs, Examples, Labels, Texts, Weights
from lmzoo.tasks.base.labels import as_labels, check_classes, check_listed, encode_classes
from lmzoo.tasks.inputs import list_rows
from lmzoo.tasks.long_texts import LongTextTask
from lmzoo.tasks.task_encoders import TokenVectors, get_head_options
from lmzoo.tasks.token_labels import TokenLabelsTask
from lmzoo.tasks.word_features import WordFeatures
from lmzoo.tasks.word_labels import check_label_sequences, decode_words, label_spans, warn_about_unmarked_labels
from lmzoo.tasks.word_weights import join_weights, make_batch_weights, read_weights
from lmzoo.text import Encoded, EncodedWords, Preprocessor, Tokenizer
from lmzoo.text.long_texts import WindowedTexts, WindowedWords, Windows, check_windows, encode_words_in_windows
from lmzoo.text.probabilities import log_softmax
from lmzoo.text.span_labels import SpanTable, allowed_transitions, best_path, find_marked_spans, transition_table
from lmzoo.text.tokenizers.tokenizer import TokenSpan
from lmzoo.text.validate_text import is_text, warn
from lmzoo.training.crf_loss import CrfLoss
from lmzoo.training.distillation import ComparedOutputs, DistillationSettings
from lmzoo.training.losses import match_loss
from lmzoo.training.span_metrics import IGNORED, SpanScore, TokenAccuracy

if TYPE_CHECKING:
    import tensorflow as tf

_WINDOWS_PER_PREDICTION = 512  # limits the memory for scores
_NO_WEIGHTS = "have no weights with `crf`, whose loss is that of whole texts: pass a weight for each text, or no `crf`."


class SpanAnswer(TypedDict):
    """A labeled span of a text, `text[start:end]`, or a labeled word."""

    text: str
    label: str
    score: float
    start: int
    end: int


@keras.saving.register_keras_serializable(package="lmzoo")
class TokenClassifier(TokenLabelsTask, LongTextTask):
    """A classifier of words in texts, for tagging or named entity recognition (Devlin et al., 2019, section 5.3).

    Texts are lists of words, or strings, which `lmzoo.text.word_splitting.split_words` splits. Every word is tokenized
    separately, as if it followed a space, and gets the label of its first token. The outputs are the logits of all T
    tokens of each sequence, float32 (B, T, num_classes).

    For each text, `fit` takes one label per word, by name or number; a word with label -100 does not count. If most of
    the model's labels mark spans, in BIO ("B-PER", "I-PER", "O"), IOBES, BIOUL or BMES, `fit` also takes the spans of
    a string, `{"start": int, "end": int, "label": str}`, with character offsets. `sample_weight` holds a weight for
    each text or, without `crf`, a list of word weights for each text. Without `crf`, `class_weight` weights words by
    their labels, and the loss is the weighted mean over all words of a batch; with `crf`, see `lmzoo.training.CrfLoss`.

    Args:
        backbone: `lmzoo.models.Backbone`, the layers below the head.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only. Labels are then int (B, T), one for
            each token, -100 for tokens that do not count.
        num_classes: int, number of classes; by default the number of `labels`.
        labels: names of the classes.
        dropout: float, dropout rate on the token vectors; the backbone's by default.
        encoder: `"bilstm"` for LSTMs in both directions over the backbone's vectors and the task's own word vectors, as
            on ELMo in Peters et al. (2018); None for the backbone alone.
        encoder_dim: int, width of each direction of the encoder.
        crf: bool, whether each label is scored together with the label before it, by a linear-chain conditional random
            field (Lample et al., 2016), as on ELMo in Peters et al. (2018). If the labels mark spans, impossible
            sequences, such as "I-PER" after "O", have probability 0. The outputs are then transition scores, float32
            (B, T, C + 1, C + 1) for C classes; see `lmzoo.layers.TransitionScores`.
        name: name of the model.
        windows: maximum number of windows in which a long text is read; `"auto"` for as many as it needs. By default,
            long texts are truncated. The label of a word comes from the window in which it has the most context.
            Settable.
        stride: int, number of tokens from one window to the next; by default half a window. Settable.
        word_vectors: `lmzoo.models.StaticEmbedder`, whose vectors are concatenated with the backbone's vectors, below
            the encoder if there is one; None for the backbone's vectors alone. Tokens that the embedder lacks get
            zeros.

    Raises:
        ValueError: If neither `num_classes` nor `labels` is given, if they disagree, or if `encoder` is unknown. With
            `crf`, `fit` also raises it if labels cannot follow one another.

    Example:

    ```python
    import lmzoo

    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    tagger = lmzoo.models.TokenClassifier.from_preset("bert_nano_en_uncased", labels=labels)
    tagger.fit([["Ada", "saw", "Paris", "."]], [["B-PER", "O", "B-LOC", "O"]], epochs=1, verbose=0)
    tagger.tag(["Ada came to London."])  # [[{"text": ..., "label": ..., "score": ..., "start": ..., "end": ...}]]
    ```
    """

    per_token = True
    predicts = "logits of all tokens (n, T, C)"
    head_kind = "token_classification"
    pipeline_tag = "token-classification"
    commands = (("tagger", "words"),)
    serves = (
        'the spans of each text: `text`, `label`, `score`, `start`, `end`, each (n, spans), padded with `""`, 0 and -1'
    )
    uses_pooler = False
    distillation = DistillationSettings(per_token=True)

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        num_classes: int | None = None,
        labels: Sequence[str] | None = None,
        dropout: float | None = None,
        encoder: str | None = None,
        encoder_dim: int = 256,
        crf: bool = False,
        name: str | None = None,
        windows: Windows = None,
        stride: int | None = None,
        word_vectors: Any = None,
    ) -> None:
        check_windows(windows, stride)
        num_classes, labels = check_classes(num_classes, labels, preprocessor)
        warn_about_unmarked_labels(labels)
        vector_settings = TokenVectors(dropout, encoder, encoder_dim, WordFeatures.of(word_vectors, preprocessor))
        dropout_rate = vector_settings.rate(backbone)
        head_options = get_head_options(backbone, of_tokens=True)
        head = ClassificationHead(
            num_classes, dropout_rate, dtype=backbone.dtype_policy, name="classifier", **head_options
        )
        inputs = vector_settings.inputs(backbone)
        features = vector_settings.features(backbone, inputs, preprocessor)
        outputs = head(vector_settings.sequence(backbone, inputs, features))  # (B, T, C)
        if crf:
            is_allowed = transition_table(labels or ()) if marks_spans(labels) else None
            # (B, T, C + 1, C + 1)
            outputs = TransitionScores(num_classes, is_allowed, name="transition_scores")(outputs)
        super().__init__(backbone, preprocessor, inputs, outputs, labels, name)
        self.head = head
        self.num_classes = num_classes
        self.dropout = dropout
        self.encoder = encoder
        self.encoder_dim = encoder_dim
        self.word_vectors = vector_settings.word_vectors and vector_settings.word_vectors.sizes()
        self.crf = crf
        self.windows = windows
        self.stride = stride
        self.token_vectors = features["sequence_output"]
        self.compile()

    def compile(self, optimizer: Any = "auto", loss: Any = "auto", *args: Any, **kwargs: Any) -> None:
        """Configure the model for training; see `Task.compile`.

        Without `crf`, a name such as `"sparse_categorical_crossentropy"` stands for the default loss, which leaves out
        tokens with the label -100.

        Raises:
            ValueError: If `crf` is True and the loss is not a `CrfLoss`, or if a `SparseCategoricalCrossentropy` counts
                tokens with the label -100; see also `Task.compile`.
        """
        if self.crf and not (isinstance(loss, CrfLoss) or (isinstance(loss, str) and loss == "auto")):
            raise ValueError(
                f"With `crf` the outputs are scores of pairs of labels: leave `loss` out, got {loss!r:.60}."
            )
        super().compile(optimizer, keras.tree.map_structure(self._match_loss, loss), *args, **kwargs)

    def _match_loss(self, loss: Any) -> Any:
        """Return the default loss for the name, function or class of a sparse cross-entropy.

        For any other loss, return the result of `match_loss`; `"auto"` stays unchanged.

        Raises:
            ValueError: If the loss is a `SparseCategoricalCrossentropy` object that counts tokens with the label -100;
                see also `match_loss`.
        """
        if isinstance(loss, str) and loss == "auto":
            return loss
        matched_loss = match_loss(loss)
        if not isinstance(matched_loss, keras.losses.SparseCategoricalCrossentropy):
            return matched_loss
        if matched_loss is not loss:
            return self.default_loss()
        if loss.get_config().get("ignore_class") != IGNORED:
            raise ValueError(
                f"The loss counts tokens with the label {IGNORED}, which have no class: pass "
                f"{type(loss).__name__}(from_logits=True, ignore_class={IGNORED}), or leave `loss` out."
            )
        return loss

    def compared_outputs(self) -> ComparedOutputs:
        """Return the logits and the hidden states of all tokens.

        Raises:
            ValueError: If the task uses a CRF.
        """
        if self.crf:
            raise ValueError("A TokenClassifier with `crf` cannot be distilled: its scores are of pairs of labels.")
        padding_mask = self.backbone.padding_mask(self.input)  # (B, T)
        return ComparedOutputs(self.output, padding_mask, self.token_vectors, padding_mask)

    def default_loss(self) -> keras.losses.Loss:
        """Return the loss: mean cross-entropy over words, or with `crf` negative log-likelihood of whole texts."""
        if self.crf:
            return CrfLoss()
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=IGNORED, reduction="mean_with_sample_weight"
        )

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return the metrics: accuracy over words and, if the labels mark spans, precision, recall and F1 of spans."""
        score_names = ("precision", "recall", "f1") if marks_spans(self.labels) else ()
        return [TokenAccuracy(), *(SpanScore(self.labels or (), score_name) for score_name in score_names)]

    def encode_inputs(self, x: Any) -> EncodedInputs:
        """Encode strings or lists of words, as packed sequences or windows with the positions of the words.

        Encoded texts are returned unchanged.
        """
        self.check_takes_text()
        if isinstance(x, Encoded):
            return x
        if self.windows is None:
            return self.text_preprocessor.encode_words(x)
        return encode_words_in_windows(self.text_preprocessor, x, self.windows, self.stride)

    def encode_examples(self, x: Any, y: Any = None, sample_weight: Weights | None = None) -> Examples:
        """Encode texts, labels and weights.

        Returns:
            Encoded texts; the labels of each text's tokens, an object array of int32 arrays; and weights, one for each
            text or for each token, or None.

        Raises:
            TypeError: If `y`, or the labels or weights of a text, are not a list.
            ValueError: If the numbers of texts, labels and weights differ; if a label is not a class of the model, or
                a span is malformed; or, with `crf`, if words have weights or labels cannot follow one another.
        """
        encoded = self.encode_inputs(x)
        weights, word_weights = read_weights(sample_weight)
        if y is not None:
            check_listed(y)
        self.check_counts(len(encoded), y, weights if word_weights is None else word_weights)
        if word_weights is not None and self.crf:
            raise ValueError(f"Words {_NO_WEIGHTS}")
        if isinstance(x, Encoded) and (token_labels := self._check_token_labels(encoded, y)) is not None:
            if word_weights is not None:
                weights = encoded.by_sequence(join_weights(word_weights, encoded.token_counts, "tokens"))
            return Examples(encoded, token_labels, weights)
        word_counts = [len(words) for words in encoded.words]
        labels, widened_count = self.labels_by_word(x, y, encoded)
        word_labels = self._number_labels(labels, word_counts)
        if self.crf and marks_spans(self.labels):
            check_label_sequences(word_labels, word_counts, self.labels or ())
        token_labels = np.full(encoded.sequence_splits[-1], IGNORED, "int32")
        is_in_sequence = encoded.first >= 0  # (W,), False for truncated words
        # The index of each word's first token among the tokens of all texts.
        first_tokens = (encoded.first + np.repeat(encoded.sequence_splits[:-1], word_counts))[is_in_sequence]
        if widened_count:
            warn(f"{widened_count} spans began or ended inside a word and were widened to the whole word.")
        is_labeled = word_labels != IGNORED  # (W,)
        if truncated_count := int((is_labeled & ~is_in_sequence).sum()):
            warn(
                f"{truncated_count:,} of {int(is_labeled.sum()):,} labeled words were truncated and count neither in "
                "the loss nor in metrics: split long texts, or raise `sequence_length`."
            )
        token_labels[first_tokens] = word_labels[is_in_sequence]
        if word_weights is not None:
            token_weights = np.zeros(len(token_labels), "float32")
            token_weights[first_tokens] = join_weights(word_weights, word_counts, "words")[is_in_sequence]
            weights = encoded.by_sequence(token_weights)
        return Examples(encoded, encoded.by_sequence(token_labels), weights)

    def encode_class_weight(self, class_weight: Mapping[Any, float]) -> dict[int, float]:
        """Return a dict from each class number to its weight, which is 1 for classes not in `class_weight`.

        Raises:
            ValueError: If the task uses a CRF; see also `Task.encode_class_weight`.
        """
        if self.crf:
            raise ValueError(f"Classes {_NO_WEIGHTS}")
        return super().encode_class_weight(class_weight)

    def _check_token_labels(self, encoded: EncodedInputs, y: Any) -> np.ndarray | None:
        """Check the token labels of encoded texts and return them by text, or return None if `y` holds word labels."""
        token_counts = encoded.token_counts
        invalid_indices = [
            i for i, labels in enumerate(y) if not hasattr(labels, "__len__") or len(labels) != token_counts[i]
        ]
        flat_labels = None if invalid_indices else np.concatenate([np.zeros(0, "int64"), *y])
        if isinstance(encoded, EncodedWords | WindowedWords) and (
            flat_labels is None or flat_labels.dtype.kind not in "iu"
        ):
            return None
        if flat_labels is None:
            raise ValueError(
                f"`y[{invalid_indices[0]}]` must be the labels of the {token_counts[invalid_indices[0]]} tokens of its "
                "sequence."
            )
        return encoded.by_sequence(np.asarray(self.encode_labels(flat_labels[None]))[0])

    def labels_by_word(
        self, x: Any, y: Iterable[Any], encoded: EncodedWords | WindowedWords
    ) -> tuple[list[list[Any]], int]:
        """Return the labels of each text's words, and the number of spans that were widened to whole words.

        Args:
            x: texts.
            y: for each text, the labels of its words, or its spans.
            encoded: the encoded texts.

        Raises:
            TypeError: If labels are not a list; the message names their position.
            ValueError: If a text does not have one label per word, or if a span is malformed; see `label_spans`.
        """
        rows = [] if isinstance(x, Encoded) else list_rows(x, pairs=False)
        are_strings = [*map(is_text, rows)] or [False] * len(encoded)
        labels_by_text = []
        widened_count = 0
        for i, labels in enumerate(y):
            if isinstance(labels, (str, Mapping)) or not hasattr(labels, "__len__"):
                raise TypeError(f"`y[{i}]` must be a list: the labels of the words, or spans; got {labels!r:.60}.")
            words = encoded.words[i]
            if isinstance(labels[0], Mapping) if len(labels) else are_strings[i] and marks_spans(self.labels):
                labels, count = label_spans(f"`y[{i}]`", labels, encoded.texts[i], words, self.labels)
                widened_count += count
            elif len(labels) != len(words):
                excerpt = " ".join(word for word, _, _ in words[:8])
                raise ValueError(f"`y[{i}]` holds {len(labels)} labels for {len(words)} words: {excerpt!r:.80}.")
            labels_by_text.append(list(labels))
        return labels_by_text, widened_count

    def _number_labels(self, labels: list[list[Any]], counts: list[int]) -> np.ndarray:
        """Return the class numbers of the words of all texts as one int32 array, -100 for words that do not count."""
        flat_labels = [label for text_labels in labels for label in text_labels]
        class_numbers = np.full(len(flat_labels), IGNORED, "int32")
        counted_indices = [k for k, label in enumerate(flat_labels) if isinstance(label, str) or label != IGNORED]

        def place(k: int) -> str:
            ends = np.cumsum(counts)
            text_index = int(np.searchsorted(ends, counted_indices[k], side="right"))
            return f"at `y[{text_index}][{counted_indices[k] - (ends[text_index] - counts[text_index])}]`"

        if counted_indices:
            class_numbers[counted_indices] = encode_classes(
                [flat_labels[k] for k in counted_indices], self.num_classes, self.labels, place
            )
        return class_numbers

    def encode_labels(self, y: Labels | None) -> np.ndarray | None:
        """Check that token labels are class numbers or -100, and return them, int32 (n, T), or None if `y` is None.

        Raises:
            TypeError: If `y` is not a list or an array.
            ValueError: If labels are not int (n, T), or if a label is not a class of the model.
        """
        if y is None:
            return None
        token_labels = as_labels(y, "a label for each token")
        if token_labels.ndim != 2 or token_labels.dtype.kind not in "iu":
            raise ValueError(f"Expected labels of tokens, int (n, T), got {token_labels.dtype} {token_labels.shape}.")
        invalid_labels = token_labels[
            (token_labels != IGNORED) & ((token_labels < 0) | (token_labels >= self.num_classes))
        ]
        if len(invalid_labels):
            raise ValueError(
                f"Label {invalid_labels[0]} is outside [0, {self.num_classes}), the classes of this model."
            )
        return token_labels.astype("int32")

    def replace_ignored(self, y: Tensor) -> Tensor:
        """Return labels for the loss, in which -100 is replaced unless the loss itself leaves it out, as with `crf`."""
        leaves_out_ignored = self.crf or isinstance(self.loss, keras.losses.SparseCategoricalCrossentropy)
        return y if leaves_out_ignored else super().replace_ignored(y)

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return `(features, labels)` or `(features, labels, weights)` for the texts at `indices`.

        Labels and weights are arrays (b, t), with an entry for each of the t tokens of b texts.
        """
        encoded, token_labels, weights = examples
        features = self.features(encoded, indices, width)
        if isinstance(encoded, WindowedTexts):
            width = math.prod(encoded.shape(width))
        labels = np.full((len(indices), width), IGNORED, "int32")
        for i, text_index in enumerate(indices):
            labels[i, : len(token_labels[text_index])] = token_labels[text_index]
        weights_entry = () if weights is None else (make_batch_weights(weights, indices, width),)
        return (features, labels, *weights_entry)

    def tag(
        self, texts: Texts, batch_size: int = 32, aggregation: str | None = "first", constrained: bool = False
    ) -> list[list[SpanAnswer]]:
        """Return the labeled spans or words of each text.

        Args:
            texts: strings, or lists of words.
            batch_size: int, texts per batch.
            aggregation: `"first"`: a word has the label of its first token, and words form spans if the labels mark
                spans (words outside of spans are left out). `"simple"`: every token has its own label, and tokens form
                spans instead of words. `"none"` or None: every word is returned with its label.
            constrained: whether to choose the most probable well-formed sequence of labels, in which for example
                "I-PER" cannot follow "O", instead of each word's most probable label. Labels with only "B" and "I"
                are read as IOB2, or as IOB1 if a type has no "B". Not for `"simple"`.

        Returns:
            For each text, a list of `{"text": str, "label": str, "score": float, "start": int, "end": int}`. `label` is
            the type of the span, or the label of the word. `score` is the mean probability of the labels in the span.
            `start` and `end` are character offsets in the text (for a list of words, in the words joined by spaces).
            Truncated words are left out.

        Raises:
            ValueError: If `aggregation` is unknown, or is `"simple"` with `crf` or `constrained`; or if `constrained`
                is True and the labels do not mark spans.
        """
        is_valid = aggregation in ("first", "simple", "none", None)
        require(is_valid, "aggregation", '"first", "simple" or "none"', aggregation)
        scheme = SpanScheme.of(self.labels)
        if self.crf and aggregation == "simple":
            raise ValueError('`aggregation="simple"` labels tokens, but with `crf` only words have labels.')
        if constrained and (not scheme or aggregation == "simple"):
            raise ValueError('`constrained` needs labels that mark spans ("B-PER", "O", ...) on words.')
        encoded = self.encode_inputs(texts)
        if not len(encoded):
            return []
        tagged_texts: list[list[SpanAnswer]] = []
        locations = list(self._iterate_places(encoded, tokens=aggregation == "simple"))
        predictions = self._predict_labels_at([columns for _, columns in locations], encoded, batch_size, constrained)
        for i, ((char_ranges, _), (classes, probabilities)) in enumerate(zip(locations, predictions, strict=True)):
            labels = [self.class_names[k] for k in classes]
            single_word_spans = [(label, k, k + 1) for k, label in enumerate(labels)]
            tagged_texts.append([])
            spans = (
                find_marked_spans(labels, scheme)
                if scheme and aggregation in ("first", "simple")
                else single_word_spans
            )
            for label, first_index, end_index in spans:
                start = char_ranges[first_index][0]
                stop = char_ranges[end_index - 1][1]
                score = float(probabilities[first_index:end_index].mean())
                text = encoded.texts[i][start:stop]
                tagged_texts[-1].append({"text": text, "label": label, "score": score, "start": start, "end": stop})
        return tagged_texts

    answers = tag

    def labels_of_words(self, encoded: EncodedInputs, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the predicted class numbers of each text's W words and their probabilities, both (W,).

        Truncated words are left out.
        """
        columns = [columns for _, columns in self._iterate_places(encoded, tokens=False)]
        return self._predict_labels_at(columns, encoded, batch_size)

    def _predict_labels_at(
        self, columns: Sequence[np.ndarray], encoded: EncodedInputs, batch_size: int, constrained: bool = False
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the classes predicted at some positions of each text, int (U,), and their probabilities, float (U,).

        Args:
            columns: for each text, the U positions of tokens to label.
            encoded: the encoded texts.
            batch_size: int, sequences per batch.
            constrained: whether to choose the most probable well-formed sequence of labels; see `tag`.
        """
        max_count = int(encoded.counts.max(initial=1)) if isinstance(encoded, WindowedTexts) else 1
        for indices in group_items(range(len(encoded)), max(1, _WINDOWS_PER_PREDICTION // max_count)):
            outputs = self.predict(encoded.select(np.array(indices)), batch_size, verbose=0)
            group_columns = [columns[i] for i in indices]
            if self.crf:
                yield from decode_words(outputs, group_columns)  # from (n, T, C + 1, C + 1)
                continue
            for row, positions in zip(outputs, group_columns, strict=True):  # from (n, T, C)
                scores = log_softmax(row[positions])  # (U, C)
                if constrained:
                    classes = best_path(scores, *allowed_transitions(self.labels or ()))
                else:
                    classes = scores.argmax(axis=1)
                yield classes, np.exp(scores[np.arange(len(classes)), classes])

    def _iterate_places(
        self, encoded: EncodedInputs, tokens: bool
    ) -> Iterator[tuple[list[tuple[int, int]], np.ndarray]]:
        """Yield the character ranges and token positions of each text's words, or of its tokens if `tokens` is True.

        Truncated words and tokens, and tokens without any text, are left out.
        """
        for i, (begin, end) in enumerate(pairwise(encoded.word_splits)):
            columns = encoded.first[begin:end]  # (W,)
            words = [word for word, column in zip(encoded.words[i], columns, strict=True) if column >= 0]
            columns = columns[columns >= 0]
            if not tokens or not words:
                yield [(start, stop) for _, start, stop in words], columns
                continue
            token_ranges = [(span.start, span.end) for span in place_tokens(self.text_preprocessor.tokenizer, words)]
            # The last word may have been truncated.
            if isinstance(encoded, WindowedWords):
                columns = encoded.token_positions(i)
            else:
                text_end = encoded.lengths[i] - len(self.text_preprocessor.packing.closing)
                columns = np.arange(columns[0], min(columns[0] + len(token_ranges), text_end))
            # Some tokenizers put a space in front of a word, which may be a separate token without any text.
            nonempty_indices = [k for k, (start, end) in enumerate(token_ranges[: len(columns)]) if start < end]
            yield [token_ranges[k] for k in nonempty_indices], columns[nonempty_indices]

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
        """Return a report that compares the predicted labels of words with the actual labels.

        The predictions for truncated words count as "O" or, if the labels do not mark spans, as wrong. Words with the
        label -100 do not count.
        """
        truncated_label = OUTSIDE if marks_spans(self.labels) else ""
        names = self.class_names
        labels: list[Any] = []  # actual labels of the words that count
        # The predicted label, probability, start and end offsets of each of these words.
        predicted_words: list[tuple[str, float, int, int]] = []
        word_counts: list[int] = []  # number of these words in each text
        remaining_labels = iter(y)
        for part in parts:
            encoded = self.encode_inputs(part)
            labels_by_text = self.labels_by_word(part, itertools.islice(remaining_labels, len(encoded)), encoded)[0]
            columns = np.split(encoded.first, encoded.word_splits[1:-1])
            predictions = self.labels_of_words(encoded, batch_size)
            for text_labels, positions, words, prediction in zip(
                labels_by_text, columns, encoded.words, predictions, strict=True
            ):
                previous_count = len(labels)
                word_predictions = zip(*(values.tolist() for values in prediction), strict=True)
                for label, position, (_, start, end) in zip(text_labels, positions, words, strict=True):
                    class_number, score = next(word_predictions) if position >= 0 else (None, math.nan)
                    if label != IGNORED:
                        labels.append(label)
                        predicted_words.append(
                            (truncated_label if class_number is None else names[class_number], score, start, end)
                        )
                word_counts.append(len(labels) - previous_count)
        actual_labels = [names[k] for k in encode_classes(labels, self.num_classes, self.labels).tolist()]
        predicted_labels = [label for label, *_ in predicted_words]
        decisions = replace(
            Judged.of_classes(actual_labels, predicted_labels, [score for _, score, *_ in predicted_words]),
            example=np.repeat(np.arange(len(word_counts)), word_counts),
            places=np.array([offsets for _, _, *offsets in predicted_words], "int64").reshape(-1, 2),
            count=len(word_counts),
        )
        actual_by_text, predicted_by_text = (
            [[*itertools.islice(label_iterator, count)] for count in word_counts]
            for label_iterator in (iter(actual_labels), iter(predicted_labels))
        )
        return replace(compare_tags(actual_by_text, predicted_by_text, names), judged=decisions)

    served_outputs = ("text", "label", "score", "start", "end")

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's answers to token features, in TensorFlow ops.

        They are `labels` string and `scores` float32, both (B, T), and `probabilities` float32 (B, T, C).
        """
        answers = class_answers(self(features, training=False), self.class_names)
        return {"labels": answers["label"], "scores": answers["score"], "probabilities": answers["probabilities"]}

    def signatures(self) -> Signatures:
        """Return the exported model's signatures; the default does the same as `tag` with `aggregation="first"`.

        Texts with fewer spans than others are padded with "", 0 and -1.
        """
        import tensorflow as tf

        from lmzoo.text.graphs.long_texts import LongWordsGraph
        from lmzoo.text.graphs.preprocessor import WordPackerGraph
        from lmzoo.text.graphs.span_labels import find_labeled_spans
        from lmzoo.text.graphs.windows import compute_in_chunks

        if self.windows is None:
            pack = WordPackerGraph(self.text_preprocessor)
        else:
            pack = LongWordsGraph(self.text_preprocessor, self.windows, self.stride)
        table = SpanTable.of(self.class_names)

        def tag(text: tf.Tensor) -> dict[str, tf.Tensor]:
            features = pack(text)
            word_positions, word_spans, is_truncated = (features.pop(name) for name in ("place", "span", "truncated"))
            compute = partial(self, training=False) if self.windows is None else partial(compute_in_chunks, self)
            outputs = compute(features)  # (w, T, C), or (w, T, C + 1, C + 1)
            word_outputs = tf.gather_nd(outputs, word_positions)  # (m, C), or (m, C + 1, C + 1)
            if self.crf:
                word_counts = word_spans.row_lengths()  # (n,)
                max_count = tf.maximum(tf.reduce_max(word_counts), 1)
                is_word = tf.sequence_mask(word_counts, max_count)  # (n, M)
                score_shape = word_outputs.shape[1:]
                padded_outputs = word_spans.with_values(word_outputs).to_tensor(
                    0.0, shape=tf.stack([-1, max_count, *score_shape])
                )
                padded_outputs = tf.ensure_shape(padded_outputs, [None, None, *score_shape])  # (n, M, C + 1, C + 1)
                classes, scores = (tf.boolean_mask(x, is_word) for x in decode(padded_outputs, is_word))  # (m,)
            else:
                probabilities = tf.nn.softmax(word_outputs)  # (m, C)
                classes = tf.argmax(probabilities, axis=-1)  # (m,)
                scores = tf.reduce_max(probabilities, axis=-1)  # (m,)
            spans = find_labeled_spans(table, text, word_spans.with_values(classes), scores, word_spans)
            return {**spans, "truncated": is_truncated}

        signatures = {"serving_default": signature(tag, strings("text"))}
        # A CRF labels words, but token features do not show which tokens begin words.
        return pack, signatures if self.crf else {**signatures, "tokens": tokens_signature(self)}


def place_tokens(tokenizer: Tokenizer, words: Sequence[tuple[str, int, int]]) -> list[TokenSpan]:
    """Tokenize words, and return the tokens with their character offsets in the text.

    Args:
        tokenizer: tokenizer of the words.
        words: words with their start and end offsets in the text.
    """
    spans = tokenizer.tokenize_words_with_offsets([word for word, _, _ in words])
    return [
        span._replace(start=begin + span.start, end=begin + span.end)
        for (_, begin, _), word_spans in zip(words, spans, strict=True)
        for span in word_spans
    ]
