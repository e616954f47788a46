"""The probes of the roofline in each framework (the other half is in tests/worker/sides/roofline_probe_side.py)."""

from __future__ import annotations

from typing import Any

import pytest
from environments import in_environment

PRECISIONS = {"mxnet": ["fp32"]}
ENVIRONMENTS = {"keras": "tensorflow"}
FRAMEWORKS = ["pytorch", "tensorflow", "keras", "mxnet", "jax"]


def side(framework: str, function: str, *arguments: Any) -> Any:
    return in_environment(
        ENVIRONMENTS.get(framework, framework), "roofline_probe_side", function, framework, *arguments
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_products_and_copies_are_of_random_numbers(framework: str) -> None:
    precisions = PRECISIONS.get(framework, ["fp32", "bf16"])
    found = side(framework, "results", precisions)
    assert len(found) == 2 * len(precisions)
    for case, said in found.items():
        # For n = 4096 results, each the sum of 64 products of two independent standard normal numbers: deviation 8. The
        # estimate's relative standard error is about 1 / sqrt(2 n) = 1.1 %. bf16 has 8 significant bits, so that many
        # of its results are equal.
        expected = 8 if "product" in case else 1
        assert said["deviation"] == pytest.approx(expected, rel=0.06), (case, said)
        assert said["distinct"] > (0.1 if "bf16 product" in case else 0.95), (case, said)
        assert said["repeatable"], case


def test_peak_memory_is_reset_once_after_the_first_step() -> None:
    assert side("pytorch", "resets") == [1]
