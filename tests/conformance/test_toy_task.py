"""A task from outside of the package, in one file, passes the checks of all tasks."""

from __future__ import annotations

import keras
import pytest
from keras import ops

import lmzoo.models  # noqa: F401 - registers the families
from lmzoo.registry.family import families
from lmzoo.tasks import Task
from lmzoo.tasks.base.labels import encode_numbers
from lmzoo.tasks.task_encoders import TextVector
from lmzoo.testing import TASK_CHECKS, tiny_examples, tiny_task
from lmzoo.testing.checks import check_task_predictions

EAGER = {"check_task_fit", "check_task_predictions"}
QUICK = {"check_task_files", "check_task_predictions"}
DIFFERENT = {"elmo", "gpt2"}


@keras.saving.register_keras_serializable(package="toy")
class GaussianLoss(keras.losses.Loss):
    """Negative log-likelihood of a number under a mean and a logarithm of a variance (Nix and Weigend, 1994)."""

    def call(self, y_true, y_pred):
        mean, log_variance = y_pred[:, 0], y_pred[:, 1]  # (B,), (B,)
        return 0.5 * (log_variance + ops.square(ops.reshape(y_true, (-1,)) - mean) * ops.exp(-log_variance))


@keras.saving.register_keras_serializable(package="toy")
class GaussianRegressor(Task):
    """A regressor that also predicts how certain it is: mean and log-variance, float32 (B, 2)."""

    head_kind = "gaussian"
    served_outputs = ("mean", "deviation")

    def __init__(self, backbone, preprocessor=None, labels=None, name="gaussian_regressor"):
        vector = TextVector()
        head, inputs = vector.head(backbone, 2), backbone.input
        super().__init__(
            backbone, preprocessor, inputs, head(vector.of(backbone, inputs, backbone(inputs))), None, name
        )
        self.head = head
        self.compile()

    def default_loss(self):
        return GaussianLoss()

    def encode_labels(self, y):
        return None if y is None else encode_numbers(y)

    def estimate(self, texts, batch_size=32):
        """Return `{"mean": float, "deviation": float}` for each text."""
        outputs = self.predict(texts, batch_size=batch_size, verbose=0)  # (n, 2)
        return [{"mean": float(m), "deviation": float(ops.exp(0.5 * s))} for m, s in outputs]

    answers = estimate

    def serve(self, features):
        outputs = self(features, training=False)  # (B, 2)
        return {"mean": outputs[:, 0], "deviation": ops.exp(0.5 * outputs[:, 1])}


def parameters():
    """Yield each check on one family, and quick checks on families with other inputs or visibility of tokens.

    Checks in other processes, which must know the task, run on JAX; on TensorFlow test_conformance.py covers them.
    """
    on_tensorflow = keras.backend.backend() == "tensorflow"
    tested_families = [family for name, family in families().items() if name == "bert" or name in DIFFERENT]
    for family in filter(GaussianRegressor.supports, tested_families):
        for check in TASK_CHECKS:
            if family.name != "bert" and check.__name__ not in QUICK:
                continue
            is_slow = check.__name__ in {"check_task_export", "check_task_resume"}
            marks = [pytest.mark.slow] * (is_slow if on_tensorflow else family.name != "bert")
            if check.__name__ == "check_task_backends":
                marks.append(pytest.mark.tf_only)
            yield pytest.param(family, check, marks=marks, id=f"{family.name}-{check.__name__}")


@pytest.mark.quick_cases("bert-check_task_input_names", "elmo-check_task_files")
@pytest.mark.parametrize(("family", "check"), list(parameters()))
def test_task(family, check, request):
    if check.__name__ in EAGER:
        request.getfixturevalue("eager")
    check(GaussianRegressor, family)


def test_labels_are_checked_and_answers_have_their_own_names(eager):
    task = tiny_task(GaussianRegressor, families()["bert"])
    texts, _ = tiny_examples(task)
    assert {tuple(answer) for answer in task.estimate(texts)} == {("mean", "deviation")}
    with pytest.raises(TypeError, match="not a number"):
        task.fit(texts, ["good"] * len(texts), verbose=0)


def test_an_overridden_method_of_answers_must_be_assigned():
    """`lmzoo predict` would otherwise call the method of the base class."""

    class ReversedRegressor(GaussianRegressor):
        def estimate(self, texts, batch_size=32):
            return super().estimate(texts[::-1], batch_size)

    with pytest.raises(AssertionError, match="ReversedRegressor has another `estimate`: `answers = estimate`"):
        check_task_predictions(ReversedRegressor, families()["bert"])


def test_tiny_models_need_a_record():
    message = r"`family` must be a record of a family, such as `families\(\)\['bert'\]`, got 'bert'"
    with pytest.raises(ValueError, match=message):
        tiny_task(GaussianRegressor, "bert")
