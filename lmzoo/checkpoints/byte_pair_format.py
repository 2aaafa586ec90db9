"""Byte-level BPE in the files of other libraries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from lmzoo.checkpoints.config_table import Arguments, ConfigTable, JsonObject
from lmzoo.checkpoints.tokenizer_format import KERAS_HUB_IGNORED, TokenizerFormat, require
from lmzoo.checkpoints.vocabulary_files import read_lines
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import read_json
from lmzoo.text import BytePairTokenizer, Tokenizer
from lmzoo.text.tokenizers.token_lists import in_order

if TYPE_CHECKING:
    import tokenizers


class BytePairFormat(TokenizerFormat[BytePairTokenizer]):
    """A vocabulary and merges, or fairseq's dictionary, which lists numbers of GPT-2's vocabulary."""

    tokenizer = BytePairTokenizer
    files = (("vocab.json", "merges.txt"), ("dict.txt", "encoder.json", "vocab.bpe"))
    written: ClassVar = {"vocabulary.json": "vocab.json"}
    model_type = "BPE"
    allowed: ClassVar = {"add_prefix_space": (False,)}
    keras_hub = ConfigTable(
        keys={},
        allowed={"add_prefix_space": (False,)},
        ignored=KERAS_HUB_IGNORED,
        written={"vocabulary": None, "merges": None, "unsplittable_tokens": None},
    )

    def vocabulary_of_files(self, files: Sequence[Path]) -> Arguments:
        merges = read_lines(files[-1])
        ids = read_json(files[-2].parent, files[-2].name)
        tokens = _of_dictionary(files[0], in_order(ids)) if len(files) == 3 else in_order(ids)
        return {"vocabulary": tokens, "merges": merges[merges[0].startswith("#version:") :]}

    def vocabulary_of_pipeline(self, pipeline: JsonObject, special_tokens: Collection[str]) -> Arguments:
        return {"vocabulary": in_order(pipeline["model"]["vocab"]), "merges": pipeline["model"]["merges"]}

    def settings_of_pipeline(self, pipeline: JsonObject, file: Path) -> Arguments:
        require(file, "", pipeline, {"normalizer": (None,)})
        splitting = {"type": ("ByteLevel",), "add_prefix_space": (False,), "use_regex": (True,)}
        require(file, "pre_tokenizer.", pipeline.get("pre_tokenizer"), splitting)
        merging = {
            "dropout": (None, 0.0),
            "continuing_subword_prefix": (None, ""),
            "end_of_word_suffix": (None, ""),
            "byte_fallback": (False,),
            "ignore_merges": (False,),
        }
        require(file, "model.", pipeline["model"], merging)
        return {}

    def pipeline(self, tokenizer: BytePairTokenizer) -> tokenizers.Tokenizer:
        import tokenizers
        from tokenizers import decoders, processors

        backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        backend.decoder = decoders.ByteLevel()
        start, end = tokenizer.start_token, tokenizer.end_token
        if start and end and start != end:  # GPT-2, whose documents end where others begin, adds nothing to a text
            after, before = ((token, tokenizer.token_to_id(token)) for token in (end, start))
            backend.post_processor = processors.RobertaProcessing(
                after, before, trim_offsets=True, add_prefix_space=False
            )
        return backend

    def lists(self, vocabulary: Arguments) -> dict[str, list[str]]:
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in vocabulary["merges"]]
        return {**super().lists(vocabulary), "merges": merges}

    def takes_space(self, tokenizer: BytePairTokenizer, token: str, flags: JsonObject, file: Path) -> bool:
        is_mask = token == tokenizer.mask_token
        if flags.get("lstrip") and not is_mask:
            raise PresetError(f"{file}: the token {token!r} has `lstrip`, which lmzoo does not support.")
        return is_mask and not flags.get("lstrip", True)

    def to_keras_hub(self, tokenizer: BytePairTokenizer, name: str) -> tuple[Arguments, Tokenizer]:
        config, _ = super().to_keras_hub(tokenizer, name)
        return {**config, "unsplittable_tokens": [*tokenizer.special_tokens]}, tokenizer


def _of_dictionary(file: Path, tokens: Sequence[str]) -> list[str]:
    """The vocabulary of fairseq's dictionary, which gives most tokens by their ids in GPT-2's vocabulary."""
    numbers = {str(number): token for number, token in enumerate(tokens)}
    entries = []
    for at, line in enumerate(read_lines(file), 1):
        entry, _, count = line.rpartition(" ")
        if not (entry and count.isdigit()) or (entry.isdigit() and entry not in numbers):
            raise PresetError(f"{file}, line {at}: expected a number in encoder.json and a count, got {line!r:.60}.")
        entries.append(numbers.get(entry, entry))
    return ["<s>", "<pad>", "</s>", "<unk>", *entries, "<mask>"]
