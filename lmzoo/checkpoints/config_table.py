"""Tables that translate between keys of configuration files and lmzoo's arguments."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from lmzoo.errors import PresetError

Arguments: TypeAlias = dict[str, Any]  # keyword arguments of a constructor
JsonObject: TypeAlias = Mapping[str, Any]  # read from a file: the values are not validated


@dataclass(frozen=True)
class ConfigTable:
    """A mapping between the keys of a configuration file and the arguments of a family's configuration class.

    A key that the table does not list might change what the model computes, so by default it is an error. Readers of
    files that people edit ignore such keys with a warning.

    Attributes:
        keys: Dict from file key to argument.
        aliases: Dict from an alternative name of a key in `keys` to the key.
        defaults: Dict from file key to the other library's default value. Keys of `keys` without a default are
            required.
        values: Dict from an argument whose values the file spells differently to a dict from the file's value to
            lmzoo's value. Other values are errors.
        shifts: Dict from argument to the integer by which the file's value exceeds lmzoo's.
        training: For each file key that affects only training, the argument that lmzoo uses in its place. If the values
            differ, reading the file only causes a warning.
        training_values: For each other file key that affects only training, the value that lmzoo uses. Other values
            only cause a warning; null stands for lmzoo's value.
        constants: Dict from argument to its fixed value in the format, if it differs from lmzoo's default.
        allowed: Dict from file key to the supported values. Other values are errors.
        ignored: File keys that do not change what the model computes.
        omitted: Arguments that the file may lack, since the weights determine them or predictions do not depend on
            them.
        written: Dict from file key to a constant value to write in addition to `keys`.
        rewrite: Function that converts a file's content from another version of the format to the version that is
            written. Its second argument is the path of the file, for messages.
        derive: Function that completes the content of a file to write with keys that follow from other keys.
        rewritten: For each file key that `rewrite` always returns, the argument. These keys are written like `keys`.
    """

    keys: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shifts: Mapping[str, int] = field(default_factory=dict)
    training: Mapping[str, str] = field(default_factory=dict)
    training_values: Mapping[str, object] = field(default_factory=dict)
    constants: Mapping[str, object] = field(default_factory=dict)
    allowed: Mapping[str, Collection[object]] = field(default_factory=dict)
    ignored: Collection[str] = ()
    omitted: Collection[str] = ()
    written: Mapping[str, object] = field(default_factory=dict)
    rewrite: Callable[[JsonObject, Path | str], JsonObject] = lambda stored, file: stored
    derive: Callable[[dict[str, object]], dict[str, object]] = lambda stored: stored
    rewritten: Mapping[str, str] = field(default_factory=dict)

    def unknown(self, stored: JsonObject) -> Arguments:
        """Return the entries of a file's content with keys that the table does not list."""
        listed_keys = {
            *self.keys,
            *self.rewritten,
            *self.aliases,
            *self.allowed,
            *self.training,
            *self.training_values,
            *self.ignored,
            *self.written,
        }
        return {key: stored[key] for key in sorted(stored.keys() - listed_keys)}

    def read(self, stored: JsonObject, file: Path | str, ignore_unknown: bool = False) -> Arguments:
        """Convert the content of a configuration file to arguments of the configuration class.

        Args:
            stored: Keys and values of the file.
            file: Path of the file, for messages.
            ignore_unknown: Whether to ignore keys that the table does not list.

        Raises:
            PresetError: If a key is missing, unknown and not ignored, or has an unsupported value, or if a key and its
                alias differ; the message names the key.
        """
        if not ignore_unknown and (unknown_entries := self.unknown(stored)):
            key, value = next(iter(unknown_entries.items()))
            raise PresetError(
                f"{file}: the key {key!r} (value {value!r:.60}) is unknown. It might change what the model computes, "
                "so nothing is loaded."
            )
        for key, values in self.allowed.items():
            if key in stored or key in self.defaults:
                value = stored.get(key, self.defaults.get(key))
                require_value(value in values, file, key, " or ".join(map(repr, values)), value)
        stored = self.rewrite(self._resolve_aliases(stored, file), file)
        arguments: Arguments = dict(self.constants)
        for key, argument in self._all_keys.items():
            if key not in stored and key not in self.defaults:
                raise PresetError(f"{file} lacks the key {key!r}.")
            value = stored.get(key, self.defaults.get(key))
            if argument in self.values:
                values_by_spelling = self.values[argument]
                is_valid = isinstance(value, str) and value in values_by_spelling
                require_value(is_valid, file, key, f"one of {', '.join(values_by_spelling)}", value)
                value = values_by_spelling[value]
            if argument in self.shifts:
                require_value(isinstance(value, int), file, key, "an integer", value)
                value -= self.shifts[argument]
            arguments[argument] = value
        for key, argument in self.training.items():
            if stored.get(key, arguments[argument]) != arguments[argument]:
                warnings.warn(
                    f"{file}: `{key}` is {stored[key]!r}, but training will use `{argument}` in its place, "
                    f"{arguments[argument]!r}. Predictions do not change.",
                    stacklevel=2,
                )
        for key, value in self.training_values.items():
            if stored.get(key) not in (None, value):
                warnings.warn(
                    f"{file}: `{key}` is {stored[key]!r:.60}, but training will use {value!r}. Predictions do not "
                    "change.",
                    stacklevel=2,
                )
        return arguments

    def _resolve_aliases(self, content: JsonObject, file: Path | str) -> Arguments:
        """Return a copy of a file's content that also holds the value of each alias under its main key.

        Raises:
            PresetError: If the values of a key and its alias differ.
        """
        resolved_content = dict(content)
        for alias, key in self.aliases.items():
            if alias not in content:
                continue
            if key in resolved_content and resolved_content[key] != content[alias]:
                raise PresetError(
                    f"{file}: `{key}` is {resolved_content[key]!r:.60}, but `{alias}`, another name for it, is "
                    f"{content[alias]!r:.60}. Remove the wrong one."
                )
            resolved_content[key] = content[alias]
        return resolved_content

    @property
    def _all_keys(self) -> dict[str, str]:
        return {**self.keys, **self.rewritten}

    @property
    def stored_keys(self) -> dict[str, str]:
        """Descriptions of the file's keys by argument, for messages, such as "`hidden_size`"."""
        descriptions = {argument: f"`{key}`" for key, argument in self._all_keys.items()}
        return descriptions | {
            argument: f"{descriptions[argument]} minus {shift}" for argument, shift in self.shifts.items()
        }

    def write(self, config: Arguments, format: str) -> dict[str, object]:
        """Convert arguments of the configuration class to the content of a configuration file.

        Args:
            config: All arguments of the configuration class.
            format: Name of the format, for messages.

        Raises:
            PresetError: If the format cannot express a value; the message names the argument.
        """
        content = dict(self.written)
        for key, argument in self._all_keys.items():
            value = config[argument]
            if argument in self.values:
                spellings = [spelling for spelling, candidate in self.values[argument].items() if candidate == value]
                if not spellings:
                    raise PresetError(f"The format {format!r} cannot express `{argument}={value!r}`.")
                value = spellings[0]
            content[key] = value + self.shifts[argument] if argument in self.shifts else value
        content |= {key: config[argument] for key, argument in self.training.items()}
        return self.derive(content)


