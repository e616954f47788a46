"""Sentences in place of the messages of Hydra, OmegaConf and YAML."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError

from harness.core.suggestions import did_you_mean

TWICE = "found duplicate key "  # of OmegaConf's loader
# OmegaConf's names of types.
_TYPES = {
    "Integer": "a whole number",
    "bool": "true or false",
    **dict.fromkeys(("Float", "int", "float"), "a number"),
    "str": "text",
    "ListConfig": "a list, such as [a,b]",
    "DictConfig": "keys with values, such as {a: 1}",
}


def sentence(error: Exception, folders: Sequence[Path] = ()) -> str:
    """Say in one sentence what was given and what is valid, in place of the messages of Hydra and OmegaConf.

    folders: those that hold the groups, to name the file of a mistake in one.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where = ""
    if composing := re.match(r"In '([^']+)': (\w+) raised while composing config", lines[0]):
        # Names of groups are relative to one of the folders.
        files = [folder / f"{composing[1]}.yaml" for folder in folders]
        where = f"{next((path for path in reversed(files) if path.is_file()), composing[1])}: "
    for cause in _causes(error):
        if isinstance(cause, (ConfigKeyError, ConfigAttributeError)) and isinstance(cause.parent_node, DictConfig):
            parent, _, key = str(cause.full_key).rpartition(".")
            return where + unknown_key(key, parent, list(cause.parent_node))
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            return where + _wrong_value(cause)
    if isinstance(error, MissingConfigException) and (
        missing := re.search(r"Could not find '(.+)/([^/]+)'$", lines[0])
    ):
        # "Available options in '<group>':", one a line, then the search path.
        valid = list(itertools.takewhile(lambda line: not line.startswith("Config search path"), lines[2:]))
        return (
            f"there is no '{missing[2]}' in '{missing[1]}'.{did_you_mean(missing[2], valid)} Valid: {', '.join(valid)}"
        )
    if "Ambiguous" in lines[0] or "No match in the defaults list" in lines[0]:
        return " ".join(lines).replace("\\'", "'")
    if isinstance(error, OverrideParseException):
        if str(error.override).startswith("study="):
            return f"'{error.override}' names a folder: use letters from A to Z, digits, '.', '_' and '-'"
        if "\n" in str(error.override):
            return f"{error.override!r} has a line break; leave it out"
        if not str(error.override).isascii():
            return f"'{error.override}': characters other than ASCII need quotes inside those of the shell"
        return f"'{error.override}' is not of the form key=value, nor a list of values: {lines[0]}"
    if composing and composing[2] == "ValidationError":
        return f"{where}this is not a mapping: give lines of key: value"
    return lines[0]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _wrong_value(error: OmegaConfBaseException) -> str:
    """Say what a key takes, in place of OmegaConf's names of types."""
    key, message = error.full_key, str(error).splitlines()[0]
    if found := re.match(r"Value '(.*)' (?:of type '.*' could not be converted to|is not a valid) (\w+)", message):
        counts = " (several: -m gpus=1,2,4,8)" if key == "gpus" else ""
        return f"{key}={found[1]}: '{key}' takes {_TYPES.get(found[2], found[2])}{counts}"
    if found := re.match(r"Invalid value '(.*)', expected one of \[(.*)\]", message):
        hint = did_you_mean(found[1], found[2].split(", "))
        return f"{key}={found[1]}: '{key}' is one of {found[2]}.{hint}".removesuffix(".")
    if found := re.match(r"(?:Invalid value assigned: (\w+) is not a |Cannot assign (\w+) to )(List|Dict)", message):
        given = found[1] or found[2]  # AnyNode: a value of no type, which OmegaConf does not tell
        given = "a single value" if given == "AnyNode" else _TYPES.get(given, given)
        return f"'{key}' takes {_TYPES[f'{found[3]}Config']}, not {given}"
    if "is not Optional" in message:
        return f"{key}=null: '{key}' needs a value"
    return message if str(key) in message else f"{key}: {message}"


def unknown_key(key: str, parent: str, valid: list[Any]) -> str:
    names = [str(name) for name in valid if name != "hydra"]
    if not names and not parent:
        return f"'{key}' is not a key of it, it has none"
    if not names and parent.endswith(".options"):
        return f"'{key}' is not a key of '{parent}': the {parent.partition('.')[0]} that was chosen has no options"
    if not names:
        return f"'{parent}.{key}' is not set yet: add it with '+', as +{parent}.{key}=<value>"
    where = f"'{parent}'" if parent else "the configuration"
    return f"'{key}' is not a key of {where}.{did_you_mean(key, names)} Valid keys: {', '.join(names)}"


def yaml_sentence(error: MarkedYAMLError) -> str:
    place = error.problem_mark or error.context_mark
    at = f"{place.name}, line {place.line + 1}"
    if (error.problem or "").startswith(TWICE):
        return f"{at}: {error.problem.removeprefix(TWICE)!r} is there twice; keep one"
    return f"{at}: this is not YAML ({error.problem}); keys of one level begin in the same column, indented by spaces"
