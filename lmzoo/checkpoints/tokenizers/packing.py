"""Reading of a tokenizer's packing (the special tokens and segments that it adds to texts) from files."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lmzoo.checkpoints.config_table import JsonObject
from lmzoo.checkpoints.tokenizers.classes import NO_PACKING, SETTINGS_FILE, TokenizerClass, read_class_name
from lmzoo.checkpoints.tokenizers.format import PIPELINE_FILE, list_template_items
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.text import Packing, Tokenizer
from lmzoo.text.packing import LAST_SEGMENT


class _Item(NamedTuple):
    """An element of a packing template (a special token, or "$A" or "$B" for a text) and its segment."""

    token: str
    segment: int


def read_packing(
    files: JsonFiles,
    peer: TokenizerClass,
    family_class: TokenizerClass,
    tokenizer: Tokenizer,
    pipeline: JsonObject | None,
) -> Packing:
    """Return the packing of the tokenizer in a directory.

    As in transformers, most tokenizer classes have a fixed packing. For other classes, and if the files name no class
    and the tokenizer is not of the family's class, `post_processor` in `tokenizer.json` determines the packing or,
    without that file, `add_bos_token` and `add_eos_token` in `tokenizer_config.json`.

    Args:
        files: JSON files of the checkpoint.
        peer: Class of the tokenizer in transformers, from `find_class`.
        family_class: Class of the family's tokenizers in transformers.
        tokenizer: Tokenizer read from the files.
        pipeline: Content of `tokenizer.json`, or None if the file is missing.

    Raises:
        PresetError: If the packing is not supported.
    """
    file = files.directory / PIPELINE_FILE
    settings = files.read_if_present(SETTINGS_FILE)
    _, name = read_class_name(files)
    has_fixed_packing = peer.packs and (name == peer.name or (name is None and peer is family_class))
    packing = peer.packing
    if pipeline is None:
        flags = [bool(settings.get(key)) for key in ("add_bos_token", "add_eos_token")]
        if any(flags) and not has_fixed_packing:
            packing = _make_packing(tokenizer, *flags)
    else:
        has_segments = not family_class.is_decoder
        stored_packing = _convert_processor(pipeline.get("post_processor"), tokenizer, file, has_segments)
        if not has_fixed_packing:
            packing = stored_packing or NO_PACKING
        elif stored_packing is not None and dataclasses.replace(stored_packing, segments=packing.segments) != packing:
            warnings.warn(
                f"{file}: `post_processor` packs texts as {_describe(stored_packing)}, but a {peer.name} of "
                f"transformers as {_describe(packing)}, which lmzoo follows.",
                stacklevel=2,
            )
    input_names = settings.get("model_input_names")
    if isinstance(input_names, list) and "token_type_ids" not in input_names:
        packing = dataclasses.replace(packing, segments=False)
    return packing


def _make_packing(tokenizer: Tokenizer, adds_start: bool, adds_end: bool) -> Packing:
    """Return the packing for the flags `add_bos_token` (`adds_start`) and `add_eos_token` (`adds_end`)."""
    start_token = (tokenizer.start_token or "") if adds_start else ""
    end_token = (tokenizer.end_token or "") if adds_end else ""
    return Packing(
        start_token, end_token, tuple(filter(None, (end_token, start_token))), segments=adds_start or adds_end
    )


def _convert_processor(processor: Any, tokenizer: Tokenizer, file: Path, has_segments: bool) -> Packing | None:
    """Return the packing of a `post_processor`, or None if it adds neither special tokens nor segments.

    Args:
        processor: Content of `post_processor`.
        tokenizer: Tokenizer read from the files.
        file: Path of `tokenizer.json`, for messages.
        has_segments: Whether models of the family may distinguish segments. If not, segments are ignored.

    Raises:
        PresetError: If the processor is not supported, or its token ids differ from the vocabulary's.
    """
    if processor is None:
        return None
    processor_type = processor.get("type")
    if processor_type == "Sequence":
        packings = [
            _convert_processor(inner_processor, tokenizer, file, has_segments)
            for inner_processor in processor["processors"]
        ]
        return next((packing for packing in packings if packing is not None), None)
    if processor_type == "ByteLevel":  # it only trims offsets
        return None
    if processor_type in ("BertProcessing", "RobertaProcessing"):
        for token, id in (processor["cls"], processor["sep"]):
            _check_id(tokenizer, token, id, file)
        start = processor["cls"][0]
        end = processor["sep"][0]
        uses_segments = processor_type == "BertProcessing"
        return Packing(start, end, (end,) if uses_segments else (end, end), segments=uses_segments)
    if processor_type != "TemplateProcessing":
        raise PresetError(f"{file}: the `post_processor` is a {processor_type!r:.60}, which lmzoo does not support.")
    for token in processor["special_tokens"].values():
        for content, id in zip(token["tokens"], token["ids"], strict=True):
            _check_id(tokenizer, content, id, file)
    single_items, pair_items = (_list_items(processor, key) for key in ("single", "pair"))
    if not has_segments:
        pair_items = [item._replace(segment=0) for item in pair_items]
    packing = _convert_template(single_items, pair_items)
    if packing is None:
        single_text, pair_text = (" ".join(item.token for item in items) for items in (single_items, pair_items))
        raise PresetError(
            f"{file}: the `post_processor` packs texts as {single_text!r:.100} and {pair_text!r:.100}, which lmzoo "
            "does not support: a pair must begin and end as one text does."
        )
    return packing


def _check_id(tokenizer: Tokenizer, token: str, id: int, file: Path) -> None:
    if tokenizer.token_to_id(token) != id:
        raise PresetError(
            f"{file}: the `post_processor` gives {token!r} the id {id}, which is not that of the vocabulary."
        )


def _list_items(processor: JsonObject, key: str) -> list[_Item]:
    items = []
    for item in processor[key]:
        if "Sequence" in item:
            items.append(_Item(f"${item['Sequence']['id']}", item["Sequence"]["type_id"]))
        else:
            tokens = processor["special_tokens"][item["SpecialToken"]["id"]]["tokens"]
            items += [_Item(token, item["SpecialToken"]["type_id"]) for token in tokens]
    return items


def _convert_template(single_items: Sequence[_Item], pair_items: Sequence[_Item]) -> Packing | None:
    """Return the packing equivalent to a template, or None if there is no such packing."""
    tokens = [item.token for item in pair_items]
    if [token for token in tokens if token.startswith("$")] != ["$A", "$B"]:
        return None
    first_text_index = tokens.index("$A")
    second_text_index = tokens.index("$B")
    body_end = len(tokens) - (pair_items[-1].segment == LAST_SEGMENT)
    packing = Packing(
        "".join(tokens[:first_text_index]),
        "".join(tokens[second_text_index + 1 : body_end]),
        tuple(tokens[first_text_index + 1 : second_text_index]),
        segments=pair_items[second_text_index].segment != 0,
        last="".join(tokens[body_end:]),
    )
    new_single_items, new_pair_items = list_template_items(packing)
    is_equivalent = new_pair_items == pair_items and [token for token, _ in new_single_items] == [
        item.token for item in single_items
    ]
    return packing if is_equivalent else None


def _describe(packing: Packing) -> str:
    parts = (packing.start, "A", *packing.between, "B", *packing.closing)
    return repr(" ".join(filter(None, parts)))
