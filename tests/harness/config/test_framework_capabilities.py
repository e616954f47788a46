"""Framework capabilities agree with the configuration and are not part of it."""

from __future__ import annotations

from dataclasses import fields

import yaml
from project import PROJECT, Cli

from harness.config.framework_capabilities import CAPABILITIES
from harness.config.optimizer_schema import OptimizerName
from harness.config.schema import FRAMEWORK_OPTIONS, STRATEGY_OPTIONS, Pipeline, Precision
from harness.core.strategies import offered_by
from models.catalog import CATALOG


def test_every_framework_has_capabilities_of_names_that_there_are() -> None:
    files = {path.stem for path in (PROJECT / "conf" / "framework").glob("*.yaml")}
    assert set(CAPABILITIES) == set(FRAMEWORK_OPTIONS) == files
    for framework, offered in CAPABILITIES.items():
        assert set(offered.precisions) <= set(Precision.__members__)
        assert set(offered.pipelines) <= set(Pipeline.__members__) - {"auto"}
        assert set(offered.optimizers) <= set(OptimizerName.__members__)
        assert set(offered.inputs) <= {row.inputs for row in CATALOG.values()}
        assert set(offered.no_effect) <= set(offered_by(framework))
        for strategy, options in offered.no_effect.items():
            assert set(options) <= {field.name for field in fields(STRATEGY_OPTIONS[strategy])}


def test_the_configuration_shows_only_what_a_user_may_set(cli: Cli) -> None:
    for framework in CAPABILITIES:
        done = cli("harness", "--cfg", "job", f"framework={framework}")
        assert done.returncode == 0, done.stderr
        assert set(yaml.safe_load(done.stdout)["framework"]) == {"name", "environment", "options"}
    refused = cli("harness", "framework.strategies=[plain]", "plan_only=true")
    assert refused.returncode == 2
    assert "'strategies' is not a key of 'framework'" in refused.stderr
