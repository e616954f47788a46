"""`python -m harness.launch.daemon <command>`: mpirun's daemon on a node, deaf to what Slurm tells every process.

A warning and an end are for the watchers to hear. The daemon would end at once, and they and MPI with it. What it
starts hears again: Open MPI unblocks all signals for it.
"""

from __future__ import annotations

import os
import signal
import sys

DEAF_TO = (signal.SIGTERM, signal.SIGUSR2)

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
    os.execvp(sys.argv[1], sys.argv[1:])
