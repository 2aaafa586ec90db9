"""Exceptions whose messages say what the user can do."""


class ArgumentError(ValueError):
    """An invalid value for an argument.

    Attributes:
        argument: name of the argument, for which the command line prints its option; None if the error does not concern
            a single argument.
    """

    def __init__(self, message: str = "", argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class PathExistsError(FileExistsError):
    """A file or directory that already exists at an output path and may not be replaced."""

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
    """A loss or weights that are NaN or infinite, so that results would be meaningless.

    Example: see `lmzoo.training.divergence.StopOnDivergence`.
    """


class WrongModelError(TypeError, ValueError):
    """A model that does not support the requested analysis, such as one without attention.

    Example: see `lmzoo.analysis.attention`.
    """


class NoExamplesError(ValueError):
    """A data file that contains no examples."""


class ProcessesError(RuntimeError):
    """A failure of processes that train a model together, for example because their data differ or one has ended."""


class MissingTokenizerError(PresetError):
    """A preset or checkpoint without the files of a tokenizer."""
