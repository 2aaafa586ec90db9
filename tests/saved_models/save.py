"""Save small models of every family and task in the formats of this version, which all later versions must load.

`python tests/saved_models/save.py` adds the missing models to `<version>/<family>.zip` beside this file, and changes
nothing else there. `test_saved_models.py` loads the models of all versions. Run the script at a release, once the
version is set, and after adding a family or a task.
"""

from __future__ import annotations

import dataclasses
import tempfile
import zipfile
from pathlib import Path

import keras
import numpy as np

import lmzoo
from lmzoo import tasks
from lmzoo.registry.family import Family, families
from lmzoo.testing import randomize, tiny_backbone, tiny_examples, tiny_preprocessor, tiny_task
from lmzoo.testing.tiny import public_tasks

HERE = Path(__file__).resolve().parent
# Replacements for fields of `Family.tiny`, so that the files are small.
SMALLER = {
    "num_layers": 1, "num_groups": 1, "num_heads": 3, "hidden_dim": 6, "intermediate_dim": 7, "embedding_dim": 5,
    "lstm_dim": 7, "projection_dim": 3, "filters": ((1, 3), (2, 5)), "bucket_size": 5,
    "decoder_layers": 1, "decoder_heads": 3, "decoder_intermediate_dim": 5, "head_dim": 3,
}  # fmt: skip


def shrink(family: Family) -> Family:
    """Return the family with an even smaller `tiny`."""
    names = {field.name for field in dataclasses.fields(family.tiny)}
    smaller_values = {name: value for name, value in SMALLER.items() if name in names}
    return dataclasses.replace(family, tiny=dataclasses.replace(family.tiny, **smaller_values))


def save_backbone(family: Family, folder: Path) -> None:
    """Save a backbone with example inputs and its outputs for them."""
    backbone, preprocessor = tiny_backbone(family), tiny_preprocessor(family)
    features = preprocessor(["good film !", "the plot was never dull ."])
    if backbone.reads_source:
        features |= {f"decoder_{name}": values for name, values in features.items()}
    backbone.save(folder / "Backbone.keras")
    backbone.save_to_preset(folder / "Backbone")
    outputs = keras.tree.flatten(backbone.predict_on_batch(features))
    np.savez_compressed(folder / "Backbone.npz", *outputs, **features)


def save_task(task_class: type[tasks.Task], family: Family, folder: Path) -> None:
    """Save a task with example inputs and its predictions; a classifier is trained for one step first."""
    task = tiny_task(task_class, family)
    randomize(task)
    x, y = tiny_examples(task, 5)
    if task_class is tasks.TextClassifier:
        task.fit(x, y, batch_size=5, verbose=0)
    task.save(folder / f"{task_class.__name__}.keras")
    task.save_to_preset(folder / task_class.__name__)
    (folder / f"{task_class.__name__}.txt").write_text(repr(x), "utf-8")
    np.savez_compressed(folder / f"{task_class.__name__}.npz", *keras.tree.flatten(task.predict(x, verbose=0)))


def main() -> None:
    target = HERE / lmzoo.__version__
    target.mkdir(exist_ok=True)
    for family in families().values():
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(target / f"{family.name}.zip", "a") as archive:
            stored = set(archive.namelist())
            if "Backbone.keras" not in stored:
                save_backbone(shrink(family), Path(folder))
            for task_class in public_tasks():
                if task_class.supports(family) and f"{task_class.__name__}.keras" not in stored:
                    save_task(task_class, shrink(family), Path(folder))
            for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                archive.write(path, path.relative_to(folder), zipfile.ZIP_DEFLATED)
            added = [path.name for path in Path(folder).glob("*.keras")]
        print(f"{target / family.name}.zip: {', '.join(added) or 'nothing'} added")


if __name__ == "__main__":
    main()
