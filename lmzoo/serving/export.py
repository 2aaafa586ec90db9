"""Export of models as SavedModels that take strings and return named answers, or as ONNX and LiteRT files."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from lmzoo.checkpoints.formats.tensorflow import convert_tensorflow_errors
from lmzoo.common.arguments import require
from lmzoo.common.log_filters import suppress_log_lines
from lmzoo.common.tensor_types import Features
from lmzoo.errors import NotFiniteError
from lmzoo.files.atomic import atomic_directory, atomic_file, check_path
from lmzoo.layers.attention import SelfAttention, join_projections
from lmzoo.layers.finite import find_not_finite
from lmzoo.layers.sublayers import sublayers
from lmzoo.layers.temporary import set_temporary_attributes
from lmzoo.serving.allowed_ops import check_ops
from lmzoo.serving.model_readme import write_labels, write_readme
from lmzoo.serving.model_versions import list_versions
from lmzoo.serving.served_model import ServedModel, Signatures
from lmzoo.serving.warmup import write_warmup

if TYPE_CHECKING:
    import tensorflow as tf

_SAVED_MODEL_ENTRIES = (
    "saved_model.pb", "fingerprint.pb", "variables", "assets", "assets.extra", "keras_metadata.pb", "labels.txt",
)  # fmt: skip

_EXPORT_SCRIPT = """
import importlib, sys, lmzoo, keras  # lmzoo first: it silences TensorFlow's log
task_file, error_file, export_path, *modules = sys.argv[1:]
for module in modules:  # they register classes from outside of lmzoo
    importlib.import_module(module)
try:
    model = keras.saving.load_model(task_file, compile=False)
    model.export(export_path, verbose=False)
except ValueError as error:
    with open(error_file, "w", encoding="utf-8") as file:
        file.write(str(error))
    sys.exit(1)
"""

# Keras' names of formats that are a single file, by suffix.
FILES = {".onnx": "onnx", ".tflite": "litert"}
_OTHER_FILES = {".gz", ".h5", ".keras", ".lite", ".ort", ".pb", ".pt", ".safetensors", ".tar", ".zip"}


def file_format(path: str | Path) -> str | None:
    """Return Keras' name for the export format of a file, or None if `path` is for a SavedModel.

    Raises:
        ValueError: If the suffix belongs to another file format, or is .onnx or .tflite with uppercase letters.
    """
    suffix = Path(path).suffix
    if suffix not in FILES and suffix.lower() in {*FILES, *_OTHER_FILES}:
        raise ValueError(
            f"Cannot export to {path}: a file must end in {' or '.join(FILES)}, and a SavedModel is a folder, such as "
            "serving/reviews/1."
        )
    return FILES.get(suffix)


def export_task(task: ServedModel, path: str | Path, verbose: bool = True, dtype: str | None = None) -> None:
    """Export a task as a SavedModel with its tokenizer, or as an ONNX or LiteRT file without it.

    Args:
        task: the task to export.
        path: directory of the SavedModel, or path of a file that ends in .onnx or .tflite.
        verbose: bool, whether to print a line about the result.
        dtype: "int8" to quantize the weights in an ONNX file; None to keep their dtype.

    Raises:
        ImportError: If a package for the format is not installed.
        NotFiniteError: If a weight is NaN or infinite.
        RuntimeError: If the child process that exports on backends other than TensorFlow fails.
        ValueError: If `dtype` or `path` is invalid, or the task cannot be exported in this format.
    """
    check_path(path)
    if dtype is not None:
        require(dtype == "int8", "dtype", '"int8" or None', dtype)
        _check_int8(task, path)
    if file_format(path):
        _check_file(task.backbone, path)
        _export_atomically(path, task, _write_file, describe_export(task, path), verbose, int8=dtype is not None)
        return
    if task.preprocessor is None:
        raise ValueError("Only a task with a preprocessor can be exported: the artifact takes strings.")
    if not task.served_outputs:
        raise ValueError(f"This {type(task).__name__} serves nothing; export the task that it was pre-trained for.")
    _export_atomically(path, task, _write_saved_model, describe_export(task, path), verbose)


def describe_export(task: ServedModel, path: str | Path) -> str:
    """Return a description of an exported model's inputs and outputs, such as "strings in, label, score out"."""
    if file_format(path):
        return f"{', '.join(token_inputs(task))} in, {task.output_name} out"
    return f"strings in, {', '.join(task.served_outputs)} out"


