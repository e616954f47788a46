"""A parameter server that a rank, or a process on a node without ranks, starts and that ends with it."""

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
from typing import Any, List, Sequence

from harness.worker.servers import shared_counters
from harness.worker.servers.client import Address
from harness.worker.servers.parameters import RESTARTABLE, Settings

CLOSE_SECONDS = 10.0
# A server that ends more often will end again, and every time its momenta are lost.
RESTARTS = 3
# The rank's worker fails too and reports more: which server, where, and because of which worker.
WORDS_SECONDS = 3.0
# Signals for the rank, which its supervisor and Slurm send to all processes of a task; servers ignore them.
RANK_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class ColocatedServer:
    """A server process whose address is known before it starts.

    If it ends early and its mode allows it (RESTARTABLE), it is restarted at the same address, at most RESTARTS times;
    otherwise the rank exits.
    """

    def __init__(self, settings: Settings, host: str) -> None:
        self.closing = False
        self.settings = settings
        self.listener = socket.socket()
        self.listener.bind((host, 0))
        self.listener.listen(max(128, settings.workers))
        self.address = Address(host, int(self.listener.getsockname()[1]), secrets.token_hex(16))
        # This process keeps the listening socket and counters open for a restarted server: workers that connect in the
        # meantime wait, and are refused only if this process is gone too.
        self.kept: List[int] = [shared_counters.make_file()] if settings.mode in RESTARTABLE else []
        self.process = self._start()
        if not self.kept:
            self.listener.close()
        self.watching = threading.Thread(target=self._watch, name="watch server", daemon=True)
        self.watching.start()

    def wait(self) -> None:
        """Wait until all workers have signed off."""
        self.watching.join()

    def close(self) -> None:
        """Wait for the server, which ends with the last worker, after this rank's worker has signed off."""
        self.closing = True
        end(self.process)

    def _start(self) -> subprocess.Popen[bytes]:
        files = [self.listener.fileno(), *self.kept]
        command = [sys.executable, "-m", "harness.worker.servers", str(os.getpid()), *map(str, files)]
        process = start_ignoring_rank_signals(command, stdin=subprocess.PIPE, pass_fds=files)
        assert process.stdin is not None
        # Not an argument, which every user of the machine can read.
        told = {"settings": dataclasses.asdict(self.settings), "token": self.address.token}
        with contextlib.suppress(BrokenPipeError):  # it has ended already; `_watch` reports that
            process.stdin.write(json.dumps(told).encode())
            process.stdin.close()
        return process

    def _watch(self) -> None:
        # Linux kills the server when the thread that started it ends, so this thread outlives it.
        restarts = RESTARTS if self.kept else 0
        for number in range(restarts + 1):
            code = self.process.wait()
            # 0: all workers have signed off, also this rank's, which may not have reached `close` yet.
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


def start_ignoring_rank_signals(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process with RANK_SIGNALS blocked, which it inherits, so that they can never end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, RANK_SIGNALS)
    try:
        return subprocess.Popen(command, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that is about to end; kill it after CLOSE_SECONDS."""
    try:
        process.wait(CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
