"""Ranks of torch.distributed disconnect (other half: tests/worker/sides/process_group_side.py)."""

from __future__ import annotations

import pytest
from environments import in_environment

pytestmark = pytest.mark.torch


@pytest.mark.quiet  # gloo's threads get the rest of one core
def test_who_leaves_does_not_wait_for_a_thread_that_waits_for_python() -> None:
    # gloo's thread needs the GIL to free a message; the main thread could hold it while waiting for that thread.
    assert in_environment("pytorch", "process_group_side", "leaves_while_gloo_frees")
