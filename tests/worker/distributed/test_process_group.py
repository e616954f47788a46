"""Ranks of torch.distributed take leave (the other half is in tests/worker/sides/process_group_side.py)."""

from __future__ import annotations

import pytest
from environments import in_environment

pytestmark = pytest.mark.torch


@pytest.mark.quiet  # gloo's threads get the rest of one core
def test_who_leaves_does_not_wait_for_a_thread_that_waits_for_python() -> None:
    # gloo's thread frees a message with Python's lock, which the main thread could hold while it waited for the thread.
    assert in_environment("pytorch", "process_group_side", "leaves_while_gloo_frees")
