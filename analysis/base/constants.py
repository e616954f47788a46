"""Names in specs that this package treats specially."""

from __future__ import annotations

from harness.core.workload.spec import COMMAND, SCRIPT

CHECKPOINT, FAULT = "checkpoint", "fault"  # fields of a spec
NO_FAULT = "none"
# The framework alone on one GPU, without a distributed wrapper.
PLAIN = "plain"
# In the place of a framework: measurements from a table of the user's own.
IMPORTED = "imported"
# Trainings of which only the steps are known, not the network.
OWN_TRAININGS = (SCRIPT, COMMAND, IMPORTED)
