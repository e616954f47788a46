"""A parameter server that a rank starts beside itself, and that ends with it."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time

from harness.worker.servers.client import Address
from harness.worker.servers.parameters import Settings

CLOSE_SECONDS = 10.0
# A rank that was talking to a server knows more of it: what it has to say comes first.
LAST_WORDS_SECONDS = 3.0
# What the rank is told, and its watcher and Slurm tell all processes of a task: none of it is for a server to hear.
FOR_THE_RANK = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class ServerBeside:
    """Listens before it runs: its address is known at once. When it ends too early, the rank ends too."""

    def __init__(self, settings: Settings, host: str) -> None:
        self.closing = False
        with socket.socket() as listener:
            listener.bind((host, 0))
            listener.listen(settings.workers)
            self.address = Address(host, int(listener.getsockname()[1]), secrets.token_hex(16))
            # Blocked signals stay blocked in what is started: there is no moment in which they would end it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_RANK)
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "harness.worker.servers", str(os.getpid()), str(listener.fileno())],
                    stdin=subprocess.PIPE,
                    pass_fds=[listener.fileno()],
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert self.process.stdin is not None
        # Not among its arguments, which every user of the machine can read.
        told = {"settings": dataclasses.asdict(settings), "token": self.address.token}
        self.process.stdin.write(json.dumps(told).encode())
        self.process.stdin.close()
        threading.Thread(target=self._watch, name="watch server", daemon=True).start()

    def close(self) -> None:
        """After this rank's worker has said goodbye; the server stays until all have."""
        self.closing = True
        try:
            self.process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _watch(self) -> None:
        code = self.process.wait()
        # 0: all workers have said goodbye, this rank's too, which may not have come to `close` yet.
        if code and not self.closing:
            print(f"error: a parameter server ended too early, with exit code {code}", file=sys.stderr, flush=True)
            time.sleep(LAST_WORDS_SECONDS)
            os._exit(1)