def export_backbone(backbone: keras.Model, path: str | Path, verbose: bool = True) -> None:
    """Export a backbone with all its outputs as a SavedModel, or as an ONNX or LiteRT file.

    Args:
        backbone: the model to export.
        path: directory of the SavedModel, or path of a file that ends in .onnx or .tflite.
        verbose: bool, whether to print a line about the result.

    Raises:
        ImportError: If a package for the format is not installed.
        NotFiniteError: If a weight is NaN or infinite.
        RuntimeError: If the child process that exports on backends other than TensorFlow fails.
        ValueError: If `path` is invalid, or the backbone cannot be exported in this format.
    """
    check_path(path)
    if file_format(path):
        _check_file(backbone, path)
    description = f"{', '.join(backbone.input)} in, {', '.join(flatten_outputs(backbone.output))} out"
    _export_atomically(path, backbone, _write_outputs, description, verbose)


def _export_atomically(
    path: str | Path, model: Any, write: Callable[[Any, Path], None], summary: str, verbose: bool, int8: bool = False
) -> None:
    """Export a model to `path` atomically; backends other than TensorFlow use a separate process.

    Args:
        path: file or directory to write.
        model: the model to export.
        write: function that exports a model to a path; used on TensorFlow only.
        summary: str, description of the inputs and outputs, which is printed if `verbose`.
        verbose: bool, whether to print a line about the result.
        int8: bool, whether to quantize the weights in an ONNX file.
    """
    if problem := find_not_finite(model.weights):
        raise NotFiniteError(f"This {type(model).__name__} cannot be exported: {problem}. Train it again.")
    if keras.backend.backend() != "tensorflow":
        write = _write_with_tensorflow
    if file_format(path):
        with atomic_file(path) as temporary_path:
            write(model, temporary_path)
            if int8:
                _quantize_file(temporary_path)
    else:
        _check_no_versions(path)
        with atomic_directory(path, marker="saved_model.pb", owns=_SAVED_MODEL_ENTRIES) as temporary_directory:
            write(model, temporary_directory)
    if verbose:
        print(f"Exported {type(model).__name__} to {path}: {summary}.")


def flatten_outputs(outputs: Features) -> Features:
    """Return a backbone's outputs by name, with lists as numbered tensors: `hidden_states_0`, `hidden_states_1`."""
    named_outputs: Features = {}
    for name, output in outputs.items():
        if isinstance(output, (list, tuple)):
            named_outputs |= {f"{name}_{i}": tensor for i, tensor in enumerate(output)}
        else:
            named_outputs[name] = output
    return named_outputs


def _check_no_versions(path: str | Path) -> None:
    """Check that a directory contains no version of a model.

    Raises:
        ValueError: If `path` contains a version.
    """
    if versions := list_versions(Path(path).expanduser()):
        raise ValueError(
            f"{path} holds versions of a model: export to the next one, {Path(path, str(max(versions) + 1))}."
        )


def _write_outputs(backbone: keras.Model, target: Path) -> None:
    """Export a backbone with all its outputs."""
    format = file_format(target)
    model = keras.Model(backbone.input, flatten_outputs(backbone.output))
    with _set_export_options(backbone, format):
        _export(model, target, format or "tf_saved_model", f"This {type(backbone).__name__}")


def _set_export_options(model: keras.Model, format: str | None) -> contextlib.AbstractContextManager[None]:
    """Temporarily set the options of layers so that the graph has no ops that `format` lacks.

    Words that are repeated in a batch are encoded each time. For LiteRT, loops are unrolled, without tensor lists.
    """
    settings = {"dedupe": False, **({"unroll": True, "tensor_lists": False} if format == "litert" else {})}
    return set_temporary_attributes(
        (layer, name, value) for layer in sublayers(model) for name, value in settings.items() if hasattr(layer, name)
    )


