"""The processes that MXNet's distributed KVStore needs: one scheduler, and servers that sum."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Callable, Dict, List

from harness.core.rendezvous import Rendezvous
from harness.worker.distributed.exchange import gather, own_address
from harness.worker.servers.colocated import CLOSE_SECONDS, end, start_ignoring_rank_signals

# Linux kills the process when its rank dies (PR_SET_PDEATHSIG, 1); exit if the rank is already gone, which the parent
# process id shows. The role is set after importing MXNet: otherwise importing a part of MXNet would run it before the
# parts that our rule needs are loaded (rule.py).
PROGRAM = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    import mxnet
    from mxnet.kvstore.kvstore_server import KVStoreServer
    os.environ["DMLC_ROLE"] = sys.argv[2]
    KVStoreServer(mxnet.kvstore.create("dist")).run()
"""


class Servers:
    """Starts the scheduler on rank 0, and a server on ranks with `here`.

    If one ends early the rank exits; MXNet would wait forever.
    """

    def __init__(
        self, rendezvous: Rendezvous, timeout_seconds: float, workers: int, servers: int, here: bool = True
    ) -> None:
        address = own_address(rendezvous)
        # The scheduler listens at this address, so it cannot be a name; the port is free after this exchange.
        first = gather(rendezvous, address, timeout_seconds)[0]
        self.variables: Dict[str, str] = {
            "DMLC_PS_ROOT_URI": first,
            "DMLC_PS_ROOT_PORT": str(rendezvous.master_port),
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
        }
        if "DMLC_INTERFACE" not in os.environ:
            # Otherwise MXNet picks an interface, never loopback.
            self.variables["DMLC_NODE_HOST"] = address
        self.closing = False
        self.processes: List[subprocess.Popen[bytes]] = []
        if rendezvous.rank == 0:
            self._start("scheduler")
        if here:
            self._start("server")

    def worker(self) -> None:
        """Make this process a worker; call before creating its KVStore."""
        os.environ.update(self.variables, DMLC_ROLE="worker")

    def close(self, leave: Callable[[], None]) -> None:
        """Close the KVStore by `leave`, which waits for the other ranks, and then wait for the processes."""
        self.closing = True
        leaving = threading.Thread(target=leave, name="close KVStore", daemon=True)
        leaving.start()
        leaving.join(CLOSE_SECONDS)
        for process in self.processes:
            end(process)

    def _start(self, role: str) -> None:
        command = [sys.executable, "-c", PROGRAM, str(os.getpid()), role, "of KVStore"]
        environment = {**os.environ, **self.variables}
        process = start_ignoring_rank_signals(command, env=environment, stdin=subprocess.DEVNULL)
        self.processes.append(process)
        threading.Thread(target=self._watch, args=(role, process), name=f"watch {role}", daemon=True).start()

    def _watch(self, role: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if not self.closing:
            print(f"error: the KVStore's {role} ended too early, with exit code {code}", file=sys.stderr, flush=True)
            os._exit(1)
