"""What carries gradients, and what a run says of it (the other half is in tests/transports_side.py)."""

from __future__ import annotations

from typing import Any

import pytest
from environments import in_environment
from project import PROJECT

pytestmark = pytest.mark.torch


def side(function: str, *arguments: Any) -> Any:
    return in_environment("pytorch", "transports_side", function, *arguments)


def test_horovod_says_what_carries_gradients_and_what_carries_control() -> None:
    if not list((PROJECT / ".envs" / "pytorch").glob("lib/*/site-packages/horovod")):
        pytest.skip("the PyTorch environment is without Horovod")
    found = side("horovod_names")
    nccl = found.pop("built") == "True"
    for controller in ("gloo", "mpi"):
        through_host = f"Horovod over {controller}, through the host's memory"
        by_nccl = f"nccl, control over {controller}"
        assert found[f"cpu {controller} here"] == f"Horovod over {controller}"
        assert found[f"cpu {controller} nccl"] == controller
        assert found[f"cuda {controller} here"] == (f"Horovod over {by_nccl}" if nccl else through_host)
        assert found[f"cuda {controller} nccl"] == by_nccl
