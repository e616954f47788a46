"""A parameter server that a rank, or a process on a node without ranks, starts beside itself, and that ends with it."""

from __future__ import annotations

import contextlib
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
from typing import List

from harness.worker.servers import shared_counters
from harness.worker.servers.client import Address
from harness.worker.servers.parameters import COMES_BACK, Settings

CLOSE_SECONDS = 10.0
# One that ends more often has a cause that will end it again, and every time loses its momenta.
RESTARTS = 3
# The rank's worker fails too where it talks to servers, and says more: which one, where, and because of whom.
WORDS_SECONDS = 3.0
# What the rank is told, and its watcher and Slurm tell all processes of a task: none of it is for a server to hear.
FOR_THE_RANK = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class ColocatedServer:
    """Listens before it runs: its address is known at once. When it ends too early it is started again on the same
    address, where its mode allows that (COMES_BACK), RESTARTS times at most; otherwise the rank ends too."""

    def __init__(self, settings: Settings, host: str) -> None:
        self.closing = False
        self.settings = settings
        self.listener = socket.socket()
        self.listener.bind((host, 0))
        self.listener.listen(settings.workers)
        self.address = Address(host, int(self.listener.getsockname()[1]), secrets.token_hex(16))
        # For the one after it. This process keeps them open: workers that come meanwhile wait, and where it is gone
        # too, they are refused at once.
        self.kept: List[int] = [shared_counters.make_file()] if settings.mode in COMES_BACK else []
        self.process = self._start()
        if not self.kept:
            self.listener.close()
        self.watching = threading.Thread(target=self._watch, name="watch server", daemon=True)
        self.watching.start()

    def wait(self) -> None:
        """Until all workers have said goodbye."""
        self.watching.join()

    def close(self) -> None:
        """After this rank's worker has said goodbye; the server stays until all have."""
        self.closing = True
        try:
            self.process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        files = [self.listener.fileno(), *self.kept]
        # Blocked signals stay blocked in what is started: there is no moment in which they would end it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_RANK)
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "harness.worker.servers", str(os.getpid()), *map(str, files)],
                stdin=subprocess.PIPE,
                pass_fds=files,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert process.stdin is not None
        # Not among its arguments, which every user of the machine can read.
        told = {"settings": dataclasses.asdict(self.settings), "token": self.address.token}
        with contextlib.suppress(BrokenPipeError):  # ended already, which is for `_watch` to say
            process.stdin.write(json.dumps(told).encode())
            process.stdin.close()
        return process

    def _watch(self) -> None:
        # Stays as long as the server does: Linux ends what this thread has started when the thread ends.
        restarts = RESTARTS if self.kept else 0
        for number in range(restarts + 1):
            code = self.process.wait()
            # 0: all workers have said goodbye, this rank's too, which may not have come to `close` yet.
            if not code or self.closing:
                return
            if number < restarts:
                _say(f"a parameter server ended too early, with exit code {code}: it is started again")
                try:
                    self.process = self._start()
                except OSError as error:
                    _say(f"error: it cannot be started again: {error}")
                    os._exit(1)
        again = f", {restarts} times started again" if restarts else ""
        _say(f"error: a parameter server ended too early, with exit code {code}{again}")
        time.sleep(WORDS_SECONDS)
        os._exit(1)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
