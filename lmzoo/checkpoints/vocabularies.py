"""Vocabularies as Hugging Face, Google and fairseq write them: files to the arguments of our tokenizers."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.formats.sharded import file_beside
from lmzoo.checkpoints.tokenizer_pipelines import PIPELINE_FILE, class_of, model_proto, sentencepiece_model
from lmzoo.errors import MissingTokenizerError, PresetError
from lmzoo.files.preset_files import read_json
from lmzoo.text import BytePairTokenizer, SentencePieceTokenizer, Tokenizer, WordPieceTokenizer
from lmzoo.text.tokenizers.tokenizer import in_order

# Files that make a vocabulary together, the one to name in messages first.
_FILES: Mapping[type[Tokenizer], tuple[tuple[str, ...], ...]] = {
    WordPieceTokenizer: (("vocab.txt",), ("vocab_chinese.txt",)),
    BytePairTokenizer: (("vocab.json", "merges.txt"), ("dict.txt", "encoder.json", "vocab.bpe")),
    SentencePieceTokenizer: (("spiece.model",), ("30k-clean.model",)),
}
_FAIRSEQ = "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe/"


def find_vocabulary(
    directory: Path, kinds: Sequence[type[Tokenizer]], pipeline: Mapping[str, Any] | None
) -> tuple[type[Tokenizer], Path, dict[str, Any]]:
    """The tokenizer's class, the file that told it, and the constructor's arguments that hold the vocabulary.

    Args:
        directory: the checkpoint's.
        kinds: classes to look for; the first one whose files are there is taken.
        pipeline: the content of tokenizer.json, if there is one. Then its class and vocabulary count, as in
            transformers, but for SentencePiece, whose own file says more. If there are both, and they differ, a
            notice says so.

    Raises:
        PresetError: if there is none, or a file is damaged.
    """
    if pipeline is not None:
        kinds = [class_of(pipeline, directory / PIPELINE_FILE)]
    sets = [(kind, names) for kind in kinds for names in _FILES[kind]]
    found = [(kind, names) for kind, names in sets if all(has_file(directory, name) for name in names)]
    if not found and pipeline is None:
        raise MissingTokenizerError(_nothing(directory, [names for _, names in sets]))
    ways: list[tuple[Path, dict[str, Any]]] = []
    if pipeline is not None:
        ways.append((directory / PIPELINE_FILE, _of_pipeline(pipeline, directory / PIPELINE_FILE)))
    if found:
        kinds = [found[0][0]]
        ways.append((directory / found[0][1][0], _of_files(directory, *found[0])))
    file, vocabulary = ways[-1 if kinds[0] is SentencePieceTokenizer else 0]
    if len(ways) == 2:
        _compare(ways, file)
    return kinds[0], file, vocabulary


def _of_files(directory: Path, kind: type[Tokenizer], names: Sequence[str]) -> dict[str, Any]:
    file, *others = (file_beside(directory, name) for name in names)
    with naming(file):
        if kind is SentencePieceTokenizer:
            return {"model": file.read_bytes()}
        if kind is WordPieceTokenizer:
            return {"vocabulary": [line.rstrip() for line in read_lines(file)]}
        ids = read_json(directory, "encoder.json" if len(others) == 2 else file.name)
        tokens = _of_dictionary(file, in_order(ids)) if len(others) == 2 else in_order(ids)
        merges = read_lines(others[-1])
        return {"vocabulary": tokens, "merges": merges[merges[0].startswith("#version:") :]}


def _compare(ways: Sequence[tuple[Path, Mapping[str, Any]]], kept: Path) -> None:
    """Gives notice of files in one directory that give other ids to one text."""
    (pipeline, one), (file, other) = (
        (path, {"tokens": _tokens(path, vocabulary), "merges": _merges(path, vocabulary)}) for path, vocabulary in ways
    )
    for what, first in one.items():
        pairs = enumerate(itertools.zip_longest(first, other[what]))
        if differing := next(((number, a, b) for number, (a, b) in pairs if a != b), None):
            number, a, b = differing
            warnings.warn(
                f"{pipeline} and {file.name} hold different {what}: number {number} is {a!r:.60} and {b!r:.60}. Ids "
                f"depend on which of them a library reads, here {kept.name}. Delete the one that the model was not "
                "trained with.",
                stacklevel=2,
            )
            return


def _tokens(file: Path, vocabulary: Mapping[str, Any]) -> list[str]:
    with naming(file):
        if "model" in vocabulary:
            return [piece.piece for piece in model_proto().FromString(vocabulary["model"]).pieces]
        return [token.rstrip() for token in vocabulary["vocabulary"]]


def _merges(file: Path, vocabulary: Mapping[str, Any]) -> list[str]:
    with naming(file):
        return [merge if isinstance(merge, str) else " ".join(merge) for merge in vocabulary.get("merges", ())]


def _nothing(directory: Path, sets: list[tuple[str, ...]]) -> str:
    parts = [name for names in sets for name in names if has_file(directory, name)]
    known = " or ".join(dict.fromkeys([PIPELINE_FILE, *(" and ".join(names) for names in sets)]))
    there = f"; there is only {', '.join(parts)}" if parts else ""
    advice = f" Fetch encoder.json and vocab.bpe from {_FAIRSEQ} into it." if "dict.txt" in parts else ""
    return f"{directory} holds no tokenizer files: expected {known}{there}. Pass `preprocessor=`.{advice}"


def _of_pipeline(pipeline: Mapping[str, Any], file: Path) -> dict[str, Any]:
    model = pipeline["model"]
    with naming(file):
        if class_of(pipeline, file) is SentencePieceTokenizer:
            return {"model": sentencepiece_model(pipeline, file)}
        return {"vocabulary": in_order(model["vocab"])} | ({"merges": model["merges"]} if "merges" in model else {})


def _of_dictionary(file: Path, tokens: Sequence[str]) -> list[str]:
    """The vocabulary of a file of fairseq's, which says tokens by their places in another vocabulary, GPT-2's."""
    numbers = {str(number): token for number, token in enumerate(tokens)}
    entries = []
    for at, line in enumerate(read_lines(file), 1):
        entry, _, count = line.rpartition(" ")
        if not (entry and count.isdigit()) or (entry.isdigit() and entry not in numbers):
            raise PresetError(f"{file}, line {at}: expected a number in encoder.json and a count, got {line!r:.60}.")
        entries.append(numbers.get(entry, entry))
    return ["<s>", "<pad>", "</s>", "<unk>", *entries, "<mask>"]


def has_file(directory: Path, name: str) -> bool:
    """Whether a file is in a directory.

    Raises:
        PresetError: if it is a link that leads out of it.
    """
    return file_beside(directory, name).is_file()


def read_lines(file: Path) -> list[str]:
    """Lines of a text file."""
    # Split at "\n" only: a token may hold other characters that splitlines() takes for line ends.
    return [line.rstrip("\r") for line in file.read_bytes().decode().removesuffix("\n").split("\n")]


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Lets errors name the file.

    Raises:
        PresetError: instead of other errors.
    """
    try:
        yield
    except PresetError:
        raise
    except (OSError, ValueError) as error:
        raise PresetError(f"{file}: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:  # an object where there should be a list, and the like
        raise PresetError(f"{file} is malformed ({type(error).__name__}: {error}).") from error
