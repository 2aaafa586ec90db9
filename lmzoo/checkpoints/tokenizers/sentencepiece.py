"""File formats of SentencePiece tokenizers."""

from __future__ import annotations

import base64
import itertools
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lmzoo.checkpoints.config_table import Arguments, ConfigTable, JsonObject
from lmzoo.checkpoints.tokenizers.format import (
    KERAS_HUB_IGNORED,
    PIPELINE_FILE,
    TokenizerFormat,
    make_template,
    require,
    segmented_packing,
)
from lmzoo.checkpoints.tokenizers.sentencepiece_rules import add_clean_up, make_composition_rules, read_clean_up
from lmzoo.checkpoints.tokenizers.vocabulary_files import read_lines
from lmzoo.errors import PresetError
from lmzoo.files.inside import has_file
from lmzoo.files.preset_files import read_json
from lmzoo.text import (
    DebertaV3Tokenizer,
    MarianTokenizer,
    Packing,
    SentencePieceTokenizer,
    T5Tokenizer,
    Tokenizer,
    WordPieceTokenizer,
    XlmRobertaTokenizer,
    XlnetTokenizer,
)
from lmzoo.text.tokenizers.deberta_sentencepiece import add_mask_token, remove_mask_token
from lmzoo.text.tokenizers.sentencepiece import SPACE, model_proto, read_model
from lmzoo.text.tokenizers.sentencepiece_pair import SOURCE_FILE, TARGET_FILE, VOCABULARY_FILE
from lmzoo.text.tokenizers.sentencepiece_text import QUOTES
from lmzoo.text.tokenizers.sentinel_sentencepiece import remove_sentinels
from lmzoo.text.tokenizers.token_lists import in_order
from lmzoo.text.tokenizers.xlmr_sentencepiece import convert_from_fairseq_ids, convert_to_fairseq_ids

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import normalizers

_SENTINEL = re.compile(r"<extra_id_\d+>")
_ENDS_OF_TEXTS = ("bos_token", "eos_token")  # in XLNet's vocabulary, but unused
_DICTIONARY_FILE = "dict.txt"  # fairseq's list of tokens, which determines their ids
# Patterns of white space that is replaced by one space.
_SQUEEZED = ({"Regex": " {2,}"}, {"Regex": r"\s{2,}|[\n\r\t]"})
# Token types in SentencePiece models.
_NORMAL = 1
_UNKNOWN = 2
_CONTROL = 3
_USER_DEFINED = 4


