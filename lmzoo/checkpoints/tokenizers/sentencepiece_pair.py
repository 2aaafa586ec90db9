"""Marian's tokenizer in the files of transformers, which has no `tokenizer.json` for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

from lmzoo.checkpoints.config_table import Arguments, JsonObject
from lmzoo.checkpoints.tokenizers.format import PIPELINE_FILE, TokenizerFormat
from lmzoo.errors import PresetError
from lmzoo.text import MarianTokenizer
from lmzoo.text.tokenizers.sentencepiece_pair import SOURCE_FILE, TARGET_FILE, VOCABULARY_FILE, vocabulary_of


class MarianFormat(TokenizerFormat[MarianTokenizer]):
    """Two models of SentencePiece, and a vocabulary for both."""

    tokenizer = MarianTokenizer
    files = ((SOURCE_FILE, TARGET_FILE, VOCABULARY_FILE),)
    written: ClassVar = {}
    model_type = "Unigram"
    tokens: ClassVar = {"eos_token": "end_token", "pad_token": "pad_token", "unk_token": "unk_token"}
    allowed: ClassVar = {"separate_vocabs": (False,), "sp_model_kwargs": ({}, None)}

    def vocabulary_of_files(self, files: Sequence[Path]) -> Arguments:
        source, target, vocabulary = files
        return {"source": source.read_bytes(), "target": target.read_bytes(), "vocabulary": vocabulary_of(vocabulary)}

    def vocabulary_of_pipeline(self, pipeline: JsonObject, special_tokens: Collection[str]) -> Arguments:
        raise PresetError(
            f"{PIPELINE_FILE} cannot hold both models of a Marian tokenizer: expected {', '.join(self.files[0])} alone."
        )

    def fits(self, pipeline: JsonObject) -> bool:
        return False

    def settings_of_pipeline(self, pipeline: JsonObject, file: Path) -> Arguments:
        return {}

    def pipeline(self, tokenizer: MarianTokenizer) -> Any:
        """None: there is nothing to write."""
        return None

    def lists(self, vocabulary: Arguments) -> dict[str, list[str]]:
        return {"tokens": list(vocabulary["vocabulary"])}
