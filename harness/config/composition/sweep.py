"""Compose the points of a sweep with Hydra."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from harness.config import workload
from harness.config.composition.messages import sentence, yaml_sentence
from harness.config.composition.points import SweepPoints, has_references, refers
from harness.config.schema import Config
from harness.config.workload_schema import Kind
from harness.core.errors import UserError

CONF = Path(__file__).resolve().parents[3] / "conf"
_VERSION_BASE = "1.3"
# A defaults list, up to the next key.
_DEFAULTS = re.compile(r"\bdefaults\b.*?(?=^[^\s#-]|\Z)", re.MULTILINE | re.DOTALL)
# An interpolation of a group's choice; a call of a resolver has a colon.
_CHOICE = re.compile(r"\$\{[^:{}]*\}")
# Timed steps, if measure.steps is not given: with a precision at most, else exactly.
_ADAPTIVE_STEPS, _FIXED_STEPS = 1000, 200


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

    Hydra's own launcher composes each point from its files. Here Hydra composes each choice of a group once, the parts
    are combined, and the values of a point are applied to a copy (tests/harness/config/test_config.py compares the
    two).

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
        raise UserError(sentence(error, folders)) from None
    except MarkedYAMLError as error:
        raise UserError(yaml_sentence(error)) from None
    return points if command is None else [workload.with_command(point, list(command)) for point in points]


class _Composed(NamedTuple):
    """A configuration as Hydra composed it. sweep: overrides of the experiment's own sweep."""

    cfg: DictConfig
    sweep: tuple[str, ...]


