"""PyTorch's pickled state dicts: Hugging Face's `pytorch_model.bin`, fairseq's `model.pt`."""

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
from lmzoo.checkpoints.formats.tensor_file import Tensor, TensorFile, damage_named
from lmzoo.errors import PresetError

if TYPE_CHECKING:
    import torch

_NAMES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt")

# All that a state dict needs. torch allows more, with some of which a file can fill the memory.
_GLOBALS = re.compile(
    r"collections OrderedDict|argparse Namespace|torch._utils _rebuild_(tensor|tensor_v2|parameter)|"
    r"torch (Double|Float|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage"
)
_LEGACY_PICKLES = 5  # magic number, protocol, byte order, state dict, order of the storages
_MOST_EXTRA = 100_000  # values in one entry of `extra`

# What was read of a mapped file stays in memory until the file is closed.
_MOST_MAPPED = 100_000_000  # bytes

_FUSED = re.compile(r"((?:.*\.)?self_attn\.)in_proj_(weight|bias)")


class TorchFile(TensorFile):
    """The tensors of a file that PyTorch wrote, or of a directory with such a file, or with several and their index.

    No code in a pickle runs: first, all that it would call is compared with a short list, and then `torch.load` reads
    it with `weights_only=True`. Zip files are mapped into memory; files from before PyTorch 1.6 are read as a whole.

    Before its first value is read, a zip file is compared with the checksums that it holds. Older files hold none.

    fairseq's older layout, in which `in_proj_weight` and `in_proj_bias` hold the attention's query, key and value, is
    presented as its newer one: `q_proj.weight`, `k_proj.weight`, and so on.

    Args:
        path: A file, or a directory that holds `pytorch_model.bin` or its parts and their index, or `model.pt`.

    Attributes:
        extra: Entries of fairseq's file other than the state dict, as far as they are plain Python values; `args` is a
            dict.

    Raises:
        PresetError: If a file is missing, truncated or not PyTorch's; its pickle asks for more than tensors; an entry
            is not a tensor; or torch is not installed. While reading, if a checksum differs.

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
        self._mapped: dict[Path, int] = {}  # bytes read of each zip file since it was opened
        self._checked: set[Path] = set()
        super().__init__(Path(path), tensors_in_files(Path(path), _NAMES, self._open))

    def _open(self, file: Path) -> dict[str, Tensor]:
        state, extra, is_zip = _load(file)
        self.extra.update(extra)
        self._states[file] = state
        if is_zip:
            self._mapped[file] = 0
        return {
            name: Tensor(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), file)
            for name, tensor in state.items()
        }

    def read(self, name: str) -> np.ndarray:
        file = self.file_of(name)
        if file in self._mapped and file not in self._checked:
            _check_sums(file)
            self._checked.add(file)
        if self._mapped.get(file, 0) > _MOST_MAPPED:
            self._open(file)
        tensor = self._states[file][name].detach()
        if file in self._mapped:
            self._mapped[file] += tensor.nbytes
        if self.dtype(name) == "bfloat16":
            import torch

            return np.array(tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16))
        return np.array(tensor.numpy())

    def close(self) -> None:
        self._states.clear()  # which unmaps zip files


def _load(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, object], bool]:
    """Return the state dict, the file's other entries, and whether the file is a zip, after every check."""
    check_is_weights(file)
    is_zip = _check_calls(file)
    try:
        import torch
    except ImportError as error:
        raise PresetError(
            f"{file} was written by PyTorch, which is needed to read it: run `pip install 'lmzoo[torch]'`, or convert "
            "the file to safetensors where PyTorch is installed."
        ) from error
    # If somebody else has allowed this class, it must still be allowed afterwards.
    namespace = {argparse.Namespace}.difference(torch.serialization.get_safe_globals())
    with damage_named(f"{file} cannot be read as PyTorch's"), torch.serialization.safe_globals(list(namespace)):
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
    if not isinstance(loaded, dict):
        raise PresetError(f"{file} holds a {type(loaded).__name__}, expected a state dict.")
    extra: dict[str, object] = {}
    if isinstance(loaded.get("model"), dict) and ("args" in loaded or "cfg" in loaded):
        extra = {key: _without_namespaces(value) for key, value in loaded.items() if key != "model"}
        loaded = loaded["model"]
    size = file.stat().st_size
    for name, tensor in loaded.items():
        if not (isinstance(name, str) and isinstance(tensor, torch.Tensor)):
            raise PresetError(
                f"{file}: {name!r:.100} is a {type(tensor).__name__}, expected a tensor, as in a state dict."
            )
        if tensor.numel() * tensor.element_size() > size:
            raise PresetError(f"{file} has {size} bytes, too few for {name!r} with shape {tuple(tensor.shape)}.")
    state: dict[str, torch.Tensor] = {}
    for name, tensor in loaded.items():
        for part, third in _thirds(file, name, tensor):
            if part in state:
                raise PresetError(f"{file} holds {part!r} twice: by itself and in a tensor with others.")
            state[part] = third
    return state, {key: value for key, value in extra.items() if _is_plain(value)}, is_zip