class _ModelFormat(TokenizerFormat[SentencePieceTokenizer]):
    """The base class of formats with one SentencePiece model file."""

    model_type = "Unigram"
    replaces_quotes: ClassVar[bool] = True  # whether ALBERT's clean-up precedes the model
    special_type: ClassVar[int] = _CONTROL  # the type of special tokens in the SentencePiece model
    allowed: ClassVar = {"add_prefix_space": (True,), "sp_model_kwargs": (None, {})}
    keras_hub = ConfigTable(
        keys={}, allowed={"add_bos": (False,), "add_eos": (False,)}, ignored=KERAS_HUB_IGNORED, written={"proto": None}
    )

    def read_vocabulary_files(self, files: Sequence[Path]) -> Arguments:
        return {"model": files[0].read_bytes()}

    def read_pipeline_vocabulary(self, pipeline: JsonObject, special_tokens: Collection[str]) -> Arguments:
        """Build a SentencePiece model from the content of `tokenizer.json`.

        `tokenizer.json` lacks the types of tokens, so they are inferred: an added token with score 0 is user-defined,
        and other tokens are normal, except for special tokens and the unknown token.

        Raises:
            ValueError: If the vocabulary, `unk_id` or the normalization rules are malformed.
        """
        added_ids = {token.get("id") for token in pipeline.get("added_tokens") or []}
        model = pipeline["model"]
        proto = model_proto()()
        try:
            for id, (piece, score) in enumerate(model["vocab"]):
                is_user_defined = id in added_ids and score == 0
                token_type = (
                    self.special_type if piece in special_tokens else _USER_DEFINED if is_user_defined else _NORMAL
                )
                proto.pieces.add(piece=piece, score=score, type=_UNKNOWN if id == model["unk_id"] else token_type)
            proto.trainer_spec.unk_id = model["unk_id"]
            charsmaps = [
                step["precompiled_charsmap"]
                for step in _list_normalizer_steps(pipeline)
                if step.get("type") == "Precompiled"
            ]
            proto.normalizer_spec.precompiled_charsmap = b"".join(map(base64.b64decode, charsmaps))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"expected a vocabulary of pairs, token and score, and `unk_id` ({error}).") from None
        proto.trainer_spec.model_type = 1  # unigram
        proto.trainer_spec.vocab_size = len(proto.pieces)
        proto.trainer_spec.bos_id = proto.trainer_spec.eos_id = -1
        proto.normalizer_spec.name = "precompiled"
        return {"model": proto.SerializeToString(deterministic=True)}

    def fits(self, pipeline: JsonObject) -> bool:
        return (
            any(step.get("type") == "Replace" for step in _list_normalizer_steps(pipeline)[:1]) == self.replaces_quotes
        )

    def _check_splitting(self, pipeline: JsonObject, file: Path) -> None:
        splitter = pipeline.get("pre_tokenizer") or {}
        *earlier_steps, metaspace = splitter.get("pretokenizers") or [splitter]
        if [step.get("type") for step in earlier_steps] not in ([], ["WhitespaceSplit"]):
            raise PresetError(
                f"{file}: the `pre_tokenizer` must be WhitespaceSplit and Metaspace, got {splitter!r:.200}."
            )
        expected_metaspace = {
            "type": ("Metaspace",),
            "replacement": (SPACE,),
            "prepend_scheme": ("always",),
            "add_prefix_space": (True,),  # older name of `prepend_scheme`
        }
        require(file, "pre_tokenizer.", metaspace, expected_metaspace)
        require(file, "model.", pipeline["model"], {"byte_fallback": (False,)})

    def pipeline(self, tokenizer: SentencePieceTokenizer) -> tokenizers.Tokenizer:
        """Return the tokenizer to write into `tokenizer.json`.

        Unlike lmzoo's tokenizer, it keeps "9," whole, and it may choose another segmentation with the same score.
        """
        import tokenizers
        from tokenizers import decoders, models, normalizers, pre_tokenizers

        proto = read_model(tokenizer.model)
        pieces = [(piece.piece, piece.score) for piece in proto.pieces]
        unknown_id = tokenizer.token_to_id(tokenizer.unk_token)
        backend = tokenizers.Tokenizer(models.Unigram(pieces, unknown_id, byte_fallback=False))
        steps = self.clean_up(tokenizer)
        charsmap = proto.normalizer_spec.precompiled_charsmap
        backend.normalizer = normalizers.Sequence([*steps, *([normalizers.Precompiled(charsmap)] if charsmap else [])])
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, "always")]
        )
        tokens = sorted(tokenizer.text_tokens, key=lambda token: tokenizer.token_to_id(token.content))
        backend.add_tokens([token.to_library() for token in tokens])
        backend.post_processor = make_template(self.packing(tokenizer), tokenizer)
        backend.decoder = decoders.Metaspace(SPACE, "always")
        return backend

    @abstractmethod
    def packing(self, tokenizer: SentencePieceTokenizer) -> Packing:
        """Return the packing of a tokenizer in transformers."""

    def clean_up(self, tokenizer: SentencePieceTokenizer) -> list[normalizers.Normalizer]:
        """Return the normalization steps that precede the SentencePiece model's own steps."""
        return []

    def lists(self, vocabulary: Arguments) -> dict[str, list[str]]:
        return {"tokens": [piece.piece for piece in read_model(vocabulary["model"]).pieces]}

    def symbols(self, tokenizer: SentencePieceTokenizer) -> set[str]:
        pieces = read_model(tokenizer.model).pieces
        return {piece.piece for piece in pieces if piece.type == _USER_DEFINED}


class SentencePieceFormat(_ModelFormat):
    """The format of `SentencePieceTokenizer`: a model file, which holds more information than `tokenizer.json`."""

    tokenizer = SentencePieceTokenizer
    files: ClassVar[tuple[tuple[str, ...], ...]] = (("spiece.model",), ("30k-clean.model",))
    written: ClassVar = {"vocabulary.spm": "spiece.model"}
    file_counts = True
    alternative: ClassVar[type[Tokenizer] | None] = WordPieceTokenizer  # in ALBERT's Chinese models
    settings: ClassVar = {"do_lower_case": ("lowercase", True), "keep_accents": ("keep_accents", False)}
    allowed: ClassVar = {"remove_space": (True,), **_ModelFormat.allowed}
    # Without this key, transformers 5 omits the segments.
    extra_settings: ClassVar = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}

    def read_pipeline_settings(self, pipeline: JsonObject, file: Path) -> Arguments:
        steps = _list_normalizer_steps(pipeline)
        types = [step.get("type") for step in steps]
        lowercase = "Lowercase" in types
        keep_accents = "StripAccents" not in types
        expected_types = ["Replace"] * 2 + ["NFKD", "StripAccents"] * (not keep_accents) + ["Lowercase"] * lowercase
        replacements = [(step.get("pattern"), step.get("content")) for step in steps[:2]]
        is_valid = types[: len(expected_types)] == expected_types and replacements == [
            ({"String": quote}, '"') for quote in QUOTES
        ]
        # SentencePiece's own normalization follows, and in some files a step that merges spaces.
        for step in steps[len(expected_types) :]:
            is_valid &= step.get("type") == "Precompiled" or (step.get("type"), step.get("content")) == ("Replace", " ")
        if not is_valid:
            raise PresetError(f"{file}: the `normalizer` must have ALBERT's steps, got {', '.join(map(str, types))}.")
        self._check_splitting(pipeline, file)
        return {"lowercase": lowercase, "keep_accents": keep_accents}

    def clean_up(self, tokenizer: SentencePieceTokenizer) -> list[normalizers.Normalizer]:
        from tokenizers import normalizers

        steps: list[normalizers.Normalizer] = [normalizers.Replace(quote, '"') for quote in QUOTES]
        steps += [] if tokenizer.keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
        return steps + ([normalizers.Lowercase()] if tokenizer.lowercase else [])

    def packing(self, tokenizer: SentencePieceTokenizer) -> Packing:
        return segmented_packing(tokenizer)

    def of_keras_hub(self, tokenizer: SentencePieceTokenizer, lowercase: Callable[[], bool]) -> Tokenizer:
        clean_up_settings = read_clean_up(tokenizer.model) or {
            "lowercase": lowercase()
        }  # KerasHub does not store these settings
        return SentencePieceTokenizer(tokenizer.model, **{**tokenizer.get_config(), **clean_up_settings})

    def to_keras_hub(self, tokenizer: SentencePieceTokenizer, name: str) -> tuple[Arguments, Tokenizer]:
        if tokenizer.added_tokens:
            token = tokenizer.added_tokens[0].content
            raise PresetError(f"KerasHub's {name} takes no added tokens, such as {token!r}.")
        return super().to_keras_hub(add_clean_up(tokenizer), name)


class XlnetFormat(SentencePieceFormat):
    """The format of `XlnetTokenizer`: ALBERT's format, with special tokens at the end and by default no lowercasing."""

    tokenizer = XlnetTokenizer
    alternative = None
    tokens: ClassVar = {
        attribute: role for attribute, role in TokenizerFormat.tokens.items() if attribute not in _ENDS_OF_TEXTS
    }
    settings: ClassVar = {"do_lower_case": ("lowercase", False), "keep_accents": ("keep_accents", False)}

    def packing(self, tokenizer: SentencePieceTokenizer) -> Packing:
        end = str(tokenizer.end_token)
        return Packing("", end, (end,), segments=True, last=str(tokenizer.start_token))


def _check_normalizer(pipeline: JsonObject, file: Path, types: Sequence[str]) -> None:
    """Check that the normalizer has only steps of `types` and steps that strip or collapse white space.

    Raises:
        PresetError: If there is another step.
    """
    for step in _list_normalizer_steps(pipeline):
        pattern = step.get("pattern") if step.get("content") in (" ", SPACE) else None
        is_supported = step.get("type") in (*types, "Strip", None)
        # lmzoo collapses white space in any case.
        if not (is_supported or (step.get("type") == "Replace" and pattern in _SQUEEZED)):
            raise PresetError(f"{file}: the `normalizer` must be {' or '.join(types)}, got {step!r:.200}.")


