"""File formats of byte-level and character-level byte-pair encoding tokenizers."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from lmzoo.checkpoints.config_table import Arguments, ConfigTable, JsonObject
from lmzoo.checkpoints.tokenizers.format import (
    KERAS_HUB_IGNORED,
    T,
    TokenizerFormat,
    make_template,
    require,
    segmented_packing,
)
from lmzoo.checkpoints.tokenizers.vocabulary_files import read_lines
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import read_json
from lmzoo.text import BytePairTokenizer, CharacterPairTokenizer, NormalizedBytePairTokenizer, Packing, Tokenizer
from lmzoo.text.tokenizers.character_pairs import END_OF_WORD
from lmzoo.text.tokenizers.token_lists import in_order, remove_placeholders

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.processors import PostProcessor


_MERGING = {
    "dropout": (None, 0.0),
    "continuing_subword_prefix": (None, ""),
    "byte_fallback": (False,),
    "ignore_merges": (False,),
}


class _MergesFormat(TokenizerFormat[T]):
    """The base class of byte-pair formats, whose files hold a vocabulary and merges."""

    files: ClassVar[tuple[tuple[str, ...], ...]] = (("vocab.json", "merges.txt"),)
    written: ClassVar = {"vocabulary.json": "vocab.json"}
    model_type = "BPE"
    ends_words: ClassVar[bool]  # whether the last token of a word ends in `</w>`

    def read_vocabulary_files(self, files: Sequence[Path]) -> Arguments:
        ids_by_token = read_json(files[-2].parent, files[-2].name)
        tokens = (
            _read_dictionary(files[0], in_order(ids_by_token))
            if len(files) == 3
            else in_order(ids_by_token, allow_gaps=True)
        )
        merges = read_lines(files[-1])
        return {"vocabulary": tokens, "merges": merges[merges[0].startswith("#version:") :]}

    def read_pipeline_vocabulary(self, pipeline: JsonObject, special_tokens: Collection[str]) -> Arguments:
        model = pipeline["model"]
        tokens = remove_placeholders(in_order(model["vocab"], allow_gaps=True))
        return {"vocabulary": tokens, "merges": model["merges"]}

    def fits(self, pipeline: JsonObject) -> bool:
        return bool(pipeline["model"].get("end_of_word_suffix")) == self.ends_words

    def fits_tokens(self, tokens: Sequence[str]) -> bool:
        return any(token.endswith(END_OF_WORD) for token in tokens) == self.ends_words


class BytePairFormat(_MergesFormat[BytePairTokenizer]):
    """The format of `BytePairTokenizer`: a vocabulary and merges, or fairseq's dictionary of GPT-2's token ids."""

    tokenizer = BytePairTokenizer
    files = (*_MergesFormat.files, ("dict.txt", "encoder.json", "vocab.bpe"))
    ends_words = False
    token_flags = ("lstrip", "rstrip", "single_word")
    settings: ClassVar = {"add_prefix_space": ("add_prefix_space", False)}
    without_effect: ClassVar = {"trim_offsets": (None, True)}
    keras_hub = ConfigTable(
        keys={},
        allowed={"add_prefix_space": (False,)},
        ignored=KERAS_HUB_IGNORED,
        written={"vocabulary": None, "merges": None, "unsplittable_tokens": None},
    )

    normalizes: ClassVar[bool] = False  # whether texts are normalized to NFC

    def fits(self, pipeline: JsonObject) -> bool:
        return super().fits(pipeline) and bool(pipeline.get("normalizer")) == self.normalizes

    def read_pipeline_vocabulary(self, pipeline: JsonObject, special_tokens: Collection[str]) -> Arguments:
        """Read vocabulary and merges, and append added tokens up to the last special token that is missing."""
        arguments = super().read_pipeline_vocabulary(pipeline, special_tokens)
        tokens = [*arguments["vocabulary"]]
        missing_special_tokens = {*special_tokens} - {*tokens}
        added_tokens = pipeline.get("added_tokens") or []
        last_id = max((token["id"] for token in added_tokens if token["content"] in missing_special_tokens), default=-1)
        tokens_by_id = {
            token["id"]: token["content"] for token in added_tokens if len(tokens) <= token["id"] <= last_id
        }
        tokens += [tokens_by_id.get(id, "") for id in range(len(tokens), last_id + 1)]
        return {**arguments, "vocabulary": tokens}

    def read_pipeline_settings(self, pipeline: JsonObject, file: Path) -> Arguments:
        if self.normalizes:
            require(file, "normalizer.", pipeline.get("normalizer"), {"type": ("NFC",)})
        else:
            require(file, "", pipeline, {"normalizer": (None,)})
        expected_splitter = {"type": ("ByteLevel",), "add_prefix_space": (True, False), "use_regex": (True,)}
        require(file, "pre_tokenizer.", pipeline.get("pre_tokenizer"), expected_splitter)
        require(file, "model.", pipeline["model"], {**_MERGING, "end_of_word_suffix": (None, "")})
        _warn_about_offsets(pipeline.get("post_processor"), file)
        return {"add_prefix_space": pipeline["pre_tokenizer"].get("add_prefix_space", True)}

    def pipeline(self, tokenizer: BytePairTokenizer) -> tokenizers.Tokenizer:
        import tokenizers
        from tokenizers import decoders, processors

        backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        text_tokens = {token.content for token in tokenizer.text_tokens}
        backend.add_special_tokens([token for token in tokenizer.special_tokens if token not in text_tokens])
        backend.decoder = decoders.ByteLevel()
        if (packing := self.packing(tokenizer)) is not None:
            end_pair, start_pair = ((token, tokenizer.token_to_id(token)) for token in (packing.end, packing.start))
            backend.post_processor = processors.RobertaProcessing(
                end_pair, start_pair, trim_offsets=True, add_prefix_space=tokenizer.add_prefix_space
            )
        return backend

    def packing(self, tokenizer: BytePairTokenizer) -> Packing | None:
        start = tokenizer.start_token
        end = tokenizer.end_token
        if not (start and end and start != end):  # GPT-2 has one token for both, and adds none to texts
            return None
        return Packing(start, end, (end, end), segments=False)

    def to_keras_hub(self, tokenizer: BytePairTokenizer, name: str) -> tuple[Arguments, Tokenizer]:
        if tokenizer.add_prefix_space:
            raise PresetError(f"KerasHub's {name} puts no space in front of a text: it cannot have `add_prefix_space`.")
        if "" in tokenizer.vocabulary:
            raise PresetError(f"KerasHub's {name} needs a token for each id.")
        config, _ = super().to_keras_hub(tokenizer, name)
        tokenizer_copy = BytePairTokenizer(tokenizer.vocabulary, tokenizer.merges, **tokenizer.get_config())
        return {**config, "unsplittable_tokens": [*tokenizer.special_tokens]}, tokenizer_copy


class NormalizedBytePairFormat(BytePairFormat):
    """The format of `NormalizedBytePairTokenizer`: like `BytePairFormat`, but for texts normalized to NFC.

    In transformers, `tokenizer.json` determines everything about such tokenizers.
    """

    tokenizer = NormalizedBytePairTokenizer
    normalizes = True

    def pipeline(self, tokenizer: BytePairTokenizer) -> tokenizers.Tokenizer:
        backend = super().pipeline(tokenizer)
        if (packing := self.packing(tokenizer)) is not None:
            backend.post_processor = self.processor(packing, tokenizer)
        return backend

    def packing(self, tokenizer: BytePairTokenizer) -> Packing | None:
        has_both_tokens = tokenizer.start_token and tokenizer.end_token
        return replace(segmented_packing(tokenizer), segments=False) if has_both_tokens else None

    def processor(self, packing: Packing, tokenizer: BytePairTokenizer) -> PostProcessor:
        """Return the post-processor that applies a packing and trims offsets, as lmzoo's tokenizer does."""
        from tokenizers import processors

        trimming_processor = processors.ByteLevel(trim_offsets=True, add_prefix_space=tokenizer.add_prefix_space)
        return processors.Sequence([trimming_processor, make_template(packing, tokenizer)])


