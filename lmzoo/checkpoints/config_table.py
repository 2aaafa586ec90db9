"""Tables between the keys of configuration files and our arguments, for reading and writing."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from lmzoo.errors import PresetError

Arguments: TypeAlias = dict[str, Any]  # of a constructor, by name; each has a type of its own
JsonObject: TypeAlias = Mapping[str, Any]  # from a file, so that nothing is certain about the values


@dataclass(frozen=True)
class ConfigTable:
    """How the keys of a configuration file correspond to the arguments of a family's configuration class.

    A key that the table does not list might change what the model computes, so it is an error. In files that people
    edit, readers ignore it with a warning, as the other library does without one.

    Attributes:
        keys: The file's key -> our argument.
        aliases: Another name of a key in `keys` -> that key.
        defaults: The value that the other library assumes for a missing key; a key of `keys` without a default is
            required.
        values: Our argument -> {value in the file: our value}, where the spelling differs. No other value is allowed.
        shifts: Our argument -> how much larger the file's value is.
        training: The file's key -> our argument that is used in its place. It matters only in training, so a
            difference between the two values is a warning.
        constants: Our argument -> its value in every file of the format, if it is not our default.
        allowed: The file's key -> the values that it may have, since our models support no others.
        ignored: Keys that do not change what the model computes.
        omitted: Our arguments that the file need not contain: the weights give them, or predictions do not depend on
            them.
        written: Keys to write in addition to `keys`, with their values.
    """

    keys: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shifts: Mapping[str, int] = field(default_factory=dict)
    training: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, object] = field(default_factory=dict)
    allowed: Mapping[str, Collection[object]] = field(default_factory=dict)
    ignored: Collection[str] = ()
    omitted: Collection[str] = ()
    written: Mapping[str, object] = field(default_factory=dict)

    def unknown(self, stored: JsonObject) -> Arguments:
        """Return the keys of a file's content, `stored`, that the table does not list, with their values."""
        known = {*self.keys, *self.aliases, *self.allowed, *self.training, *self.ignored, *self.written}
        return {key: stored[key] for key in sorted(stored.keys() - known)}

    def read(self, stored: JsonObject, file: Path | str, ignore_unknown: bool = False) -> Arguments:
        """Read the arguments of our configuration class from a file's content, `stored`.

        Args:
            stored: Keys and values.
            file: The file, for messages.
            ignore_unknown: Whether to ignore keys that the table does not list, see `unknown`.

        Raises:
            PresetError: Naming the key that is missing, unknown, or has a value that our models do not support.
        """
        if not ignore_unknown and (unknown := self.unknown(stored)):
            key, value = next(iter(unknown.items()))
            raise PresetError(
                f"{file}: the key {key!r} (value {value!r:.60}) is unknown. It might change what the model computes, "
                "so nothing is loaded."
            )
        for key, values in self.allowed.items():
            if key in stored or key in self.defaults:
                value = stored.get(key, self.defaults.get(key))
                require_value(value in values, file, key, " or ".join(map(repr, values)), value)
        stored = self._resolve_aliases(stored, file)
        config: Arguments = dict(self.constants)
        for key, argument in self.keys.items():
            if key not in stored and key not in self.defaults:
                raise PresetError(f"{file} lacks the key {key!r}.")
            value = stored.get(key, self.defaults.get(key))
            if argument in self.values:
                spellings = self.values[argument]
                known = isinstance(value, str) and value in spellings
                require_value(known, file, key, f"one of {', '.join(spellings)}", value)
                value = spellings[value]
            if argument in self.shifts:
                require_value(isinstance(value, int), file, key, "an integer", value)
                value -= self.shifts[argument]
            config[argument] = value
        for key, argument in self.training.items():
            if stored.get(key, config[argument]) != config[argument]:
                warnings.warn(
                    f"{file}: `{key}` is {stored[key]!r}, but training will use `{argument}` in its place, "
                    f"{config[argument]!r}. Predictions do not change.",
                    stacklevel=2,
                )
        return config

    def _resolve_aliases(self, stored: JsonObject, file: Path | str) -> Arguments:
        """Return `stored` with the values of aliases under the keys that they stand for."""
        resolved = dict(stored)
        for alias, key in self.aliases.items():
            if alias not in stored:
                continue
            if key in resolved and resolved[key] != stored[alias]:
                raise PresetError(
                    f"{file}: `{key}` is {resolved[key]!r:.60}, but `{alias}`, another name for it, is "
                    f"{stored[alias]!r:.60}. Remove the wrong one."
                )
            resolved[key] = stored[alias]
        return resolved

    @property
    def stored_keys(self) -> dict[str, str]:
        """Our arguments -> what messages call them, the file's keys in backquotes."""
        keys = {argument: f"`{key}`" for key, argument in self.keys.items()}
        return keys | {argument: f"{keys[argument]} minus {shift}" for argument, shift in self.shifts.items()}

    def write(self, config: Arguments, format: str) -> dict[str, object]:
        """Return the content of a file for arguments of our configuration class; messages name the format.

        Raises:
            PresetError: Naming the argument whose value the format cannot express.
        """
        stored = dict(self.written)
        for key, argument in self.keys.items():
            value = config[argument]
            if argument in self.values:
                spellings = [theirs for theirs, ours in self.values[argument].items() if ours == value]
                if not spellings:
                    raise PresetError(f"The format {format!r} cannot express `{argument}={value!r}`.")
                value = spellings[0]
            stored[key] = value + self.shifts[argument] if argument in self.shifts else value
        stored |= {key: config[argument] for key, argument in self.training.items()}
        return stored


def require_value(condition: object, file: Path | str, key: str, allowed: str, value: object) -> None:
    """Refuse the value of a key in a file, and say what is allowed, unless `condition` holds.

    Raises:
        PresetError: If it does not.
    """
    if not condition:
        raise PresetError(f"{file}: `{key}` must be {allowed}, got {value!r:.100}.")


def format_keys(keys: Mapping[str, object]) -> str:
    """Format keys of a configuration and their values for messages."""
    return ", ".join(f"`{key}` ({value!r:.60})" for key, value in keys.items())
