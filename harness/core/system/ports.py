"""Ports for the rendezvous of a run's ranks."""

from __future__ import annotations

import contextlib
import errno
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


def listener(host: str, port: int, peers: int) -> socket.socket:
    """Listen on the address that the peers use for this node, or on all where that is not certain. Raises OSError.

    Args:
        host: name or address by which the peers reach this node.
        port: a held port.
        peers: number of connections to expect.
    """
    address = _own_address(host)
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            server.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or not address:
                raise
            server.bind(("", port))  # the address is not one of the node's own, as behind address translation
        server.listen(max(128, peers))
    except OSError:
        server.close()
        raise
    return server


def _own_address(host: str) -> str:
    """Return the address of a name of this node; empty, for all, if that is not certain."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)}
    except OSError:
        return ""
    # A node's own name may resolve to loopback on itself only.
    loopback = any(address.startswith("127.") for address in found) and not host.startswith("127.")
    return "" if len(found) > 1 or loopback else found.pop()