class XlmRobertaFormat(_ModelFormat):
    """The format of `XlmRobertaTokenizer`: a model file with three special tokens, used without ALBERT's clean-up.

    In fairseq's checkpoints, `dict.txt` determines the ids. It must list the model's pieces as XLM-RoBERTa's does.
    """

    tokenizer = XlmRobertaTokenizer
    files = (("sentencepiece.bpe.model",),)
    written: ClassVar = {"vocabulary.spm": "sentencepiece.bpe.model"}
    replaces_quotes = False
    special_type = _NORMAL

    def find_files(self, directory: Path) -> list[Path]:
        """Return the path of the model file and, if the directory holds it, of fairseq's dictionary."""
        files = super().find_files(directory)
        return [*files, directory / _DICTIONARY_FILE] if files and has_file(directory, _DICTIONARY_FILE) else files

    def read_vocabulary_files(self, files: Sequence[Path]) -> Arguments:
        model = convert_to_fairseq_ids(files[0].read_bytes())
        if len(files) == 2:
            _check_dictionary(files[1], model)
        return {"model": model}

    def read_pipeline_settings(self, pipeline: JsonObject, file: Path) -> Arguments:
        for step in _list_normalizer_steps(pipeline):
            # Other steps have no effect: the model already merges spaces.
            squeezes_spaces = (step.get("type"), step.get("pattern")) == ("Replace", {"Regex": " {2,}"})
            squeezes_spaces &= step.get("content") in (" ", SPACE)
            if not (squeezes_spaces or step.get("type") in ("Precompiled", "Strip", None)):
                raise PresetError(f"{file}: the `normalizer` must be Precompiled, got {step!r:.200}.")
        self._check_splitting(pipeline, file)
        return {}

    def packing(self, tokenizer: SentencePieceTokenizer) -> Packing:
        end = str(tokenizer.end_token)
        return Packing(str(tokenizer.start_token), end, (end, end), segments=False)

    def write_vocabulary(self, tokenizer: SentencePieceTokenizer, directory: Path) -> None:
        """Write the model in its published form if it has fairseq's ids; otherwise, write no model file.

        In that case, only `tokenizer.json` holds the vocabulary.
        """
        if (model := convert_from_fairseq_ids(tokenizer.model)) is not None:
            (directory / self.files[0][0]).write_bytes(model)


def _check_dictionary(file: Path, model: bytes) -> None:
    """Check that fairseq's dictionary gives the pieces of a SentencePiece model the ids that they have in the model.

    Args:
        file: Path of the dictionary, whose first line has the id 4.
        model: Model with fairseq's special tokens.

    Raises:
        PresetError: If the lines are not the pieces between the special tokens; the message names the first such line.
    """
    pieces = [piece.piece for piece in read_model(model).pieces[4:-1]]
    tokens = [line.rpartition(" ")[0] for line in read_lines(file)]
    for line_number, (piece, token) in enumerate(itertools.zip_longest(pieces, tokens), 1):
        if piece != token:
            raise PresetError(
                f"{file}, line {line_number}: expected {_quote_line(piece)}, got {_quote_line(token)}. The dictionary "
                "must list the pieces of the SentencePiece model in order, from the fourth on, as XLM-RoBERTa's does; "
                "CamemBERT's does not. Pass `preprocessor=` with a tokenizer that has the dictionary's ids."
            )


def _quote_line(line: str | None) -> str:
    """Return a line in quotes, or "no more lines" for None."""
    return "no more lines" if line is None else repr(line)


class DebertaV3Format(_ModelFormat):
    """The format of `DebertaV3Tokenizer`: a SentencePiece model, to which the token `[MASK]` is added."""

    tokenizer = DebertaV3Tokenizer
    files = (("spm.model",),)
    written: ClassVar = {"vocabulary.spm": "spm.model"}
    file_counts = True
    replaces_quotes = False
    allowed: ClassVar = {
        "do_lower_case": (False,),
        "split_by_punct": (False,),
        "vocab_type": ("spm",),
        **_ModelFormat.allowed,
    }
    # By default, transformers 5 omits the segments.
    extra_settings: ClassVar = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}

    def read_vocabulary_files(self, files: Sequence[Path]) -> Arguments:
        return {"model": add_mask_token(files[0].read_bytes())}

    def read_pipeline_vocabulary(self, pipeline: JsonObject, special_tokens: Collection[str]) -> Arguments:
        """Build a model with `[MASK]` from a pipeline, with NFC's rules if it has an NFC step, as in transformers 5."""
        proto = read_model(super().read_pipeline_vocabulary(pipeline, special_tokens)["model"])
        if any(step.get("type") == "NFC" for step in _list_normalizer_steps(pipeline)):
            proto.normalizer_spec.precompiled_charsmap = make_composition_rules()
        return {"model": add_mask_token(proto.SerializeToString(deterministic=True))}

    def fits(self, pipeline: JsonObject) -> bool:
        return not any(step.get("pattern") == {"String": QUOTES[0]} for step in _list_normalizer_steps(pipeline)[:1])

    def read_pipeline_settings(self, pipeline: JsonObject, file: Path) -> Arguments:
        _check_normalizer(pipeline, file, ("Precompiled", "NFC"))
        self._check_splitting(pipeline, file)
        return {}

    def packing(self, tokenizer: SentencePieceTokenizer) -> Packing:
        return segmented_packing(tokenizer)

    def write_vocabulary(self, tokenizer: SentencePieceTokenizer, directory: Path) -> None:
        (directory / self.files[0][0]).write_bytes(remove_mask_token(tokenizer.model))