def _without_namespaces(value: Any) -> Any:
    """Return the arguments of fairseq, a namespace or, in newer files, a dict of namespaces, as dicts."""
    value = vars(value) if isinstance(value, argparse.Namespace) else value
    return {key: _without_namespaces(v) for key, v in value.items()} if isinstance(value, dict) else value


def _check_calls(file: Path) -> bool:
    """Check the pickles without executing them, and return whether the file is a zip."""
    with damage_named(f"{file} is not a whole file of PyTorch's"):
        with file.open("rb") as opened:
            is_zip = opened.read(4) == b"PK\x03\x04"
            opened.seek(0)
            for _ in range(0 if is_zip else _LEGACY_PICKLES):
                _check_pickle(file, opened)
        if is_zip:
            _check_zip(file)
    return is_zip


def _check_zip(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            name = entry.filename.lower()  # torch ignores the case, too
            if name.endswith("/constants.pkl"):
                raise PresetError(f"{file} is a TorchScript program, which is not run: expected a state dict.")
            if entry.compress_type != zipfile.ZIP_STORED:
                raise PresetError(f"{file} is compressed: unpack it, or save the weights with `torch.save`.")
            if name.endswith(".pkl"):
                with archive.open(entry) as pickled:
                    _check_pickle(file, pickled)


def _check_sums(file: Path) -> None:
    """Compare a whole zip file with the checksums in it, which `torch.load` does not do with what it maps."""
    with damage_named(f"{file} cannot be read as PyTorch's"), zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise PresetError(f"{file} was altered: the checksum of {damaged!r:.100} in it differs. Fetch it again.")


def _check_pickle(file: Path, pickled: IO[bytes]) -> None:
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in ("GLOBAL", "INST") and not _GLOBALS.fullmatch(wanted := str(argument)):
            raise PresetError(
                f"{file} asks for {wanted.replace(' ', '.')!r:.100}, which weights do not need, and is not unpickled. "
                "If you trust it, convert it to safetensors with the program that wrote it."
            )
        if opcode.name == "PROTO" and argument != 2:
            raise PresetError(f"{file} is pickled with protocol {argument}, expected 2: save it with `torch.save`.")


def _thirds(file: Path, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the tensor or, if it holds them, the names and tensors of query, key and value."""
    fused = _FUSED.fullmatch(name)
    if fused is None:
        yield name, tensor
        return
    if tensor.ndim == 0 or tensor.shape[0] % 3:
        raise PresetError(f"{file}: {name!r} has shape {tuple(tensor.shape)}, expected equal parts for q, k and v.")
    for part, third in zip("qkv", tensor.chunk(3), strict=True):
        yield f"{fused[1]}{part}_proj.{fused[2]}", third


def _is_plain(value: object) -> bool:
    """Return whether a value consists of strings, numbers, lists and dicts, and of at most `_MOST_EXTRA` of them."""
    pending = [value]
    for _ in range(_MOST_EXTRA):
        if not pending or len(pending) > _MOST_EXTRA:
            return not pending
        item = pending.pop()
        if isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            pending += item
        elif not isinstance(item, (str, int, float, bool, type(None))):
            return False
    return False
