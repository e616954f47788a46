"""What starts the ranks of a run."""

from __future__ import annotations

# In Resources.mpi; anything else there is a name for `srun --mpi=`.
MPIRUN = "mpirun"
# In a container's command line: the node of the rank's supervisor, known only there.
NODE = "--nodelist=<this node>"
