"""The file format of WordPiece tokenizers."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from lmzoo.checkpoints.config_table import Arguments, ConfigTable, JsonObject
from lmzoo.checkpoints.tokenizers.format import (
    KERAS_HUB_IGNORED,
    PIPELINE_FILE,
    TokenizerFormat,
    make_template,
    require,
    segmented_packing,
)
from lmzoo.checkpoints.tokenizers.vocabulary_files import read_lines
from lmzoo.errors import PresetError
from lmzoo.text import Packing, Tokenizer, WordPieceTokenizer
from lmzoo.text.tokenizers.token_lists import in_order, remove_placeholders

if TYPE_CHECKING:
    import tokenizers


class WordPieceFormat(TokenizerFormat[WordPieceTokenizer]):
    """The format of `WordPieceTokenizer`: a text file with one token per line."""

    tokenizer = WordPieceTokenizer
    files = (("vocab.txt",), ("vocab_chinese.txt",))
    written: ClassVar = {"vocabulary.txt": "vocab.txt"}
    model_type = "WordPiece"
    tokens: ClassVar = {
        attribute: role
        for attribute, role in TokenizerFormat.tokens.items()
        if attribute not in ("bos_token", "eos_token")
    }
    settings: ClassVar = {
        "do_lower_case": ("lowercase", True),
        "strip_accents": ("strip_accents", None),
        "tokenize_chinese_chars": ("split_on_cjk", True),
    }
    without_effect: ClassVar = {"do_basic_tokenize": (None, True), "never_split": (None, [])}
    keras_hub = ConfigTable(
        keys={
            "lowercase": "lowercase",
            "strip_accents": "strip_accents",
            "split_on_cjk": "split_on_cjk",
            "oov_token": "unk_token",
        },
        defaults={"lowercase": False, "strip_accents": False, "split_on_cjk": True, "oov_token": None},
        allowed={"split": (True,), "suffix_indicator": ("##",)},
        ignored=KERAS_HUB_IGNORED,
        written={"vocabulary": None, "special_tokens": None, "special_tokens_in_strings": True},
    )

    def read_vocabulary_files(self, files: Sequence[Path]) -> Arguments:
        tokens = _read_tokens(files[0])
        last_ids = {token: id for id, token in enumerate(tokens)}
        # As in transformers, blank lines take up an id, and the last of several equal tokens counts.
        return self._make_arguments([token if last_ids[token] == id else "" for id, token in enumerate(tokens)])

    def read_pipeline_vocabulary(self, pipeline: JsonObject, special_tokens: Collection[str]) -> Arguments:
        tokens = in_order(pipeline["model"]["vocab"])
        return self._make_arguments(remove_placeholders(tokens))

    def _make_arguments(self, tokens: list[str]) -> Arguments:
        # A file with only special tokens is truncated, which the constructor reports.
        lacks_mask = WordPieceTokenizer.mask_token not in tokens and {*tokens} - {*WordPieceTokenizer.special_tokens}
        return {"vocabulary": tokens, **({"mask_token": None} if lacks_mask else {})}

    def oddities(self, file: Path, vocabulary: Arguments) -> list[str]:
        anomalies = []
        if file.name != PIPELINE_FILE:
            if file.read_bytes().startswith(codecs.BOM_UTF8):
                anomalies.append("its byte order mark is left out")
            tokens = _read_tokens(file)
            last_ids = {token: id for id, token in enumerate(tokens)}
            if "" in last_ids:
                anomalies.append(f"line {tokens.index('') + 1} is blank, and its id has no token")
            if repeated_token := next(
                (token for id, token in enumerate(tokens) if token and last_ids[token] != id), None
            ):
                anomalies.append(f"{repeated_token!r} is there twice, and the last line counts")
        if vocabulary.get("mask_token", "") is None:
            anomalies.append(f"it lacks {WordPieceTokenizer.mask_token}, without which no task can mask or fill masks")
        return anomalies

    def read_pipeline_settings(self, pipeline: JsonObject, file: Path) -> Arguments:
        normalizer = pipeline.get("normalizer") or {}
        require(file, "normalizer.", normalizer, {"type": ("BertNormalizer",), "clean_text": (True,)})
        require(file, "pre_tokenizer.", pipeline.get("pre_tokenizer"), {"type": ("BertPreTokenizer",)})
        expected_model = {
            "continuing_subword_prefix": (WordPieceTokenizer.continuation_prefix,),
            "max_input_chars_per_word": (WordPieceTokenizer.max_characters_per_word,),
        }
        require(file, "model.", pipeline["model"], expected_model)
        return {
            "lowercase": normalizer.get("lowercase", True),
            "strip_accents": normalizer.get("strip_accents"),
            "split_on_cjk": normalizer.get("handle_chinese_chars", True),
            "unk_token": pipeline["model"].get("unk_token"),
        }

    def pipeline(self, tokenizer: WordPieceTokenizer) -> tokenizers.Tokenizer:
        import tokenizers
        from tokenizers import decoders

        backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        backend.post_processor = make_template(self.packing(tokenizer), tokenizer)
        backend.decoder = decoders.WordPiece(tokenizer.continuation_prefix)
        return backend

    def packing(self, tokenizer: WordPieceTokenizer) -> Packing:
        return segmented_packing(tokenizer)

    def to_keras_hub(self, tokenizer: WordPieceTokenizer, name: str) -> tuple[Arguments, Tokenizer]:
        config, _ = super().to_keras_hub(tokenizer, name)
        # KerasHub's class adds the other special tokens; `special_tokens_in_strings` keeps all of them whole in texts.
        config["special_tokens"] = [tokenizer.unk_token, *(token.content for token in tokenizer.added_tokens)]
        if config["strip_accents"] is None:
            config["strip_accents"] = config["lowercase"]
        if unreadable_token := next((token for token in tokenizer.vocabulary if token != token.rstrip()), None):
            raise PresetError(
                f"KerasHub's {name} cannot read the token {unreadable_token!r}: it strips trailing white space."
            )
        if "" in tokenizer.vocabulary or tokenizer.mask_token is None:
            raise PresetError(f"KerasHub's {name} needs a token for each id, and {WordPieceTokenizer.mask_token}.")
        return config, WordPieceTokenizer(tokenizer.vocabulary, **tokenizer.get_config())


def _read_tokens(file: Path) -> list[str]:
    """Return the token in each line of a file, with "" for a blank line, and without blank lines at the end."""
    tokens = [line.rstrip() for line in read_lines(file)]
    tokens[0] = tokens[0].removeprefix("\ufeff")
    while tokens and not tokens[-1]:
        tokens.pop()
    return tokens