class CharacterPairFormat(_MergesFormat[CharacterPairTokenizer]):
    """The format of `CharacterPairTokenizer`: a vocabulary and merges in which words end in `</w>`."""

    tokenizer = CharacterPairTokenizer
    ends_words = True
    tokens: ClassVar = {
        "bos_token": "start_token", "eos_token": "end_token", "pad_token": "pad_token", "unk_token": "unk_token",
    }  # fmt: skip
    allowed: ClassVar = {"do_lower_case": (True,)}

    def read_pipeline_settings(self, pipeline: JsonObject, file: Path) -> Arguments:
        expected_normalizer = {
            "type": ("BertNormalizer",),
            "clean_text": (True,),
            "handle_chinese_chars": (True,),
            "strip_accents": (None, True),
            "lowercase": (True,),
        }
        require(file, "normalizer.", pipeline.get("normalizer"), expected_normalizer)
        require(file, "pre_tokenizer.", pipeline.get("pre_tokenizer"), {"type": ("BertPreTokenizer",)})
        expected_model = {**_MERGING, "end_of_word_suffix": (END_OF_WORD,), "fuse_unk": (False,)}
        if "end_of_word_suffix" not in pipeline["model"]:
            raise PresetError(f"{file}: `model.end_of_word_suffix` is missing: no token ends a word.")
        require(file, "model.", pipeline["model"], expected_model)
        return {"unk_token": pipeline["model"].get("unk_token")}

    def pipeline(self, tokenizer: CharacterPairTokenizer) -> tokenizers.Tokenizer:
        import tokenizers
        from tokenizers import decoders

        backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        backend.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
        return backend


