"""Tests that share a fixture of their module run on one worker, which makes it once."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="module")
def shared() -> None:
    """Something that takes long to make."""


def test_a_module_with_a_fixture_of_its_own_is_a_group(shared: None, request: pytest.FixtureRequest) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("not with -n: there are no groups")
    assert request.node.nodeid.endswith("@test_groups"), "pytest-xdist ignores the marks of tests/conftest.py"
