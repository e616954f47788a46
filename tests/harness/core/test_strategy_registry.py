"""The registry of strategies agrees with the configuration, the schema of the options, and the adapters."""

from __future__ import annotations

import ast
from dataclasses import fields

import pytest
import yaml
from environments import in_environment
from project import PROJECT

from harness.config.schema import STRATEGY_OPTIONS
from harness.core import strategies
from harness.core.strategies import NETWORK, PLAIN, STRATEGIES, StrategyInfo

CONF = PROJECT / "conf"
FRAMEWORKS = sorted(path.stem for path in (CONF / "framework").glob("*.yaml"))


def test_every_strategy_has_a_configuration_with_exactly_the_options_of_its_schema() -> None:
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (CONF / "strategy").glob("*.yaml")]
    assert {file["name"] for file in files} == set(STRATEGIES) == set(STRATEGY_OPTIONS)
    assert all((CONF / "strategy" / f"{name}.yaml").is_file() for name in STRATEGIES)
    for file in files:
        assert set(file["options"]) == {field.name for field in fields(STRATEGY_OPTIONS[file["name"]])}, file["name"]


def test_the_registry_names_known_frameworks_only() -> None:
    assert {framework for row in STRATEGIES.values() for framework in row.frameworks} == set(FRAMEWORKS)
    assert set(STRATEGIES[PLAIN].frameworks) == set(FRAMEWORKS)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_adapter_has_a_class_for_each_strategy_that_its_framework_offers(framework: str) -> None:
    environment = yaml.safe_load((CONF / "framework" / f"{framework}.yaml").read_text(encoding="utf-8"))["environment"]
    offered = strategies.offered_by(framework)
    assert in_environment(environment, "registry_side", "classes", framework, offered) == list(offered)


@pytest.mark.parametrize("row", STRATEGIES.values(), ids=lambda row: row.name)
def test_registry_rows_are_consistent(row: StrategyInfo) -> None:
    options = {field.name for field in fields(STRATEGY_OPTIONS[row.name])}
    assert (row.divides == NETWORK) == (row.ranks_option is not None)
    assert row.ranks_option is None or row.ranks_option in options
    assert (row.servers is not None) == ("servers" in options)
    assert (row.servers == strategies.BOUNDED) == ("staleness" in options)
    assert not (row.asynchronous and row.synchronous)
    assert not row.message or row.synchronous
    assert set(row.labels) <= set(row.frameworks)


def test_unknown_strategy_has_no_properties() -> None:
    row = strategies.info("of_another_version")
    assert row == StrategyInfo("of_another_version")
    assert not any((row.synchronous, row.servers, row.divides, row.message, row.package, row.mpi))
    assert row.label_in("pytorch") == "of another version"


def test_no_other_module_has_a_set_of_strategy_names() -> None:
    """Such a set belongs in the registry; elsewhere, new strategies would be forgotten."""
    listed = []
    for path in (path for package in ("harness", "analysis") for path in (PROJECT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
                named = {item.value for item in node.elts if isinstance(item, ast.Constant)} & set(STRATEGIES)
                if len(named) > 1:
                    listed.append(f"{path.relative_to(PROJECT)}:{node.lineno}: {', '.join(sorted(named))}")
    assert not listed
