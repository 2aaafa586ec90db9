"""Pickled PyTorch state dicts: transformers' `pytorch_model.bin` and fairseq's `model.pt`."""

from __future__ import annotations

import argparse
import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from lmzoo.checkpoints.formats.sharded import check_is_weights, tensors_in_files
from lmzoo.checkpoints.formats.tensor_file import Tensor, TensorFile, convert_damage_errors
from lmzoo.errors import PresetError

if TYPE_CHECKING:
    import torch

_NAMES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt")

# Everything that a state dict needs. torch allows more globals, and some of them let a file exhaust the memory.
_ALLOWED_GLOBALS = re.compile(
    r"collections OrderedDict|argparse Namespace|torch._utils _rebuild_(tensor|tensor_v2|parameter)|"
    r"torch (Double|Float|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage"
)
_LEGACY_PICKLES = 5  # magic number, protocol, byte order, state dict, order of the storages
_MAX_EXTRA_VALUES = 100_000  # per entry of `extra`

# Pages of a mapped file stay in memory until it is closed, so it is reopened after this many bytes.
_MAX_MAPPED_BYTES = 100_000_000

_FUSED_NAME = re.compile(r"((?:.*\.)?self_attn\.)in_proj_(weight|bias)")


class TorchFile(TensorFile):
    """The tensors of a PyTorch state dict in one file, or in shards with an index.

    No code in a pickle runs: all globals that it names are checked against a short list before `torch.load` reads it
    with `weights_only=True`. Zip files are mapped into memory; files from before PyTorch 1.6 are read as a whole.

    The checksums in a zip file are verified before its first value is read. Older files have no checksums.

    In fairseq's older layout, `in_proj_weight` and `in_proj_bias` hold query, key and value of the attention. They are
    split into the tensors of the newer layout: `q_proj.weight`, `k_proj.weight`, and so on.

    Args:
        path: Path of a file, or of a directory with `pytorch_model.bin`, its shards and their index, or `model.pt`.

    Attributes:
        extra: Entries of a fairseq file other than the state dict, if they consist of plain Python values; `args` is a
            dict.

    Raises:
        PresetError: If a file is missing, truncated or not written by PyTorch; if its pickle names globals that tensors
            do not need; if an entry is not a tensor; or if torch is not installed. `read` raises it if a checksum
            differs.

    Example:

    ```{.python .notest}
    from lmzoo.checkpoints.formats.torch import TorchFile

    model = TorchFile("roberta.base/model.pt")
    model.extra["args"]["encoder_layers"]  # 12
    model.shape("decoder.sentence_encoder.layers.0.self_attn.q_proj.weight")  # (768, 768)
    ```
    """

    def __init__(self, path: str | Path) -> None:
        self.extra: dict[str, object] = {}
        self._states: dict[Path, dict[str, torch.Tensor]] = {}
        self._bytes_read: dict[Path, int] = {}  # of each zip file, since it was opened
        self._checked: set[Path] = set()
        super().__init__(Path(path), tensors_in_files(Path(path), _NAMES, self._open_file))

    def _open_file(self, file: Path) -> dict[str, Tensor]:
        state_dict, other_entries, is_zip = _load(file)
        self.extra.update(other_entries)
        self._states[file] = state_dict
        if is_zip:
            self._bytes_read[file] = 0
        return {
            name: Tensor(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), file)
            for name, tensor in state_dict.items()
        }

    def read(self, name: str) -> np.ndarray:
        file = self.file_of(name)
        if file in self._bytes_read and file not in self._checked:
            _verify_checksums(file)
            self._checked.add(file)
        if self._bytes_read.get(file, 0) > _MAX_MAPPED_BYTES:
            self._open_file(file)
        tensor = self._states[file][name].detach()
        if file in self._bytes_read:
            self._bytes_read[file] += tensor.nbytes
        if self.dtype(name) == "bfloat16":
            import torch

            return np.array(tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16))
        return np.array(tensor.numpy())

    def close(self) -> None:
        self._states.clear()  # unmaps zip files


