"""WordPiece in the files of other libraries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from lmzoo.checkpoints.config_table import Arguments, ConfigTable, JsonObject
from lmzoo.checkpoints.tokenizer_format import KERAS_HUB_IGNORED, TokenizerFormat, require, template
from lmzoo.checkpoints.vocabulary_files import read_lines
from lmzoo.errors import PresetError
from lmzoo.text import Tokenizer, WordPieceTokenizer
from lmzoo.text.tokenizers.token_lists import in_order

if TYPE_CHECKING:
    import tokenizers


class WordPieceFormat(TokenizerFormat[WordPieceTokenizer]):
    """A file with one token per line."""

    tokenizer = WordPieceTokenizer
    files = (("vocab.txt",), ("vocab_chinese.txt",))
    written: ClassVar = {"vocabulary.txt": "vocab.txt"}
    model_type = "WordPiece"
    tokens: ClassVar = {
        name: ours for name, ours in TokenizerFormat.tokens.items() if name not in ("bos_token", "eos_token")
    }
    settings: ClassVar = {"do_lower_case": ("lowercase", True), "strip_accents": ("strip_accents", None)}
    allowed: ClassVar = {"tokenize_chinese_chars": (True,), "do_basic_tokenize": (True,), "never_split": (None, [])}
    keras_hub = ConfigTable(
        keys={"lowercase": "lowercase", "strip_accents": "strip_accents", "oov_token": "unk_token"},
        defaults={"lowercase": False, "strip_accents": False, "oov_token": None},
        allowed={"split": (True,), "split_on_cjk": (True,), "suffix_indicator": ("##",)},
        ignored=KERAS_HUB_IGNORED,
        written={"vocabulary": None, "special_tokens": None, "special_tokens_in_strings": True},
    )

    def vocabulary_of_files(self, files: Sequence[Path]) -> Arguments:
        tokens = [line.rstrip() for line in read_lines(files[0])]
        while tokens and not tokens[-1]:  # blank lines at the end, which an editor has left, are no tokens
            tokens.pop()
        return {"vocabulary": tokens}

    def vocabulary_of_pipeline(self, pipeline: JsonObject, special_tokens: Collection[str]) -> Arguments:
        return {"vocabulary": in_order(pipeline["model"]["vocab"])}

    def settings_of_pipeline(self, pipeline: JsonObject, file: Path) -> Arguments:
        normalizer = pipeline.get("normalizer") or {}
        expected = {"type": ("BertNormalizer",), "clean_text": (True,), "handle_chinese_chars": (True,)}
        require(file, "normalizer.", normalizer, expected)
        require(file, "pre_tokenizer.", pipeline.get("pre_tokenizer"), {"type": ("BertPreTokenizer",)})
        model = {
            "continuing_subword_prefix": (WordPieceTokenizer.continuation_prefix,),
            "max_input_chars_per_word": (WordPieceTokenizer.max_characters_per_word,),
        }
        require(file, "model.", pipeline["model"], model)
        return {
            "lowercase": normalizer.get("lowercase", True),
            "strip_accents": normalizer.get("strip_accents"),
            "unk_token": pipeline["model"].get("unk_token"),
        }

    def pipeline(self, tokenizer: WordPieceTokenizer) -> tokenizers.Tokenizer:
        import tokenizers
        from tokenizers import decoders

        backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        backend.post_processor, backend.decoder = template(tokenizer), decoders.WordPiece(tokenizer.continuation_prefix)
        return backend

    def to_keras_hub(self, tokenizer: WordPieceTokenizer, name: str) -> tuple[Arguments, Tokenizer]:
        config, _ = super().to_keras_hub(tokenizer, name)
        # KerasHub knows the other special tokens, and keeps them whole only if told to.
        config["special_tokens"] = [tokenizer.unk_token]
        if config["strip_accents"] is None:
            config["strip_accents"] = config["lowercase"]
        if strange := next((token for token in tokenizer.vocabulary if token != token.rstrip()), None):
            raise PresetError(f"KerasHub's {name} cannot read the token {strange!r}: it strips trailing white space.")
        return config, tokenizer
