"""Tokenizers, their files as other libraries write them, and functions that damage the files."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lmzoo.text import BytePairTokenizer, SentencePieceTokenizer, Tokenizer, WordPieceTokenizer
from tests.text.trained import train_albert, train_byte_pairs
from tests.text.varied import varied_texts

WORD, PAIR, SENTENCE = WordPieceTokenizer, BytePairTokenizer, SentencePieceTokenizer
SIZES = {WORD: 11, PAIR: 271, SENTENCE: 13}
CONFIG, PIPELINE = "tokenizer_config.json", "tokenizer.json"
SPECIAL = [*WordPieceTokenizer.special_tokens, *BytePairTokenizer.special_tokens]
BROKEN = ["[MASK", "]", "[mask]", "<mask", ">", "<MASK>", "[MA\x01SK]", " ", "\n", "é", "ok", "'s", "``", "9,", "东"]
FILLERS = ["madeupword0000", "madeupword0001"]  # tokens that round up the size of RoBERTa's vocabulary
MODEL_TYPES = {WordPieceTokenizer: "bert", BytePairTokenizer: "roberta", SentencePieceTokenizer: "albert"}
MASK = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False,
        "normalized": False}  # fmt: skip


def all_texts(count: int) -> list[str]:
    texts = varied_texts(count, 2003, [*SPECIAL, *BROKEN])
    return [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in texts]


def word_pieces(texts: Iterable[str]) -> list[str]:
    """Return a vocabulary of characters: as they are, lowercased, and without accents; some are missing."""
    text = "".join(texts)
    forms = {c for form in ("NFC", "NFD") for c in unicodedata.normalize(form, text + text.lower())}
    pieces = [c for i, c in enumerate(sorted(forms)) if i % 17 and c.strip() and unicodedata.category(c)[0] != "C"]
    return [*WordPieceTokenizer.special_tokens, *pieces, *(f"##{c}" for c in pieces), "Straße", "strasse", "naive"]


def make_tokenizers(root: Path, texts: list[str]) -> dict[type[Tokenizer], Any]:
    """Return a WordPiece, a byte-pair and a SentencePiece tokenizer by class; `root` is the repository's directory."""
    trained = train_byte_pairs(root, texts[:3000])
    return {
        WordPieceTokenizer: WordPieceTokenizer(word_pieces(texts)),
        BytePairTokenizer: BytePairTokenizer(trained.get_vocab(), json.loads(trained.to_str())["model"]["merges"]),
        SentencePieceTokenizer: SentencePieceTokenizer(train_albert(root)),
    }


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), "utf-8")


def edit_json(path: Path, change: Any) -> None:
    """Apply a function to the content of a JSON file, which it changes in place."""
    value = json.loads(path.read_text("utf-8"))
    change(value)
    write_json(path, value)


def write_vocabulary(directory: Path, tokenizer: Any) -> None:
    """Write only the files of the vocabulary."""
    if isinstance(tokenizer, WordPieceTokenizer):
        (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in tokenizer.vocabulary), "utf-8")
    elif isinstance(tokenizer, SentencePieceTokenizer):
        (directory / "spiece.model").write_bytes(tokenizer.model)
    else:
        write_json(directory / "vocab.json", {token: id for id, token in enumerate(tokenizer.vocabulary)})
        (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *tokenizer.merges, ""]), "utf-8")


def write_published(directory: Path, tokenizer: Any) -> None:
    """Write the files as in repositories on Hugging Face from before transformers 5, without tokenizer.json."""
    write_vocabulary(directory, tokenizer)
    config = tokenizer.get_config()
    settings: Mapping[str, Any] = {"mask_token": MASK}
    if isinstance(tokenizer, WordPieceTokenizer):
        settings = {
            "do_lower_case": config["lowercase"],
            "strip_accents": config["strip_accents"],
            "tokenize_chinese_chars": tokenizer.split_on_cjk,
            "never_split": None,
        }
    elif isinstance(tokenizer, SentencePieceTokenizer):
        settings = {"do_lower_case": config["lowercase"], "keep_accents": config["keep_accents"], "remove_space": True}
    write_json(directory / "tokenizer_config.json", {**settings, "model_max_length": 512})
    write_json(directory / "config.json", {"model_type": MODEL_TYPES[type(tokenizer)]})


