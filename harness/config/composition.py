"""Compose the points of a sweep. The only module that uses Hydra and OmegaConf."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import itertools
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError

from harness.config import workload
from harness.config.schema import FRAMEWORK_OPTIONS, STRATEGY_OPTIONS, Config
from harness.config.workload_schema import Kind
from harness.core.errors import UserError
from harness.core.suggestions import did_you_mean

CONF = Path(__file__).resolve().parents[2] / "conf"
TWICE = "found duplicate key "  # of OmegaConf's loader
_VERSION_BASE = "1.3"
_OPTIONS = {"framework": FRAMEWORK_OPTIONS, "strategy": STRATEGY_OPTIONS}
# OmegaConf's names of types.
_TYPES = {
    "Integer": "a whole number",
    "bool": "true or false",
    **dict.fromkeys(("Float", "int", "float"), "a number"),
    "str": "text",
    "ListConfig": "a list, such as [a,b]",
    "DictConfig": "keys with values, such as {a: 1}",
}
# Timed steps, if measure.steps is not given: with a precision at most, else exactly.
_ADAPTIVE_STEPS, _FIXED_STEPS = 1000, 200
# An interpolation that may leave its group: neither `${.key}` nor a resolver of such.
_REFERS = re.compile(r"\$\{(?!\.[^.]|default_steps:)")
# Keys that hold whatever the user gives.
_FREE = ("workload.params", "cluster.env")
_NAMES = tuple(f"{group}.name" for group in _OPTIONS)


def register() -> None:
    """Register the schema and the default cluster with Hydra. Call once, before composing."""
    ConfigStore.instance().store(name="schema", node=Config)
    OmegaConf.register_new_resolver(
        "default_cluster", lambda: "slurm" if shutil.which("sbatch") else "local", replace=True
    )
    OmegaConf.register_new_resolver(
        "default_steps", lambda precision: _FIXED_STEPS if precision is None else _ADAPTIVE_STEPS, replace=True
    )


def hydra_output(argv: Sequence[str]) -> str:
    """Print what Hydra prints for --cfg, --info, --hydra-help and tab completion. Raises SystemExit on mistakes."""
    # With --cfg, the values in place of expressions such as ${default_steps:...}.
    resolve = ["--resolve"] if any(word.split("=")[0] in ("--cfg", "-c") for word in argv) else []
    sys.argv[1:] = [*_declared(argv), *resolve]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        hydra.main(version_base=_VERSION_BASE, config_path=str(CONF), config_name="config")(lambda _: None)()
    return printed.getvalue()


def compose(
    overrides: Sequence[str],
    multirun: bool,
    config_name: str,
    config_dir: str | None,
    command: Sequence[str] | None = None,
) -> list[Config]:
    """Return all points of the command line; one without `-m`. command: what followed `--`, which is not parsed.

    Hydra's own launcher composes each point from its files. Here Hydra composes each distinct choice of groups once,
    and the values of a point are applied to a copy (tests/harness/config/test_config.py compares the two). Points that
    override the same keys share all other fields.

    Raises:
        UserError
    """
    if config_dir and not Path(config_dir).is_dir():
        raise UserError(f"--config-dir {config_dir}: there is no such folder")
    folders = [CONF, Path(config_dir).resolve()] if config_dir else [CONF]
    try:
        with hydra.initialize_config_dir(str(CONF), job_name="harness", version_base=_VERSION_BASE):
            points = list(_Composer(config_name, folders).points(_declared(overrides), multirun))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_sentence(error, folders)) from None
    except MarkedYAMLError as error:
        raise UserError(_yaml_sentence(error)) from None
    return points if command is None else [workload.with_command(point, list(command)) for point in points]


def _yaml_sentence(error: MarkedYAMLError) -> str:
    place = error.problem_mark or error.context_mark
    at = f"{place.name}, line {place.line + 1}"
    if (error.problem or "").startswith(TWICE):
        return f"{at}: {error.problem.removeprefix(TWICE)!r} is there twice; keep one"
    return f"{at}: this is not YAML ({error.problem}); keys of one level begin in the same column, indented by spaces"


class _Composer:
    """Composes points while Hydra is initialised."""

    def __init__(self, config_name: str, folders: Sequence[Path]) -> None:
        """folders: conf/ and the folder of --config-dir, which hold the groups."""
        self._config_name, self._folders = config_name, folders
        added = ["'file://" + str(folder).replace("'", "\\'") + "'" for folder in folders[1:]]
        self._search_path = [f"hydra.searchpath=[{','.join(added)}]"] if added else []
        self._parser = OverridesParser.create()
        self._parse = functools.cache(self._parser.parse_override)
        self._is_group = functools.cache(lambda key: any((folder / key).is_dir() for folder in folders))
        self._composed = functools.cache(self._compose)

    def points(self, overrides: list[str], multirun: bool) -> Iterator[Config]:
        given = self._parser.parse_overrides(overrides)
        for override in given:
            # Hydra's own settings (folders, logs, launchers) have no effect on composition.
            if override.is_hydra_override():
                raise UserError(f"'{override.input_line}': keys of hydra itself have no effect here; leave it out")
            if override.is_sweep_override() and not multirun:
                raise UserError(f"'{override.input_line}' gives several values: to sweep over them, add -m")
        # An experiment may bring its own sweep (hydra.sweeper.params); the command line overrides it key by key.
        fixed, _ = self._split([override for override in given if not override.is_sweep_override()])
        _, from_experiment = self._composed(fixed)
        of_experiment = tuple(_declared(from_experiment))
        keys = dict(self._keys([*self._parser.parse_overrides(list(of_experiment)), *given]))
        if of_experiment and not multirun:
            raise UserError(f"the experiment sweeps over {' '.join(of_experiment)}: add -m to the command")
        first: dict[tuple[str, ...], tuple[DictConfig, DictConfig, Config, dict[tuple[str, ...], Any]]] = {}
        for texts in itertools.product(*self._swept([*of_experiment, *overrides])):
            choices, values = self._split([self._parse(text) for text in texts])
            if choices in first and (like := _like(*first[choices], values)):
                yield like
                continue
            composed, sweep = self._composed(choices)
            if sweep != from_experiment:
                raise UserError("an experiment that brings a sweep of its own cannot be swept over: name one at a time")
            cfg = copy.deepcopy(composed)
            for value in values:
                _apply(cfg, value)
            # With interpolations, overriding a key can change fields of other groups too.
            refers = _REFERS.search(str(OmegaConf.to_container(cfg)))
            typed = _typed(cfg)
            if typed.workload.kind is not Kind.catalog:
                workload.check_keys(keys, typed.workload.kind)
            if not refers:
                base = copy.deepcopy(composed)
                _type_options(base)
                first[choices] = base, cfg, typed, {}
            yield typed

    def _compose(self, choices: tuple[str, ...]) -> tuple[DictConfig, tuple[str, ...]]:
        """Compose the chosen groups; return the configuration and the sweep that an experiment among them brings."""
        cfg = hydra.compose(self._config_name, [*choices, *self._search_path], return_hydra_config=True)
        sweep = tuple(f"{key}={value}" for key, value in (cfg.hydra.sweeper.params or {}).items())
        with open_dict(cfg):
            del cfg["hydra"]
        return cfg, sweep

    def _split(self, overrides: Sequence[Override]) -> tuple[tuple[str, ...], list[Override]]:
        """Split overrides as Hydra does; return (choices of groups, values)."""
        choices, values = [], []
        for override in overrides:
            is_group = override.package is not None or self._is_group(override.key_or_group)
            if is_group and not isinstance(override.value(), dict):
                choices.append(str(override.input_line))
            else:
                values.append(override)
        return tuple(choices), values

    def _keys(self, overrides: Sequence[Override]) -> Iterator[tuple[str, str]]:
        """Yield each key that overrides and the experiments among them name, and how, for messages."""
        for override in overrides:
            key, value = override.key_or_group, override.value()
            if key == "experiment":
                for folder in self._folders:
                    if (path := folder / key / f"{value}.yaml").is_file():
                        yield from ((name, f"'{name}' in {key}={value}") for name in _named(OmegaConf.load(path)))
            elif isinstance(value, dict):
                yield from ((name, f"'{name}'") for name in _leaves(value, key))
            else:
                yield key, f"'{override.input_line}'"

    def _swept(self, overrides: list[str]) -> Iterable[list[str]]:
        """Expand each key into one override per value. If a key is given twice, the last one counts."""
        lists: dict[str, list[str]] = {}
        for override in self._parser.parse_overrides(overrides):
            if isinstance(pattern := override.value(), Glob):
                values: Iterable[str] = pattern.filter(self._options(override.key_or_group))
            elif override.is_discrete_sweep():
                values = override.sweep_string_iterator()
            elif override.is_sweep_override():
                raise UserError(f"'{override.input_line}': there are no intervals here; list the values")
            else:
                values = [override.get_value_element_as_str()]
            key = override.get_key_element()
            lists[key] = [f"{key}={value}" for value in values]
        return lists.values()

    def _options(self, group: str) -> list[str]:
        return sorted({path.stem for folder in self._folders for path in (folder / group).glob("*.yaml")})


def _declared(overrides: Iterable[str]) -> list[str]:
    """Let the user's own parameters be set without '+', as Hydra wants for keys that no file declares."""
    return [re.sub(r"^\+{0,2}(?=workload\.params[.=])", "++", text) for text in overrides]


def _named(document: Any) -> Iterator[str]:
    """Yield the keys and groups that an experiment's file names."""
    for entry in document.pop("defaults", None) or ():
        for group in entry if isinstance(entry, DictConfig) else ():
            yield str(group).split()[-1].lstrip("/")
    document.pop("hydra", None)
    yield from _leaves(OmegaConf.to_container(document), "")


def _leaves(values: Any, parent: str) -> Iterator[str]:
    for key, value in values.items():
        name = f"{parent}.{key}" if parent else str(key)
        if isinstance(value, dict):
            yield from _leaves(value, name)
        else:
            yield name


def _apply(cfg: DictConfig, override: Override) -> None:
    """Set a key to the value of an override, as Hydra does."""
    key, value = override.key_or_group, override.value()
    parent, _, name = key.rpartition(".")
    try:
        there = OmegaConf.select(cfg, key, throw_on_missing=False) is not None
        if override.is_delete():
            if not there:
                raise UserError(f"'{override.input_line}': there is no '{key}' to remove")
            with open_dict(cfg):
                del (OmegaConf.select(cfg, parent) if parent else cfg)[name]
            return
        if override.is_add() and there and not isinstance(value, (dict, list)):
            raise UserError(f"'{override.input_line}': '{key}' is there already; leave the '+' out")
        OmegaConf.update(cfg, key, value, force_add=override.is_add() or override.is_force_add())
    except OmegaConfBaseException as error:
        raise ConfigCompositionException(f"Error merging override {override.input_line}") from error


def _like(
    base: DictConfig, cfg: DictConfig, point: Config, known: dict[tuple[str, ...], Any], values: list[Override]
) -> Config | None:
    """Return a copy of the point with other values for the same keys, or None if it must be composed afresh.

    base: the configuration without values. cfg: the point's configuration; modified in place. known: what was made of
    the overrides of one part; added to.
    """
    parts: dict[str, list[Override]] = {}
    for value in values:
        key = value.key_or_group
        # The name selects the options, and a workload's kind the keys.
        decides = key in _NAMES or (isinstance(value.value(), dict) and key in (*_OPTIONS, "workload"))
        if value.is_delete() or decides or _REFERS.search(str(value.value())):
            return None
        parts.setdefault(key.partition(".")[0], []).append(value)
    made = {}
    try:
        for name, overrides in parts.items():
            texts = tuple(str(override.input_line) for override in overrides)
            if texts not in known:
                known[texts] = _part(base, cfg, name, overrides)
            made[name] = known[texts]
    except OmegaConfBaseException:
        return None  # composing afresh reports the error
    return replace(point, **made)


def _part(base: DictConfig, cfg: DictConfig, name: str, overrides: list[Override]) -> Any:
    """Set these keys of the part `name` in cfg; return the part as an object."""
    first, *others = overrides
    if isinstance(first.value(), dict) and first.key_or_group == name and name in base and not others:
        return OmegaConf.to_object(OmegaConf.merge(base[name], first.value()))  # in half of the time
    # Dictionaries are merged with what is there, which must not be what the point before had.
    for key in {override.key_or_group: None for override in overrides if isinstance(override.value(), dict)}:
        there = copy.deepcopy(OmegaConf.select(base, key))
        OmegaConf.update(cfg, key, {} if there is None else there, merge=False, force_add=True)
    for override in overrides:
        free = override.key_or_group.startswith(_FREE)
        OmegaConf.update(cfg, override.key_or_group, override.value(), force_add=free)
    return OmegaConf.to_object(cfg[name]) if OmegaConf.is_config(cfg[name]) else cfg[name]


