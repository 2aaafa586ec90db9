"""Callback that unfreezes the layers of a model one by one."""

from __future__ import annotations

from typing import Any

import keras

from lmzoo.common.arguments import is_integer, require
from lmzoo.training.layer_order import layers_of
from lmzoo.training.optimizers import AdamW
from lmzoo.training.training_run import inner_optimizer


class GradualUnfreezing(keras.callbacks.Callback):
    """Callback that trains the head first, and then one more layer after each epoch (Howard & Ruder, 2018).

    Layers are unfrozen from the top; `layers_of` returns their order. If there are fewer epochs than layers, the lowest
    layers stay frozen. Gradients of frozen layers are computed but not applied, so a step takes as long as without the
    callback. The callback works with `ResumableCheckpoint`. When `fit` ends, all layers are unfrozen.

    Args:
        epochs_per_layer: int, number of epochs after which the next layer is unfrozen.

    Raises:
        TypeError: From `fit`, if the optimizer is not `AdamW` or `LAMB` of `lmzoo.training`.
        ValueError: If `epochs_per_layer` is below 1; from `fit`, if the number of steps of an epoch is unknown, or if
            it is called by anything but the `fit` of a task or `fit_together`, such as `distill`.

    Example:

    ```python
    import lmzoo
    from lmzoo.training import AdamW, GradualUnfreezing

    classifier = lmzoo.models.TextClassifier.from_preset("lstm_nano_en", labels=["bad", "good"])
    classifier.compile(AdamW(1e-3, layer_decay=1 / 2.6, schedule="slanted_triangular"))
    texts = ["A fine film.", "Dull and slow."]
    classifier.fit(texts, ["good", "bad"], epochs=4, callbacks=[GradualUnfreezing()], verbose=0)
    ```
    """

    def __init__(self, epochs_per_layer: int = 1) -> None:
        super().__init__()
        require(is_integer(epochs_per_layer, 1), "epochs_per_layer", "an integer of at least 1", epochs_per_layer)
        self.epochs_per_layer = epochs_per_layer

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Set the step at which each layer is unfrozen; the head trains from the start."""
        model: Any = self.model
        if not (hasattr(model, "backbone") and hasattr(model, "forget_compiled")):
            raise ValueError(
                "GradualUnfreezing needs the `fit` of a task or `fit_together`, whose layers have an order, got a "
                f"`fit` of {type(model).__name__}. Elsewhere, leave it out."
            )
        optimizer = inner_optimizer(model.optimizer)
        if not isinstance(optimizer, AdamW):
            raise TypeError(
                f"GradualUnfreezing needs `lmzoo.training.AdamW` or `LAMB`, got {type(optimizer).__name__}. Pass one "
                "to `compile`."
            )
        if (epoch_steps := self.params.get("steps")) is None:
            raise ValueError("GradualUnfreezing cannot count the steps of an epoch. Pass `steps_per_epoch`.")
        layers = layers_of(model)
        steps_per_update = optimizer.gradient_accumulation_steps or 1
        first_steps = [index * self.epochs_per_layer * epoch_steps for index in reversed(range(len(layers)))]
        optimizer.set_layers(layers, [-(-step // steps_per_update) for step in first_steps])  # rounded up
        model.make_train_function(force=True)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Unfreeze all layers."""
        model: Any = self.model
        inner_optimizer(model.optimizer).set_layers(layers_of(model))
        model.forget_compiled()
