"""Marks the tests in this folder, which use the Slurm cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_cluster import able_to_run_slurm, another_slurm, shared_slurm, slurm

__all__ = ["able_to_run_slurm", "another_slurm", "shared_slurm", "slurm"]


@pytest.hookimpl(tryfirst=True)  # before pytest selects by -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.cluster)
