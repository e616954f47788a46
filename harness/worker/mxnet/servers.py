"""The processes beside the ranks that MXNet's distributed KVStore needs: one scheduler, and servers that sum."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Callable, Dict, List

from harness.core.rendezvous import Rendezvous
from harness.worker.distributed.exchange import gather, own_address

CLOSE_SECONDS = 10.0
# Linux ends it with the rank (PR_SET_PDEATHSIG, 1), however the rank ends; one that had ended before is no longer the
# parent. It takes its role when MXNet is there as a whole: in the role already, it would be run by the import of a part
# of MXNet, without the others, which a rule of ours needs (rule.py).
PROGRAM = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    import mxnet
    from mxnet.kvstore.kvstore_server import KVStoreServer
    os.environ["DMLC_ROLE"] = sys.argv[2]
    KVStoreServer(mxnet.kvstore.create("dist")).run()
"""
# What the rank is told, and its watcher and Slurm tell all processes of a task: none of it is for these to hear.
FOR_THE_RANK = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Servers:
    """Rank 0 starts the scheduler, and every rank that is to have one a server (`here`).

    When one ends too early the rank ends too: MXNet itself would wait for ever.
    """

    def __init__(
        self, rendezvous: Rendezvous, timeout_seconds: float, workers: int, servers: int, here: bool = True
    ) -> None:
        address = own_address(rendezvous)
        # An address and not a name: the scheduler listens there itself. On the port that was the ranks' until here.
        first = gather(rendezvous, address, timeout_seconds)[0]
        self.variables: Dict[str, str] = {
            "DMLC_PS_ROOT_URI": first,
            "DMLC_PS_ROOT_PORT": str(rendezvous.master_port),
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
        }
        if "DMLC_INTERFACE" not in os.environ:
            # Otherwise it takes an interface of its own choice, and never the loopback.
            self.variables["DMLC_NODE_HOST"] = address
        self.closing = False
        self.processes: List[subprocess.Popen[bytes]] = []
        if rendezvous.rank == 0:
            self._start("scheduler")
        if here:
            self._start("server")

    def worker(self) -> None:
        """Makes this process a worker: to be called before its KVStore is made."""
        os.environ.update(self.variables, DMLC_ROLE="worker")

    def close(self, leave: Callable[[], None]) -> None:
        """leave: closes the KVStore. That waits for the others to do the same, and then ends these."""
        self.closing = True
        leaving = threading.Thread(target=leave, name="close KVStore", daemon=True)
        leaving.start()
        leaving.join(CLOSE_SECONDS)
        for process in self.processes:
            try:
                process.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, role: str) -> None:
        # Blocked signals stay blocked in what is started: there is no moment in which they would end it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_RANK)
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(os.getpid()), role, "of KVStore"],
                env={**os.environ, **self.variables},
                stdin=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.processes.append(process)
        threading.Thread(target=self._watch, args=(role, process), name=f"watch {role}", daemon=True).start()

    def _watch(self, role: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if not self.closing:
            print(f"error: the KVStore's {role} ended too early, with exit code {code}", file=sys.stderr, flush=True)
            os._exit(1)