def _load(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, object], bool]:
    """Load a PyTorch file after checking its pickles.

    Returns:
        The state dict; the other entries of a fairseq file; and whether the file is a zip.

    Raises:
        PresetError: If the file is damaged or holds more than weights, or torch is not installed.
    """
    check_is_weights(file)
    is_zip = _check_pickles(file)
    try:
        import torch
    except ImportError as error:
        raise PresetError(
            f"{file} was written by PyTorch, which is needed to read it: run `pip install 'lmzoo[torch]'`, or convert "
            "the file to safetensors where PyTorch is installed."
        ) from error
    # Add the class only if it is not allowed yet, since leaving the context removes it.
    missing_globals = {argparse.Namespace}.difference(torch.serialization.get_safe_globals())
    with (
        convert_damage_errors(f"{file} cannot be read as PyTorch's"),
        torch.serialization.safe_globals(list(missing_globals)),
    ):
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
    if not isinstance(content, dict):
        raise PresetError(f"{file} holds a {type(content).__name__}, expected a state dict.")
    other_entries: dict[str, object] = {}
    if isinstance(content.get("model"), dict) and ("args" in content or "cfg" in content):
        other_entries = {key: _convert_namespaces(value) for key, value in content.items() if key != "model"}
        content = content["model"]
    file_size = file.stat().st_size
    for name, tensor in content.items():
        if not (isinstance(name, str) and isinstance(tensor, torch.Tensor)):
            raise PresetError(
                f"{file}: {name!r:.100} is a {type(tensor).__name__}, expected a tensor, as in a state dict."
            )
        if tensor.numel() * tensor.element_size() > file_size:
            raise PresetError(f"{file} has {file_size} bytes, too few for {name!r} with shape {tuple(tensor.shape)}.")
    state_dict: dict[str, torch.Tensor] = {}
    for name, tensor in content.items():
        for part_name, part_tensor in _split_fused(file, name, tensor):
            if part_name in state_dict:
                raise PresetError(f"{file} holds {part_name!r} twice: by itself and in a tensor with others.")
            state_dict[part_name] = part_tensor
    return state_dict, {key: value for key, value in other_entries.items() if _is_plain(value)}, is_zip


def _convert_namespaces(value: Any) -> Any:
    """Convert nested namespaces, in which newer versions of fairseq store their arguments, to dicts."""
    value = vars(value) if isinstance(value, argparse.Namespace) else value
    return {key: _convert_namespaces(item) for key, item in value.items()} if isinstance(value, dict) else value


def _check_pickles(file: Path) -> bool:
    """Check the globals in a file's pickles without unpickling, and return whether the file is a zip.

    Raises:
        PresetError: If the file is damaged, compressed or a TorchScript program, or if a pickle names a global outside
            `_ALLOWED_GLOBALS` or has a protocol other than 2.
    """
    with convert_damage_errors(f"{file} is not a whole file of PyTorch's"):
        with file.open("rb") as stream:
            is_zip = stream.read(4) == b"PK\x03\x04"
            stream.seek(0)
            for _ in range(0 if is_zip else _LEGACY_PICKLES):
                _check_pickle(file, stream)
        if is_zip:
            _check_zip(file)
    return is_zip


def _check_zip(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            name = entry.filename.lower()  # torch ignores case in names
            if name.endswith("/constants.pkl"):
                raise PresetError(f"{file} is a TorchScript program, which is not run: expected a state dict.")
            if entry.compress_type != zipfile.ZIP_STORED:
                raise PresetError(f"{file} is compressed: unpack it, or save the weights with `torch.save`.")
            if name.endswith(".pkl"):
                with archive.open(entry) as pickle_file:
                    _check_pickle(file, pickle_file)


def _verify_checksums(file: Path) -> None:
    """Verify the checksums of a zip file, which `torch.load` does not check for mapped files.

    Raises:
        PresetError: If a checksum differs, or the file cannot be read.
    """
    with convert_damage_errors(f"{file} cannot be read as PyTorch's"), zipfile.ZipFile(file) as archive:
        damaged_entry = archive.testzip()
    if damaged_entry is not None:
        raise PresetError(f"{file} was altered: the checksum of {damaged_entry!r:.100} in it differs. Fetch it again.")


def _check_pickle(file: Path, pickle_file: IO[bytes]) -> None:
    for opcode, argument, _ in pickletools.genops(pickle_file):
        if opcode.name in ("GLOBAL", "INST") and not _ALLOWED_GLOBALS.fullmatch(symbol := str(argument)):
            raise PresetError(
                f"{file} asks for {symbol.replace(' ', '.')!r:.100}, which weights do not need, and is not unpickled. "
                "If you trust it, convert it to safetensors with the program that wrote it."
            )
        if opcode.name == "PROTO" and argument != 2:
            raise PresetError(f"{file} is pickled with protocol {argument}, expected 2: save it with `torch.save`.")


def _split_fused(file: Path, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the tensor, or three such pairs if the tensor fuses query, key and value.

    Raises:
        PresetError: If a fused tensor cannot be split into three equal parts.
    """
    match = _FUSED_NAME.fullmatch(name)
    if match is None:
        yield name, tensor
        return
    if tensor.ndim == 0 or tensor.shape[0] % 3:
        raise PresetError(f"{file}: {name!r} has shape {tuple(tensor.shape)}, expected equal parts for q, k and v.")
    for part, third in zip("qkv", tensor.chunk(3), strict=True):
        yield f"{match[1]}{part}_proj.{match[2]}", third


def _is_plain(value: object) -> bool:
    """Return whether a value consists of at most `_MAX_EXTRA_VALUES` strings, numbers, None, lists and dicts."""
    pending_values = [value]
    for _ in range(_MAX_EXTRA_VALUES):
        if not pending_values or len(pending_values) > _MAX_EXTRA_VALUES:
            return not pending_values
        item = pending_values.pop()
        if isinstance(item, dict):
            pending_values += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            pending_values += item
        elif not isinstance(item, (str, int, float, bool, type(None))):
            return False
    return False
