"""Embeddings of texts and words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.common.progress import progress_bar
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.evaluation.reports import Judged, Report, compare_numbers
from lmzoo.families.backbone import Backbone
from lmzoo.layers import unit_vectors
from lmzoo.search.index import ArrayIndex, VectorIndex, check_index, open_index
from lmzoo.search.nearest import (
    Hit,
    as_hits,
    check_not_lists,
    check_queries,
    check_similarity,
    check_top_k,
    is_vectors,
)
from lmzoo.serving.export import make_prompted_signature, text_signatures
from lmzoo.serving.served_model import Signatures
from lmzoo.tasks.base.arguments import check_arguments
from lmzoo.tasks.base.examples import (
    BATCH_SIZE,
    Batch,
    EncodedInputs,
    Examples,
    FeatureArrays,
    Labels,
    Texts,
    Weights,
    as_array,
)
from lmzoo.tasks.base.labels import encode_exact_numbers, encode_numbers, refuse_first
from lmzoo.tasks.embedding_groups import OBJECTIVES, check_groups, number_texts
from lmzoo.tasks.embedding_head import check_pooling, check_projection, pool, project
from lmzoo.tasks.embedding_prompts import (
    DOCUMENT_PROMPTS,
    QUERY_PROMPTS,
    add_prompt,
    check_pair_prompts,
    check_prompts,
)
from lmzoo.tasks.long_texts import LongTextTask
from lmzoo.tasks.word_vectors import LayerModels, Layers, WordVectors, embed_words
from lmzoo.text import Encoded, Preprocessor
from lmzoo.text.long_texts import Windows, check_windows
from lmzoo.text.packing import EncodedGroups
from lmzoo.text.segments import clean_groups, clean_segments, clean_single_texts, split_segments
from lmzoo.text.validate_text import TextWarningFilter
from lmzoo.training.contrastive import MultipleNegativesRanking, PairAccuracy, PairCorrelation, PairCosineError
from lmzoo.training.distillation import ComparedOutputs, DistillationSettings
from lmzoo.training.embedding_losses import (
    AngleLoss,
    CosentLoss,
    MatryoshkaLoss,
    TripletAccuracy,
    TripletLoss,
    check_widths,
)
from lmzoo.training.gradient_cache import compute_in_mini_batches

if TYPE_CHECKING:
    import tensorflow as tf

_BATCHES_PER_PART = 64  # batches between updates of the progress bar


@keras.saving.register_keras_serializable(package="lmzoo")
class TextEmbedder(LongTextTask):
    """An embedding model, which maps each text to a vector for comparing texts (Reimers and Gurevych, 2019).

    The model's outputs are vectors of the backbone's width H, float32 (B, H); a list of poolings or a `projection`
    changes their width. The head has no weights except the projection's.

    `fit` takes pairs of texts, as a tuple of two lists or a list of 2-tuples, and encodes each text separately. The
    `objective` says what the pairs are:

    * `"contrastive"`: the texts of a pair belong together, such as a question and its answer, two wordings of a
      sentence, or the same text twice, with different dropout. There are no labels; the model learns to match each text
      with its partner among all texts of the batch (`lmzoo.training.MultipleNegativesRanking`), and larger batches give
      better results. A third column, or more columns, hold hard negatives: texts that do not belong to the first text.
    * `"cosine"`: each pair has a label between -1 and 1, and the cosine of its vectors is trained to match the label
      (`lmzoo.training.PairCosineError`).
    * `"cosent"`, `"angle"`: each pair has a number as its label, and pairs with higher labels are trained to have
      higher similarities (`lmzoo.training.CosentLoss`, `lmzoo.training.AngleLoss`).
    * `"triplet"`: triples of an anchor, a text that belongs to it, and a text that does not; without labels
      (`lmzoo.training.TripletLoss`).

    With token features, the texts of pair i are sequences 2i and 2i + 1, with a label and a weight for each sequence;
    `batch_size` counts sequences, and must be a multiple of the size of a group. Sequences are not shuffled.

    Args:
        backbone: `lmzoo.models.Backbone`, the layers below the head.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        pooling: `"mean"` or `"max"` over the tokens without padding; `"cls"`, the last layer's vector of the first
            token; `"lasttoken"`, the last layer's vector of the last token; `"weightedmean"`, the mean with weights 1,
            2, 3, ... in the order of the tokens; `"mean_sqrt_len_tokens"`, the sum divided by the square root of the
            number of tokens; or a list of several, whose vectors are concatenated. (`TextClassifier`'s
            `pooling="first"` differs from `"cls"`: it takes the backbone's `pooled_output`, which for BERT has passed
            through an additional dense layer, trained for another task.)
        normalize: bool, whether to scale vectors to unit length, so that their dot products are cosines.
        projection: layers between pooling and `normalize`, a list of dicts: `{"kind": "dense", "units": 64,
            "activation": "tanh", "use_bias": True}` (by default without an activation, `"linear"`, and with a bias),
            `{"kind": "layer_norm"}`, `{"kind": "dropout", "rate": 0.1}`, `{"kind": "normalize"}` and
            `{"kind": "truncate", "units": 64}`, which keeps the first 64 features.
        prompts: dict from names to prompts, texts to put before other texts, such as `{"query": "query: "}`.
        default_prompt: name of the prompt that is put before every text; None for no prompt. Settable.
        similarity: the similarity of vectors that `search` uses: `"cosine"` or `"dot"`; or `"euclidean"` or
            `"manhattan"`, whose scores are negative distances.
        pair_prompts: names of two prompts, such as `("query", "passage")`, for the first texts of pairs and for the
            other texts in `fit` and `evaluate`; None in place of a name for no prompt. By default, all texts get the
            default prompt. Each of the two prompts has its own signature in exported SavedModels. Settable.
        objective: `"contrastive"`, `"cosine"`, `"cosent"`, `"angle"` or `"triplet"`, the objective of `fit`.
        temperature: positive float, temperature of the objectives `"contrastive"`, `"cosent"` and `"angle"`.
        matryoshka_widths: ints, widths to which vectors may be truncated after training. Vectors of these widths are
            trained together with whole vectors (`lmzoo.training.MatryoshkaLoss`). By default, only whole vectors are
            trained.
        mini_batch_size: int, maximum number of texts that are encoded at a time in training. Large batches then take
            the memory of small ones, and a third more time: vectors are computed twice, once for the loss and once for
            the gradients, which are the same as for the whole batch (gradient caching, Gao et al., 2021). By default,
            the texts of a batch are encoded together.
        windows: maximum number of windows in which a long text is read; `"auto"` for as many as it needs. The vector of
            the text is the mean of the windows' vectors, weighted by their numbers of tokens, and with `normalize`
            scaled to unit length. Each window begins with the prompt. By default, long texts are truncated. Settable.
        stride: int, number of tokens from one window to the next; by default, windows do not overlap. Settable.
        name: name of the model.

    Raises:
        ValueError: If `pooling`, a layer of the `projection`, `objective`, `similarity` or a prompt is unknown, if
            `temperature` is not positive, if a width exceeds the width of the vectors, or if `pooling` is `"cls"` for a
            family without a special first token (ELMo).

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    embedder.fit([("How old is it?", "It is ten years old."), ("Who wrote it?", "Jane Austen did.")], verbose=0)
    question, *answers = embedder.embed(["How old are you?", "She is nine.", "In the garden."])
    [float(question @ answer) for answer in answers]  # cosines
    ```
    """

    predicts = "vectors (n, H)"
    head_kind = "embedding"
    pipeline_tag = "sentence-similarity"
    commands = (("embedder", "pairs"),)
    serves = "`embedding` (n, H)"
    instead_of: ClassVar[Mapping[str, str]] = {
        **LongTextTask.instead_of,
        "embedding_dim": "Pass `projection`, layers after the pooling.",
        "pooling_mode": 'Pass `pooling`, such as "mean" or "cls".',
    }
    replaceable = True
    uses_pooler = False
    independent_rows = False
    distillation = DistillationSettings((0.0, 0.0, 1.0), takes_labels=False, compares_predictions=False)

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        pooling: str | Sequence[str] = "mean",
        normalize: bool = True,
        objective: str = "contrastive",
        temperature: float = 0.05,
        projection: Sequence[Mapping[str, Any]] | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt: str | None = None,
        similarity: str = "cosine",
        labels: None = None,
        name: str | None = None,
        pair_prompts: Sequence[str | None] | None = None,
        matryoshka_widths: Sequence[int] | None = None,
        mini_batch_size: int | None = None,
        windows: Windows = None,
        stride: int | None = None,
    ) -> None:
        check_windows(windows, stride)
        modes = check_pooling(backbone, pooling)
        layers = check_projection(projection)
        prompt_texts = check_prompts(prompts, default_prompt)
        check_similarity(similarity)
        pair_prompt_names = check_pair_prompts(pair_prompts, prompt_texts)
        allowed_values = ", ".join(f'"{name}"' for name in OBJECTIVES)
        require(objective in OBJECTIVES, "objective", f"one of {allowed_values}", objective)
        require(is_number(temperature) and temperature > 0, "temperature", "a positive number", temperature)
        is_valid = mini_batch_size is None or is_integer(mini_batch_size, 1)
        require(is_valid, "mini_batch_size", "None or an integer of at least 1", mini_batch_size)
        vectors = project(pool(backbone, modes), layers, backbone)  # (B, H)
        outputs = unit_vectors(vectors) if normalize else ops.cast(vectors, "float32")
        super().__init__(backbone, preprocessor, backbone.input, outputs, None, name)
        self.objective: str = objective
        if objective == "contrastive":
            self.learns_from = 'pairs alone (with `objective="cosine"` from pairs and their similarities)'
        if objective == "triplet":
            self.learns_from = "triples alone"
        self.matryoshka_widths: list[int] | None = None
        if matryoshka_widths is not None:
            self.matryoshka_widths = check_widths("matryoshka_widths", matryoshka_widths, outputs.shape[-1])
        self.temperature: float = float(temperature)
        self.pooling: str | list[str] = modes[0] if len(modes) == 1 else modes
        self.normalize: bool = normalize
        self.projection: list[dict[str, Any]] = layers
        self.prompts: dict[str, str] = prompt_texts
        self.default_prompt: str | None = default_prompt
        self.similarity: str = similarity
        self.pair_prompts: list[str | None] | None = pair_prompt_names
        self.mini_batch_size: int | None = mini_batch_size
        self.windows = windows
        self.stride = stride
        self.compile()

    @classmethod
    def arguments_for(cls, y: Any) -> dict[str, Any]:
        """Return constructor arguments that suit the labels `y`: objective "cosine", or "contrastive" for None."""
        return {"objective": "contrastive" if y is None else "cosine"}

    def compared_outputs(self) -> ComparedOutputs:
        """Return the vectors of the texts, in place of both logits and hidden states."""
        text_mask = ops.ones_like(self.output[:, 0])  # (B,)
        return ComparedOutputs(self.output, text_mask, self.output, text_mask)

    def default_loss(self) -> keras.losses.Loss:
        """Return the loss for the objective; with `matryoshka_widths`, its sum over these widths and the full width."""
        loss = self._make_vector_loss()
        if self.matryoshka_widths is None:
            return loss
        return MatryoshkaLoss(loss, sorted({*self.matryoshka_widths, self.output.shape[-1]}, reverse=True))

    def _make_vector_loss(self) -> keras.losses.Loss:
        """Return the loss of the task's objective on vectors of one width."""
        match self.objective:
            case "cosine":
                return PairCosineError()
            case "cosent":
                return CosentLoss(self.temperature)
            case "angle":
                return AngleLoss(self.temperature)
            case "triplet":
                return TripletLoss()
            case _:
                return MultipleNegativesRanking(self.temperature)

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return the metrics: the accuracy of matching texts or, with labels, the correlation of cosines and labels."""
        if self.needs_labels:
            return [PairCorrelation()]
        return [TripletAccuracy() if self.objective == "triplet" else PairAccuracy()]

    @property
    def unused_variables(self) -> list[keras.Variable]:
        """The variables that get no gradient from the task's loss."""
        # ELMo's gamma scales all vectors, which has no effect if they are then scaled to unit length.
        layer_mix = self.backbone.scalar_mix
        scale_has_no_effect = self.normalize and not self.projection
        return super().unused_variables + ([layer_mix.gamma] if layer_mix is not None and scale_has_no_effect else [])

    # === Prompts ===

    def prompt_text(self, prompt_name: str | None = None) -> str:
        """Return the text of the prompt `prompt_name`, or by default of the default prompt.

        If there is no default prompt, the text is "".

        Raises:
            ValueError: If there is no prompt `prompt_name`.
        """
        name = self.default_prompt if prompt_name is None else prompt_name
        return "" if name is None else check_prompts(self.prompts, name)[name]

    def _get_pair_prompts(self) -> tuple[str, str]:
        """Return the prompt for the first texts of pairs, and the prompt for the other texts."""
        names = check_pair_prompts(self.pair_prompts, self.prompts)
        if names is None:
            return self.prompt_text(), self.prompt_text()
        first_prompt, other_prompt = ("" if name is None else self.prompts[name] for name in names)
        return first_prompt, other_prompt

    def encode_inputs(self, x: Texts) -> EncodedInputs:
        """Encode texts or pairs with the default prompt before each single text and each first text of a pair.

        See `Task.encode_inputs`.
        """
        return self._encode_with_prompt(x, self.prompt_text())

    def _encode_with_prompt(self, x: Texts, prompt: str) -> EncodedInputs:
        """Encode texts or pairs with `prompt` before each single or first text; see `encode_inputs`.

        Raises:
            ValueError: If texts are already encoded, with the default prompt, and `prompt` differs from it.
        """
        if isinstance(x, Encoded) and prompt != self.prompt_text():
            raise ValueError(
                f"The prompt {prompt!r:.60} cannot be put before encoded texts, which have the default prompt. Pass "
                "texts."
            )
        if prompt and not isinstance(x, Encoded):
            self.check_takes_text()
            firsts, *seconds = clean_segments(x, self.text_preprocessor.tokenizer.takes_words)
            firsts = add_prompt(prompt, firsts)
            x = (firsts, *seconds) if seconds else firsts
        return self.encode_texts(x, prompt)

    def finish_pooled(self, outputs: Tensor) -> Tensor:
        """Return the means of windows, (B, H), as the vectors of texts, scaled to unit length if `normalize` is set."""
        return unit_vectors(outputs) if self.normalize else outputs

    @property
    def layer_models(self) -> LayerModels:
        """The models that `embed` uses for individual layers, compiled with the task's settings."""
        compiled_parts = self.compiled_parts
        if "layers" not in compiled_parts:
            compile_settings = {"jit_compile": self.jit_compile, "run_eagerly": self.run_eagerly}
            compiled_parts["layers"] = LayerModels(self.backbone, **compile_settings)
        return compiled_parts["layers"]

    # === Pairs ===

    def call(self, inputs: Features, training: bool | None = None, mask: Any = None, **kwargs: Any) -> Any:
        """Compute the vectors of texts; if `mini_batch_size` is set, training computes them in mini-batches."""
        compute = super().call
        if not training or self.mini_batch_size is None:
            return compute(inputs, training=training, mask=mask, **kwargs)
        features = self.select_inputs(inputs)
        return compute_in_mini_batches(self, lambda part: compute(part, training=True), features, self.mini_batch_size)

    def encode_examples(self, x: Texts, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Encode pairs or larger groups of texts with their weights and, if the objective needs them, their labels.

        Raises:
            TypeError: If an entry is not text, or if a label or weight is not a number.
            ValueError: If there are no texts, if groups or labels do not fit the objective, or if weights are passed
                for "cosent" or "angle"; see also `Task.encode_examples`.
        """
        self.check_takes_text()
        self.check_unlabeled(y)
        if sample_weight is not None and self.objective in ("cosent", "angle"):
            raise ValueError(
                f'`objective="{self.objective}"` compares pairs with one another, so a pair has no `sample_weight`. '
                'Leave it out, or choose "cosine".'
            )
        return self._add_labels(x if isinstance(x, EncodedGroups) else self._encode_groups(x), y, sample_weight)

    def _encode_groups(self, x: Texts) -> EncodedGroups:
        """Encode groups of texts column by column, with the prompts for first and other texts.

        Raises:
            ValueError: If there are no texts, or if the groups do not fit the objective; see `check_groups`.
        """
        columns = clean_groups(x, self.text_preprocessor.tokenizer.takes_words)
        if not columns[0]:
            raise ValueError("There are no examples: got an empty list of texts.")
        check_groups(columns, self.objective)
        first_prompt, other_prompt = self._get_pair_prompts()
        firsts, *other_columns = columns
        group_count = len(firsts)
        warning_filter = TextWarningFilter()
        with warning_filter.once_per_reason():
            first_column = self._encode_with_prompt(firsts, first_prompt)
        with warning_filter.once_per_reason():
            other_texts = self._encode_with_prompt([text for column in other_columns for text in column], other_prompt)
        # Different prompts make equal texts differ in their tokens.
        ids = number_texts(columns) if first_prompt != other_prompt else None
        return EncodedGroups(
            (first_column, *(other_texts[k * group_count : (k + 1) * group_count] for k in range(len(other_columns)))),
            ids,
        )

    def encode_labels(self, y: Labels | None) -> np.ndarray | None:
        """Check labels and return them as float32 (n,), or None if `y` is None.

        For the objective "cosine", labels must be between -1 and 1. If the objective takes no labels, they are only
        converted to an array.
        """
        if y is None or not self.needs_labels:
            return as_array(y)
        labels = encode_numbers(y)
        if self.objective != "cosine":
            return labels
        problem = (
            "is not a cosine: labels are between -1 and 1. Divide those of another scale by its highest value (STS-B's "
            "by 5)."
        )
        refuse_first(np.abs(labels) > 1, labels, problem)
        return labels

    def count_rows_per_example(self, y: Any) -> int:
        """Return the number of texts in a group, each a row of token features, given the encoded labels `y`.

        Without labels, or with one number for each text, groups are pairs, or triples for the objective "triplet".
        Integers (Kb, K) are the ids that `make_batch` returns for groups of K texts. Other labels with two axes are for
        single texts.
        """
        if y is None or y.ndim == 1:
            return 3 if self.objective == "triplet" else 2
        return int(y.shape[1]) if y.dtype.kind in "iu" else 1

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return features, targets and, if there are any, weights for b groups of K texts, each text a sequence.

        The weight and the label of a group are repeated for each of its texts: (Kb,). Without labels, the targets are
        ids, equal for equal texts: (2b,) for pairs; (Kb, K) for larger groups, where each text has the ids of all texts
        in its group.
        """
        groups, labels, weights = examples
        group_size = len(groups.columns)
        columns = [self.features(texts, indices, width) for texts in groups.columns]
        features = {
            name: np.stack([column[name] for column in columns], axis=1).reshape(-1, *values.shape[1:])
            for name, values in columns[0].items()
        }
        if labels is None:
            targets = self._get_ids_in_batch(groups, features, indices)
            if group_size > 2:
                targets = np.repeat(targets.reshape(-1, group_size), group_size, axis=0)
        else:
            targets = np.repeat(labels[indices], group_size)
        return (features, targets) if weights is None else (features, targets, np.repeat(weights[indices], group_size))

    @staticmethod
    def _get_ids_in_batch(groups: EncodedGroups, features: FeatureArrays, indices: np.ndarray) -> np.ndarray:
        """Return a number for each text of a batch of b groups of K texts, equal for equal texts: int32 (Kb,).

        Args:
            groups: the groups of all examples, perhaps with ids of their texts.
            features: features of the batch, whose token ids tell texts apart if they have no ids.
            indices: int (b,), indices of the batch's groups.
        """
        keys: list[Any]
        if groups.ids is None:
            id_arrays = next(features[name] for name in ("character_ids", "token_ids") if name in features)
            keys = [sequence_ids.tobytes() for sequence_ids in id_arrays]
        else:
            keys = groups.ids[indices].ravel().tolist()
        ids_by_key: dict[Any, int] = {}
        return np.array([ids_by_key.setdefault(key, len(ids_by_key)) for key in keys], "int32")

    # === Vectors ===

    @overload
    def embed(
        self,
        texts: Texts,
        batch_size: int = 32,
        level: Literal["text"] = "text",
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        width: int | None = None,
    ) -> np.ndarray: ...

    @overload
    def embed(
        self, texts: Texts, batch_size: int = 32, *, level: Literal["word"], layers: Layers = None
    ) -> list[WordVectors]: ...

    def embed(
        self,
        texts: Texts,
        batch_size: int = 32,
        level: str = "text",
        layers: Layers = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        width: int | None = None,
    ) -> np.ndarray | list[WordVectors]:
        """Return the embeddings of texts or of their words.

        A word's vector is the mean of its tokens' vectors, computed in the context of the whole text; it is not
        normalized. If several words share a single token, each gets that token's vector. Words that do not fit into the
        model, or for which the tokenizer produces no token, get zeros, with a warning.

        Args:
            texts: a list of strings. For vectors of texts, also pairs, each with one vector: a tuple of two lists or a
                list of 2-tuples. For vectors of words, a text may also be a list of words; strings are split by
                `lmzoo.text.word_splitting.split_words`.
            batch_size: int, texts per batch.
            level: `"text"` or `"word"`.
            layers: for words, the layers to take vectors from. None: the backbone's `sequence_output`, which is the
                last layer or, for ELMo, the trained mix. An int: one of `hidden_states`, where 0 is the input of the
                first layer and -1 the last layer. A list of ints: the mean of these layers. A dict from ints to floats:
                the sum of these layers with these weights. `"all"`: all layers, separately.
            prompt_name: for texts, the name in `prompts` of the prompt to put before each text; `default_prompt` by
                default.
            prompt: for texts, the prompt itself, instead of its name; "" for no prompt.
            width: int, number of features to which the vectors of texts are truncated; with `normalize`, they are
                scaled to unit length again. By default, vectors are not truncated. See `matryoshka_widths`.

        Returns:
            For texts, their vectors, float32 (n, H), or (n, `width`). For words, a list of n `WordVectors(words,
            offsets, vectors)`: the w words of a text, their character offsets in the text, int64 (w, 2), and their
            vectors, float32 (w, H), or (w, L, H) for all L layers.

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If `level` is unknown; if pairs, a prompt or a `width` are passed with level "word", or `layers`
                with level "text"; if the model lacks a layer, a prompt name or a width; or if both `prompt` and
                `prompt_name` are passed.

        Example:

        ```python
        import lmzoo

        embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
        embedder.embed(["A quiet film."]).shape  # (1, 256)
        (found,) = embedder.embed(["She sat on the bank."], level="word", layers=[-1, -2])
        found.vectors[found.words.index("bank")]  # float32 (256,)
        ```
        """
        full_width = self.output.shape[-1]
        is_valid = width is None or is_integer(width, 1, full_width)
        require(is_valid, "width", f"None or an integer from 1 to {full_width}, the width of the vectors", width)
        if level == "word":
            if width is not None:
                raise ValueError('`width` is for `level="text"`: vectors of words are not truncated.')
            if prompt is not None or prompt_name is not None:
                raise ValueError('A prompt is for `level="text"`: the words of a text are read without one.')
            check_arguments(batch_size=batch_size)
            self.check_takes_text()
            singles, seconds = split_segments(texts, words=True)
            if seconds is not None:
                raise ValueError('`level="word"` takes single texts, each a string or a list of words; got pairs.')
            return embed_words(self, self.layer_models, singles, layers, batch_size or BATCH_SIZE)
        require(level == "text", "level", '"text" or "word"', level)
        if layers is not None:
            raise ValueError('`layers` are for `level="word"`: the vector of a text is the output of the model.')
        if prompt is not None and prompt_name is not None:
            raise ValueError(f"Pass `prompt` or `prompt_name`, not both; got {prompt!r:.60} and {prompt_name!r:.60}.")
        if prompt is not None or prompt_name is not None:
            require(isinstance(prompt, str | None), "prompt", "a string", prompt)
            texts = self._encode_with_prompt(texts, self.prompt_text(prompt_name) if prompt is None else prompt)
        vectors = self.predict(texts, batch_size=batch_size, verbose=0)
        return vectors if width is None else self._truncate(vectors, width)

    def _truncate(self, vectors: np.ndarray, width: int) -> np.ndarray:
        """Truncate vectors to `width` features, and scale them to unit length if the model normalizes its vectors."""
        truncated_vectors = vectors[:, :width]
        return ops.convert_to_numpy(unit_vectors(truncated_vectors)) if self.normalize else truncated_vectors

    answers = embed

    # === Search ===

    def embed_queries(self, texts: Texts, batch_size: int = 32, prompt_name: str | None = None) -> np.ndarray:
        """Return the embeddings of queries, with the model's prompt for queries before each text.

        This prompt is the first of `pair_prompts`. Without these, it is the prompt `"query"`, if there is one.

        Args:
            texts: a list of strings.
            batch_size: int, texts per batch.
            prompt_name: name of another prompt in `prompts`. The default prompt is not used.

        Returns:
            The embeddings, float32 (n, H).

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If `texts` are pairs, or if there is no prompt `prompt_name`.

        Example: see `lmzoo.models.TextEmbedder.search`.
        """
        return self._embed_with_progress(texts, batch_size, self._get_query_prompt(prompt_name))

    def embed_documents(self, texts: Texts, batch_size: int = 32, prompt_name: str | None = None) -> np.ndarray:
        """Return the embeddings of texts to search in, with the model's prompt for documents before each text.

        This prompt is the second of `pair_prompts`. Without these, it is the first of the prompts `"document"`,
        `"passage"` and `"corpus"` that the model has, if there is one.

        Args:
            texts: a list of strings.
            batch_size: int, texts per batch.
            prompt_name: name of another prompt in `prompts`. The default prompt is not used.

        Returns:
            The embeddings, float32 (n, H).

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If `texts` are pairs, or if there is no prompt `prompt_name`.

        Example: see `lmzoo.models.TextEmbedder.search`.
        """
        return self._embed_with_progress(texts, batch_size, self._get_document_prompt(prompt_name))

    def _get_query_prompt(self, prompt_name: str | None) -> str:
        return self._get_role_prompt(prompt_name, QUERY_PROMPTS, 0)

    def _get_document_prompt(self, prompt_name: str | None) -> str:
        return self._get_role_prompt(prompt_name, DOCUMENT_PROMPTS, 1)

    def _get_role_prompt(self, prompt_name: str | None, default_names: Sequence[str], side: int) -> str:
        """Return the prompt for queries or for documents, or "" if the model has none.

        Args:
            prompt_name: name of the prompt; None for the default of this role.
            default_names: names of prompts for this role; the first one that the model has is used.
            side: 0 or 1, index of the prompt in `pair_prompts`, which take precedence over the default names.
        """
        if prompt_name is None and self.pair_prompts is not None:
            return self._get_pair_prompts()[side]
        if prompt_name is None:
            prompt_name = next((name for name in default_names if name in self.prompts), None)
        return "" if prompt_name is None else self.prompt_text(prompt_name)

    def _clean_single_texts(self, name: str, texts: Any) -> list[Any]:
        """Check and clean a list of single texts; `name` is the argument's name, for messages."""
        return clean_single_texts(name, texts, self.text_preprocessor.tokenizer.takes_words)

    def _embed_with_progress(self, texts: Texts, batch_size: int | None, prompt: str) -> np.ndarray:
        """Return the embeddings of single texts, float32 (n, H); show a progress bar if there are many texts."""
        check_arguments(batch_size=batch_size)
        batch_size = batch_size or BATCH_SIZE
        if not isinstance(texts, Encoded):
            texts = self._clean_single_texts("texts", texts)
        encoded = self._encode_with_prompt(texts, prompt)
        part_size = _BATCHES_PER_PART * batch_size
        if len(encoded) <= part_size:
            return self.predict(encoded, batch_size=batch_size, verbose=0)
        embeddings = []
        with progress_bar("Embedding", len(encoded), "texts") as advance:
            for start in range(0, len(encoded), part_size):
                encoded_part = encoded[start : start + part_size]
                embeddings.append(self.predict(encoded_part, batch_size=batch_size, verbose=0))
                advance(len(encoded_part))
        return np.concatenate(embeddings)

    def search(
        self,
        queries: Texts | np.ndarray,
        corpus: Texts | np.ndarray | VectorIndex,
        top_k: int | None = None,
        batch_size: int = 32,
        texts: Sequence[str] | None = None,
        query_prompt_name: str | None = None,
        document_prompt_name: str | None = None,
    ) -> list[list[Hit]]:
        """Return the texts of a corpus that are most similar to each query, best first.

        Texts are embedded by `embed_queries` and `embed_documents`, and compared by the model's `similarity`. To search
        a corpus several times, pass its vectors. An array is searched exactly, and may be memory-mapped.

        Args:
            queries: a list of strings, or an array of their vectors, (q, H).
            corpus: a list of n strings; a NumPy, JAX or TensorFlow array of their vectors, (n, H); or a
                `lmzoo.search.VectorIndex` of their vectors.
            top_k: int, number of texts to return for each query; by default 10, or all of a smaller corpus.
            batch_size: int, texts per batch.
            texts: the texts of the corpus, to return them with the hits; only if `corpus` is vectors.
            query_prompt_name: name of the prompt of queries; see `embed_queries`.
            document_prompt_name: name of the prompt of the corpus; see `embed_documents`.

        Returns:
            For each query a list of `{"index": int, "text": str, "score": float}`, without "text" for a corpus without
            texts. Equal scores are ordered by index.

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If the corpus is empty or smaller than `top_k`, if vectors do not have the model's width, or if
                the model has no prompt with one of the names.

        Example:

        ```python
        import lmzoo

        embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
        answers = ["Your parcel will arrive on Friday.", "You can pay by card.", "Our shop is open until six."]
        embedder.search(["When do you close?"], answers, top_k=2)  # [[{"index": ..., "text": ..., "score": ...}, ...]]

        vectors = embedder.embed_documents(answers)
        embedder.search(["How can I pay?"], vectors, top_k=1, texts=answers)
        ```
        """
        self._get_query_prompt(query_prompt_name)  # an unknown name is an error before the first step
        self._get_document_prompt(document_prompt_name)
        width = self.output_shape[-1]
        check_not_lists("queries", queries)
        index = open_index(corpus)
        corpus_texts: list[Any] = []
        if index is None:
            require(texts is None, "texts", "None if `corpus` is a list of texts", texts)
            corpus_texts = self._clean_single_texts("corpus", corpus)
            texts = corpus_texts
            top_k = check_top_k(top_k, len(corpus_texts))
        else:
            texts = check_index(index, width, texts)
            top_k = check_top_k(top_k, len(index))
        if is_vectors(queries):
            query_vectors = check_queries(queries, width)
        else:
            query_texts = self._clean_single_texts("queries", queries)
            query_vectors = self.embed_queries(query_texts, batch_size, query_prompt_name)
        if index is None:
            index = ArrayIndex(self.embed_documents(corpus_texts, batch_size, document_prompt_name))
        return as_hits(*index.search(query_vectors, top_k, self.similarity), texts)

    def judges(self, y: Labels | None) -> bool:
        return y is not None

    def compare(self, parts: Iterable[Any], y: Any, batch_size: int, **measured: float) -> Report:
        """Return a report that compares the pairs' cosines with the labels, or an empty report without labels."""
        if y is None:
            return Report()
        y = encode_exact_numbers(y)
        cosines = []
        for part in parts:
            columns: Any = split_segments(part)
            sides = zip(columns, self._get_pair_prompts(), strict=True)
            firsts, seconds = (self.embed(texts, batch_size, prompt=prompt) for texts, prompt in sides)  # (n, H)
            norms = np.linalg.norm(firsts, axis=1) * np.linalg.norm(seconds, axis=1)
            cosines.append((firsts * seconds).sum(axis=1) / np.maximum(norms, 1e-12))
        similarities = np.concatenate(cosines)
        return replace(compare_numbers(y, similarities), judged=Judged.of_numbers(y, similarities))

    served_outputs = ("embedding",)
    output_name = "embedding"

    def signatures(self) -> Signatures:
        """Return the exported model's signatures, which put the default prompt before single texts and first texts.

        The second texts of pairs get no prompt. For each name in `pair_prompts`, a further signature of that name puts
        that prompt before each text.
        """
        pack, signatures = text_signatures(self, self.prompt_text())
        names = [name for name in check_pair_prompts(self.pair_prompts, self.prompts) or () if name is not None]
        return pack, {**signatures, **{name: make_prompted_signature(self, pack, self.prompts[name]) for name in names}}

    def named_answers(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the exported model's answers, in TensorFlow ops: `embedding`, float32 (B, H)."""
        return {"embedding": outputs}
