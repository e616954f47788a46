"""`python -m harness.launch.daemon <command>`: starts mpirun's daemon on a node with Slurm's signals blocked.

The time-limit warning and SIGTERM are for the supervisors. The daemon would exit at once and take them and MPI with it.
Open MPI unblocks all signals in the processes that it starts.
"""

from __future__ import annotations

import os
import signal
import sys

BLOCKED_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    os.execvp(sys.argv[1], sys.argv[1:])
