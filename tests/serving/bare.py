"""Exported models in a process that has tensorflow and tensorflow_text, and not lmzoo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_BARE = """
import sys
for name in ("lmzoo", "keras_hub", "keras_nlp"):
    sys.modules[name] = None
import json
from pathlib import Path
import tensorflow as tf
import tensorflow_text
"""
_ANSWER = """
serve = tf.saved_model.load(sys.argv[1]).signatures[sys.argv[2]]
def tensor(x):
    return tf.constant(decoded(x)) if strings(x) else tf.constant(x, tf.int32)
def strings(x):
    return strings(x[0]) if isinstance(x, list) else isinstance(x, str)
def decoded(x):
    return bytes.fromhex(x) if isinstance(x, str) else [decoded(y) for y in x]
def plain(x):
    return x.decode() if isinstance(x, bytes) else [plain(y) for y in x] if isinstance(x, list) else x
for line in sys.stdin:
    inputs = {name: tensor(values) for name, values in json.loads(line).items()}
    print(json.dumps({name: plain(x.numpy().tolist()) for name, x in serve(**inputs).items()}))
"""


def run_bare(script: str, *arguments: Any, text: str = "") -> list[str]:
    """The lines that a script prints, for which `sys`, `json`, `Path`, `tf` and the tokenizers' ops are there."""
    command = [sys.executable, "-c", _BARE + script, *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def ask_bare(folder: Path, signature: str, requests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers to requests, one after the other: of texts, bytes, nested lists of them, or ids."""
    lines = [json.dumps({name: _hexed(values) for name, values in request.items()}) for request in requests]
    return [json.loads(line) for line in run_bare(_ANSWER, folder, signature, text="\n".join(lines))]


def _hexed(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_hexed(part) for part in value]
    return value if isinstance(value, int) else (value.encode() if isinstance(value, str) else value).hex()
