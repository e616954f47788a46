"""Composes the points of a sweep. Besides `__main__`, the only room that knows Hydra and OmegaConf."""

from __future__ import annotations

import copy
import difflib
import functools
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from harness.config.schema import FRAMEWORK_OPTIONS, STRATEGY_OPTIONS, Config
from harness.core.errors import UserError

CONF = Path(__file__).resolve().parents[2] / "conf"
_OPTIONS = {"framework": FRAMEWORK_OPTIONS, "strategy": STRATEGY_OPTIONS}


def register() -> None:
    """Makes the schema and the default cluster known to Hydra; call once, before anything is composed."""
    ConfigStore.instance().store(name="schema", node=Config)
    # For each group that it lists, Hydra copies its sources, and with them this store; what it loads from the store it
    # copies once more, and that copy alone it changes. The first one was half of the time of --help.
    ConfigStore.__deepcopy__ = lambda store, _: store  # type: ignore[attr-defined]
    OmegaConf.register_new_resolver(
        "default_cluster", lambda: "slurm" if shutil.which("sbatch") else "local", replace=True
    )


def compose(overrides: Sequence[str], multirun: bool, config_name: str, config_dir: str | None) -> list[Config]:
    """Every point that the command line asks for; one without `-m`.

    Hydra's own launcher composes each point twice from its files. Here each distinct choice of groups is composed
    once by Hydra, and the values of each point are applied to a copy by the function that Hydra itself uses for it
    (tests/test_config.py compares the two): to all of it once, and for further points, which give other values to the
    same keys, to the fields alone that these keys are in. Points share all others. Raises UserError.
    """
    search_path = create_config_search_path(str(CONF))
    if config_dir:
        if not Path(config_dir).is_dir():
            raise UserError(f"--config-dir {config_dir}: there is no such folder")
        folder = f"file://{Path(config_dir).resolve()}"
        search_path.append("command-line", folder, anchor=SearchPathQuery(provider="main"))
    hydra = Hydra.create_main_hydra2(task_name="harness", config_search_path=search_path)
    try:
        return list(_points(hydra.config_loader, config_name, list(overrides), multirun))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_sentence(error)) from None
    finally:
        GlobalHydra.instance().clear()


def _points(loader: Any, config_name: str, overrides: list[str], multirun: bool) -> Iterator[Config]:
    parser = OverridesParser.create(config_loader=loader)
    parsed = parser.parse_overrides(overrides)
    for override in parsed:
        # They steer what Hydra does with a point: its folders, logs, launchers. Here it only composes.
        if override.is_hydra_override():
            raise UserError(f"'{override.input_line}': keys of hydra itself have no effect here; leave it out")
    if not multirun:
        cfg = loader.load_configuration(config_name, overrides, RunMode.RUN)
        if sweep := _sweep_of_experiment(cfg):
            raise UserError(f"the experiment sweeps over {' '.join(sweep)}: add -m to the command")
        yield _typed(_without_hydra(cfg))
        return
    # An experiment may bring a sweep of its own (hydra.sweeper.params); the command line wins over it, key by key.
    fixed = [o.input_line for o in parsed if not o.is_sweep_override() and o.input_line]
    of_experiment = _sweep_of_experiment(loader.load_configuration(config_name, fixed, RunMode.MULTIRUN))
    parsed = parser.parse_overrides(of_experiment + overrides)
    composed: dict[tuple[str, ...], DictConfig] = {}
    first: dict[tuple[tuple[str, ...], ...], Config] = {}  # of the points that give values to the same keys
    parse = functools.cache(lambda text: parser.parse_override(text))
    is_group = functools.cache(lambda key: bool(loader.get_group_options(key)))
    for point in BasicSweeper.split_arguments(parsed, None)[0]:
        choices, values = _split([parse(text) for text in point], is_group)
        if choices not in composed:
            cfg = loader.load_configuration(config_name, list(choices), RunMode.RUN)
            if _sweep_of_experiment(cfg) != of_experiment:
                raise UserError("an experiment that brings a sweep of its own cannot be swept over: name one at a time")
            composed[choices] = _without_hydra(cfg)
        keys = choices, tuple(value.get_key_element() for value in values)
        refers = any("${" in text for text in point)
        if keys in first and not refers:
            yield _like(first[keys], composed[choices], values)
            continue
        cfg = copy.deepcopy(composed[choices])
        ConfigLoaderImpl._apply_overrides_to_config(values, cfg)
        # Where a value refers to another key, that one's fields are not all that it changes.
        refers = refers or "${" in str(OmegaConf.to_container(cfg))
        typed = _typed(cfg)
        if not refers:
            first[keys] = typed
        yield typed


