"""Names of what starts the ranks of a run."""

from __future__ import annotations

# Value of Resources.mpi for mpirun; other values are names for `srun --mpi=`.
MPIRUN = "mpirun"
# Placeholder in a container's command line for the supervisor's node, known only there.
NODE = "--nodelist=<this node>"
