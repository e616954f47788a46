"""Names in specs that this package treats specially."""

from __future__ import annotations

CHECKPOINT, FAULT = "checkpoint", "fault"  # fields of a spec
NO_FAULT = "none"
# The framework alone on one GPU, without a distributed wrapper.
PLAIN = "plain"
