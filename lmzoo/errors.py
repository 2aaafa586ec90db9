"""Errors that say what a user can do about them."""


class ArgumentError(ValueError):
    """A value that an argument does not take.

    Attributes:
        argument: name of the argument, for which the command line prints the option; None if no single one is wrong.
    """

    def __init__(self, message: str = "", argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class PathExistsError(FileExistsError):
    """A file or directory that stands where another is to be written, and that may not be replaced."""

    argument = "overwrite"


class PresetError(ArgumentError):
    """A preset that cannot be found, fetched, trusted or read; the message names it and says what to do.

    Example:

    ```python
    import lmzoo

    try:
        lmzoo.models.Backbone.from_preset("bert_nano_en")
    except lmzoo.presets.PresetError as error:
        print(error)  # names similar presets
    ```
    """


class NotFiniteError(ValueError):
    """A loss or weights that are NaN or infinite, so that nothing computed with them means anything.

    Example: see `lmzoo.training.divergence.StopOnDivergence`.
    """


class WrongModelError(TypeError, ValueError):
    """A model of the wrong kind for what was asked of it, such as one without attention.

    Example: see `lmzoo.analysis.attention`.
    """


class NoExamplesError(ValueError):
    """A file of examples that holds none."""


class ProcessesError(RuntimeError):
    """Processes that train one model and do not fit together, or do not reach each other."""


class MissingTokenizerError(PresetError):
    """A preset or checkpoint without the files of a tokenizer."""