def _write_saved_model(task: ServedModel, target: Path) -> None:
    """Export a task as a SavedModel with warm-up requests, a README and, if the task has classes, their names."""
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    pack, signatures = task.signatures()
    module = tf.Module()
    with join_projections(layer for layer in sublayers(task) if isinstance(layer, SelfAttention)):
        functions = {name: function.get_concrete_function() for name, function in signatures.items()}
        # A SavedModel can restore only the variables that it tracks.
        module.pack = pack
        module.used = list({id(variable): variable for f in functions.values() for variable in f.variables}.values())
    with convert_tensorflow_errors(target), suppress_log_lines("Assets written to"):  # would show in notebooks
        tf.saved_model.save(module, str(target), signatures=functions)
    # Check the graph that servers will read.
    (meta_graph,) = saved_model_pb2.SavedModel.FromString((target / "saved_model.pb").read_bytes()).meta_graphs
    check_ops(meta_graph.graph_def)
    write_warmup(task, meta_graph, target)
    write_readme(task, meta_graph, target)
    if task.class_names:
        write_labels(task.class_names, target)


def _write_file(task: ServedModel, path: Path) -> None:
    """Export a task, without its tokenizer, as an ONNX or LiteRT file."""
    inputs = {name: x for name, x in task.input.items() if name not in _find_zero_inputs(task)}
    outputs = task.output if len(inputs) == len(task.input) else task(_add_zero_inputs(task, inputs))
    model = keras.Model(inputs, {task.output_name: outputs})
    format = FILES[path.suffix]
    with _set_export_options(task, format):
        _export(model, path, format, f"This {type(task).__name__} on {task.family.name}")


def _check_file(backbone: keras.Model, path: str | Path) -> None:
    """Check that a backbone can be exported as an ONNX or LiteRT file.

    Raises:
        ImportError: If the package for ONNX files is not installed.
        ValueError: If the format does not support the dtype of the backbone.
    """
    format = file_format(path)
    if format == "onnx" and importlib.util.find_spec("tf2onnx") is None:
        raise ImportError("ONNX files need tf2onnx: pip install 'lmzoo[onnx]'.")
    if backbone.compute_dtype != "float32":
        suffix = Path(path).suffix
        raise ValueError(f"Only models in float32 can be written as {suffix}, this one computes in another dtype.")
    if format == "litert" and is_int8(backbone):
        raise ValueError("Keras cannot write quantized weights as .tflite: export the model as it was before.")


def _export(model: keras.Model, target: Path, format: str, subject: str) -> None:
    """Export a functional model with Keras and, for a file, check that the runtime of the format supports its ops.

    Raises:
        ValueError: If the runtime of a file lacks an op; the message begins with `subject`, a description of the model.
    """
    model(model.input)  # Keras only exports models that have been called
    # Hide log lines: tf2onnx also tries to export tables of other models, and Keras names its temporary SavedModel.
    with warnings.catch_warnings(), suppress_log_lines("Issue encountered when serializing", "Assets written to"):
        warnings.filterwarnings("ignore", "In the future `np.object`", FutureWarning)  # tf2onnx asks numpy for it
        model.export(str(target), format=format, verbose=False)
    if target.is_file() and (unsupported_ops := _list_unsupported_ops(target)):
        raise ValueError(
            f"{subject} cannot be written as {target.suffix}: the format has nothing for {', '.join(unsupported_ops)}. "
            "Export a SavedModel."
        )


def _check_int8(task: ServedModel, path: str | Path) -> None:
    """Check that a task can be exported in int8.

    Raises:
        ImportError: If onnxruntime is not installed.
        ValueError: If the format is not ONNX, or the weights are int8 already.
    """
    if file_format(path) != "onnx":
        raise ValueError('`dtype="int8"` is for .onnx files. For a SavedModel, `quantize("int8")` the task before.')
    if is_int8(task.backbone):
        raise ValueError("The weights of this model are int8 already: leave out `dtype`.")
    if importlib.util.find_spec("onnxruntime") is None:
        raise ImportError("int8 in ONNX files needs onnxruntime: pip install 'lmzoo[onnx]'.")