class T5Format(_ModelFormat):
    """The format of `T5Tokenizer`: a SentencePiece model, to which the sentinel tokens are added."""

    tokenizer = T5Tokenizer
    files = (("spiece.model",),)
    written: ClassVar = {"vocabulary.spm": "spiece.model"}
    file_counts = True
    replaces_quotes = False
    tokens: ClassVar = {"eos_token": "end_token", "pad_token": "pad_token", "unk_token": "unk_token"}
    settings: ClassVar = {"extra_ids": ("num_sentinels", 100)}
    # Late versions of transformers 4 write null, and convert the model file anew if the key has another value.
    allowed: ClassVar = {**_ModelFormat.allowed, "add_prefix_space": (None, True)}

    def fits(self, pipeline: JsonObject) -> bool:
        tokens = [piece for piece, _ in pipeline["model"]["vocab"]]
        # XLM-RoBERTa's pipelines differ only in their tokens, and a T5 may have no sentinels.
        return super().fits(pipeline) and (any(map(_SENTINEL.fullmatch, tokens)) or "<s>" not in tokens)

    def read_pipeline_settings(self, pipeline: JsonObject, file: Path) -> Arguments:
        _check_normalizer(pipeline, file, ("Precompiled",))
        self._check_splitting(pipeline, file)
        tokens = [piece for piece, _ in pipeline["model"]["vocab"]]
        return {"num_sentinels": sum(_SENTINEL.fullmatch(token) is not None for token in tokens)}

    def packing(self, tokenizer: SentencePieceTokenizer) -> Packing:
        end = str(tokenizer.end_token)
        return Packing("", end, (end,), segments=False)

    def lists(self, vocabulary: Arguments) -> dict[str, list[str]]:
        """Return the tokens without sentinels, since the model file, unlike `tokenizer.json`, holds no sentinels."""
        tokens = super().lists(vocabulary)["tokens"]
        return {"tokens": [token for token in tokens if not _SENTINEL.fullmatch(token)]}

    def to_keras_hub(self, tokenizer: SentencePieceTokenizer, name: str) -> tuple[Arguments, Tokenizer]:
        assert isinstance(tokenizer, T5Tokenizer)
        num_sentinels = tokenizer.num_sentinels
        if num_sentinels != self.settings["extra_ids"][1]:
            raise PresetError(f"KerasHub's {name} has no place for the number of sentinels, {num_sentinels}.")
        return super().to_keras_hub(tokenizer, name)

    def write_vocabulary(self, tokenizer: SentencePieceTokenizer, directory: Path) -> None:
        assert isinstance(tokenizer, T5Tokenizer)
        (directory / self.files[0][0]).write_bytes(remove_sentinels(tokenizer.model, tokenizer.sentinels))


class MarianFormat(TokenizerFormat[MarianTokenizer]):
    """The format of `MarianTokenizer`: two SentencePiece models and a joint vocabulary, without `tokenizer.json`."""

    tokenizer = MarianTokenizer
    files = ((SOURCE_FILE, TARGET_FILE, VOCABULARY_FILE),)
    written: ClassVar = {}
    model_type = "Unigram"
    tokens: ClassVar = {"eos_token": "end_token", "pad_token": "pad_token", "unk_token": "unk_token"}
    allowed: ClassVar = {"separate_vocabs": (False,), "sp_model_kwargs": ({}, None)}

    def read_vocabulary_files(self, files: Sequence[Path]) -> Arguments:
        source, target, vocabulary = files
        ids_by_token = read_json(vocabulary.parent, vocabulary.name)
        return {"source": source.read_bytes(), "target": target.read_bytes(), "vocabulary": in_order(ids_by_token)}

    def read_pipeline_vocabulary(self, pipeline: JsonObject, special_tokens: Collection[str]) -> Arguments:
        raise PresetError(
            f"{PIPELINE_FILE} cannot hold both models of a Marian tokenizer: expected {', '.join(self.files[0])} alone."
        )

    def fits(self, pipeline: JsonObject) -> bool:
        return False

    def read_pipeline_settings(self, pipeline: JsonObject, file: Path) -> Arguments:
        return {}

    def pipeline(self, tokenizer: MarianTokenizer) -> Any:
        """Return None, since `tokenizer.json` cannot express this tokenizer."""
        return None

    def lists(self, vocabulary: Arguments) -> dict[str, list[str]]:
        return {"tokens": vocabulary["vocabulary"]}


def _list_normalizer_steps(pipeline: JsonObject) -> list[dict[str, Any]]:
    normalizer = pipeline.get("normalizer") or {}
    steps: list[dict[str, Any]] = normalizer.get("normalizers", [normalizer])
    return steps
