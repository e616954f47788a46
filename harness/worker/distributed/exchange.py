"""Exchange one value per rank, such as an address or port, before any framework is loaded.

Uses plain sockets and the standard library only, to work in every framework's environment.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import time
from typing import Any, Dict, List

from harness.core.ports import held_port
from harness.core.rendezvous import Rendezvous

RETRY_SECONDS = 0.1


def gather(rendezvous: Rendezvous, value: Any, timeout_seconds: float) -> List[Any]:
    """Return every rank's JSON-serialisable value, in the order of ranks, on every rank.

    Rank 0 listens on the rendezvous port and frees it afterwards. Raises RuntimeError if two processes claim the same
    rank, and TimeoutError if a rank is missing or the port stays in use.
    """
    deadline = time.monotonic() + timeout_seconds
    if rendezvous.world_size == 1:
        return [value]
    return _serve(rendezvous, value, deadline) if rendezvous.rank == 0 else _ask(rendezvous, value, deadline)


def own_address(rendezvous: Rendezvous) -> str:
    """Return the address at which the other ranks reach this one: the source address of its route to rank 0."""
    if rendezvous.world_size == rendezvous.local_world_size:
        return "127.0.0.1"
    address = _source_address(rendezvous.master_address)
    # On rank 0, whose own name may resolve to loopback, use its default route, by an address reserved for documentation
    # (RFC 5737).
    return _source_address("192.0.2.1") if address.startswith("127.") else address


_kept = contextlib.ExitStack()


def own_port() -> int:
    """Return a `held_port` that is held until this process ends."""
    return _kept.enter_context(held_port())


def _source_address(host: str) -> str:
    """Return the source address of the route to `host`. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def _serve(rendezvous: Rendezvous, value: Any, deadline: float) -> List[Any]:
    values: Dict[int, Any] = {0: value}
    peers: List[socket.socket] = []
    with _listening(rendezvous, deadline) as server:
        while len(values) < rendezvous.world_size:
            server.settimeout(_seconds_left(deadline, rendezvous, values))
            try:
                peer, _ = server.accept()
            except socket.timeout:
                continue
            peer.settimeout(_seconds_left(deadline, rendezvous, values))
            try:
                said = json.loads(_line(peer))
                rank = int(said["rank"])
            except (OSError, ValueError, KeyError, TypeError):
                peer.close()  # e.g. a port scanner, or a rank that died
                continue
            if rank in values or not 0 < rank < rendezvous.world_size:
                raise RuntimeError(
                    f"two processes say that they are rank {rank} of {rendezvous.world_size}: the launcher "
                    "(srun, mpirun) does not number them"
                )
            values[rank] = said["value"]
            peers.append(peer)
        everything = [values[rank] for rank in range(rendezvous.world_size)]
        for peer in peers:
            peer.sendall(json.dumps(everything).encode() + b"\n")
        for peer in peers:
            # Let the peers hang up first, so that the port is free immediately.
            peer.recv(1)
            peer.close()
    return everything


def _listening(rendezvous: Rendezvous, deadline: float) -> socket.socket:
    """Listen on the rendezvous port, retrying while another process has it. That may be a child that a thread of this
    rank is starting: until exec it shares this rank's open sockets."""
    while True:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", rendezvous.master_port))
            server.listen(rendezvous.world_size)
            return server
        except OSError as error:
            server.close()
            if error.errno != errno.EADDRINUSE:
                raise
            if time.monotonic() + RETRY_SECONDS > deadline:
                raise TimeoutError(
                    f"another program on {socket.gethostname()} uses port {rendezvous.master_port}, the rendezvous of "
                    f"the {rendezvous.world_size} ranks"
                ) from error
        time.sleep(RETRY_SECONDS)


def _ask(rendezvous: Rendezvous, value: Any, deadline: float) -> List[Any]:
    while True:
        left = _seconds_left(deadline, rendezvous, {})
        try:
            with socket.create_connection((rendezvous.master_address, rendezvous.master_port), timeout=left) as link:
                link.sendall(json.dumps({"rank": rendezvous.rank, "value": value}).encode() + b"\n")
                answer = _line(link)
            return list(json.loads(answer))
        except (OSError, ValueError):
            time.sleep(RETRY_SECONDS)


def _line(link: socket.socket) -> str:
    """Return text up to the end of the line. Raises OSError if the peer hangs up before."""
    text = b""
    while not text.endswith(b"\n"):
        piece = link.recv(65536)
        if not piece:
            raise ConnectionError("the peer hung up")
        text += piece
    return text.decode()


def _seconds_left(deadline: float, rendezvous: Rendezvous, known: Dict[int, Any]) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        here = f"; only ranks {sorted(known)} arrived" if known else ""
        raise TimeoutError(
            f"the {rendezvous.world_size} ranks did not find each other at "
            f"{rendezvous.master_address}:{rendezvous.master_port}{here}"
        )
    return left
