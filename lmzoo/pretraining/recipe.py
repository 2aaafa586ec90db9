"""What a model is pre-trained with."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmzoo.families import DEFAULT_FAMILY
from lmzoo.family import Family, families
from lmzoo.files.atomic import atomic_file
from lmzoo.files.preset_files import write_json
from lmzoo.training import LAMB, AdamW

# Layers and width, with heads of 64 and feed-forward layers of four times the width (Turc et al., 2019).
SIZES = {"nano": (4, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512), "base": (12, 768)}
OPTIMIZERS = {"adamw": AdamW, "lamb": LAMB}
OBJECTIVES = ("auto", "nsp", "sop", "none")
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Method:
    """What recipes say of one way to pre-train.

    Attributes:
        sequence_length: by default.
        batch_size: by default.
        learning_rate: by default; None if it depends on the model's width.
        words: whether it predicts words, of texts of any length, instead of tokens in packed rows.
        unused: fields of a recipe that it has no use for.
        reason: why.
    """

    sequence_length: int
    batch_size: int
    learning_rate: float | None = None
    words: bool = False
    unused: tuple[str, ...] = ()
    reason: str = ""


# By the kind of the head that a family is pre-trained with.
METHODS = {
    "bidirectional_lm": Method(
        sequence_length=20,
        batch_size=128,
        learning_rate=0.2,
        words=True,
        unused=("optimizer", "positions", "objective", "dynamic", "accumulate", "remat"),
        reason="it learns to predict words, with Adagrad, in texts of any length",
    ),
    "pretraining": Method(sequence_length=128, batch_size=32),
}


@dataclass(frozen=True)
class Recipe:
    """How a model is pre-trained.

    Attributes:
        family: "bert", "roberta", "albert", "elmo", "distilbert", or another one's name.
        size: "nano", "mini", "small", "medium" or "base".
        tokens: int, how many to train on, repeated ones counted.
        vocabulary_size: int, pieces; of ELMo the words that it predicts.
        sequence_length: int, tokens of a row in nine tenths of the training, 128 by default; of ELMo the words through
            which gradients flow, 20 by default.
        positions: int, tokens of the longest row; the last tenth is trained on such rows. Not of ELMo.
        batch_size: int, rows of a batch, 32 by default and 128 of ELMo; fewer where rows are long.
        learning_rate: float, its peak, by default 1e-3 * sqrt(128 / width); of ELMo 0.2.
        optimizer: "adamw" or "lamb". Not of ELMo, which has Adagrad.
        objective: "nsp", "sop", "none", or "auto" for that of the family; pairs are for BERT and ALBERT.
        dynamic: whether masks are drawn anew for each batch; if not, a row keeps its masks. Not of ELMo.
        dtype: a dtype policy, such as "mixed_bfloat16".
        seed: int, of all that is random.
        accumulate: int, batches whose gradients are gathered for one step. Not of ELMo.
        remat: whether what goes on in a block is computed again in the backward pass, instead of kept. Not of ELMo.

    Raises:
        ValueError: naming what is not known, too small, or of no use to the family, and what is allowed.
    """

    family: str = DEFAULT_FAMILY
    size: str = "nano"
    tokens: int = 60_000_000
    vocabulary_size: int = 8000
    sequence_length: int = None
    positions: int = 512
    batch_size: int = None
    learning_rate: float = None
    optimizer: str = "adamw"
    objective: str = "auto"
    dynamic: bool = True
    dtype: str = "float32"
    seed: int = 0
    accumulate: int = 1
    remat: bool = False

    def __post_init__(self) -> None:
        known: dict[str, Collection[str]] = {
            "family": families(),
            "size": SIZES,
            "optimizer": OPTIMIZERS,
            "objective": OBJECTIVES,
            "dtype": DTYPES,
        }
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(f"`{name}` must be one of {', '.join(values)}, got {getattr(self, name)!r}.")
        rate = self.method.learning_rate or 1e-3 * math.sqrt(128 / SIZES[self.size][1])
        own = {
            "sequence_length": self.method.sequence_length,
            "batch_size": self.method.batch_size,
            "learning_rate": rate,
        }
        for name, value in own.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        self._check_family()
        self._check_numbers()

    @property
    def of(self) -> Family:
        """The family's record."""
        return families()[self.family]

    @property
    def method(self) -> Method:
        """What recipes of the family have in common."""
        return METHODS[self.of.pretrained_head]

    def _check_family(self) -> None:
        """Checks that nothing is set that the family has no use for."""
        defaults = _defaults()
        idle = [f"`{name}`" for name in self.method.unused if getattr(self, name) != defaults[name]]
        if idle:
            raise ValueError(f"{self.family} has no use for {', '.join(idle)}: {self.method.reason}. Leave that out.")
        if self.objective in ("nsp", "sop") and self.of.objective is None:
            able = ", ".join(name for name, family in families().items() if family.objective is not None)
            raise ValueError(
                f"`objective` must be auto or none for {self.family}, got {self.objective!r}: pairs of segments are "
                f"for {able}."
            )

    def _check_numbers(self) -> None:
        packing, pair = self.of.packing, self.objective != "none" and self.of.objective is not None
        row, words = (1, 4) if self.method.words else (packing.overhead(pair) + 1 + pair, 1)
        least = {"tokens": 1, "vocabulary_size": words, "sequence_length": row, "positions": row, "batch_size": 1}
        for name, value in {**least, "accumulate": 1, "seed": 0}.items():
            found = getattr(self, name)
            if not isinstance(found, numbers.Real) or found < value:
                raise ValueError(f"`{name}` must be at least {value} for {self.family}, got {found!r}.")
        if not isinstance(self.learning_rate, numbers.Real) or not 0 < self.learning_rate < math.inf:
            raise ValueError(f"`learning_rate` must be above 0, got {self.learning_rate!r}.")

    def remember(self, folder: Path, text: Mapping[str, Any]) -> None:
        """Writes the recipe and what text it is for to the folder of a run, which must not hold another.

        A folder in which nothing has been made yet takes any recipe.

        Args:
            folder: of the run.
            text: what tells the text from others, as JSON takes it.

        Raises:
            ValueError: if the folder holds a run of another recipe or on other text, or recipe.json is damaged.
        """
        found, file = {**dataclasses.asdict(self), **text}, folder / "recipe.json"
        made = folder.exists() and any(p != file and not p.name.startswith(".") for p in folder.iterdir())
        if not file.exists() or not made:
            with atomic_file(file) as temporary:
                write_json(temporary.parent, temporary.name, found)
            return
        try:
            stored = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"{file} is damaged ({error}). Give another `work`, or remove {folder}.") from None
        known = {**_defaults(), **stored}  # what a recipe had no field for was as it is by default
        changed = [
            f"`{name}`{_difference(known.get(name), value)}"
            for name, value in found.items()
            if known.get(name) != value
        ]
        if changed:
            raise ValueError(
                f"{folder} holds a run with another {', another '.join(changed)}. Give another `work`, or remove it to "
                "begin anew."
            )


def _defaults() -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(Recipe)}


def _difference(stored: Any, found: Any) -> str:
    """What a text was and is, in brackets; of anything else nothing."""
    if not isinstance(stored, dict) and not isinstance(found, dict):
        return ""
    was, now = (", ".join(f"{k} {v}" for k, v in text.items()) if text else "none" for text in (stored, found))
    return f" ({was}; now {now})"
