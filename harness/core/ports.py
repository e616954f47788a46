"""Ports on which the ranks of a run find each other."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator

# Both below Linux's ephemeral ports (32768 and up), above the well-known services. Those that follow from a job's
# number, without a look whether they are free; and those that are looked for on the node, which are none of the others.
JOB_PORTS = range(20000, 26384)
FREE_PORTS = range(26384, 32768)


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A port that nobody uses, chosen at random, and kept until the end of the context: only who asks for this very one
    with SO_REUSEADDR, as every framework's servers do, can listen on it. Raises OSError where none of many is free."""
    for _ in range(100):
        with socket.socket() as held:
            try:
                # Not by the module random, which ranks set to the same seed.
                held.bind(("", secrets.choice(FREE_PORTS)))
            except OSError:
                continue
            # Only now: with it, the port of somebody else who does not listen yet would have been given too.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            yield int(held.getsockname()[1])
            return
    raise OSError(f"no port from {FREE_PORTS[0]} to {FREE_PORTS[-1]} could be had on this node")
