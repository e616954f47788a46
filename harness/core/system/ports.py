"""Ports for the rendezvous of a run's ranks."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator

# Both ranges lie between the well-known services and Linux's ephemeral ports (32768 and up). JOB_PORTS are derived from
# a job id without checking that they are free; FREE_PORTS are searched on the node. The ranges are disjoint.
JOB_PORTS = range(20000, 26384)
FREE_PORTS = range(26384, 32768)


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Reserve a random free port until the context ends.

    Only a process that binds this port with SO_REUSEADDR, as every framework's server does, can listen on it. Raises
    OSError if no free port is found.
    """
    for _ in range(100):
        with socket.socket() as held:
            try:
                # Not the `random` module, which ranks seed identically.
                held.bind(("", secrets.choice(FREE_PORTS)))
            except OSError:
                continue
            # Set only after bind: otherwise a port bound by another process that does not listen yet could be chosen.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            yield int(held.getsockname()[1])
            return
    raise OSError(f"no free port between {FREE_PORTS[0]} and {FREE_PORTS[-1]} on this node")
