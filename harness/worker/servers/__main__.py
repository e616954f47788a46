"""Run one parameter server: `python -m harness.worker.servers <process id of its rank> <listening file descriptor>
[<file descriptor of shared counters>]`.

Reads its settings as JSON from stdin. Exits with 0 once all workers have signed off, with 1 if one was lost.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys

# Linux kills the server when its rank dies (PR_SET_PDEATHSIG, 1). Set this first, and exit if the rank is already gone,
# which the parent process id shows.
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)

from harness.worker.servers.parameters import Settings, counters_length  # noqa: E402
from harness.worker.servers.server import Server  # noqa: E402
from harness.worker.servers.shared_counters import SharedCounters  # noqa: E402

if __name__ == "__main__":
    told = json.load(sys.stdin)
    settings = Settings(**told["settings"])
    shared = SharedCounters(int(sys.argv[3]), counters_length(settings)) if len(sys.argv) > 3 else None
    with socket.socket(fileno=int(sys.argv[2])) as listener:
        complete = Server(listener, settings, told["token"], shared).serve()
    # Skip the clean-up: threads still wait for connections.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if complete else 1)
