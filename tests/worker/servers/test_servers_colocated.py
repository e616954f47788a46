"""Parameter servers and the ranks that start them, as processes: which ends with which."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import wait_for
from project import PROJECT

from harness.worker.servers.client import Address, Client, ServerFailed
from harness.worker.servers.colocated import RESTARTS
from harness.worker.servers.shared_counters import SharedCounters, make_file

WAIT_SECONDS = 20.0


def test_a_tally_is_never_half_written() -> None:
    """A process that writes rows of equal numbers is killed at a random moment; the remaining row is intact."""
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from harness.worker.servers.shared_counters import SharedCounters\n"
        "counters, n = SharedCounters(int(sys.argv[1]), 5000), 0\n"
        "print(flush=True)\n"
        "while True:\n"
        "    n += 1\n"
        "    counters.write([n] * 7, np.full(4993, n))\n"
    )
    file = make_file()
    assert SharedCounters(file, 5000).read() is None
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    argv = [sys.executable, "-c", code, str(file)]
    with subprocess.Popen(argv, env=environment, pass_fds=[file], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        wait_for(lambda: SharedCounters(file, 5000).read() is not None, WAIT_SECONDS)
        writer.kill()
    rows = SharedCounters(file, 5000).read()
    assert rows is not None
    assert len(set(rows)) == 1


def test_a_server_that_ends_again_and_again_takes_its_rank_with_it() -> None:
    code = (
        "import os, signal, time\n"
        "from harness.worker.servers.colocated import ColocatedServer\n"
        "from harness.worker.servers.parameters import Settings\n"
        "server = ColocatedServer(Settings('asynchronous', 1, 0, 0.9, 0.0, False), '127.0.0.1')\n"
        "print(*server.address, flush=True)\n"
        "while True:\n"
        "    server.process.kill()\n"
        "    time.sleep(0.01)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=120, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("with exit code -9: it is started again") == RESTARTS
    assert f"with exit code -9, {RESTARTS} times started again" in done.stderr
    host, port, token = done.stdout.split()
    with pytest.raises(ServerFailed, match="Connection refused"):
        Client([Address(host, int(port), token)], 0, [1], WAIT_SECONDS)


def test_a_rank_ends_with_its_server_and_a_server_with_its_rank() -> None:
    code = (
        "import time\n"
        "from harness.worker.servers.colocated import ColocatedServer\n"
        "from harness.worker.servers.parameters import Settings\n"
        "print(ColocatedServer(Settings('synchronous', 1, 0, 0.9, 0.0, False), '127.0.0.1').process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    for kill_rank in (False, True):
        with subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
        ) as rank:
            assert rank.stdout is not None
            server = int(rank.stdout.readline())
            time.sleep(0.5)  # until it has set its death signal
            os.kill(rank.pid if kill_rank else server, signal.SIGKILL)
            _, said = rank.communicate(timeout=120)
            assert rank.returncode == (-signal.SIGKILL if kill_rank else 1)
            assert kill_rank or "a parameter server ended too early, with exit code -9" in said
            wait_for(lambda pid=server: not _runs(pid), 60)


def test_a_rank_survives_that_its_server_has_ended_when_all_said_goodbye() -> None:
    """Also if the rank has not reached `close` yet."""
    code = (
        "import time\n"
        "from harness.worker.servers.colocated import ColocatedServer\n"
        "from harness.worker.servers.client import Client\n"
        "from harness.worker.servers.parameters import Settings\n"
        "server = ColocatedServer(Settings('synchronous', 1, 0, 0.9, 0.0, False), '127.0.0.1')\n"
        "Client([server.address], 0, [1], 20.0).close()\n"
        "server.process.wait()\n"
        "time.sleep(0.5)\n"
        "server.close()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=120, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