def _like(point: Config, composed: DictConfig, values: list[Override]) -> Config:
    """The point, with other values of the same keys."""
    names = dict.fromkeys(value.key_or_group.partition(".")[0] for value in values)
    cfg = DictConfig({name: composed._get_node(name) for name in names})  # OmegaConf.masked_copy drops their types
    OmegaConf.set_struct(cfg, True)  # as it is in what Hydra composes
    ConfigLoaderImpl._apply_overrides_to_config(values, cfg)
    _type_options(cfg)
    _check_keys(cfg, Config, "", names)
    made = OmegaConf.to_object(cfg)
    assert isinstance(made, dict)
    return replace(point, **{str(key): value for key, value in made.items()})


def _split(overrides: Sequence[Override], is_group: Callable[[str], bool]) -> tuple[tuple[str, ...], list[Override]]:
    """(choices of groups and keys of hydra itself, values), as Hydra tells them apart."""
    choices, values = [], []
    for override in overrides:
        is_value = isinstance(override.value(), dict) or not is_group(override.key_or_group)
        if is_value and not override.is_hydra_override():
            values.append(override)
        else:
            choices.append(str(override.input_line))
    return tuple(choices), values


def _sweep_of_experiment(cfg: DictConfig) -> list[str]:
    return [f"{key}={value}" for key, value in (cfg.hydra.sweeper.params or {}).items()]


def _without_hydra(cfg: DictConfig) -> DictConfig:
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def _typed(cfg: DictConfig) -> Config:
    _type_options(cfg)
    _check_keys(cfg, Config, "")
    config = OmegaConf.to_object(cfg)
    assert isinstance(config, Config)
    return config


def _type_options(cfg: DictConfig) -> None:
    """Of the framework and the strategy, where they are in it."""
    for group, schemas in _OPTIONS.items():
        if group not in set(cfg):
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


def _check_keys(cfg: DictConfig, schema: type, parent: str, only: Iterable[str] | None = None) -> None:
    """Hydra lets `+key=value` add to a structured config and `~key` take from it: neither is asked for here. only: the
    keys that it is to have, if not all."""
    valid = {f.name: f for f in fields(schema)}
    for key in cfg:
        if key not in valid:
            raise UserError(_unknown_key(str(key), parent, list(valid)))
        # The type of a field stands in its default factory: with postponed annotations f.type is only a name.
        nested = valid[str(key)].default_factory
        if isinstance(nested, type) and is_dataclass(nested):
            _check_keys(cfg[key], nested, f"{parent}.{key}" if parent else str(key))
    for key in valid if only is None else only:
        if key not in cfg:
            raise UserError(f"'{f'{parent}.{key}' if parent else key}' was removed from the configuration; leave it in")


def _sentence(error: Exception) -> str:
    """Hydra's and OmegaConf's messages run over many lines; the first lines of the error and its cause say it all."""
    cause = error.__cause__ or error
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)) and isinstance(cause.parent_node, DictConfig):
        parent, _, key = str(cause.full_key).rpartition(".")
        return _unknown_key(key, parent, list(cause.parent_node))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, MissingConfigException):
        # The search path that follows names folders, which does not help to find the right word.
        kept = itertools.takewhile(lambda line: not line.startswith("Config search path"), lines)
        return " ".join(kept).removeprefix("In 'config': ")
    if "Ambiguous" in lines[0] or "No match in the defaults list" in lines[0]:
        return " ".join(lines).replace("\\'", "'")
    if isinstance(error, OverrideParseException):
        return f"'{error.override}' is not of the form key=value, nor a list of values: {lines[0]}"
    text = "; ".join(dict.fromkeys([lines[0], str(cause).strip().splitlines()[0]]))
    if isinstance(cause, OmegaConfBaseException) and cause.full_key and cause.full_key not in text:
        text = f"{cause.full_key}: {text}"
    return text


def _unknown_key(key: str, parent: str, valid: list[Any]) -> str:
    names = [str(name) for name in valid if name != "hydra"]
    if not names and not parent:
        return f"'{key}' is not a key of it, it has none"
    if not names and parent.endswith(".options"):
        return f"'{key}' is not a key of '{parent}': the {parent.partition('.')[0]} that was chosen has no options"
    if not names:
        return f"'{parent}.{key}' is not set yet: add it with '+', as +{parent}.{key}=<value>"
    close = difflib.get_close_matches(key, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    where = f"'{parent}'" if parent else "the configuration"
    return f"'{key}' is not a key of {where}.{hint} Valid keys: {', '.join(names)}"
