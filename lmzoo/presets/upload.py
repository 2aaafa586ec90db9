"""Upload of presets to Hugging Face and Kaggle with their clients."""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants

from lmzoo.errors import PresetError
from lmzoo.files.manifest import read_manifest, read_version, verify_manifest, write_manifest
from lmzoo.files.preset_files import (
    MANIFEST_FILE,
    METADATA_FILE,
    PRESET_ENTRIES,
    TASK_FILE,
    JsonFiles,
    read_json,
    read_metadata,
)
from lmzoo.presets.hubs import KAGGLE, run_while_reachable
from lmzoo.presets.keras_preset import KerasPreset
from lmzoo.registry.head_kinds import HasHead

_CARD = "README.md"
# Hugging Face's names for the licenses that presets have. It rejects cards with names that it does not know.
_LICENSES = ("apache-2.0", "cc-by-4.0", "cc-by-sa-4.0", "cc0-1.0", "mit")
_ADVICE = {
    "hf": "Check the name (hf://name/preset), run `hf auth login` with a token that may write, and unset "
    "HF_HUB_OFFLINE if it is set.",
    "kaggle": "Check the name (kaggle://owner/model/framework/variation) and the Kaggle credentials: "
    "`kagglehub.login()`.",
}


def upload_preset(uri: str, preset: str | Path, private: bool = True) -> None:
    """Upload a preset to Hugging Face or Kaggle, so that `from_preset(uri)` can load it.

    The files are compared with the manifest first. Only the files in the manifest and the model card, README.md, are
    uploaded. Without a card in the directory, a short one is created from the preset's metadata. If the card does not
    begin with metadata for the hub, metadata is added: library, tags, languages, license, and the kind of task.
    Replaced files stay in the hub's history.

    Args:
        uri: `hf://name/preset` or `kaggle://owner/model/framework/variation`.
        preset: Directory written by `save_to_preset` or `lmzoo pretrain`.
        private: Whether a new Hugging Face repository is visible only to its owners; existing repositories keep their
            setting. New models on Kaggle are private until they are published there.

    Raises:
        ValueError: If the URI is not supported, `private` is False for Kaggle, the directory is not a complete preset,
            or the upload fails; the message says why and what to do.

    Example:

    ```{.python .notest}
    import lmzoo

    model = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
    model.save_to_preset("sentiment")
    lmzoo.upload_preset("hf://me/sentiment", "sentiment")
    ```
    """
    scheme, _, name = uri.partition("://")
    if scheme not in _ADVICE or not name:
        raise PresetError(f"Presets are uploaded to hf://name/preset or kaggle://owner/model/..., got {uri!r}.")
    if scheme == "kaggle" and not private:
        raise PresetError("Kaggle makes new models private: leave out `private=False`, and publish the model there.")
    folder = Path(preset).expanduser().resolve()
    if not folder.is_dir() or not verify_manifest(folder):
        raise PresetError(f"{folder} is not a preset of lmzoo (it has no manifest). Write one with `save_to_preset`.")
    with tempfile.TemporaryDirectory() as staging_folder:
        for file in {*read_manifest(folder), MANIFEST_FILE, _CARD}:  # only the preset's own files
            if (folder / file).is_file():
                link = Path(staging_folder, file)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(folder / file)
        _write_card(folder, Path(staging_folder), uri)
        upload = _upload_hf if scheme == "hf" else _upload_kaggle
        server = constants.ENDPOINT if scheme == "hf" else KAGGLE
        try:
            run_while_reachable(functools.partial(upload, name, staging_folder, private), server)
        except Exception as error:
            raise PresetError(
                f"Cannot upload {folder} to {uri!r}.\n{type(error).__name__}: {error}\n{_ADVICE[scheme]}"
            ) from error


def _upload_hf(name: str, folder: str, private: bool) -> None:
    client = huggingface_hub.HfApi()
    repository = client.create_repo(
        name, private=private, exist_ok=True
    ).repo_id  # adds the user's name if it is missing
    # Delete the files of an earlier preset, since loading fails if there are files that the manifest does not list.
    patterns = [pattern for entry in PRESET_ENTRIES for pattern in (entry, f"{entry}/*")]
    message = "Upload a preset of lmzoo"
    client.upload_folder(repo_id=repository, folder_path=folder, commit_message=message, delete_patterns=patterns)


def _upload_kaggle(name: str, folder: str, private: bool) -> None:
    import kagglehub  # a slow import

    kagglehub.model_upload(name, folder)


def _write_card(folder: Path, staging_folder: Path, uri: str) -> None:
    """Write a model card with metadata for hubs into `staging_folder`, unless the preset's own card has metadata.

    The text of the card is the preset's own card or, without one, a short description. If the manifest lists the card,
    the manifest in `staging_folder` is also rewritten.

    Args:
        folder: directory of the preset.
        staging_folder: directory of links to the files to upload.
        uri: URI of the preset after the upload.
    """
    card_path = folder / _CARD
    card = card_path.read_text("utf-8") if card_path.is_file() else _make_card(folder, uri)
    if card.startswith("---"):
        return  # it has metadata, and is linked
    (staging_folder / _CARD).unlink(missing_ok=True)
    (staging_folder / _CARD).write_text(f"---\n{_make_metadata(folder).to_yaml()}\n---\n\n{card}", "utf-8")
    if _CARD in read_manifest(folder):
        (staging_folder / MANIFEST_FILE).unlink()
        write_manifest(staging_folder, read_version(folder))


def _make_metadata(folder: Path) -> huggingface_hub.ModelCardData:
    """Return the metadata of a model card, from the metadata and the task of a preset."""
    metadata = read_metadata(folder) if (folder / METADATA_FILE).is_file() else {}  # a tokenizer alone has none
    license = metadata.get("license", "").lower()
    task_class = KerasPreset(JsonFiles(folder)).task_class or HasHead
    return huggingface_hub.ModelCardData(
        language=metadata.get("languages") or None,
        license=license if license in _LICENSES else None,
        library_name="keras",
        pipeline_tag=task_class.pipeline_tag,
        tags=["lmzoo", metadata.get("family", "unknown")],
    )


def _make_card(folder: Path, uri: str) -> str:
    """Return a short model card, with the code to load the preset."""
    metadata = read_metadata(folder)
    class_name = (
        read_json(folder, TASK_FILE).get("class_name", "Backbone") if (folder / TASK_FILE).is_file() else "Backbone"
    )
    description = metadata.get("description", f"A {class_name} of the family {metadata.get('family', 'unknown')}.")
    return f"""# {re.split("[/@]", uri)[-1]}

{description} {metadata.get("parameter_count", 0):,} parameters.

```python
import lmzoo

model = lmzoo.models.{class_name}.from_preset("{uri}")
```

License: {metadata.get("license", "not stated")}.
"""