class _Composer:
    """Composes points while Hydra is initialised."""

    def __init__(self, config_name: str, folders: Sequence[Path]) -> None:
        """folders: conf/ and the folder of --config-dir, which hold the groups."""
        self._config_name, self._folders = config_name, folders
        added = ["'file://" + str(folder).replace("'", "\\'") + "'" for folder in folders[1:]]
        self._search_path = [f"hydra.searchpath=[{','.join(added)}]"] if added else []
        self._parser = OverridesParser.create()
        self._is_group = functools.cache(lambda key: any((folder / key).is_dir() for folder in folders))
        self._by_hydra = functools.cache(self._compose_by_hydra)
        self._composed = functools.cache(self._compose)
        self._combined = functools.cache(self._combine)
        self._is_apart = functools.cache(self._find_apart)
        self._first: tuple[str, ...] = ()  # choices of the first point

    def points(self, overrides: list[str], multirun: bool) -> Iterator[Config]:
        given = self._parser.parse_overrides(overrides)
        for override in given:
            # Hydra's own settings (folders, logs, launchers) have no effect on composition.
            if override.is_hydra_override():
                raise UserError(f"'{override.input_line}': keys of hydra itself have no effect here; leave it out")
            if override.is_sweep_override() and not multirun:
                raise UserError(f"'{override.input_line}' gives several values: to sweep over them, add -m")
        swept = self._swept(overrides)
        # An experiment may bring its own sweep (hydra.sweeper.params); the command line overrides it key by key.
        from_experiment = self._sweep_of_experiment(given, swept)
        of_experiment = tuple(_declared(from_experiment))
        keys = dict(self._keys([*self._parser.parse_overrides(list(of_experiment)), *given]))
        if of_experiment and not multirun:
            raise UserError(f"the experiment sweeps over {' '.join(of_experiment)}: add -m to the command")
        if of_experiment:
            swept = self._swept([*of_experiment, *overrides])
        for elements in itertools.product(*swept):
            choices, values = self._split(elements)
            self._first = self._first or choices
            others = self._combined(choices)
            if others and any(map(refers, values)):
                others = {}
            points, sweep = self._composed(self._first if others else choices)
            if sweep != from_experiment:
                raise UserError("an experiment that brings a sweep of its own cannot be swept over: name one at a time")
            point = points.point(values)
            if others:
                point = replace(point, **{group: getattr(of.point(values), group) for group, of in others.items()})
            if point.workload.kind is not Kind.catalog:
                workload.check_keys(keys, point.workload.kind)
            yield point

    def _sweep_of_experiment(self, given: Sequence[Override], swept: Iterable[list[Override]]) -> tuple[str, ...]:
        """Return the overrides of the sweep that an experiment among those given brings."""
        first = next(itertools.product(*swept), None)
        # The first point, which is composed anyway, has all groups that are given.
        if first is not None and not self._by_hydra(self._split(first)[0]).sweep:
            return ()
        fixed, _ = self._split([override for override in given if not override.is_sweep_override()])
        return self._by_hydra(fixed).sweep

    def _compose(self, choices: tuple[str, ...]) -> tuple[SweepPoints, tuple[str, ...]]:
        """Compose the chosen groups; return their points and the sweep that an experiment among them brings."""
        composed = self._by_hydra(choices)
        return SweepPoints(composed.cfg), composed.sweep

    def _compose_by_hydra(self, choices: tuple[str, ...]) -> _Composed:
        cfg = hydra.compose(self._config_name, [*choices, *self._search_path], return_hydra_config=True)
        sweep = tuple(f"{key}={value}" for key, value in (cfg.hydra.sweeper.params or {}).items())
        with open_dict(cfg):
            del cfg["hydra"]
        return _Composed(cfg, sweep)

    def _combine(self, choices: tuple[str, ...]) -> Mapping[str, SweepPoints]:
        """Return, for each group whose choice is not the first point's, the points that differ from it in that choice
        alone: theirs are the parts of these choices, the other parts are the first point's. Hydra takes 0.1 s per
        combination, and a grid has many.

        Empty if at most one choice differs, or if the result might not be what Hydra composes.
        """
        if len(choices) != len(self._first):
            return {}
        changed = [i for i, (first, own) in enumerate(zip(self._first, choices, strict=True)) if first != own]
        if len(changed) < 2 or not all(self._is_apart(i, choices[i]) for i in changed):
            return {}
        return {choices[i].partition("=")[0]: self._composed(self._with(i, choices[i]))[0] for i in changed}

    def _with(self, i: int, choice: str) -> tuple[str, ...]:
        """Return the choices of the first point with another one in place i."""
        return (*self._first[:i], choice, *self._first[i + 1 :])

    def _find_apart(self, i: int, choice: str) -> bool:
        """Return whether a choice changes only its own part of the configuration, whatever the other choices are."""
        group = choice.partition("=")[0]
        first, own = self._by_hydra(self._first), self._by_hydra(self._with(i, choice))
        if group not in first.cfg or group not in own.cfg or own.sweep != first.sweep:
            return False
        if self._follows_choices or self._sets_others(group) or has_references(first.cfg) or has_references(own.cfg):
            return False
        return _without(own.cfg, group) == _without(first.cfg, group)

    @functools.cached_property
    def _follows_choices(self) -> bool:
        """Whether the defaults list of the primary config depends on a choice. Hydra allows that in no other list."""
        text = (self._folders[0] / f"{self._config_name.removesuffix('.yaml')}.yaml").read_text(encoding="utf-8")
        return any(map(_CHOICE.search, _DEFAULTS.findall(text)))

    def _sets_others(self, group: str) -> bool:
        """Return whether files of this group may set keys of other groups; True if one cannot be read."""
        files = (file for folder in self._folders for file in (folder / group).glob("*.yaml"))
        try:
            texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
        except OSError:
            return True
        return any("@package" in text or _DEFAULTS.search(text) for text in texts)

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

    def _swept(self, overrides: list[str]) -> Iterable[list[Override]]:
        """Expand each key into one override per value. If a key is given twice, the last one counts."""
        lists: dict[str, list[Override]] = {}
        for override in self._parser.parse_overrides(overrides):
            if isinstance(pattern := override.value(), Glob):
                values: Iterable[Any] = pattern.filter(self._options(override.key_or_group))
            elif override.is_discrete_sweep():
                values = override.sweep_iterator()
            elif override.is_sweep_override():
                raise UserError(f"'{override.input_line}': there are no intervals here; list the values")
            else:
                values = [override._value]
            # Not parsed again as Hydra's launcher does: for dictionaries, that would be a fifth of a plan's time.
            lists[override.get_key_element()] = [_element(override, value) for value in values]
        return lists.values()

    def _options(self, group: str) -> list[str]:
        return sorted({path.stem for folder in self._folders for path in (folder / group).glob("*.yaml")})


def _element(override: Override, value: Any) -> Override:
    """Return the override with one of its values."""
    element = replace(override, value_type=ValueType.ELEMENT, _value=value)
    element.input_line = f"{element.get_key_element()}={element.get_value_element_as_str()}"
    return element


def _without(cfg: DictConfig, group: str) -> str:
    return repr([item for item in OmegaConf.to_container(cfg).items() if item[0] != group])  # type: ignore[union-attr]


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