def _typed(cfg: DictConfig) -> Config:
    _type_options(cfg)
    _check_keys(cfg, Config, "")
    config = OmegaConf.to_object(cfg)
    assert isinstance(config, Config)
    return config


def _type_options(cfg: DictConfig) -> None:
    for group, schemas in _OPTIONS.items():
        if group not in cfg:
            continue
        name = cfg[group].name
        if name not in schemas:
            raise UserError(
                f"{group}.name={name}: there are {', '.join(schemas)}; choose one with {group}=<name>, "
                "which brings its options"
            )
        try:
            cfg[group].options = OmegaConf.merge(OmegaConf.structured(schemas[name]), cfg[group].options)
        except OmegaConfBaseException as error:
            raise UserError(
                f"{group}.options of '{name}': {_sentence(error)}; {group}={name} brings its own options"
            ) from None


def _check_keys(cfg: DictConfig, schema: type, parent: str) -> None:
    """Reject `+key=value` and `~key`, with which Hydra adds to and removes from a structured config."""
    valid = {f.name: f for f in fields(schema)}
    for key in cfg:
        if key not in valid:
            raise UserError(_unknown_key(str(key), parent, list(valid)))
        # With postponed annotations f.type is a string, so take the type from the default factory.
        nested = valid[str(key)].default_factory
        if isinstance(nested, type) and is_dataclass(nested):
            _check_keys(cfg[key], nested, f"{parent}.{key}" if parent else str(key))
    for key in valid:
        if key not in cfg:
            raise UserError(f"'{f'{parent}.{key}' if parent else key}' was removed from the configuration; leave it in")


def _sentence(error: Exception, folders: Sequence[Path] = ()) -> str:
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
            return where + _unknown_key(key, parent, list(cause.parent_node))
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


def _unknown_key(key: str, parent: str, valid: list[Any]) -> str:
    names = [str(name) for name in valid if name != "hydra"]
    if not names and not parent:
        return f"'{key}' is not a key of it, it has none"
    if not names and parent.endswith(".options"):
        return f"'{key}' is not a key of '{parent}': the {parent.partition('.')[0]} that was chosen has no options"
    if not names:
        return f"'{parent}.{key}' is not set yet: add it with '+', as +{parent}.{key}=<value>"
    where = f"'{parent}'" if parent else "the configuration"
    return f"'{key}' is not a key of {where}.{did_you_mean(key, names)} Valid keys: {', '.join(names)}"
