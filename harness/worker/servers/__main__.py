"""One parameter server: `python -m harness.worker.servers <process id of its rank> <open file that listens> [<another
open file, for what is to outlive it>]`.

Its settings come through stdin, as JSON. Ends with exit code 0 when all workers have said goodbye, 1 when one was lost.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys

# Linux ends it with its rank (PR_SET_PDEATHSIG, 1), however that ends; one that had ended before is no longer the
# parent. Before anything else that takes time.
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
        gone_well = Server(listener, settings, told["token"], shared).serve()
    # At once: threads still wait for connections.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if gone_well else 1)
