"""Description of classes that have training examples but no validation examples."""

from __future__ import annotations

from collections.abc import Mapping

_MAX_LISTED_CLASSES = 5


def describe_missing_classes(training: Mapping[str, int], validation: Mapping[str, int]) -> str:
    """Return a sentence that names the classes without validation examples, or "" if every class has some.

    A class is not named if it is so rare that a proportional validation set would hold less than one of its examples.

    Args:
        training: dict from each class to its number of training examples.
        validation: dict from each class to its number of validation examples.
    """
    num_validation_examples = sum(validation.values())
    num_examples = num_validation_examples + sum(training.values())
    missing_names = [
        name
        for name, count in training.items()
        if not validation.get(name) and count * num_validation_examples >= num_examples
    ]
    if not missing_names:
        return ""
    listed_names = ", ".join(f"{name!r:.40}" for name in missing_names[:_MAX_LISTED_CLASSES])
    if len(missing_names) > _MAX_LISTED_CLASSES:
        listed_names += f" and {len(missing_names) - _MAX_LISTED_CLASSES} more"
    noun = "the class" if len(missing_names) == 1 else f"{len(missing_names)} classes:"
    return f"The validation examples lack {noun} {listed_names}."