def _warn_about_offsets(post_processor: JsonObject | None, file: Path) -> None:
    """Warn if offsets include the spaces around tokens in transformers.

    There is no warning for a processor that is `ByteLevel` alone, since all files of GPT-2 have it.
    """
    outer_processor = post_processor if isinstance(post_processor, Mapping) else {}
    processors = outer_processor.get("processors") or (
        [] if outer_processor.get("type") == "ByteLevel" else [outer_processor]
    )
    if any(processor.get("trim_offsets") is False for processor in processors if isinstance(processor, Mapping)):
        warnings.warn(
            f"{file}: `post_processor.trim_offsets` is false, but the offsets of lmzoo's tokens never include the "
            "spaces around them.",
            stacklevel=2,
        )


def _read_dictionary(file: Path, published_tokens: Sequence[str]) -> list[str]:
    """Return the tokens of fairseq's dictionary, including the special tokens that the file does not list.

    The file lists most tokens as ids in GPT-2's vocabulary.

    Args:
        file: Path of the dictionary.
        published_tokens: Tokens of GPT-2's vocabulary.

    Raises:
        PresetError: If a line is malformed or has an unknown id; the message names the line.
    """
    token_by_id = {str(token_id): token for token_id, token in enumerate(published_tokens)}
    dictionary_tokens = []
    for line_number, line in enumerate(read_lines(file), 1):
        id_or_token, _, count = line.rpartition(" ")
        if not (id_or_token and count.isdigit()) or (id_or_token.isdigit() and id_or_token not in token_by_id):
            raise PresetError(
                f"{file}, line {line_number}: expected a number in encoder.json and a count, got {line!r:.60}."
            )
        dictionary_tokens.append(token_by_id.get(id_or_token, id_or_token))
    return ["<s>", "<pad>", "</s>", "<unk>", *dictionary_tokens, "<mask>"]
