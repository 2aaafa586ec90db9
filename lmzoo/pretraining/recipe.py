"""Recipes: how a model is pre-trained."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.errors import ArgumentError
from lmzoo.families import DEFAULT_FAMILY
from lmzoo.families.backbone import Backbone
from lmzoo.files.atomic import atomic_file
from lmzoo.files.preset_files import write_json
from lmzoo.registry.family import Family, families, family_of
from lmzoo.text import Masking
from lmzoo.training import LAMB, AdamW

_HEAD = 64  # dimensions
# Number of layers, and width; feed-forward layers have four times the width (Turc et al., 2019).
SIZES = {"nano": (4, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512), "base": (12, 768)}
OPTIMIZERS = {"adamw": AdamW, "lamb": LAMB}
PAIRED = ("nsp", "sop")  # objectives on pairs of segments
OBJECTIVES = ("auto", *PAIRED, "plm", "rtd", "none")
SCHEDULES = ("linear", "wsd")
WSD_WARMUP = 500  # steps; not a share of the training, whose length may be changed later
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Method:
    """Defaults and limits of the recipes for one way of pre-training.

    Attributes:
        learns: what is predicted, in a few words.
        sequence_length: default of the recipe's field.
        batch_size: default of the recipe's field.
        learning_rate: default of the recipe's field; None if it depends on the model's width.
        words: whether it predicts words, in texts of any length, instead of tokens in packed sequences.
        causal: whether it predicts the next tokens of full sequences, instead of masked ones.
        unused: fields of a recipe that it does not use.
        reason: why it does not use them.
    """

    learns: str
    sequence_length: int = 128
    batch_size: int = 32
    learning_rate: float | None = None
    words: bool = False
    causal: bool = False
    unused: tuple[str, ...] = ()
    reason: str = ""


# What is learned with an objective in addition to masked tokens, or in place of them, in a few words.
LEARNS = {
    "nsp": "masked tokens, and next-sentence prediction",
    "sop": "masked tokens, and the order of sentences",
    "plm": "tokens in a random order",
    "rtd": "masked tokens in a generator, and which of its tokens are not the original ones",
}
_MASKING = ("objective", "dynamic", "mask_probability", "whole_word")
# By the kind of the family's pre-training head.
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
}


@dataclass(frozen=True)
class Recipe:
    """How a model is pre-trained.

    Attributes:
        family: "bert", "roberta", "albert", "elmo", "distilbert", "gpt", "gpt2", "lstm_lm", "ffnn_lm", "xlnet", or the
            name of another registered family.
        size: "nano", "mini", "small", "medium" or "base"; or layers and width, such as "6x256". The width is a multiple
            of 64, the size of a head. For ELMo, one of the names. A feed-forward language model has one layer.
        tokens: int, number of tokens to train on, counting repetitions.
        vocabulary_size: int, number of tokens in the vocabulary; for ELMo, number of words that it predicts.
        words: whether tokens are whole words, the most frequent ones, instead of parts of words; for "lstm_lm" and
            "ffnn_lm". Other words become `<unk>`, which counts as a word in the perplexity.
        sequence_length: int, tokens of a sequence in nine tenths of the training, 128 by default; for ELMo, number of
            words through which gradients flow, 20 by default.
        positions: int, tokens of the longest sequence; one tenth of the training uses such sequences. Not for ELMo.
        batch_size: int, sequences of a batch, by default 32, for ELMo 128; smaller for long sequences.
        learning_rate: float, the peak, by default 1e-3 * sqrt(128 / width), for ELMo 0.2, and for models without
            attention that of `CausalLM`, 0.01.
        optimizer: "adamw" or "lamb". Not for ELMo, which uses Adagrad.
        schedule: "linear", a rise of the learning rate over a tenth of the training and a linear decay to 0; or "wsd",
            a rise over 500 steps, a constant rate, and a decay to 0 over the last fifth (Hu et al., 2024, with the
            decay of `lmzoo.training.LateDecay`): such a run can be made longer by more `tokens`. Not for ELMo.
        objective: "nsp", "sop", "plm", "rtd", "none", or "auto" for that of the family, or of the heads in `init`;
            pairs are for BERT and ALBERT, "plm" is for XLNet, and "rtd" for ELECTRA and ALBERT.
        dynamic: whether each batch draws new masks; if not, a sequence keeps its masks. Not for ELMo and
            causal families.
        mask_probability: float, share of the tokens to predict. Not for ELMo and causal families.
        whole_word: whether all tokens of a word are masked together; ALBERT always does that. Not for ELMo and causal
            families.
        dtype: a dtype policy, such as "mixed_bfloat16".
        seed: int, seed of all randomness.
        accumulate: int, number of batches whose gradients are accumulated for one step. Not for ELMo.
        remat: whether blocks are computed again in the backward pass, to save memory. Not for ELMo.
        init: a preset whose weights the training begins with, instead of random ones; `from_preset` takes its family,
            size, vocabulary and positions as well. Not for ELMo.

    Raises:
        ValueError: naming a field that is unknown, too small or unused by the family, and what is allowed.

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
        """Return the recipe of a training that continues from a preset, for example on text of your own domain.

        Its family, size, vocabulary and number of positions are those of the preset, and by default its objective.

        Args:
            preset: as for `lmzoo.models.Backbone.from_preset`.
            **settings: other fields of the recipe; `positions` may be smaller than the preset's.

        Raises:
            ValueError: as for `Recipe`; for an unknown preset, for a field that contradicts it, or for one of ELMo,
                whose language model `lmzoo.models.BidirectionalLM` continues.

        Example:

        ```python
        from lmzoo.pretraining import Recipe

        Recipe.from_preset("bert_nano_en_uncased", tokens=5_000_000).size  # "6x256"
        ```
        """
        return cls(**{**_traits(preset), **settings, "init": str(preset)})

    def __post_init__(self) -> None:
        known: dict[str, Collection[str]] = {
            "family": families(),
            "optimizer": OPTIMIZERS,
            "schedule": SCHEDULES,
            "objective": OBJECTIVES,
            "dtype": DTYPES,
        }
        for name, values in known.items():
            require(getattr(self, name) in values, name, f"one of {', '.join(values)}", getattr(self, name))
        for name, value in (_traits(self.init) if self.init is not None else {}).items():
            found = getattr(self, name)
            fits = found == value or (name == "positions" and is_integer(found, 1, value))
            require(fits, name, f"{value!r}, as in the preset {self.init}", found, "Leave out one of both.")
        width = self.shape[1]
        method = self.method
        if self.attends:
            rate = 1e-3 * math.sqrt(128 / width)
        else:
            usual = self.family_record.backbone.usual_recipes
            rate = method.learning_rate or usual[self.family_record.pretrained_head].learning_rate
        own = {"sequence_length": method.sequence_length, "batch_size": method.batch_size, "learning_rate": rate}
        for name, value in own.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        self._check_family()
        self._check_numbers()

    @property
    def family_record(self) -> Family:
        """The family's record."""
        return families()[self.family]

    @property
    def method(self) -> Method:
        """Defaults and limits of recipes for the family.

        Raises:
            ValueError: for a family that learns from pairs of texts, or that is not trained from scratch.
        """
        if self.family_record.backbone.reads_source:
            raise ValueError(f"{self.family} learns from pairs of texts, not from texts: use `lmzoo fit`.")
        if self.family_record.pretrained_head not in METHODS:
            raise ValueError(
                f"{self.family} is not pre-trained from scratch. Load a published model; `MaskedLM.fit` trains it "
                "further."
            )
        return METHODS[self.family_record.pretrained_head]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of layers, and width.

        Raises:
            ValueError: for a `size` that is neither a name nor layers and width.
        """
        if self.size in SIZES:
            return SIZES[self.size]
        named = ", ".join(SIZES)
        if self.method.words or not (found := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", str(self.size))):
            other = "" if self.method.words else ', or layers and width such as "6x256"'
            raise ArgumentError(f"`size` must be one of {named}{other}, got {self.size!r}.", "size")
        layers, width = map(int, found.groups())
        fits = width % _HEAD == 0 or self.init is not None
        require(fits, "size", f"layers and a width that is a multiple of {_HEAD}, such as 6x256", self.size)
        return layers, width

    @property
    def attends(self) -> bool:
        """Whether the family's models are Transformers."""
        return any(field.name == "num_heads" for field in dataclasses.fields(self.family_record.backbone.config_class))

    @property
    def masking(self) -> Masking:
        """How tokens are masked: as in the family, with the recipe's settings."""
        usual = self.family_record.masking
        whole_word = usual.whole_word or self.whole_word
        return replace(usual, probability=self.mask_probability, whole_word=whole_word, dynamic=self.dynamic)

    @property
    def batch_settings(self) -> tuple[int, int, float]:
        """Sequence length, batch size and learning rate, none of which is None after construction."""
        return cast("tuple[int, int, float]", (self.sequence_length, self.batch_size, self.learning_rate))

    def _check_family(self) -> None:
        """Check that no field is set that the family does not use."""
        defaults = _defaults()
        unused = [name for name in self.method.unused if getattr(self, name) != defaults[name]]
        if unused:
            names = ", ".join(f"`{name}`" for name in unused)
            message = f"{self.family} does not use {names}: {self.method.reason}. Leave it out."
            raise ArgumentError(message, unused[0])
        if self.words and (self.attends or not self.method.causal or self.init is not None):
            raise ValueError(
                "`words` is for lstm_lm and ffnn_lm that begin with random weights: other families have tokenizers of "
                "their own, and `init` has that of the preset. Leave it out."
            )
        allowed = _objectives(self.family_record)
        if self.objective not in allowed:
            able = [name for name, family in families().items() if self.objective in _objectives(family)]
            raise ArgumentError(
                f"`objective` must be {' or '.join(allowed)} for {self.family}, got {self.objective!r}, which is for "
                f"{', '.join(able)}.",
                "objective",
            )

    def _check_numbers(self) -> None:
        pair = (self.family_record.objective if self.objective == "auto" else self.objective) in PAIRED
        length, words = (1, 4) if self.method.words else (self.family_record.packing.overhead(pair) + 1 + pair, 1)
        least = {"tokens": 1, "vocabulary_size": words, "sequence_length": length, "positions": length}
        for name, value in {**least, "batch_size": 1, "accumulate": 1, "seed": 0}.items():
            found = getattr(self, name)
            require(is_number(found, value), name, f"at least {value} for {self.family}", found)
        probability = self.mask_probability
        require(is_number(probability, 0, 1) and probability > 0, "mask_probability", "a number in (0, 1]", probability)
        rate = self.learning_rate
        fits = rate is not None and is_number(rate) and 0 < rate < math.inf
        require(fits, "learning_rate", "above 0", rate)

    def remember(self, folder: Path, text: Mapping[str, object]) -> None:
        """Write the recipe and the identity of its text to the folder of a run, which must not hold another run.

        A folder without results yet takes any recipe, and a run with the schedule "wsd" one with more tokens. `text`
        holds values that JSON can hold.

        Raises:
            ValueError: if the folder holds a run with another recipe or on other text, or recipe.json is damaged.
        """
        found, file = {**dataclasses.asdict(self), **text}, folder / "recipe.json"
        made = folder.exists() and any(p != file and not p.name.startswith(".") for p in folder.iterdir())
        if file.exists() and made and not self._continues(file, found):
            return
        with atomic_file(file) as temporary:
            write_json(temporary.parent, temporary.name, found)

    def _continues(self, file: Path, found: Mapping[str, object]) -> bool:
        """Check that the recipe in a file is this one, and return whether this one has more tokens, as it then may."""
        folder = file.parent
        try:
            stored = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            message = f"{file} is damaged ({error}). Pass another `work`, or remove {folder}."
            raise ArgumentError(message, "work") from None
        known = {**_defaults(), **stored}  # recipes of earlier versions lack fields, which had today's defaults
        grown = self.schedule == "wsd" and self.tokens > known["tokens"]
        changed = [
            f"`{name}`{_difference(known.get(name), value)}"
            for name, value in found.items()
            if known.get(name) != value and not (grown and name == "tokens")
        ]
        if changed:
            raise ArgumentError(
                f"{folder} holds a run with another {', another '.join(changed)}. Pass another `work`, or remove it to "
                "start from scratch.",
                "work",
            )
        return grown


