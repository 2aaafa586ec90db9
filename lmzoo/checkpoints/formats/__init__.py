"""File formats of weights: tensors by name, whatever library wrote them."""
