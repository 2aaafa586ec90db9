"""Exceptions of the library; their messages say what the user can do."""


class ArgumentError(ValueError):
    """An invalid value for an argument.

    Attributes:
        argument: name of the argument, or None if the error does not concern a single argument. The command line prints
            the corresponding option.
    """

    def __init__(self, message: str = "", argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class PathExistsError(FileExistsError):
    """An output file or directory that already exists, although `overwrite` is False."""

    argument = "overwrite"


class PresetError(ArgumentError):
    """A preset that cannot be found, fetched, trusted or read; the message names the preset and says what to do.

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
    """A NaN or infinite value in a loss or in weights, which would make results meaningless.

    Example: see `lmzoo.training.divergence.StopOnDivergence`.
    """


class WrongModelError(TypeError, ValueError):
    """A model that does not support the requested analysis, such as one without attention.

    Example: see `lmzoo.analysis.attention`.
    """


class NoExamplesError(ValueError):
    """A data file that contains no examples."""


class ProcessesError(RuntimeError):
    """A failure of processes that train a model together, for example because their data differ or a process ended."""


class MissingTokenizerError(PresetError):
    """A preset or checkpoint without tokenizer files."""
