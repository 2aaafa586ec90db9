"""Extractive question answering: answers are spans of a given context."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

import keras
import numpy as np

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.common.tensor_types import Features
from lmzoo.evaluation.reports import Judged, Report
from lmzoo.evaluation.squad import (
    answer_score,
    best_null_threshold,
    exact_match,
    find_answers,
    read_golds,
    squad_metrics,
)
from lmzoo.families.backbone import Backbone
from lmzoo.serving.export import signature, strings, tokens_signature
from lmzoo.serving.served_model import Signatures
from lmzoo.tasks.base.arguments import check_top_k
from lmzoo.tasks.base.examples import Examples, FeatureArrays, Labels, Texts, Weights, as_example_weights
from lmzoo.tasks.base.labels import as_labels, refuse_first
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.task_encoders import AnswerLogits
from lmzoo.tasks.word_features import WordFeatures
from lmzoo.text import Encoded, EncodedWindows, Preprocessor
from lmzoo.text.answer_ranking import Answer, insert_null, null_scores, rank_answers
from lmzoo.text.probabilities import softmax
from lmzoo.text.segments import split_segments
from lmzoo.text.validate_text import Text, warn
from lmzoo.text.windows import encode_windows
from lmzoo.training.answer_losses import SpanAccuracy, SpanCrossentropy

if TYPE_CHECKING:
    import tensorflow as tf


class TextAnswer(TypedDict):
    """An answer, `context[start:end]`, with its probability."""

    text: str
    start: int
    end: int
    score: float


@keras.saving.register_keras_serializable(package="lmzoo")
class QuestionAnswerer(Task):
    """An extractive question answering model, which answers with a span of the context or with no answer.

    See Devlin et al. (2019), sections 4.2 and 4.3.

    Inputs are pairs (question, context): a tuple of two lists, or a list of 2-tuples. A context that does not fit into
    `sequence_length` next to its question is read in overlapping windows, so a batch holds windows, not examples. The
    outputs are logits, float32 (B, T, 2): for each of the T tokens of a window, the scores of an answer that starts or
    ends there. Logits at padding are meaningless. `predict` returns the logits of all windows of the first example,
    then of the second, and so on; `encode_inputs(x).examples` holds the index of each window's example.

    A label is `{"text": str, "answer_start": int}`, where `answer_start` is a character offset in the context; a list
    of such answers, or `{"text": [...], "answer_start": [...]}` as in SQuAD, of which `fit` takes the first; or None or
    an empty list for no answer. For a window that does not contain a whole answer, the model learns to point at the
    first token of the sequence. For w encoded windows (`encode_inputs`), labels may also be int (w, 2), the positions
    of the first and the last token of the answer.

    An answer is the substring `context[start:end]` that its tokens came from. Google's BERT code works on words split
    at spaces instead, and searches for the answer in them. Where the search fails, for example for tokens that are
    unknown or lost their accents, that code returns the whole words around the answer, and it always puts one space
    between words. Candidates and scores are the same in both (see `rank_answers`), but if no candidate remains for a
    model that must answer, Google's code returns "empty", whereas this class takes the best pair among all tokens.

    Args:
        backbone: `lmzoo.models.Backbone`, the layers below the head.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        doc_stride: int, number of tokens from the start of one window to the start of the next.
        max_question_length: int, number of tokens to which questions are truncated.
        max_answer_length: int, maximum number of tokens in an answer.
        n_best: int, number of starts and of ends to consider in each window, and of answers to consider for each
            example.
        null_score_threshold: float; `answer` returns "no answer" if the score of "no answer" exceeds the score of the
            best answer by more than this. None to always answer, as in SQuAD 1.1. Settable; `fit_null_threshold` tunes
            it.
        encoder: `"bidaf"` for attention between question and context in both directions (Seo et al., 2017), with LSTMs
            over the backbone's vectors and the task's own word vectors; `"bilstm"` for LSTMs alone; None for the
            backbone alone.
        encoder_dim: int, width of each direction of the encoder.
        name: name of the model.
        word_vectors: `lmzoo.models.StaticEmbedder`, whose vectors are concatenated with the backbone's vectors, below
            the encoder if there is one; None for the backbone's vectors alone. Tokens that the embedder lacks get
            zeros.

    Raises:
        ValueError: If a setting is not a positive integer, if the threshold is not a number, or if `encoder` is
            unknown.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.QuestionAnswerer.from_preset("bert_nano_en_uncased")
    pairs = [("Who met Bob?", "Ada met Bob."), ("Who met Eve?", "Ada met Bob.")]
    task.fit(pairs, [{"text": "Ada", "answer_start": 0}, None], epochs=1, verbose=0)
    task.answer(pairs[:1])  # [{"text": ..., "start": ..., "end": ..., "score": ...}]
    ```
    """

    per_token = True
    splits_examples = True
    predicts = "logits of all windows (w, T, 2)"
    head_kind = "question_answering"
    pipeline_tag = "question-answering"
    commands = (("qa", "questions"),)
    takes = "`question`, `context` (n,)"
    serves = (
        '`answer`, `start`, `end`, `score` (n,); long contexts are read in windows; if there is no answer, `""`, 0, 0'
    )
    input_names = ("question",)
    uses_pooler = False

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        doc_stride: int = 128,
        max_question_length: int = 64,
        max_answer_length: int = 30,
        n_best: int = 20,
        null_score_threshold: float | None = None,
        labels: None = None,
        name: str | None = None,
        encoder: str | None = None,
        encoder_dim: int = 256,
        word_vectors: Any = None,
    ) -> None:
        is_valid = null_score_threshold is None or is_number(null_score_threshold)
        require(is_valid, "null_score_threshold", "a number or None", null_score_threshold)
        logit_settings = AnswerLogits(
            encoder=encoder, encoder_dim=encoder_dim, word_vectors=WordFeatures.of(word_vectors, preprocessor)
        )
        logit_settings.rate(backbone)  # raises an error for anything but a backbone
        inputs = logit_settings.inputs(backbone)
        features = logit_settings.features(backbone, inputs, preprocessor)
        outputs, head = logit_settings.logits(backbone, inputs, features)  # (B, T, 2)
        super().__init__(backbone, preprocessor, inputs, outputs, None, name, logit_settings.reads_pairs)
        self.head = head
        self.encoder = encoder
        self.encoder_dim = encoder_dim
        self.word_vectors = logit_settings.word_vectors and logit_settings.word_vectors.sizes()
        self.doc_stride = doc_stride
        self.max_question_length = max_question_length
        self.max_answer_length = max_answer_length
        self.n_best = n_best
        self.null_score_threshold = null_score_threshold
        for setting in ("doc_stride", "max_question_length", "max_answer_length", "n_best"):
            require(is_integer(getattr(self, setting), 1), setting, "a positive integer", getattr(self, setting))
        self.compile()

    @classmethod
    def arguments_for(cls, y: Any) -> dict[str, Any]:
        """Return constructor arguments that suit labels: a null-score threshold of 0 if an example has no answer."""
        return {} if all(read_golds(y)) else {"null_score_threshold": 0.0}

    def default_loss(self) -> keras.losses.Loss:
        """Return the loss, the mean cross-entropy of the answers' start and end positions."""
        return SpanCrossentropy()

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return the metrics, the fraction of windows for which both the start and the end are right."""
        return [SpanAccuracy()]

    # === Examples ===

    def encode_inputs(self, x: Texts) -> EncodedWindows:
        """Encode pairs of questions and contexts as windows.

        Args:
            x: pairs (question, context), or encoded windows, which are returned unchanged.

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If texts are not pairs, if questions and contexts differ in number, if a question leaves no room
                for its context, or if the task has no preprocessor.
        """
        self.check_takes_text()
        if isinstance(x, EncodedWindows):
            return x
        questions, contexts = split_segments(x, self.text_preprocessor.tokenizer.takes_words)
        if contexts is None:
            if not (isinstance(questions, Sized) and not len(questions)):
                raise ValueError(
                    "A QuestionAnswerer takes pairs, (questions, contexts) or [(question, context), ...]; got single "
                    "texts."
                )
            contexts = []
        return encode_windows(self.text_preprocessor, questions, contexts, self.doc_stride, self.max_question_length)

    def encode_examples(self, x: Texts, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Encode examples as windows, with the token positions of their answers and the weights of the windows.

        The positions are int32 (w, 2) for w windows, and (0, 0), which stands for no answer, for a window that does not
        contain the whole answer. Answers that no window contains, or that are too long, cause a warning.

        Args:
            x: pairs (question, context), or encoded windows.
            y: a label for each example, in any format that the class describes; for encoded windows, also token
                positions, int (w, 2).
            sample_weight: float array, a weight for each entry of `y`.

        Raises:
            TypeError: If a label is not an answer, or if an entry of `x` is not text; the message names its position.
            ValueError: If an answer is not in its context at `answer_start` (the message names the example); if labels
                are missing; or if the numbers of examples, labels and weights differ.
        """
        encoded = self.encode_inputs(x)
        weights = as_example_weights(sample_weight)
        if isinstance(x, Encoded) and isinstance(y, np.ndarray) and y.ndim == 2:
            self.check_counts(len(encoded), y, weights)
            return Examples(encoded, self.encode_labels(y), weights)
        golds = None if y is None else read_golds(y)
        self.check_counts(len(encoded.contexts), golds, weights)
        answers = find_answers(encoded.contexts, golds or [])
        positions = encoded.positions(answers)
        self._warn_about_unusable_answers(encoded, answers, positions)
        return Examples(encoded, positions, None if weights is None else weights[encoded.examples])

    def _warn_about_unusable_answers(self, encoded: EncodedWindows, answers: np.ndarray, positions: np.ndarray) -> None:
        """Warn about answers that no window fully contains, or that are too long to be predicted."""
        has_answer = answers[:, 0] < answers[:, 1]  # (n,)
        is_in_window = np.bincount(encoded.examples, positions.any(axis=1), len(has_answer)) > 0  # (n,)
        answer_count = int(has_answer.sum())
        if missing_count := int((has_answer & ~is_in_window).sum()):
            sequence_length = self.text_preprocessor.sequence_length
            warn(
                f"{missing_count} of {answer_count} answers are not in any window as a whole and are learned as no "
                f"answer: raise `sequence_length`, {sequence_length}, or lower `doc_stride`, {self.doc_stride}."
            )
        long_windows_per_example = np.bincount(
            encoded.examples[positions[:, 1] - positions[:, 0] >= self.max_answer_length]
        )
        if long_answer_count := int((long_windows_per_example > 0).sum()):
            warn(
                f"{long_answer_count} of {answer_count} answers are longer than `max_answer_length`, "
                f"{self.max_answer_length} tokens: they are learned, but no answer of that length is given."
            )

    def encode_labels(self, y: Labels | None) -> np.ndarray | None:
        """Check the labels of token features, which are token positions of answers, and return them as int32 (n, 2).

        None stays None.

        Raises:
            TypeError: If `y` is not a list or an array.
            ValueError: If the positions are not non-negative integers of shape (n, 2) that fit into int32.
        """
        if y is None:
            return None
        positions = as_labels(y, "two positions for each sequence")
        are_pairs = positions.ndim == 2 and positions.shape[1] == 2 and positions.dtype.kind in "iu"
        if not are_pairs or (positions < 0).any() or (positions > np.iinfo("int32").max).any():
            raise ValueError(
                "Labels of token features are the positions of the answer's first and last token, whole numbers of "
                f"shape (n, 2); got {positions.dtype} of shape {positions.shape}."
            )
        return positions.astype("int32")

    def encode_feature_labels(self, features: Features, y: Labels | None) -> np.ndarray | None:
        """Check that the positions of answers are within the sequences, and return them; see `encode_labels`.

        Raises:
            ValueError: If a position is not below the length of the sequences; the message names the first.
        """
        positions = self.encode_labels(y)
        if positions is not None:
            length = next(iter(features.values())).shape[1]
            last_positions = positions.max(axis=1)  # (n,)
            refuse_first(last_positions >= length, last_positions, f"is outside [0, {length}), the sequence.")
        return positions

    def features(self, encoded: EncodedWindows, indices: np.ndarray, width: int) -> FeatureArrays:
        """Return the model's inputs for the windows at `indices`, padded to `width`."""
        return self.text_preprocessor.features(encoded.packed(indices), np.arange(len(indices)), width)

    # === Answers ===

    def answer(
        self, x: Iterable[Any], contexts: Iterable[Text] | None = None, top_k: int = 1, batch_size: int = 32
    ) -> list[TextAnswer] | list[list[TextAnswer]]:
        """Return the best answer to each question.

        Args:
            x: pairs, as for `fit`, or questions.
            contexts: a context for each question; None if `x` is pairs.
            top_k: int, number of answers to return for each question, at most `n_best`.
            batch_size: int, windows per batch.

        Returns:
            For each question, `{"text": str, "start": int, "end": int, "score": float}`, where `text` is
            `context[start:end]`; with `top_k` above 1, a list of such dicts, best first. The scores are a softmax over
            the n-best list. "No answer" is represented by `{"text": "", "start": 0, "end": 0}`. It is in the list if
            the context has no tokens, or if `null_score_threshold` is set. With a threshold, it precedes all answers
            whose score it exceeds by more than the threshold.

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If `top_k` is below 1; see also `encode_inputs`.
        """
        check_top_k(top_k)
        encoded = self.encode_inputs(x if contexts is None else (x, contexts))
        ranked_answers, no_answer_scores = self._rank_answers(
            encoded, batch_size, must_answer=self.null_score_threshold is None
        )
        n_best_lists: list[list[TextAnswer]] = []
        for i, (context, answers) in enumerate(zip(encoded.contexts, ranked_answers, strict=True)):
            if self.null_score_threshold is not None:
                answers, scores = insert_null(answers, no_answer_scores[i], self.null_score_threshold, self.n_best)
            else:
                answers = answers or [Answer(no_answer_scores[i], 0, 0)]
                scores = softmax(np.array([answer.score for answer in answers])).tolist()
            n_best_lists.append(
                [
                    {"text": context[a.start : a.end], "start": a.start, "end": a.end, "score": score}
                    for a, score in zip(answers[:top_k], scores, strict=False)
                ]
            )
        return [answers[0] for answers in n_best_lists] if top_k == 1 else n_best_lists

    answers = answer

    def check_answerable(self, x: Texts, **options: Any) -> None:
        self.encode_inputs(x)

    def _rank_answers(
        self, encoded: EncodedWindows, batch_size: int, must_answer: bool
    ) -> tuple[list[list[Answer]], np.ndarray]:
        """Return the n-best lists of n examples, and their scores of "no answer" (null scores), float64 (n,).

        With `must_answer`, no list is empty, except for contexts without tokens.
        """
        if not len(encoded):
            return [], np.zeros(0)
        logits = self.predict(encoded, batch_size=batch_size, verbose=0)  # (w, T, 2)
        ranked_answers = rank_answers(logits, encoded, self.n_best, self.max_answer_length)
        if must_answer:
            for i in (i for i, answers in enumerate(ranked_answers) if not answers):
                windows, example = encoded.of_example(i)
                all_answers = rank_answers(logits[windows], example, logits.shape[1], self.max_answer_length)
                ranked_answers[i] = all_answers[0][: self.n_best]
        return ranked_answers, null_scores(logits, encoded)

    def fit_null_threshold(self, x: Texts, y: Labels, batch_size: int = 32) -> float:
        """Set `null_score_threshold` to the value with the best F1 on held-out examples.

        The search is the same as in SQuAD 2.0's evaluation script.

        Args:
            x: pairs (question, context), some of them without an answer.
            y: labels of the pairs, as for `fit`; of several answers, the one closest to the prediction counts.
            batch_size: int, windows per batch.

        Returns:
            The threshold.

        Raises:
            ValueError: If `y` is not as long as `x`, or if all or none of the examples have an answer.
        """
        encoded = self.encode_inputs(x)
        golds = read_golds(y)
        self.check_counts(len(encoded.contexts), golds, None)
        if len({bool(answers) for answers in golds}) < 2:
            raise ValueError("A threshold needs examples with an answer and examples without one.")
        ranked_answers, no_answer_scores = self._rank_answers(encoded, batch_size, must_answer=False)
        best_scores = np.array([answers[0].score if answers else -np.inf for answers in ranked_answers])
        answer_texts = [
            context[answers[0].start : answers[0].end] if answers else ""
            for context, answers in zip(encoded.contexts, ranked_answers, strict=True)
        ]
        answer_f1, no_answer_f1 = (
            np.array([answer_score(text, answers) for text, answers in zip(predicted_texts, golds, strict=True)])
            for predicted_texts in (answer_texts, [""] * len(answer_texts))
        )
        self.null_score_threshold = best_null_threshold(no_answer_scores - best_scores, answer_f1, no_answer_f1)
        return self.null_score_threshold

    def compare(self, parts: Iterable[Any], y: Any, batch_size: int, **measured: float) -> Report:
        answers: list[Any] = [answer for part in parts for answer in self.answer(part, batch_size=batch_size)]
        golds = read_golds(y)
        scores = {name: score for name, score in squad_metrics(answers, y).items() if not name.endswith("total")}
        predicted_texts = [answer["text"] for answer in answers]
        actual_texts = [gold[0].text if gold else "" for gold in golds]
        errors = [1 - answer_score(text, gold, exact_match) for text, gold in zip(predicted_texts, golds, strict=True)]
        decisions = Judged.of_classes(actual_texts, predicted_texts, [answer["score"] for answer in answers])
        return Report(scores, judged=replace(decisions, error=np.array(errors, "float64")))

    served_outputs = ("answer", "start", "end", "score")

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's outputs for token features: `start_logits` and `end_logits`, float32 (B, T)."""
        logits = self(features, training=False)  # (B, T, 2)
        return {"start_logits": logits[:, :, 0], "end_logits": logits[:, :, 1]}

    def signatures(self) -> Signatures:
        """Return the exported model's signatures; the default signature does the same as `answer`.

        The default signature takes questions and contexts, `tf.string` (n,). Its output `truncated`, bool (n,), marks
        truncated questions; contexts are never truncated.
        """
        from lmzoo.text.graphs.answer_ranking import AnswerGraph
        from lmzoo.text.graphs.windows import WindowGraph, compute_in_chunks

        pack = WindowGraph(self.text_preprocessor, self.doc_stride, self.max_question_length)
        rank = AnswerGraph(self.n_best, self.max_answer_length, self.null_score_threshold)

        def answer(question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
            windows = pack(question, context)
            answers = rank(context, compute_in_chunks(self, windows.features), windows)
            return {**answers, "truncated": windows.truncated}

        return pack, {
            "serving_default": signature(answer, strings("question", "context")),
            "tokens": tokens_signature(self),
        }