def _quantize_file(path: Path) -> None:
    """Quantize the matrix products of an ONNX file to int8, with activations quantized dynamically."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        prepared_path = Path(folder, "prepared.onnx")
        quant_pre_process(path, prepared_path, skip_symbolic_shape=True)
        # Seven-bit weights: with eight bits, sums of two products overflow on processors without VNNI.
        options = {"per_channel": True, "reduce_range": True, "extra_options": {"EnableSubgraph": True}}
        quantize_dynamic(prepared_path, path, weight_type=QuantType.QInt8, **options)


def is_int8(backbone: keras.Model) -> bool:
    """Return whether any weight of the backbone is stored in int8, as after quantization by Keras."""
    return any(variable.dtype == "int8" for variable in backbone.variables)


def _list_unsupported_ops(path: Path) -> list[str]:
    """Return the names of the ops in a file that the runtime of its format does not support."""
    if file_format(path) == "litert":
        return sorted({name.decode() for name in re.findall(rb"Flex(\w+)", path.read_bytes())})
    import onnx

    model = onnx.load(path)
    version_by_domain = {opset.domain: opset.version for opset in model.opset_import}
    graphs = [model.graph]
    unsupported_ops = set()
    while graphs:
        for node in graphs.pop().node:
            if not onnx.defs.has(node.op_type, version_by_domain[node.domain], node.domain):
                unsupported_ops.add(node.op_type)
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return sorted(unsupported_ops)


def strings(*names: str, axes: int = 1) -> list[tf.TensorSpec]:
    """Return specs of string inputs, one per name, with `axes` axes of any size."""
    import tensorflow as tf

    return [tf.TensorSpec([None] * axes, tf.string, name=name) for name in names]


def signature(
    function: Callable[..., dict[str, tf.Tensor]], inputs: list[tf.TensorSpec] | list[dict[str, tf.TensorSpec]]
) -> tf.types.experimental.PolymorphicFunction:
    """Return a `tf.function` with an input signature.

    Loops and branches must be TensorFlow ops. AutoGraph, which converts Python's loops and branches, is off, since it
    would take up a quarter of the export time.
    """
    import tensorflow as tf

    return tf.function(function, input_signature=inputs, autograph=False)


def text_signatures(task: ServedModel, prompt: str = "") -> Signatures:
    """Return the module that packs strings, and the signatures of a task for texts, pairs and token features.

    Args:
        task: the task to export.
        prompt: str, prefix of each text or, in pairs, of each first text.
    """
    from lmzoo.text.graphs import graph_packer
    from lmzoo.text.graphs.long_texts import LongTextGraph

    if task.windows is None:
        pack = graph_packer(task.preprocessor)
    else:
        pack = LongTextGraph(task.preprocessor, task.windows, task.stride)
    pair_signature = make_prompted_signature(task, pack, prompt, "text", "text_pair")
    default_signature = pair_signature if task.reads_pairs else make_prompted_signature(task, pack, prompt)
    return pack, {"serving_default": default_signature, "pair": pair_signature, "tokens": tokens_signature(task)}


def make_prompted_signature(
    task: ServedModel, pack: Callable[..., Any], prompt: str, *names: str
) -> tf.types.experimental.PolymorphicFunction:
    """Return the signature of a task for texts or pairs; a prompt is put before each text, or the first of a pair.

    Args:
        task: the task to export.
        pack: the module that converts strings to token features, from `text_signatures`.
        prompt: str, the prompt; "" for none.
        *names: names of the inputs, by default `"text"` alone.
    """

    def from_strings(text: tf.Tensor, *pair: tf.Tensor) -> dict[str, tf.Tensor]:
        features = pack(text, *pair, prompt=prompt)
        is_truncated = features.pop("truncated")
        return {**task.serve(features), "truncated": is_truncated}

    return signature(from_strings, strings(*(names or ("text",))))


def token_inputs(task: ServedModel) -> list[str]:
    """Return the names of the token features that are inputs of an exported model."""
    names = dict.fromkeys([*task.backbone.input, *(["segment_ids"] if task.reads_pairs else [])])
    return [name for name in names if name not in _find_zero_inputs(task)]


def _find_zero_inputs(task: ServedModel) -> tuple[str, ...]:
    """Return the names of the inputs that are always 0, which an exported model fills in itself."""
    packing = task.preprocessor.packing if task.preprocessor is not None else None
    has_zero_segments = packing is not None and packing.zero_segments and not packing.segments
    return ("segment_ids",) if has_zero_segments else ()


def _add_zero_inputs(task: ServedModel, features: Features) -> Features:
    """Return the features, with zeros added for the inputs that are always 0."""
    return {**features, **{name: keras.ops.zeros_like(features["token_ids"]) for name in _find_zero_inputs(task)}}


def tokens_signature(task: ServedModel) -> tf.types.experimental.PolymorphicFunction:
    """Return the signature of a task for token features instead of strings."""
    import tensorflow as tf

    inputs = {name: task.input[name] for name in token_inputs(task)}
    specs = {name: tf.TensorSpec(x.shape, tf.int32, name=name) for name, x in inputs.items()}

    def from_tokens(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        # Fused attention would accept a mask of a wrong length, and ignore it.
        checks = [
            tf.debugging.assert_equal(
                tf.shape(x), tf.shape(features["token_ids"]), f"`{name}` must have the shape of `token_ids`."
            )
            for name, x in features.items()
            if "token_ids" in features
        ]
        # Keras counts negative ids from the end of the vocabulary.
        checks += [
            tf.debugging.assert_non_negative(x, f"`{name}` must not be negative") for name, x in features.items()
        ]
        with tf.control_dependencies(checks):
            return task.serve(_add_zero_inputs(task, {name: tf.identity(x) for name, x in features.items()}))

    return signature(from_tokens, [specs])


def _write_with_tensorflow(task: Any, target: Path) -> None:
    """Export a model in another process, with TensorFlow as the backend, to a file or an empty directory.

    Raises:
        RuntimeError: If the other process fails with an error other than a ValueError of the export.
        ValueError: If the model cannot be exported.
    """
    with tempfile.TemporaryDirectory() as folder:
        task_file = Path(folder, "task.keras")
        export_path = Path(folder, "export" + target.suffix * bool(file_format(target)))
        error_file = Path(folder, "error.txt")
        paths = map(str, (task_file, error_file, export_path))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The file holds the weights with LoRA's updates added")
            task.save(task_file)
        process = subprocess.run(
            [sys.executable, "-c", _EXPORT_SCRIPT, *paths, *_list_modules(task)],
            env={**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        if error_file.exists():
            raise ValueError(error_file.read_text("utf-8"))
        if process.returncode:
            raise RuntimeError(f"Exporting needs TensorFlow, and its process failed:\n{process.stderr[-2000:]}")
        # The temporary folder may be on another file system.
        if export_path.is_file():
            shutil.move(export_path, target)
        else:
            for entry in export_path.iterdir():
                shutil.move(entry, target / entry.name)


def _list_modules(model: Any) -> list[str]:
    """Return the names of the modules, other than `__main__`, Keras and lmzoo, that define a model's classes."""
    preprocessor = getattr(model, "preprocessor", None)
    components = [model, *sublayers(model), preprocessor, getattr(preprocessor, "tokenizer", None)]
    modules = {type(component).__module__ for component in components}
    return sorted(name for name in modules if name.split(".")[0] not in ("__main__", "builtins", "keras", "lmzoo"))


def class_answers(logits: tf.Tensor, names: list[str], multi_label: bool = False) -> dict[str, tf.Tensor]:
    """Compute the named answers of a classifier from its logits.

    Args:
        logits: float (B, C), logits of C classes for each of B examples.
        names: list of str, names of the classes.
        multi_label: bool, whether an example may have several classes.

    Returns:
        The most likely class as `label`, string (B,), its probability as `score`, float (B,), and the softmax as
        `probabilities`, float (B, C). With `multi_label`, `probabilities` are sigmoids, and `label` and `score` hold
        all classes in descending order of their probabilities, (B, C), since the number of labels varies.
    """
    import tensorflow as tf

    if multi_label:
        probabilities = tf.sigmoid(logits)  # (B, C)
        scores, class_indices = tf.math.top_k(probabilities, len(names))  # (B, C)
        return {"label": tf.gather(tf.constant(names), class_indices), "score": scores, "probabilities": probabilities}
    probabilities = tf.nn.softmax(logits)  # (B, C)
    return {
        "label": tf.gather(tf.constant(names), tf.argmax(logits, axis=-1)),
        "score": tf.reduce_max(probabilities, axis=-1),
        "probabilities": probabilities,
    }
