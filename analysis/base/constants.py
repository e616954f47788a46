"""Names that a spec has for what is special in this package."""

from __future__ import annotations

CHECKPOINT, FAULT = "checkpoint", "fault"  # fields of a spec
NO_FAULT = "none"
# The strategy of a framework alone, on one GPU, with nothing around the network.
PLAIN = "plain"
