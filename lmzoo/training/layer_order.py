"""Order of a model's layers, for learning rates that depend on it."""

from __future__ import annotations

from typing import Any

import keras


def layers_of(model: Any) -> list[list[keras.Variable]]:
    """Return the trainable variables of each layer of a task, from the embeddings to the head.

    There is a layer for each hidden state of the backbone: the variables that compute this state from the previous
    state. In an encoder-decoder, the encoder's layers come first. Layers that share all their weights count as one
    layer. Layers without trainable variables are left out. The last entry holds the head and all other variables that
    no hidden state depends on, such as a pooler's, if any are trainable.

    Args:
        model: a task, or another model with a `backbone`.

    Example:

    ```python
    import lmzoo
    from lmzoo.training import layers_of

    classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
    len(layers_of(classifier))  # 8: the embeddings, six blocks, and the head
    ```
    """
    remaining_variables = {id(variable): variable for variable in model.trainable_variables}
    outputs = model.backbone.output
    layers = []
    for state in (*outputs.get("encoder_hidden_states", ()), *outputs["hidden_states"]):
        submodel = keras.Model(model.backbone.input, state)
        variables = [
            remaining_variables.pop(id(v)) for v in submodel.trainable_variables if id(v) in remaining_variables
        ]
        if variables:
            layers.append(variables)
    return [*layers, list(remaining_variables.values())] if remaining_variables else layers
