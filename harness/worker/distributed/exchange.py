"""Exchange one value per rank, such as an address or port, before any framework is loaded.

A message is the length of its JSON (unsigned, 32 bits, little-endian) and the JSON, after both ends have proven to be
of this run (`door`).

Uses plain sockets and the standard library only, to work in every framework's environment.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import struct
import time
from typing import Any, Dict, List

from harness.core.rendezvous import Rendezvous, meeting_host
from harness.core.system.door import Door, prove
from harness.core.system.ports import held_port, listener

RETRY_SECONDS = 0.1
# For a peer of this run to send its message, or to hang up after the answer.
PEER_SECONDS = 10.0
LENGTH = struct.Struct("<I")
LONGEST_BYTES = 2**24


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
    with _listening(rendezvous, deadline) as server, contextlib.closing(Door(server, rendezvous.token)) as door:
        while len(values) < rendezvous.world_size:
            peer = door.accept(_seconds_left(deadline, rendezvous, values))
            if peer is None:
                continue
            peer.settimeout(PEER_SECONDS)
            try:
                said = _receive(peer)
                rank, given = said["rank"], said["value"]
            except (OSError, ValueError, KeyError, TypeError):
                peer.close()  # a rank that died
                continue
            if rank in values or not 0 < rank < rendezvous.world_size:
                raise RuntimeError(
                    f"two processes say that they are rank {rank} of {rendezvous.world_size}: the launcher "
                    "(srun, mpirun) does not number them"
                )
            values[rank] = given
            peers.append(peer)
        everything = [values[rank] for rank in range(rendezvous.world_size)]
        for peer in peers:
            _send(peer, everything)
        for peer in peers:
            # Let the peers hang up first, so that the port is free immediately.
            with contextlib.suppress(OSError):
                peer.recv(1)
            peer.close()
    return everything


def _listening(rendezvous: Rendezvous, deadline: float) -> socket.socket:
    """Listen on the rendezvous port, retrying while another process has it. That may be a child that a thread of this
    rank is starting: until exec it shares this rank's open sockets."""
    while True:
        try:
            return listener(meeting_host(rendezvous), rendezvous.master_port, rendezvous.world_size)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if time.monotonic() + RETRY_SECONDS > deadline:
                raise TimeoutError(
                    f"another program on {socket.gethostname()} uses port {rendezvous.master_port}, the rendezvous of "
                    f"the {rendezvous.world_size} ranks"
                ) from error
        time.sleep(RETRY_SECONDS)


def _ask(rendezvous: Rendezvous, value: Any, deadline: float) -> List[Any]:
    server = (meeting_host(rendezvous), rendezvous.master_port)
    while True:
        left = _seconds_left(deadline, rendezvous, {})
        try:
            with socket.create_connection(server, timeout=left) as link:
                prove(link, rendezvous.token)
                _send(link, {"rank": rendezvous.rank, "value": value})
                return list(_receive(link))
        except (OSError, ValueError):
            time.sleep(RETRY_SECONDS)


def _send(link: socket.socket, value: Any) -> None:
    text = json.dumps(value).encode()
    link.sendall(LENGTH.pack(len(text)) + text)


def _receive(link: socket.socket) -> Any:
    """Raises OSError if the peer hangs up before the end, and ValueError if the message is not one of ours."""
    (length,) = LENGTH.unpack(_exactly(link, LENGTH.size))
    if length > LONGEST_BYTES:
        raise ValueError(f"a message of {length} bytes; the limit is {LONGEST_BYTES}")
    try:
        return json.loads(_exactly(link, length).decode())
    except RecursionError:
        raise ValueError("a message that is nested too deeply") from None


def _exactly(link: socket.socket, length: int) -> bytes:
    text = b""
    while len(text) < length:
        piece = link.recv(length - len(text))
        if not piece:
            raise ConnectionError("the peer hung up")
        text += piece
    return text


def _seconds_left(deadline: float, rendezvous: Rendezvous, known: Dict[int, Any]) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        here = f"; only ranks {sorted(known)} arrived" if known else ""
        raise TimeoutError(
            f"the {rendezvous.world_size} ranks did not find each other at "
            f"{rendezvous.master_address}:{rendezvous.master_port}{here}"
        )
    return left
