"""Configurations of files: closed tables of keys, read in both directions."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lmzoo.errors import PresetError


@dataclass(frozen=True)
class ConfigTable:
    """Between a file's configuration and the arguments of a family's configuration class.

    A key that is in none of the lists might change what the model computes, so it is an error.

    Attributes:
        keys: the file's key -> our argument.
        defaults: what the file's own code takes for a missing key; a key without one must be there.
        values: our argument -> {value in the file: our value}, for what is spelt differently. Others are not allowed.
        shifts: our argument -> what the file's value is larger by.
        training: the file's key -> our argument that stands for it in training. A file in which the two differ gets a
            notice: predictions are the same.
        constants: our argument -> its value in every file of the format, if it is not our default.
        only: the file's key -> the values that it may have, since our models do nothing else.
        ignored: keys that change nothing that the model computes.
        untold: our arguments that files need not tell: what the weights tell, and what does not change predictions.
        written: keys to write beside `keys`, with their values.
    """

    keys: Mapping[str, str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    shifts: Mapping[str, int] = field(default_factory=dict)
    training: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Collection[Any]] = field(default_factory=dict)
    ignored: Collection[str] = ()
    untold: Collection[str] = ()
    written: Mapping[str, Any] = field(default_factory=dict)

    def read(self, stored: Mapping[str, Any], file: Any) -> dict[str, Any]:
        """Arguments of our configuration class.

        Args:
            stored: the file's content.
            file: its path, for messages.

        Raises:
            PresetError: naming the key that is missing, unknown, or has a value that our models cannot follow.
        """
        if unknown := sorted(stored.keys() - {*self.keys, *self.only, *self.training, *self.ignored, *self.written}):
            raise PresetError(
                f"{file}: the key {unknown[0]!r} (value {stored[unknown[0]]!r:.60}) is not known. It might change what "
                "the model computes, so nothing is loaded."
            )
        for key, allowed in self.only.items():
            if key in stored and stored[key] not in allowed:
                expected = " or ".join(map(repr, allowed))
                raise PresetError(
                    f"{file}: `{key}` must be {expected}, got {stored[key]!r:.60}: nothing else is known."
                )
        config = dict(self.constants)
        for key, argument in self.keys.items():
            if key not in stored and key not in self.defaults:
                raise PresetError(f"{file} lacks the key {key!r}.")
            value = stored.get(key, self.defaults.get(key))
            if argument in self.values:
                spellings = self.values[argument]
                if not isinstance(value, str) or value not in spellings:
                    raise PresetError(f"{file}: `{key}` must be one of {', '.join(spellings)}, got {value!r:.60}.")
                value = spellings[value]
            if argument in self.shifts:
                if not isinstance(value, int):
                    raise PresetError(f"{file}: `{key}` must be an integer, got {value!r:.60}.")
                value -= self.shifts[argument]
            config[argument] = value
        for key, argument in self.training.items():
            if stored.get(key, config[argument]) != config[argument]:
                warnings.warn(
                    f"{file}: `{key}` is {stored[key]!r}, but training will use `{argument}` there, too, "
                    f"{config[argument]!r}. Predictions are the same.",
                    stacklevel=2,
                )
        return config

    def in_its_words(self, message: str) -> str:
        """A message about our arguments, which stand in backquotes, with the file's keys in their place."""
        words = {argument: f"`{key}`" for key, argument in self.keys.items()}
        words |= {argument: f"{words[argument]} less {shift}" for argument, shift in self.shifts.items()}
        return re.sub(r"`(\w+)`", lambda match: words.get(match[1], match[0]), message)

    def write(self, config: Mapping[str, Any], format: str) -> dict[str, Any]:
        """The file's content for arguments of our configuration class.

        Args:
            config: the arguments.
            format: what to call the format in messages.

        Raises:
            PresetError: naming the argument that the format cannot say.
        """
        stored = dict(self.written)
        for key, argument in self.keys.items():
            value = config[argument]
            if argument in self.values:
                spelt = [theirs for theirs, ours in self.values[argument].items() if ours == value]
                if not spelt:
                    raise PresetError(f"The format {format!r} has no word for `{argument}={value!r}`.")
                value = spelt[0]
            stored[key] = value + self.shifts[argument] if argument in self.shifts else value
        stored |= {key: config[argument] for key, argument in self.training.items()}
        return stored
