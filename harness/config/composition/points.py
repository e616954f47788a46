"""Make the points of a sweep from a composed configuration and the values of overrides."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from harness.config.composition.messages import sentence, unknown_key
from harness.config.schema import FRAMEWORK_OPTIONS, STRATEGY_OPTIONS, Config
from harness.core.errors import UserError

_OPTIONS = {"framework": FRAMEWORK_OPTIONS, "strategy": STRATEGY_OPTIONS}
_NAMES = tuple(f"{group}.name" for group in _OPTIONS)
# An interpolation that may leave its group: neither `${.key}` nor a resolver of such.
_REFERS = re.compile(r"\$\{(?!\.[^.]|default_steps:)")
# Keys that hold whatever the user gives.
_FREE = ("workload.params", "cluster.env")


class SweepPoints:
    """Makes the points that share a choice of groups. Those that override the same keys share all other fields."""

    def __init__(self, composed: DictConfig) -> None:
        """composed: the configuration without values."""
        self._composed = composed
        self._first: Config | None = None
        self._parts: dict[tuple[str, ...], Any] = {}  # by the overrides of one part

    def point(self, values: Sequence[Override]) -> Config:
        """Return the configuration with these values. All points of a sweep override the same keys.

        Raises:
            UserError, OmegaConfBaseException, HydraException
        """
        like = self._like(values)
        return self._made(values) if like is None else like

    def _made(self, values: Sequence[Override]) -> Config:
        cfg = copy.deepcopy(self._composed)
        for value in values:
            _apply(cfg, value)
        # With interpolations, overriding a key can change fields of other groups too.
        shared = self._first is None and not has_references(cfg)
        _type_options(cfg)
        _check_keys(cfg, Config, "")
        config = OmegaConf.to_object(cfg)
        assert isinstance(config, Config)
        if shared:
            self._base = copy.deepcopy(self._composed)
            _type_options(self._base)
            self._first, self._cfg = config, cfg
        return config

    def _like(self, values: Sequence[Override]) -> Config | None:
        """Return a copy of the first point with these values, or None if it must be composed afresh."""
        if self._first is None:
            return None
        parts: dict[str, list[Override]] = {}
        for value in values:
            key = value.key_or_group
            # The name selects the options, and a workload's kind the keys.
            decides = key in _NAMES or (isinstance(value.value(), dict) and key in (*_OPTIONS, "workload"))
            if value.is_delete() or decides or refers(value):
                return None
            parts.setdefault(key.partition(".")[0], []).append(value)
        made = {}
        try:
            for name, overrides in parts.items():
                texts = tuple(str(override.input_line) for override in overrides)
                if texts not in self._parts:
                    self._parts[texts] = self._part(name, overrides)
                made[name] = self._parts[texts]
        except OmegaConfBaseException:
            return None  # composing afresh reports the error
        return replace(self._first, **made)

    def _part(self, name: str, overrides: Sequence[Override]) -> Any:
        """Return the field `name` with these values."""
        # Every point sets the same keys, in place since copying takes as long as the rest; but dictionaries are merged
        # with what is there, which must not be what the point before had.
        merged = any(isinstance(override.value(), dict) for override in overrides)
        part = OmegaConf.masked_copy(self._base, name) if merged else self._cfg
        for override in overrides:
            key = override.key_or_group
            OmegaConf.update(part, key, override.value(), force_add=key.startswith(_FREE))
        value = part[name]
        return OmegaConf.to_object(value) if OmegaConf.is_config(value) else value


def has_references(cfg: DictConfig) -> bool:
    """Return whether a configuration may interpolate keys of other groups."""
    return _REFERS.search(str(OmegaConf.to_container(cfg))) is not None


def refers(value: Override) -> bool:
    """Return whether the value of an override may interpolate another key."""
    return _REFERS.search(str(value.value())) is not None


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
                f"{group}.options of '{name}': {sentence(error)}; {group}={name} brings its own options"
            ) from None


def _check_keys(cfg: DictConfig, schema: type, parent: str) -> None:
    """Reject `+key=value` and `~key`, with which Hydra adds to and removes from a structured config."""
    valid = {f.name: f for f in fields(schema)}
    for key in cfg:
        if key not in valid:
            raise UserError(unknown_key(str(key), parent, list(valid)))
        # With postponed annotations f.type is a string, so take the type from the default factory.
        nested = valid[str(key)].default_factory
        if isinstance(nested, type) and is_dataclass(nested):
            _check_keys(cfg[key], nested, f"{parent}.{key}" if parent else str(key))
    for key in valid:
        if key not in cfg:
            raise UserError(f"'{f'{parent}.{key}' if parent else key}' was removed from the configuration; leave it in")
