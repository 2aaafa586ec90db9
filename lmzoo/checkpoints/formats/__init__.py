"""File formats of weights: tensors by name, independent of the library that wrote them."""