def _traits(preset: str | Path) -> dict[str, Any]:
    """Return the fields of a recipe that a preset determines."""
    backbone = Backbone.from_preset(preset, load_weights=False)
    family, config = family_of(backbone), backbone.config
    if METHODS[family.pretrained_head].words:
        raise ValueError(
            f"`init`: {preset} is of the family {family.name}, whose training does not continue from a preset here: "
            "call `fit` of `lmzoo.models.BidirectionalLM.from_preset`."
        )
    shape = getattr(config, "num_layers", 1), config.hidden_dim  # a feed-forward language model has one layer
    size = next((name for name, known in SIZES.items() if known == shape), f"{shape[0]}x{shape[1]}")
    return {
        "family": family.name,
        "size": size,
        "vocabulary_size": config.vocabulary_size,
        "positions": config.max_sequence_length,
    }


def _objectives(family: Family) -> tuple[str, ...]:
    """Return the objectives that a family can be pre-trained with."""
    if family.pretrained_head != "pretraining":
        return ("auto",)
    if family.objective == "plm":
        return "auto", "plm"
    # Embeddings of a width of their own are those that a generator can share.
    narrow = any(field.name == "embedding_dim" for field in dataclasses.fields(family.backbone.config_class))
    return ("auto", *(PAIRED if family.objective in PAIRED else ()), *(("rtd",) if narrow else ()), "none")


def _defaults() -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(Recipe)}


def _difference(stored: object, found: object) -> str:
    """Return what identified a text and identifies it now, in brackets; nothing for other fields."""
    if not isinstance(stored, dict) and not isinstance(found, dict):
        return ""
    was, now = (
        ", ".join(f"{k} {v}" for k, v in text.items()) if isinstance(text, dict) else "none" for text in (stored, found)
    )
    return f" ({was}; now {now})"
