"""`tokenizer.json`, a whole tokenizer as Hugging Face's `tokenizers` writes it: read as far as ours go, and written.

Its parts must do what ours do. Whatever would give other ids is an error that names the part.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lmzoo.errors import PresetError
from lmzoo.text import BytePairTokenizer, SentencePieceTokenizer, Tokenizer, WordPieceTokenizer
from lmzoo.text.tokenizers.sentencepiece import SPACE
from lmzoo.text.tokenizers.sentencepiece_text import QUOTES

PIPELINE_FILE = "tokenizer.json"
_NORMAL, _UNKNOWN, _CONTROL, USER_DEFINED = 1, 2, 3, 4  # types of SentencePiece's pieces


# === Reading ===


def class_of(pipeline: Mapping[str, Any], file: Path) -> type[Tokenizer]:
    """Our class for the content of a file.

    Raises:
        PresetError: if there is none.
    """
    model = pipeline.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), (dict, list)):
        raise PresetError(f'{file} must hold an object "model" with a "vocab".')
    guess = "BPE" if "merges" in model else "Unigram" if "unk_id" in model else "WordPiece"  # old files do not say
    name = model.get("type") or guess
    if name not in _READERS:
        raise PresetError(f"{file} holds a {name!r} model; known are {', '.join(_READERS)}.")
    return _READERS[name][0]


def settings_of(pipeline: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Our constructor's arguments beside the vocabulary.

    Raises:
        PresetError: naming the part of the file that ours cannot follow.
    """
    cls = class_of(pipeline, file)
    return next(read for known, read in _READERS.values() if known is cls)(pipeline, file)


def require(file: Path, part: str, stored: Any, expected: Mapping[str, tuple[Any, ...]]) -> None:
    """Checks the values of some keys; one that is missing, but for the type, has the first of those expected.

    Raises:
        PresetError: naming the first key with another value.
    """
    stored = stored if isinstance(stored, dict) else {"type": stored}
    for key, allowed in expected.items():
        if (value := stored.get(key, None if key == "type" else allowed[0])) not in allowed:
            raise PresetError(
                f"{file}: `{part}{key}` is {value!r:.80}, but ours can only follow {' or '.join(map(repr, allowed))}."
            )


def _word_piece(pipeline: Mapping[str, Any], file: Path) -> dict[str, Any]:
    normalizer = pipeline.get("normalizer")
    expected = {"type": ("BertNormalizer",), "clean_text": (True,), "handle_chinese_chars": (True,)}
    require(file, "normalizer.", normalizer, expected)
    require(file, "pre_tokenizer.", pipeline.get("pre_tokenizer"), {"type": ("BertPreTokenizer",)})
    model = {
        "unk_token": (WordPieceTokenizer.unk_token,),
        "continuing_subword_prefix": (WordPieceTokenizer.continuation_prefix,),
        "max_input_chars_per_word": (WordPieceTokenizer.max_characters_per_word,),
    }
    require(file, "model.", pipeline["model"], model)
    return {"lowercase": normalizer.get("lowercase", True), "strip_accents": normalizer.get("strip_accents")}


def _byte_pair(pipeline: Mapping[str, Any], file: Path) -> dict[str, Any]:
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


def _unigram(pipeline: Mapping[str, Any], file: Path) -> dict[str, Any]:
    steps = _steps(pipeline)
    types = [step.get("type") for step in steps]
    lowercase, keep_accents = "Lowercase" in types, "StripAccents" not in types
    expected = ["Replace", "Replace", *([] if keep_accents else ["NFKD", "StripAccents"]), *["Lowercase"] * lowercase]
    quotes = [(step.get("pattern"), step.get("content")) for step in steps[:2]]
    known = types[: len(expected)] == expected and quotes == [({"String": quote}, '"') for quote in QUOTES]
    # Then SentencePiece's own clean-up, and in some files one that squeezes spaces.
    for step in steps[len(expected) :]:
        known &= step.get("type") == "Precompiled" or (step.get("type"), step.get("content")) == ("Replace", " ")
    if not known:
        raise PresetError(f"{file}: the `normalizer` must have ALBERT's steps, got {', '.join(map(str, types))}.")
    splitter = pipeline.get("pre_tokenizer") or {}
    *before, metaspace = splitter.get("pretokenizers") or [splitter]
    if [step.get("type") for step in before] not in ([], ["WhitespaceSplit"]):
        raise PresetError(f"{file}: the `pre_tokenizer` must be WhitespaceSplit and Metaspace, got {splitter!r:.200}.")
    spaces = {
        "type": ("Metaspace",),
        "replacement": (SPACE,),
        "prepend_scheme": ("always",),
        "add_prefix_space": (True,),  # the old name of the same
    }
    require(file, "pre_tokenizer.", metaspace, spaces)
    require(file, "model.", pipeline["model"], {"byte_fallback": (False,)})
    return {"lowercase": lowercase, "keep_accents": keep_accents}


