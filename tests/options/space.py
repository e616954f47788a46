"""The options matrix: which configurations of a framework the matrix trains.

They cover every pair of values of two options that the plan accepts under each strategy. The options are read from the
real schema (harness/config/schema.py) and from conf/framework/, and the real plan decides which are accepted, so that a
new option is covered automatically; one whose values the schema does not list needs a row in VALUES.

A configuration is *loose* if one of its values (16-bit arithmetic, compressed gradients, asynchronous updates) moves
its weights further from the reference than rounding does. It covers only pairs that contain that value, since its bound
could hide a defect of two other options.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import itertools
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from harness.config import composition as configuration
from harness.config.framework_capabilities import CAPABILITIES
from harness.config.schema import FRAMEWORK_OPTIONS, STRATEGY_OPTIONS, Config, Device, Pipeline, Precision, Scheduler
from harness.core.determinism import variables
from harness.core.errors import UserError
from harness.core.serialization import to_plain
from harness.core.spec import RunSpec
from harness.core.strategies import offered_by
from harness.plan.request import study_request

# Changes that an option's value makes to the configuration: key -> value; empty for the default.
Setting = Mapping[str, Any]
# Option name -> number of its value.
Choice = dict[str, int]
# Two options, each with the number of its value.
Pair = frozenset[tuple[str, int]]
DEFAULT: Setting = {}

# Values to try, besides the default, for options whose type does not list them. None: the option only affects
# durations, or has an effect only with another one, which sets it in EXTRAS.
VALUES: dict[str, Sequence[Any] | None] = {
    "framework.options.channels_last": [True, False],
    # Compiled networks need 1 MB; the matrix's networks are larger.
    "strategy.options.bucket_mb": [0.02, 1.0],
    "strategy.options.first_bucket_mb": [0.01],
    "strategy.options.powersgd_rank": None,
    "strategy.options.sync_every": [1, 3],
    "strategy.options.servers": [1],
    "strategy.options.staleness": [0],
    "strategy.options.stages": [1, 2],
    "strategy.options.microbatches": [2],
    "strategy.options.degree": [1, 2],
    "strategy.options.fusion_mb": [0.0],
    "strategy.options.cycle_ms": [5.0],
}
# Further settings that an option's value needs to be accepted or to have an effect.
EXTRAS: dict[tuple[str, Any], Setting] = {
    ("strategy.options.compress", "powersgd"): {"strategy.options.powersgd_rank": 2},
}
STEPS = 8
# For every run: small steps, since rounding grows with each when training on random noise.
FIXED = (
    *("dataset=synthetic", "dataset.train_samples=64", "dataset.test_samples=16", "data.check=false", "batch=4"),
    *("optimizer.lr=0.002", "optimizer.lr_batch=4", "optimizer.weight_decay=0.01", "optimizer.lr_rule=constant"),
    *("measure=smoke", "measure.warmup_steps=12", "cluster=local"),
)


@dataclasses.dataclass(frozen=True)
class Values:
    """Values of options, as named by `value_name`. loose: with bounds of their own. left_out: not trained with.
    slow: used in as few runs as possible."""

    loose: frozenset[str]
    left_out: frozenset[str]
    slow: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Run:
    """One configuration. name: its non-default values. loose: names of its loose values. forced: why the plan would
    reject it on the CPU; empty if it would not."""

    name: str
    spec: RunSpec
    environment: dict[str, str]
    loose: tuple[str, ...]
    forced: str

    def plain(self) -> dict[str, Any]:
        """Convert to plain values for the other half (train_side.py)."""
        return {"spec": to_plain(self.spec), "environment": self.environment}


def options(framework: str, strategy: str) -> dict[str, list[Setting]]:
    """Return the settings of each option, the default first."""
    offered = CAPABILITIES[framework]
    found: dict[str, list[Setting]] = {
        # One with fully connected layers, one with BatchNorm.
        "model": [DEFAULT, {"model.name": "resnet20", "dataset.image_size": 16}],
        "precision": _listed("precision", Precision.fp32, [Precision[name] for name in offered.precisions]),
        "data.pipeline": _listed("data.pipeline", Pipeline.harness, [Pipeline[name] for name in offered.pipelines]),
        "data.workers": [DEFAULT, {"data.workers": 0}],
        "deterministic": [DEFAULT, {"deterministic": True}],
        "optimizer.nesterov": [DEFAULT, {"optimizer.nesterov": True}],
        "optimizer.warmup_steps": [DEFAULT, {"optimizer.warmup_steps": 3}],
        "optimizer.lr_end_samples": [DEFAULT, {"optimizer.lr_peak_samples": 8, "optimizer.lr_end_samples": 80}],
        "optimizer.label_smoothing": [DEFAULT, {"optimizer.label_smoothing": 0.2}],
        "optimizer.norm_bias_factor": [DEFAULT, {"optimizer.norm_bias_factor": 4.0}],
        "optimizer.lookahead_steps": [
            DEFAULT,
            {
                "optimizer.lookahead_steps": 3,
                "optimizer.lookahead_decay": 0.5,
                "optimizer.lr_peak_samples": 8,
                "optimizer.lr_end_samples": 80,
            },
        ],
    }
    names = type(_composed(framework, strategy).optimizer.name)
    default = names.sgd
    found["optimizer.name"] = _listed("optimizer.name", default, [names[name] for name in offered.optimizers])
    for group, schema in (("framework", FRAMEWORK_OPTIONS[framework]), ("strategy", STRATEGY_OPTIONS[strategy])):
        hints = typing.get_type_hints(schema)
        for field in dataclasses.fields(schema):
            key = f"{group}.options.{field.name}"
            values = _values(key, hints[field.name])
            default = _at(_composed(framework, strategy), key)
            if values is not None:
                found[key] = _listed(key, default, values)
    return {name: settings for name, settings in found.items() if len(settings) > 1}


def strategies(framework: str) -> list[str]:
    return list(offered_by(framework))


@functools.cache
def runs(framework: str, strategy: str, gpus: int, values: Values) -> list[Run]:
    """Return runs that cover every pair of values that the plan accepts."""
    return _Space(framework, strategy, gpus, values).cover()


def value_name(option: str, setting: Setting) -> str:
    """Return e.g. 'precision=bf16'; for an option with several keys, the one with its own name."""
    key = option if option in setting else next(iter(setting), option)
    value = setting.get(key, "default")
    return f"{option}={_text(value)}"


class _Space:
    """The choices for one strategy and number of ranks."""

    def __init__(self, framework: str, strategy: str, gpus: int, values: Values) -> None:
        self.base = copy.deepcopy(_composed(framework, strategy))
        self.base.gpus = gpus
        self.options = options(framework, strategy)
        self.names = {o: [value_name(o, s) for s in settings] for o, settings in self.options.items()}
        self.loose, self.slow = set(values.loose), set(values.slow)
        self.usable = {
            option: [number for number, name in enumerate(names) if name not in values.left_out]
            for option, names in self.names.items()
        }
        self.asked: dict[tuple[tuple[str, int], ...], RunSpec | str] = {}

    def cover(self) -> list[Run]:
        """Cover all pairs greedily: extend each missing pair to a configuration with as many others as possible."""
        pairs = self._pairs()
        # Pairs with slow values last, so that few runs contain them.
        missing = dict(sorted(pairs.items(), key=lambda item: len(self._among(self.slow, item[1]))))
        found: list[Run] = []
        while missing:
            pair, choice = next(iter(missing.items()))
            choice = dict(choice)
            fixed = {*choice, *dict(pair)}
            kept = self._among(self.loose | self.slow, choice)
            for other, of_other in list(missing.items()):
                merged = {**choice, **of_other}
                if any(merged.get(o, 0) != choice.get(o, 0) for o in fixed) or (
                    self._among(self.loose | self.slow, merged) != kept
                ):
                    continue
                if any(merged.get(o, 0) != number for o, number in other):
                    continue
                if merged == choice or self._accepts(merged):
                    choice, fixed = merged, fixed | {*of_other, *dict(other)}
            found.append(self._run(choice))
            covered = self._covered(choice)
            assert pair in covered
            missing = {other: of_other for other, of_other in missing.items() if other not in covered}
        return found

    def _accepts(self, choice: Choice) -> bool:
        return isinstance(self.spec(choice), RunSpec)

    def spec(self, choice: Choice) -> RunSpec | str:
        """Return the planned spec on a machine with GPUs, or why the plan rejects the choice."""
        key = tuple(sorted((option, number) for option, number in choice.items() if number))
        if key not in self.asked:
            self.asked[key] = _planned(self._config(choice), on_gpus=True)
        return self.asked[key]

    def _config(self, choice: Choice) -> Config:
        point = copy.deepcopy(self.base)
        for option, number in choice.items():
            for key, value in self.options[option][number].items():
                parent, _, name = key.rpartition(".")
                setattr(functools.reduce(getattr, parent.split("."), point) if parent else point, name, value)
        return point

    def _pairs(self) -> dict[Pair, Choice]:
        """Return for each accepted pair of values the minimal choice that contains it."""
        singles = [{option: number} for option, numbers in self.usable.items() for number in numbers if number]
        # For example fused=true, which cuda_graph=true requires.
        helpers: dict[tuple[str, int], list[Choice]] = {}
        for single in singles:
            [value] = single.items()
            if not self._accepts(single):
                helpers[value] = [
                    other for other in singles if {*other} != {*single} and self._accepts({**single, **other})
                ]
        found: dict[Pair, Choice] = {}
        for one, other in itertools.combinations(self.options, 2):
            for a, b in itertools.product(self.usable[one], self.usable[other]):
                values = [(one, a), (other, b)]
                least = {option: number for option, number in values if number}
                for helper in ({}, *(helper for value in values for helper in helpers.get(value, ()))):
                    choice = {**helper, **least}
                    kept = all(choice.get(option, 0) == number for option, number in values)
                    if (
                        kept
                        and self._among(self.loose, choice) == self._among(self.loose, least)
                        and self._accepts(choice)
                    ):
                        found[frozenset(values)] = choice
                        break
        assert found, f"no run of strategy {self.base.strategy.name} on {self.base.gpus} ranks: {self.spec({})}"
        return found

    def _among(self, values: set[str], choice: Mapping[str, int]) -> set[str]:
        return {self.names[option][number] for option, number in choice.items()} & values

    def _covered(self, choice: Choice) -> set[Pair]:
        values = [(option, choice.get(option, 0)) for option in self.options]
        loose = self._among(self.loose, choice)
        pairs = set()
        for pair in itertools.combinations(values, 2):
            if loose <= {self.names[option][number] for option, number in pair}:
                pairs.add(frozenset(pair))
        return pairs

    def _run(self, choice: Choice) -> Run:
        changed = [self.names[option][choice[option]] for option in self.options if choice.get(option)]
        spec = self.spec(choice)
        assert isinstance(spec, RunSpec)
        on_cpu, forced = _planned(self._config(choice), on_gpus=False), ""
        if isinstance(on_cpu, str):
            forced = on_cpu
            on_cpu = dataclasses.replace(spec, cluster=dataclasses.replace(spec.cluster, device="cpu"))
        name = " ".join([self.base.strategy.name, f"gpus={spec.gpus}", *changed])
        return Run(name, on_cpu, dict(variables(on_cpu)), tuple(sorted(self._among(self.loose, choice))), forced)


def _planned(point: Config, on_gpus: bool) -> RunSpec | str:
    point.cluster.device = Device.cuda if on_gpus else Device.cpu
    if on_gpus:  # without a scheduler, this machine would need some
        point.cluster.scheduler, point.cluster.mpi = Scheduler.slurm, "pmix"
    try:
        [asked] = study_request([point]).requests
    except UserError as error:
        return str(error)
    return asked.spec


@functools.cache
def _composed(framework: str, strategy: str) -> Config:
    """Compose the configuration with all options at their defaults."""
    configuration.register()
    # Any interpreter: nothing is started.
    environment = f"framework.environment={sys.executable}"
    asked = (f"framework={framework}", f"strategy={strategy}", "model=cnn_small", environment)
    [point] = configuration.compose([*asked, *FIXED], False, "config", None)
    return point


def _values(key: str, hint: Any) -> Sequence[Any] | None:
    if key in VALUES:
        return VALUES[key]
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    found: list[Any] = []
    for kind in kinds:
        if kind is bool:
            found += [False, True]
        elif isinstance(kind, type) and issubclass(kind, enum.Enum):
            found += list(kind)
        elif kind is not types.NoneType:
            raise AssertionError(f"say in VALUES of tests/options/space.py which values of {key} are to be tried")
    return found


def _listed(key: str, default: Any, values: Sequence[Any]) -> list[Setting]:
    others = [value for value in values if value != default]
    return [DEFAULT, *({key: value, **EXTRAS.get((key, _text(value)), {})} for value in others)]


def _at(point: Config, key: str) -> Any:
    return functools.reduce(getattr, key.split("."), point)


def _text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
