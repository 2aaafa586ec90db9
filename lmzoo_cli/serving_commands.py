"""The commands `lmzoo export` and `lmzoo serve`."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from lmzoo_cli.options import Model, WindowOptions, expand_options
from lmzoo_cli.output import say, show_status

_TARGET = (
    "The version to write, such as serving/reviews/1; serving/reviews stands for its next version. Or a .onnx or "
    ".tflite file for the model without its tokenizer."
)
_DTYPE = (
    "Dtype of the backbone's weights. Default: unchanged. Smaller dtypes save space but are slower on most CPUs, "
    "except for int8 in .onnx files, which is also faster."
)
_THREADS = (
    "Number of threads for each TensorFlow operation. With 1, small models answer single texts sooner. Default: one "
    "per core."
)
_DIRECTORY = "The directory of the model, with a subdirectory for each version."


@expand_options
def export(
    *,
    model: Model,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help=_TARGET)],
    dtype: Annotated[Literal["int8", "bfloat16"] | None, typer.Option(help=_DTYPE)] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of tokens that a language model adds. Default: the model's."),
    ] = None,
    long_texts: WindowOptions,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing version.")] = False,
) -> None:
    """Write a task as a SavedModel that takes strings, for TensorFlow Serving, or as an ONNX or LiteRT file."""
    target = target.expanduser()  # shells do not expand a quoted "~"
    if (target.is_file() or (target.exists() and target.name.isdecimal())) and not overwrite:
        raise FileExistsError(f"{target} exists already. Pass --overwrite to replace it.")
    from lmzoo.serving.export import describe_export, file_format, is_int8
    from lmzoo.serving.model_versions import list_versions
    from lmzoo_cli.model_loading import load_task

    is_file = file_format(target) is not None
    if is_file and (long_texts.settings or max_new_tokens is not None):
        raise ValueError(
            f"{target.name} takes the tokens of one window and returns logits: leave out --windows, --stride and "
            "--max-new-tokens, or export a SavedModel."
        )
    if not is_file and not target.name.isdecimal():
        target = target / str(max(list_versions(target), default=0) + 1)
    _, task = load_task(model, long_texts.settings)
    if max_new_tokens is not None:
        if not hasattr(task, "max_new_tokens"):
            raise ValueError(f"A {type(task).__name__} generates no text: leave out --max-new-tokens.")
        task.max_new_tokens = max_new_tokens
    if dtype is not None and is_int8(task.backbone):
        raise ValueError("The weights of this model are int8 already: leave out --dtype.")
    with show_status(f"Building the graphs and writing {target}"):
        if dtype == "int8" and file_format(target) == "onnx":
            task.export(target, verbose=False, dtype="int8")
        else:
            if dtype == "int8":
                task.quantize("int8")
            elif dtype is not None:
                task = task.copy_with(dtype=dtype)
            task.export(target, verbose=False)
    say(f"{type(task).__name__} in {target}: {describe_export(task, target)}")


def serve(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help=_DIRECTORY)],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 8501,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 accepts requests from other machines.")
    ] = "localhost",
    max_texts: Annotated[int, typer.Option(min=1, help="Maximum number of texts in a request.")] = 1024,
    threads: Annotated[int | None, typer.Option(min=1, help=_THREADS)] = None,
) -> None:
    """Serve an exported model over HTTP, with TensorFlow Serving's REST API. New versions are loaded as they appear."""
    if threads is not None:
        os.environ["TF_NUM_INTRAOP_THREADS"] = str(threads)  # read when TensorFlow is imported
    # TensorFlow is imported before lmzoo, which would turn on oneDNN's kernels. On processors where TensorFlow leaves
    # them off by default, short requests are faster without them.
    import tensorflow  # noqa: F401

    from lmzoo.serving import server
    from lmzoo.serving.rest_api import RestApi

    with server.listening(host, port) as listener:
        typer.echo(f"Loading {directory} and warming up...", err=True)
        api = RestApi(directory, max_texts=max_texts)
        url = f"http://{host}:{listener.getsockname()[1]}"
        versions = ", ".join(map(str, sorted(api.versions.loaded)))
        typer.echo(f"{url} answers, versions {versions}; Ctrl-C stops it.", err=True)
        body = shlex.quote(json.dumps(api.versions.get().example(), ensure_ascii=False))
        typer.echo(f"Try: curl -d {body} {url}{api.model_path}:predict", err=True)
        server.serve(api, listener)
        typer.echo("stopped", err=True)
    if api.running:  # clients have received an error; Python would wait for threads that cannot be interrupted
        os._exit(0)