def peer_of(tokenizer: Any) -> Any:
    """Return the same tokenizer in transformers."""
    import transformers

    if isinstance(tokenizer, WordPieceTokenizer):
        vocabulary = {token: id for id, token in enumerate(tokenizer.vocabulary)}
        return transformers.BertTokenizer(
            vocab=vocabulary,
            do_lower_case=tokenizer.lowercase,
            strip_accents=tokenizer.strip_accents,
            tokenize_chinese_chars=tokenizer.split_on_cjk,
        )
    if isinstance(tokenizer, SentencePieceTokenizer):
        from sentencepiece import sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
        return transformers.AlbertTokenizer(
            vocab=[(piece.piece, piece.score) for piece in proto.pieces],
            do_lower_case=tokenizer.lowercase,
            keep_accents=tokenizer.keep_accents,
            _spm_precompiled_charsmap=proto.normalizer_spec.precompiled_charsmap,
        )
    mask = {key: value for key, value in MASK.items() if key != "__type"}
    return transformers.RobertaTokenizer(
        vocab={token: id for id, token in enumerate(tokenizer.vocabulary)},
        merges=[tuple(merge.split(" ")) for merge in tokenizer.merges],
        mask_token=transformers.AddedToken(**mask, special=True),
    )


def write_saved(directory: Path, tokenizer: Any) -> None:
    """Write tokenizer.json and tokenizer_config.json, as transformers 5 does."""
    peer_of(tokenizer).save_pretrained(directory)
    write_json(directory / "config.json", {"model_type": MODEL_TYPES[type(tokenizer)]})


def write_generic(directory: Path, tokenizer: Any) -> None:
    """Write the files as transformers does for a tokenizer that was made with `tokenizers`."""
    write_saved(directory, tokenizer)

    def remove_settings(config: dict[str, Any]) -> None:
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        for key in ("do_lower_case", "strip_accents", "keep_accents", "tokenize_chinese_chars"):
            config.pop(key, None)

    edit_json(directory / "tokenizer_config.json", remove_settings)


def write_old(directory: Path, tokenizer: Any) -> None:
    """Write the files as the first versions of `tokenizers`: no model type, and merges as strings."""
    write_saved(directory, tokenizer)
    write_vocabulary(directory, tokenizer)

    def edit(pipeline: dict[str, Any]) -> None:
        model = pipeline["model"]
        for key in ("type", "ignore_merges", "byte_fallback"):
            model.pop(key, None)
        if "merges" in model:
            model["merges"] = [" ".join(merge) for merge in model["merges"]]
            del pipeline["pre_tokenizer"]["use_regex"]
        if "unk_id" in model:
            spaces = {"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True}
            pipeline["pre_tokenizer"]["pretokenizers"][1] = spaces
            squeeze = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
            pipeline["normalizer"]["normalizers"].append(squeeze)

    edit_json(directory / "tokenizer.json", edit)


def write_fairseq(directory: Path, tokenizer: BytePairTokenizer) -> None:
    """Write RoBERTa's files as fairseq does.

    `dict.txt` lists the tokens in order of their ids, and names each by its index in GPT-2's vocabulary
    (`encoder.json`).
    """
    tokens = [token for token in tokenizer.vocabulary if token not in tokenizer.special_tokens]
    indices = {token: index for index, token in enumerate(sorted(token for token in tokens if token not in FILLERS))}
    write_json(directory / "encoder.json", indices)
    (directory / "vocab.bpe").write_text("\n".join(["#version: 0.2", *tokenizer.merges, ""]), "utf-8")
    lines = [f"{indices.get(token, token)} {7919 - i}\n" for i, token in enumerate(tokens)]
    (directory / "dict.txt").write_text("".join(lines), "utf-8")


# === Tiny tokenizers, and changes of their files ===


def tiny(cls: type[Tokenizer]) -> Any:
    return cls.of_words(["film"], SIZES[cls])


def put(**values: Any) -> Callable[[dict], None]:
    """Return a function that sets values of a JSON object; keys with a double underscore are paths."""

    def change(stored: dict[str, Any]) -> None:
        for key, value in values.items():
            *path, last = key.split("__")
            parent = stored
            for part in path:
                parent = parent[int(part) if part.isdigit() else part]
            parent[int(last) if last.isdigit() else last] = value

    return change


def added(**flags: Any) -> Callable[[dict], None]:
    """Return a function that appends an entry to `added_tokens` of tokenizer.json."""
    return lambda stored: stored["added_tokens"].append({"special": True, **flags})
