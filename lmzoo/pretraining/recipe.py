"""What a model is pre-trained with."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import lmzoo.models  # noqa: F401 - registers the families
from lmzoo.models.family import Family, families
from lmzoo.presets.store import write_json
from lmzoo.training import LAMB, AdamW

# Layers and width, with heads of 64 and feed-forward layers of four times the width (Turc et al., 2019).
SIZES = {"nano": (4, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512), "base": (12, 768)}
_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
# Of ELMo: the LSTMs' memory, the projection, (width, count) of the filters. From "small" on as they were published.
ELMO_SIZES = {
    "nano": (256, 64, ((1, 16), (2, 16), (3, 32), (4, 64))),
    "mini": (512, 128, _FILTERS[:5]),
    "small": (1024, 128, _FILTERS),
    "medium": (2048, 256, _FILTERS),
    "base": (4096, 512, _FILTERS),
}
OPTIMIZERS = {"adamw": AdamW, "lamb": LAMB}
OBJECTIVES = ("auto", "nsp", "sop", "none")


@dataclass(frozen=True)
class Recipe:
    """How a model is pre-trained.

    Attributes:
        family: "bert", "roberta", "albert", "elmo", "distilbert".
        size: "nano", "mini", "small", "medium" or "base".
        tokens: int, how many to train on, repeated ones counted.
        vocabulary_size: int, pieces; of ELMo the words that it predicts.
        sequence_length: int, tokens of a row in nine tenths of the training, 128 by default; of ELMo the words through
            which gradients flow, 20 by default.
        positions: int, tokens of the longest row; the last tenth is trained on such rows.
        batch_size: int, rows of a step, 32 by default and 128 of ELMo; fewer where rows are long.
        learning_rate: float, its peak, by default 1e-3 * sqrt(128 / width); of ELMo 0.2.
        optimizer: "adamw" or "lamb"; ELMo has Adagrad.
        objective: "nsp", "sop", "none", or "auto" for that of the family.
        dynamic: whether masks are drawn anew for each batch; if not, a row keeps its masks.
        dtype: a dtype policy, such as "mixed_bfloat16".
        seed: int, of all that is random.

    Raises:
        ValueError: naming what is not known.
    """

    family: str = "bert"
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

    def __post_init__(self) -> None:
        known: dict[str, Collection[str]] = {
            "family": families(),
            "size": SIZES,
            "optimizer": OPTIMIZERS,
            "objective": OBJECTIVES,
        }
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(f"`{name}` must be one of {', '.join(values)}, got {getattr(self, name)!r}.")
        rate = 1e-3 * math.sqrt(128 / SIZES[self.size][1])
        own = (20, 128, 0.2) if self.family == "elmo" else (128, 32, rate)
        for name, value in zip(("sequence_length", "batch_size", "learning_rate"), own, strict=True):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def of(self) -> Family:
        """The family's record."""
        return families()[self.family]

    def remember(self, folder: Path) -> None:
        """Writes the recipe to the folder of a run, which must not hold another.

        Raises:
            ValueError: if it does.
        """
        found = dataclasses.asdict(self)
        file = folder / "recipe.json"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder, file.name, found)
            return
        stored = json.loads(file.read_text("utf-8"))
        if changed := [f"`{name}`" for name in found if stored.get(name) != found[name]]:
            raise ValueError(
                f"{folder} holds a run with another {', another '.join(changed)}. Give another `work`, or remove it to "
                "begin anew."
            )