def resolve_arguments(config_class: type, arguments: Arguments) -> Arguments:
    """Return stored constructor arguments, completed with the fields that the configuration derives from other fields.

    Overriding a field afterwards then leaves the derived fields as the stored weights require.

    Args:
        config_class: Configuration class of the family, a dataclass.
        arguments: Arguments of the backbone's constructor, which may have more arguments than the configuration.

    Raises:
        ValueError: If the configuration is invalid.
    """
    field_names = {field.name for field in dataclasses.fields(config_class)}
    config = config_class(**{name: value for name, value in arguments.items() if name in field_names})
    return {**arguments, **dataclasses.asdict(config)}


class KeyReader:
    """A reader of configuration files that collects unknown keys.

    Like the libraries that write such files, lmzoo ignores unknown keys, but warns about them.

    Attributes:
        unknown_keys: Dict from the path of a file to its unknown keys and their values.
    """

    def __init__(self) -> None:
        self.unknown_keys: dict[str, Arguments] = {}

    def read(self, table: ConfigTable, stored: JsonObject, file: Path | str) -> Arguments:
        """Convert the content of a configuration file to arguments, and collect its unknown keys.

        Args:
            table: Table of the file's keys.
            stored: Keys and values of the file.
            file: Path of the file, for messages.

        Raises:
            PresetError: If a key is missing or has an unsupported value; the message names the key.
        """
        if unknown_entries := table.unknown(stored):
            self.unknown_keys[str(file)] = {**self.unknown_keys.get(str(file), {}), **unknown_entries}
        return table.read(stored, file, ignore_unknown=True)

    def warn(self) -> None:
        """Warn about the unknown keys, once per file."""
        for file, keys in self.unknown_keys.items():
            warnings.warn(f"{file}: ignoring unknown keys: {format_keys(keys)}.", stacklevel=4)

    def report(self, directory: Path) -> dict[str, str]:
        """Return the entries of a report on unknown keys, with file paths relative to `directory`."""
        return {
            f"not read: keys of {os.path.relpath(file, directory)}": format_keys(keys)
            for file, keys in self.unknown_keys.items()
        }


def require_value(condition: object, file: Path | str, key: str, allowed: str, value: object) -> None:
    """Check a condition on the value of a key in a file.

    Args:
        condition: Whether the value is valid.
        file: Path of the file, for the message.
        key: Key of the value, for the message.
        allowed: Description of valid values, for the message.
        value: Value of the key, for the message.

    Raises:
        PresetError: If the condition is false.
    """
    if not condition:
        raise PresetError(f"{file}: `{key}` must be {allowed}, got {value!r:.100}.")


def format_keys(keys: Mapping[str, object]) -> str:
    """Format configuration keys and their values for a message."""
    return ", ".join(f"`{key}` ({value!r:.60})" for key, value in keys.items())
