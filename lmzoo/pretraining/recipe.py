"""Recipes: the settings of pre-training."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from lmzoo.common.arguments import as_python_values, is_integer, is_number, require
from lmzoo.errors import ArgumentError
from lmzoo.families import DEFAULT_FAMILY
from lmzoo.families.backbone import Backbone
from lmzoo.files.atomic import atomic_file
from lmzoo.files.preset_files import write_json
from lmzoo.registry.family import Family, families, get_family
from lmzoo.text import Masking, SpanCorruption
from lmzoo.training import LAMB, AdamW

_HEAD_DIM = 64
# Number of layers, and width; feed-forward layers have four times the width (Turc et al., 2019).
SIZES = {"nano": (4, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512), "base": (12, 768)}
OPTIMIZERS = {"adamw": AdamW, "lamb": LAMB}
PAIRED = ("nsp", "sop")  # objectives on pairs of segments
_SOLE_OBJECTIVES = ("plm", "span_corruption")  # objectives of families that learn no other
OBJECTIVES = ("auto", *PAIRED, "plm", "rtd", "sbo", "span_corruption", "none")
SCHEDULES = ("linear", "wsd")
WSD_WARMUP = 500  # steps; not a fraction, since the length of the training may change later
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Method:
    """Defaults and limits of recipes for one pre-training method.

    Attributes:
        learns: str, short description of the predicted tokens.
        sequence_length: int, default of `Recipe.sequence_length`.
        batch_size: int, default of `Recipe.batch_size`.
        learning_rate: float, default of `Recipe.learning_rate`; None if it depends on the width of the model.
        words: bool, whether the model predicts words in texts of any length, instead of tokens in packed sequences.
        causal: bool, whether the model predicts next tokens in full sequences, instead of masked tokens.
        spans: bool, whether the model generates the spans dropped from full sequences, instead of masked tokens.
        unused: names of the recipe fields that do not apply to the method, and must have their defaults.
        reason: str, reason why these fields do not apply, for messages.
    """

    learns: str
    sequence_length: int = 128
    batch_size: int = 32
    learning_rate: float | None = None
    words: bool = False
    causal: bool = False
    spans: bool = False
    unused: tuple[str, ...] = ()
    reason: str = ""


# Short description of what a model predicts with each objective.
LEARNS = {
    "nsp": "masked tokens, and next-sentence prediction",
    "sop": "masked tokens, and the order of sentences",
    "plm": "tokens in a random order",
    "sbo": "masked spans, also from the tokens at their boundaries",
    "span_corruption": "dropped spans of tokens, which the decoder writes",
    "rtd": "masked tokens in a generator, and which of its tokens are not the original ones",
}
_MASKING = ("objective", "dynamic", "mask_probability", "whole_word")
# Methods by the family's kind of pre-training head.
METHODS = {
    "bidirectional_lm": Method(
        learns="the next word in each direction",
        sequence_length=20,
        batch_size=128,
        learning_rate=0.2,
        words=True,
        unused=("optimizer", "schedule", "positions", *_MASKING, "accumulate", "remat"),
        reason="it learns to predict words, with Adagrad, in texts of any length",
    ),
    "causal_lm": Method(
        learns="the next token",
        causal=True,
        unused=_MASKING,
        reason="it learns to predict the next token, and masks none",
    ),
    "pretraining": Method(learns="masked tokens"),
    "seq2seq_lm": Method(
        learns="dropped spans of tokens",
        spans=True,
        unused=("dynamic", "whole_word"),
        reason="it drops other spans of tokens in each batch",
    ),
}


@dataclass(frozen=True)
class Recipe:
    """The settings of a pre-training run.

    Attributes:
        family: str, "bert", "roberta", "albert", "elmo", "distilbert", "gpt", "gpt2", "lstm_lm", "ffnn_lm", "xlnet", or
            the name of another registered family.
        size: str, "nano", "mini", "small", "medium" or "base"; or layers and width, such as "6x256", with a width that
            is a multiple of 64, the width of an attention head. ELMo only has the named sizes. A feed-forward language
            model has one layer.
        tokens: int, number of tokens to train on, counting repetitions.
        vocabulary_size: int, number of tokens in the vocabulary; for ELMo, number of words that it predicts.
        words: bool, whether tokens are the most frequent words instead of subwords; for "lstm_lm" and "ffnn_lm". Other
            words become `<unk>`, which counts as a word in the perplexity.
        sequence_length: int, maximum number of tokens of a sequence in nine tenths of the training, by default 128; for
            T5, of a source from which spans were dropped; for ELMo, number of words of truncated backpropagation
            through time, by default 20.
        positions: int, number of positions of the model, which is the maximum length of sequences in one tenth of the
            training; for T5, limited by the 100 sentinels of its tokenizers. Not for ELMo.
        batch_size: int, number of sequences in a batch, by default 32, for ELMo 128; batches of long sequences are
            smaller.
        learning_rate: float, peak learning rate, by default 1e-3 * sqrt(128 / width), for ELMo 0.2, and for models
            without attention 0.01, the default of `CausalLM`.
        optimizer: str, "adamw" or "lamb". Not for ELMo, which uses Adagrad.
        schedule: str, "linear", a warm-up over a tenth of the training and a linear decay to 0; or "wsd", a warm-up
            over 500 steps, a constant learning rate, and a decay to 0 over the last fifth (Hu et al., 2024, with the
            decay of `lmzoo.training.LateDecay`). A run with "wsd" can be extended by raising `tokens`. Not for ELMo.
        objective: str, "nsp", "sop", "plm", "rtd", "sbo", "span_corruption", "none", or "auto" for the objective of the
            family or of the heads in `init`. BERT and ALBERT support "nsp" and "sop", XLNet "plm", ELECTRA and ALBERT
            "rtd", and T5 "span_corruption". All families with masks support "sbo", which masks spans of up to ten
            words, as in SpanBERT.
        dynamic: bool, whether masks are drawn anew for each batch, instead of once for each sequence. Not for ELMo, T5
            and causal families.
        mask_probability: float, fraction of the tokens to predict. Not for ELMo and causal families.
        whole_word: bool, whether all tokens of a word are masked together, which is always the case for ALBERT. Not for
            ELMo, T5 and causal families.
        dtype: str, dtype policy, such as "mixed_bfloat16".
        seed: int, seed of all randomness.
        accumulate: int, number of batches whose gradients are accumulated for one step. Not for ELMo.
        remat: bool, whether blocks are recomputed in the backward pass to save memory. Not for ELMo, "lstm_lm" and
            "ffnn_lm".
        init: str, preset with the initial weights; None for random weights. `from_preset` also takes the family, size,
            vocabulary and positions from the preset. Not for ELMo.

    Raises:
        ValueError: If a field is unknown, out of range or unused by the family; the message names the field and the
            allowed values.

    Example:

    ```python
    from lmzoo.pretraining import Recipe

    Recipe("roberta", size="2x64", tokens=1_000_000, vocabulary_size=2000)
    ```
    """

    family: str = DEFAULT_FAMILY
    size: str = "nano"
    tokens: int = 60_000_000
    vocabulary_size: int = 8000
    words: bool = False
    sequence_length: int | None = None
    positions: int = 512
    batch_size: int | None = None
    learning_rate: float | None = None
    optimizer: str = "adamw"
    objective: str = "auto"
    schedule: str = "linear"
    dynamic: bool = True
    mask_probability: float = 0.15
    whole_word: bool = False
    dtype: str = "float32"
    seed: int = 0
    accumulate: int = 1
    remat: bool = False
    init: str | None = None

    @classmethod
    def from_preset(cls, preset: str | Path, **settings: Any) -> Recipe:
        """Make a recipe for continued pre-training from a preset, for example on text of your own domain.

        The preset determines the family, size, vocabulary and number of positions, and by default the objective.

        Args:
            preset: name, path or URL of the preset, as for `lmzoo.models.Backbone.from_preset`.
            **settings: other fields of the recipe; `positions` may be smaller than in the preset.

        Raises:
            ValueError: If a field is invalid or contradicts the preset, or the preset is unknown or an ELMo model,
                which `lmzoo.models.BidirectionalLM` can train further.

        Example:

        ```python
        from lmzoo.pretraining import Recipe

        Recipe.from_preset("bert_nano_en_uncased", tokens=5_000_000).size  # "6x256"
        ```
        """
        return cls(**{**_read_preset_fields(preset), **settings, "init": str(preset)})

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, as_python_values(getattr(self, field.name)))
        allowed_values: dict[str, Collection[str]] = {
            "family": families(),
            "optimizer": OPTIMIZERS,
            "schedule": SCHEDULES,
            "objective": OBJECTIVES,
            "dtype": DTYPES,
        }
        for name, values in allowed_values.items():
            require(getattr(self, name) in values, name, f"one of {', '.join(values)}", getattr(self, name))
        for name, value in (_read_preset_fields(self.init) if self.init is not None else {}).items():
            current_value = getattr(self, name)
            is_valid = current_value == value or (name == "positions" and is_integer(current_value, 1, value))
            require(is_valid, name, f"{value!r}, as in the preset {self.init}", current_value, "Leave out one of both.")
        width = self.shape[1]
        method = self.method
        if self.attends:
            learning_rate = 1e-3 * math.sqrt(128 / width)
        else:
            recipes = self.family_record.backbone.usual_recipes
            learning_rate = method.learning_rate or recipes[self.family_record.pretrained_head].learning_rate
        defaults = {
            "sequence_length": method.sequence_length,
            "batch_size": method.batch_size,
            "learning_rate": learning_rate,
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        self._check_family()
        self._check_numbers()
        self._check_sentinels()

    @property
    def family_record(self) -> Family:
        """Record of the family."""
        return families()[self.family]

    @property
    def method(self) -> Method:
        """Pre-training method of the family.

        Raises:
            ValueError: If the family learns from pairs of texts, or is not trained from scratch.
        """
        return _get_method(self.family_record)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of layers and width that `size` stands for.

        Raises:
            ValueError: If `size` is neither a name nor layers and width, or the width is not a multiple of 64.
        """
        if self.size in SIZES:
            return SIZES[self.size]
        names = ", ".join(SIZES)
        if self.method.words or not (match := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", str(self.size))):
            size_hint = "" if self.method.words else ', or layers and width such as "6x256"'
            raise ArgumentError(f"`size` must be one of {names}{size_hint}, got {self.size!r}.", "size")
        layers, width = map(int, match.groups())
        is_valid = width % _HEAD_DIM == 0 or self.init is not None
        require(is_valid, "size", f"layers and a width that is a multiple of {_HEAD_DIM}, such as 6x256", self.size)
        return layers, width

    @property
    def attends(self) -> bool:
        """Whether the family's models are Transformers."""
        return any(field.name == "num_heads" for field in dataclasses.fields(self.family_record.backbone.config_class))

    @property
    def masking(self) -> Masking:
        """Masking of the family, with the settings of the recipe."""
        family_masking = self.family_record.masking
        whole_word = family_masking.whole_word or self.whole_word
        masking = replace(
            family_masking, probability=self.mask_probability, whole_word=whole_word, dynamic=self.dynamic
        )
        return masking.with_spans() if self.objective == "sbo" else masking

    @property
    def span_corruption(self) -> SpanCorruption:
        """Span corruption with the settings of the recipe."""
        return SpanCorruption(self.mask_probability)

    @property
    def batch_settings(self) -> tuple[int, int, float]:
        """Sequence length, batch size and learning rate, with defaults in place of None."""
        return cast("tuple[int, int, float]", (self.sequence_length, self.batch_size, self.learning_rate))

    def _check_family(self) -> None:
        """Check that the family supports the fields that are set.

        Raises:
            ValueError: If a field that is set does not apply to the family, or its value is not supported.
        """
        defaults = _get_defaults()
        unused_fields = [name for name in self.method.unused if getattr(self, name) != defaults[name]]
        if unused_fields:
            names = ", ".join(f"`{name}`" for name in unused_fields)
            message = f"{self.family} does not use {names}: {self.method.reason}. Leave it out."
            raise ArgumentError(message, unused_fields[0])
        if self.remat and not self.attends:
            message = f"{self.family} does not use `remat`: it has no blocks to recompute. Leave it out."
            raise ArgumentError(message, "remat")
        if self.words and (self.attends or not self.method.causal or self.init is not None):
            raise ValueError(
                "`words` is for lstm_lm and ffnn_lm that begin with random weights: other families have tokenizers of "
                "their own, and `init` has that of the preset. Leave it out."
            )
        supported_objectives = _list_objectives(self.family_record)
        if self.objective not in supported_objectives:
            supporting_families = [
                name for name, family in families().items() if self.objective in _list_objectives(family)
            ]
            raise ArgumentError(
                f"`objective` must be {' or '.join(supported_objectives)} for {self.family}, got {self.objective!r}, "
                f"which is for {', '.join(supporting_families)}.",
                "objective",
            )

    def _check_numbers(self) -> None:
        """Check the types and ranges of all numbers.

        Raises:
            ValueError: If a number is out of range, or is not an integer where one is needed.
        """
        has_pairs = (self.family_record.objective if self.objective == "auto" else self.objective) in PAIRED
        min_vocabulary = 4 if self.method.words else 1
        min_length = self.family_record.packing.overhead(has_pairs) + 1 + has_pairs
        if self.method.words:
            min_length = 1
        elif self.method.spans:
            min_length = SpanCorruption().target_length(2)
        minima = {
            "tokens": 1,
            "vocabulary_size": min_vocabulary,
            "sequence_length": min_length,
            "positions": min_length,
        }
        for name, minimum in {**minima, "batch_size": 1, "accumulate": 1, "seed": 0}.items():
            value = getattr(self, name)
            is_valid = is_integer(value, minimum)
            number_type = "an integer"
            if name == "tokens":  # may be a float, such as 6e7
                is_valid = is_number(value, minimum) and value < math.inf
                number_type = "a finite number"
            require(is_valid, name, f"{number_type} of at least {minimum} for {self.family}", value)
        probability = self.mask_probability
        require(is_number(probability, 0, 1) and probability > 0, "mask_probability", "a number in (0, 1]", probability)
        learning_rate = self.learning_rate
        is_valid = learning_rate is not None and is_number(learning_rate) and 0 < learning_rate < math.inf
        require(is_valid, "learning_rate", "above 0", learning_rate)

    def _check_sentinels(self) -> None:
        """Check that a new tokenizer has a sentinel for each dropped span of the longest sequences.

        Raises:
            ValueError: If there are too few sentinels.
        """
        if not self.method.spans or self.init is not None:
            return
        tokenizer = self.family_record.tokenizer.from_config({**self.family_record.special_tokens})
        num_sentinels = len(getattr(tokenizer, "sentinels", ()))
        text_length = self.span_corruption.text_length(self.positions)
        num_needed = int(self.span_corruption.counts(np.array([text_length]))[1][0]) + 1
        if num_needed > num_sentinels:
            raise ArgumentError(
                f"`positions` is {self.positions}, for which {num_needed} sentinels are needed with "
                f"`mask_probability={self.mask_probability}`, but a {type(tokenizer).__name__} has {num_sentinels}. "
                "Lower one of them.",
                "positions",
            )

    def remember(self, folder: Path, text: Mapping[str, object]) -> None:
        """Write the recipe and the identity of its text to the folder of a run.

        Results that the folder already has must come from the same recipe and text; with the schedule "wsd", `tokens`
        may have been raised.

        Args:
            folder: folder of the run.
            text: JSON object, the identity of the text.

        Raises:
            ValueError: If the folder holds a run with another recipe or text, or its recipe.json is damaged.
        """
        settings = {**dataclasses.asdict(self), **text}
        recipe_file = folder / "recipe.json"
        has_results = folder.exists() and any(
            path != recipe_file and not path.name.startswith(".") for path in folder.iterdir()
        )
        if recipe_file.exists() and has_results and not self._check_stored(recipe_file, settings):
            return
        with atomic_file(recipe_file) as temporary:
            write_json(temporary.parent, temporary.name, settings)

    def _check_stored(self, file: Path, settings: Mapping[str, object]) -> bool:
        """Check that the stored run may continue with `settings`, and return whether `tokens` has been raised.

        Raises:
            ValueError: If a setting other than the `tokens` of a "wsd" run has changed, or the file is damaged.
        """
        folder = file.parent
        try:
            file_content = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            message = f"{file} is damaged ({error}). Pass another `work`, or remove {folder}."
            raise ArgumentError(message, "work") from None
        # Fields that earlier versions lacked had today's defaults.
        stored_settings = {**_get_defaults(), **file_content}
        is_extended = self.schedule == "wsd" and self.tokens > stored_settings["tokens"]
        changes = [
            f"`{name}`{_describe_difference(stored_settings.get(name), value)}"
            for name, value in settings.items()
            if stored_settings.get(name) != value and not (is_extended and name == "tokens")
        ]
        if changes:
            raise ArgumentError(
                f"{folder} holds a run with another {', another '.join(changes)}. Pass another `work`, or remove it to "
                "start from scratch.",
                "work",
            )
        return is_extended


def _read_preset_fields(preset: str | Path) -> dict[str, Any]:
    """Return the recipe fields that a preset determines.

    Raises:
        ValueError: If training cannot continue from the preset.
    """
    backbone = Backbone.from_preset(preset, load_weights=False)
    family = get_family(backbone)
    config = backbone.config
    if _get_method(family).words:
        raise ValueError(
            f"`init`: {preset} is of the family {family.name}, whose training does not continue from a preset here: "
            "call `fit` of `lmzoo.models.BidirectionalLM.from_preset`."
        )
    shape = getattr(config, "num_layers", 1), config.hidden_dim  # a feed-forward language model has one layer
    size = next((name for name, named_shape in SIZES.items() if named_shape == shape), f"{shape[0]}x{shape[1]}")
    return {
        "family": family.name,
        "size": size,
        "vocabulary_size": config.vocabulary_size,
        "positions": config.max_sequence_length,
    }


def _get_method(family: Family) -> Method:
    """Return the pre-training method of a family.

    Raises:
        ValueError: If the family learns from pairs of texts, or is not trained from scratch.
    """
    if family.pretrained_head in METHODS:
        return METHODS[family.pretrained_head]
    if family.backbone.reads_source:
        raise ValueError(f"{family.name} learns from pairs of texts, not from texts: use `lmzoo fit`.")
    raise ValueError(
        f"{family.name} is not pre-trained from scratch. Load a published model; `MaskedLM.fit` trains it further."
    )


def _list_objectives(family: Family) -> tuple[str, ...]:
    """Return the objectives that a family supports in pre-training."""
    if family.objective in _SOLE_OBJECTIVES:
        return "auto", str(family.objective)
    if family.pretrained_head != "pretraining":
        return ("auto",)
    has_generator = family.backbone.generator_embeddings is not None
    return (
        "auto",
        *(PAIRED if family.objective in PAIRED else ()),
        *(("rtd",) if has_generator else ()),
        "sbo",
        "none",
    )


def _get_defaults() -> dict[str, Any]:
    """Return the defaults of all recipe fields by name."""
    return {field.name: field.default for field in dataclasses.fields(Recipe)}


def _describe_difference(stored_value: object, current_value: object) -> str:
    """Return the stored and the current identity of a text in parentheses, or "" for other fields."""
    if not isinstance(stored_value, dict) and not isinstance(current_value, dict):
        return ""
    stored_text, current_text = (
        ", ".join(f"{name} {value}" for name, value in text.items()) if isinstance(text, dict) else "none"
        for text in (stored_value, current_value)
    )
    return f" ({stored_text}; now {current_text})"