_READERS: dict[str, tuple[type[Tokenizer], Callable[[Mapping[str, Any], Path], dict[str, Any]]]] = {
    "WordPiece": (WordPieceTokenizer, _word_piece),
    "BPE": (BytePairTokenizer, _byte_pair),
    "Unigram": (SentencePieceTokenizer, _unigram),
}


def _steps(pipeline: Mapping[str, Any]) -> list[dict[str, Any]]:
    normalizer = pipeline.get("normalizer") or {}
    return normalizer.get("normalizers") or [normalizer]


def sentencepiece_model(pipeline: Mapping[str, Any], file: Path) -> bytes:
    """The SentencePiece model that a file was made from.

    The types of pieces are not there, but those that matter show: what is also added, and has the score 0, was a symbol
    of the user's, and every other piece is an ordinary one.

    Raises:
        PresetError: if the vocabulary is malformed.
    """
    added = {token.get("id") for token in pipeline.get("added_tokens") or []}
    model, proto = pipeline["model"], model_proto()()
    try:
        for id, (piece, score) in enumerate(model["vocab"]):
            special = piece in SentencePieceTokenizer.special_tokens
            kind = _CONTROL if special else USER_DEFINED if id in added and score == 0 else _NORMAL
            proto.pieces.add(piece=piece, score=score, type=_UNKNOWN if id == model["unk_id"] else kind)
        proto.trainer_spec.unk_id = model["unk_id"]
        charsmaps = [step["precompiled_charsmap"] for step in _steps(pipeline) if step.get("type") == "Precompiled"]
        proto.normalizer_spec.precompiled_charsmap = b"".join(map(base64.b64decode, charsmaps))
    except (KeyError, TypeError, ValueError) as error:
        raise PresetError(f"{file}: expected a vocabulary of pairs, piece and score, and `unk_id` ({error}).") from None
    proto.trainer_spec.model_type = 1  # unigram
    proto.trainer_spec.vocab_size = len(proto.pieces)
    proto.trainer_spec.bos_id = proto.trainer_spec.eos_id = -1
    proto.normalizer_spec.name = "precompiled"
    return proto.SerializeToString(deterministic=True)


def model_proto() -> Any:
    """The class of SentencePiece's models."""
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto


# === Writing ===


def write_pipeline(tokenizer: Any, file: Path, start: str, end: str) -> None:
    """Writes the file.

    Args:
        tokenizer: a WordPieceTokenizer, BytePairTokenizer or SentencePieceTokenizer.
        file: where to.
        start: the token before every row.
        end: the token after every text.
    """
    import tokenizers
    from tokenizers import decoders, processors

    ids = [(token, tokenizer.token_to_id(token)) for token in (start, end)]
    template = processors.TemplateProcessing(
        single=f"{start}:0 $A:0 {end}:0", pair=f"{start}:0 $A:0 {end}:0 $B:1 {end}:1", special_tokens=ids
    )
    if isinstance(tokenizer, SentencePieceTokenizer):
        backend = _unigram_backend(tokenizer)
        backend.post_processor, backend.decoder = template, decoders.Metaspace(SPACE, "always")
    else:
        backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        if isinstance(tokenizer, WordPieceTokenizer):
            backend.post_processor, backend.decoder = template, decoders.WordPiece(tokenizer.continuation_prefix)
        else:
            backend.post_processor = processors.RobertaProcessing(
                ids[1], ids[0], trim_offsets=True, add_prefix_space=False
            )
            backend.decoder = decoders.ByteLevel()
    backend.save(str(file))


def _unigram_backend(tokenizer: SentencePieceTokenizer) -> Any:
    """SentencePiece as `tokenizers` can say it: other segmentations of equal score, and "9," stays whole."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    proto = model_proto().FromString(tokenizer.model)
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    backend = Tokenizer(models.Unigram(pieces, tokenizer.token_to_id(tokenizer.unk_token), byte_fallback=False))
    steps: list[Any] = [normalizers.Replace(quote, '"') for quote in QUOTES]
    steps += [] if tokenizer.keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if tokenizer.lowercase else []
    charsmap = proto.normalizer_spec.precompiled_charsmap
    backend.normalizer = normalizers.Sequence([*steps, *([normalizers.Precompiled(charsmap)] if charsmap else [])])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, "always")]
    )
    backend.add_special_tokens(list(tokenizer.special_tokens))
    return backend
