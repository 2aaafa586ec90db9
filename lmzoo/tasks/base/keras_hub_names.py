"""Advice for users of KerasHub: replacements for the attributes and `compile` arguments of its tasks."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import ClassVar

import keras

from lmzoo.common.arguments import refuse_arguments
from lmzoo.common.other_names import AdvisesOnNames

_COMPILE = {"sampler": "Pass `sampler` to `generate`."}
_GENERATE = "`generate` compiles the loop itself, and takes the sampler as an argument"
_CACHE = "`generate` makes the cache itself; `backbone.call_with_cache` returns hidden states with it"
_WEIGHTS = "`save_to_preset` and `from_preset` write and read a task with its head"


class KerasHubTaskNames(AdvisesOnNames):
    """Mixin whose errors for the attributes and methods of KerasHub's tasks name lmzoo's replacements."""

    names_instead: ClassVar[Mapping[str, str]] = {
        "backbone_cls": "`type(task.backbone)` is the class of the backbone",
        "build_cache": _CACHE,
        "call_with_cache": _CACHE,
        "encode_text": "`embed` of a task for embeddings returns the vectors of texts",
        "export_to_transformers": '`lmzoo.save_checkpoint(task, directory, to="hf")` writes such a directory',
        "generate_function": _GENERATE,
        "generate_step": _GENERATE,
        "has_task_weights": _WEIGHTS,
        "load_task_weights": _WEIGHTS,
        "make_generate_function": _GENERATE,
        "preprocess_samples": "call `preprocessor(texts, labels)`",
        "preprocessor_cls": "`type(task.preprocessor)` is the class of the preprocessor",
        "sampler": "`generate` takes it as an argument",
        "save_task_weights": _WEIGHTS,
    }


def check_compile_arguments(names: Iterable[str]) -> None:
    """Check that all `names` are arguments of `keras.Model.compile`, and advise on KerasHub's arguments.

    Raises:
        TypeError: If a name is not an argument of `keras.Model.compile`.
    """
    parameters = inspect.signature(keras.Model.compile).parameters
    refuse_arguments("compile", set(names) - parameters.keys(), _COMPILE, parameters)
