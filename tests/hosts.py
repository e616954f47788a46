"""Virtual hosts on one machine: network namespaces behind one bridge, each with a link of its own bandwidth.

Needs root, `ip` and `tc` with the queueing discipline tbf. The machine's own network is not touched: the bridge is in a
namespace too.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

INTERFACE = "eth0"
PREFIX = "harness-hosts"
# tc-tbf(8). An idle link may later exceed its rate by up to the burst. A kernel timer that is late by more than the
# burst lasts slows the link down: 50 us for two frames, the minimum, at 400 Mbit/s; 0.9 ms for 32 KiB at 300 Mbit/s,
# which virtual machines often exceed. The queue is longer than any message here, so that nothing is lost.
BURST_BYTES = 64 * 2**10
SHAPED = f"burst {BURST_BYTES}b limit 16mb"


def why_not() -> str | None:
    """Return why such hosts are impossible here; None if they are possible."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with hosts(1) as (only,):
            _run(*only, "tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", "rate", "100mbit", *SHAPED.split())
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        return f"no network namespaces with shaped links here: {said}"
    return None


@contextlib.contextmanager
def hosts(number: int) -> Iterator[list[tuple[str, ...]]]:
    """Create hosts and yield the command prefix that runs a command on each. Their addresses are `address(0)`, ..., on
    the interface INTERFACE. Everything is removed afterwards, even after an error; leftovers of killed tests before."""
    _remove(dead=True)
    switch, names = _name("switch"), [_name(f"host{host}") for host in range(number)]
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge0", "up")
        for host, name in enumerate(names):
            port = f"port{host}"
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", name)
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge0", "up")
            _run("ip", "-n", name, "address", "add", f"{address(host)}/24", "dev", INTERFACE)
            _run("ip", "-n", name, "link", "set", INTERFACE, "up")
        yield [("ip", "netns", "exec", name) for name in names]
    finally:
        _remove(dead=False)


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def _name(what: str) -> str:
    return f"{PREFIX}-{os.getpid()}-{what}"


def _remove(dead: bool) -> None:
    """Remove this process's namespaces, or those of dead processes, with their interfaces."""
    for line in _run("ip", "netns", "list").splitlines():
        match = re.match(rf"{PREFIX}-(\d+)-", line)
        if match and (not Path(f"/proc/{match[1]}").exists() if dead else int(match[1]) == os.getpid()):
            _run("ip", "netns", "delete", line.split()[0])


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout
