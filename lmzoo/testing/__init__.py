"""Conformance kit: checks that every family, task and layer must pass.

A check is a function that raises an `AssertionError` if it fails. Checks in `FAMILY_CHECKS` take a `Family`; checks in
`TASK_CHECKS` take a task class and a family. Models and tokenizers are built from the family's record (`Family.tiny`),
so that families in other packages are tested like lmzoo's own:

```python
import pytest
from lmzoo.models import TextClassifier
from lmzoo.families.bert import FAMILY  # yours
from lmzoo.testing import FAMILY_CHECKS, TASK_CHECKS


@pytest.mark.parametrize("check", FAMILY_CHECKS)
def test_family(check):
    check(FAMILY)


@pytest.mark.parametrize("check", TASK_CHECKS)
def test_classifier(check):
    check(TextClassifier, FAMILY)
```

Checks in `LAYER_CHECKS` take two functions: one that creates a layer, given the name of a dtype policy, and one that
returns the arguments of a call, given the number of sequences:

```python
import numpy as np
from lmzoo.layers import MeanPooler
from lmzoo.testing import LAYER_CHECKS


@pytest.mark.parametrize("check", LAYER_CHECKS)
def test_layer(check):
    check(
        lambda policy: MeanPooler(dtype=policy),
        lambda count: [np.ones((count, 5, 7), "float32"), np.ones((count, 5), bool)],
    )
```

Checks in `CHECKPOINT_CHECKS` take a family, a kind of head from `peer_heads`, and optionally the index of a variant of
`Family.tiny`. They compare the family with its classes in transformers; transformers and torch must be installed:

```python
from lmzoo.testing import CHECKPOINT_CHECKS, peer_heads


@pytest.mark.parametrize("check", CHECKPOINT_CHECKS)
@pytest.mark.parametrize("head", peer_heads(FAMILY))
def test_checkpoint(check, head):
    check(FAMILY, head)
```

The class method `of_words` of the family's tokenizer creates the vocabulary. Sizes in `tiny` should be distinct primes,
so that checks detect swapped axes.
"""

from lmzoo.testing.checkpoint_checks import CHECKPOINT_CHECKS, check_peer_files, check_peer_outputs, peer_heads
from lmzoo.testing.checks import (
    FAMILY_CHECKS,
    TASK_CHECKS,
    check_backbone_files,
    check_batches,
    check_causality,
    check_config,
    check_functional_model,
    check_input_names,
    check_padding,
    check_seed,
    check_shapes,
    check_task_backends,
    check_task_export,
    check_task_files,
    check_task_fit,
    check_task_functional_model,
    check_task_input_names,
    check_task_predictions,
    check_task_resume,
    check_task_training,
    check_training,
)
from lmzoo.testing.layer_checks import (
    DTYPE_POLICIES,
    LAYER_CHECKS,
    check_layer_config,
    check_layer_empty_batch,
    check_layer_files,
    check_layer_masks,
    check_layer_outputs,
    check_layer_training,
)
from lmzoo.testing.tiny import randomize, tiny_backbone, tiny_examples, tiny_preprocessor, tiny_task, tiny_texts

__all__ = [
    "CHECKPOINT_CHECKS",
    "DTYPE_POLICIES",
    "FAMILY_CHECKS",
    "LAYER_CHECKS",
    "TASK_CHECKS",
    "check_backbone_files",
    "check_batches",
    "check_causality",
    "check_config",
    "check_functional_model",
    "check_input_names",
    "check_layer_config",
    "check_layer_empty_batch",
    "check_layer_files",
    "check_layer_masks",
    "check_layer_outputs",
    "check_layer_training",
    "check_padding",
    "check_peer_files",
    "check_peer_outputs",
    "check_seed",
    "check_shapes",
    "check_task_backends",
    "check_task_export",
    "check_task_files",
    "check_task_fit",
    "check_task_functional_model",
    "check_task_input_names",
    "check_task_predictions",
    "check_task_resume",
    "check_task_training",
    "check_training",
    "peer_heads",
    "randomize",
    "tiny_backbone",
    "tiny_examples",
    "tiny_preprocessor",
    "tiny_task",
    "tiny_texts",
]
