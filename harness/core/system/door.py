"""Lets only processes of the same run connect: both ends prove that they know the run's token before anything else.

The client sends a random number, the server answers with one of its own and a proof (HMAC-SHA256 of both numbers), and
the client sends its proof. So the token never crosses the network, and a recorded conversation is useless later. The
probe inside the user's own training, which imports nothing of ours, has its own client
(harness/probe/_scaling_probe/stop_channel.py). Standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Dict, Optional

NONCE_BYTES, PROOF_BYTES = 16, 32
# Time in which a connection has to prove that it belongs to the run.
PROOF_SECONDS = 5.0
# Connections that have not done so; more close the oldest.
MOST_UNKNOWN = 128
FULL_SECONDS = 0.1


class StrangerError(ConnectionError):
    """The other end does not know the token."""


def _proof(token: str, of: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token.encode(), of + nonces, "sha256")


def prove(link: socket.socket, token: str) -> None:
    """Prove to a server's `Door` that this process knows the token, and have the server prove it first.

    Raises OSError; StrangerError if the server is not of this run.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    link.sendall(nonce)
    answer = b""
    while len(answer) < NONCE_BYTES + PROOF_BYTES:
        piece = link.recv(NONCE_BYTES + PROOF_BYTES - len(answer))
        if not piece:
            raise ConnectionError("the peer hung up")
        answer += piece
    nonces = nonce + answer[:NONCE_BYTES]
    if not hmac.compare_digest(answer[NONCE_BYTES:], _proof(token, b"server", nonces)):
        raise StrangerError("the server belongs to another run")
    link.sendall(_proof(token, b"client", nonces))


@dataclass
class _Unknown:
    deadline: float
    text: bytes = b""  # received of the nonce, then of the proof
    nonces: bytes = field(default=b"", repr=False)


class Door:
    """Accepts connections and returns those that prove to be of this run. `dropped` counts the others."""

    def __init__(self, listener: socket.socket, token: str) -> None:
        self.dropped = 0
        self._listener, self._token = listener, token
        # In order of their deadlines.
        self._unknown: Dict[socket.socket, _Unknown] = {}
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """For a selector: readable when `accept` has something to do."""
        return self._selector.fileno()

    def accept(self, seconds: Optional[float] = None) -> Optional[socket.socket]:
        """Return the next connection of this run, without a timeout; None after `seconds`, at once if they are 0 and
        none has just proven itself."""
        end = float("inf") if seconds is None else time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for link in [link for link, unknown in self._unknown.items() if unknown.deadline <= now]:
                self._drop(link)
            waits = [end, *(unknown.deadline for unknown in self._unknown.values())]
            wait = None if min(waits) == float("inf") else max(0.0, min(waits) - now)
            for key, _ in self._selector.select(wait):
                proven = key.fileobj
                assert isinstance(proven, socket.socket)
                if proven is self._listener:
                    self._let_in()
                elif proven in self._unknown and self._proven(proven):
                    del self._unknown[proven]
                    self._selector.unregister(proven)
                    proven.setblocking(True)
                    return proven
            if time.monotonic() >= end:
                return None

    def close(self) -> None:
        """Close the connections that have not proven anything, and say how many were dropped."""
        for link in list(self._unknown):
            self._drop(link)
        self._selector.close()
        self.report()

    def report(self) -> None:
        if self.dropped:
            print(f"{self.dropped} connections that are not of this run were dropped", file=sys.stderr, flush=True)

    def _let_in(self) -> None:
        try:
            link, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # e.g. as many files are open as this process may have
            if self._unknown:
                self._drop(next(iter(self._unknown)))
            else:
                time.sleep(FULL_SECONDS)
            return
        if len(self._unknown) >= MOST_UNKNOWN:
            self._drop(next(iter(self._unknown)))
        link.setblocking(False)
        self._unknown[link] = _Unknown(time.monotonic() + PROOF_SECONDS)
        self._selector.register(link, selectors.EVENT_READ)

    def _proven(self, link: socket.socket) -> bool:
        """Read what a connection sends, no more than the protocol needs; return True once it has proven itself."""
        unknown = self._unknown[link]
        wanted = PROOF_BYTES if unknown.nonces else NONCE_BYTES
        try:
            piece = link.recv(wanted - len(unknown.text))
            unknown.text += piece
            if not piece:
                raise ConnectionError("the peer hung up")
            if len(unknown.text) < wanted:
                return False
            if unknown.nonces:
                if not hmac.compare_digest(unknown.text, _proof(self._token, b"client", unknown.nonces)):
                    raise StrangerError("the client belongs to another run")
                return True
            own = secrets.token_bytes(NONCE_BYTES)
            unknown.nonces, unknown.text = unknown.text + own, b""
            # Fits into the socket's empty buffer.
            link.sendall(own + _proof(self._token, b"server", unknown.nonces))
        except BlockingIOError:
            return False
        except OSError:
            self._drop(link)
        return False

    def _drop(self, link: socket.socket) -> None:
        self.dropped += 1
        del self._unknown[link]
        self._selector.unregister(link)
        link.close()
