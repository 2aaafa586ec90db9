"""README.md and labels.txt of an exported model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lmzoo.serving.served_model import ServedModel
from lmzoo.serving.warmup import example_requests
from lmzoo.version import __version__

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, SignatureDef

# The stock image serves /models/model by default, so the commands need neither the name nor the path of the model.
_README = """\
# {task}

A {task} on {family} with {parameters:,} parameters, exported by lmzoo {version}: strings in, {outputs} out. Texts are
padded to the longest of their batch. {limit}

## Serve

Run this in this folder, whose name, the version, must be a number:

```console
$ docker run --rm -p 8501:8501 -v "$(dirname "$PWD")":/models/model tensorflow/serving
$ curl -d '{request}' http://localhost:8501/v1/models/model:predict
```

It needs TensorFlow Serving 2.20 or newer. A small model may answer single texts sooner if the first command ends with
`--tensorflow_intra_op_parallelism=1`. In Python, `tf.saved_model.load` after `import tensorflow_text` will do.

## Signatures

`?` is any number; the first axis is that of the examples.
{signatures}"""

_TRUNCATION = "They are truncated to {} tokens; `truncated` says which ones were."
_LONG_TEXTS = "Longer texts are read in windows of {} tokens; `truncated` says which ones were truncated."
_CONTEXTS = (
    "Contexts are read in windows of {} tokens; `truncated` says which questions were truncated to leave room for them."
)


def write_readme(task: ServedModel, meta_graph: MetaGraphDef, folder: Path) -> None:
    """Write README.md, which says how to serve the model and lists the inputs and outputs of its signatures."""
    signatures = {name: signature for name, signature in sorted(meta_graph.signature_def.items()) if signature.inputs}
    request = next(example_requests(task, signatures["serving_default"]))
    example_instance = {name: values[0] for name, values in request.items()}
    length_note = _CONTEXTS if "question" in request else _TRUNCATION if task.windows is None else _LONG_TEXTS
    readme = _README.format(
        task=type(task).__name__,
        family=task.family.name,
        parameters=task.count_params(),
        version=__version__,
        outputs=", ".join(f"`{name}`" for name in task.served_outputs),
        limit=length_note.format(task.served_length),
        request=json.dumps(
            {
                "instances": [
                    {
                        name: value if isinstance(value, str) else value.tolist()
                        for name, value in example_instance.items()
                    }
                ]
            }
        ),
        signatures="".join(
            f"\n### {name}\n\n" + "\n".join(_describe_signature(signature)) + "\n"
            for name, signature in signatures.items()
        ),
    )
    (folder / "README.md").write_text(readme, "utf-8")


def write_labels(names: Sequence[str], folder: Path) -> None:
    """Write labels.txt, with one class name per line."""
    # Line breaks in names become spaces.
    (folder / "labels.txt").write_text("".join(" ".join(name.splitlines()) + "\n" for name in names), "utf-8")


def _describe_signature(signature: SignatureDef) -> Iterator[str]:
    """Yield the lines of a Markdown table of a signature's inputs and outputs."""
    import tensorflow as tf

    yield from ("| | name | type | shape |", "|---|---|---|---|")
    for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        for name, info in sorted(tensors.items()):
            sizes = ", ".join("?" if axis.size < 0 else str(axis.size) for axis in info.tensor_shape.dim)
            yield f"| {kind} | `{name}` | {tf.as_dtype(info.dtype).name} | ({sizes}) |"
