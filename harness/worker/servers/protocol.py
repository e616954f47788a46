"""The protocol between workers and parameter servers: messages of float32 arrays or JSON over TCP.

A message has a little-endian header of 24 bytes: kind (4 letters), samples (unsigned, 32 bits), learning rate (double),
length of the body in bytes (unsigned, 64 bits). The body is packed little-endian float32, or JSON in UTF-8.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, NamedTuple, Sequence

import numpy as np

HEADER = struct.Struct("<4sIdQ")
FLOAT = np.dtype("<f4")
# Texts are greetings, or a few counters per worker.
LONGEST_TEXT_BYTES = 2**24

# From a worker that has passed the server's door. HELLO: {"worker"}. PUSH: a gradient; answered with weights. PULL: the
# current weights. MEAN: the gradient of the last update. SUM: an array to sum over the workers; answered with the sum.
# STORE, LOAD: weights, then momenta. RECALL, COUNT: the counters. BYE: the last message. BACK: a worker's copy of the
# weights for a restarted server, after a HELLO with "pushes"; answered with a text, followed by weights if the last
# push was "applied".
HELLO, PUSH, PULL, MEAN, SUM = b"HELO", b"PUSH", b"PULL", b"MEAN", b"SUMM"
STORE, LOAD, RECALL, COUNT, BYE = b"STOR", b"LOAD", b"RECA", b"COUN", b"BYE."
BACK = b"BACK"
# From a server. FAILED: a sentence.
DONE, FAILED = b"DONE", b"FAIL"

# Time until a host that disappeared silently is noticed.
SILENCE_SECONDS = 20


class ProtocolError(ConnectionError):
    """The peer sent an invalid or unexpected message."""


class Header(NamedTuple):
    """samples, rate: of a PUSH, samples that the gradient averages and learning rate. bytes: length of the body."""

    kind: bytes
    samples: int
    rate: float
    bytes: int


def send(
    link: socket.socket, kind: bytes, arrays: Sequence[np.ndarray] = (), samples: int = 0, rate: float = 0.0
) -> None:
    """Send one-dimensional, contiguous arrays of FLOAT. Raises OSError if the peer is gone."""
    link.sendall(HEADER.pack(kind, samples, rate, sum(array.nbytes for array in arrays)))
    for array in arrays:
        if array.nbytes:
            link.sendall(_bytes_of(array))


def send_text(link: socket.socket, kind: bytes, value: Any) -> None:
    """Send a value as JSON."""
    text = json.dumps(value).encode()
    link.sendall(HEADER.pack(kind, 0, 0.0, len(text)) + text)


def receive(link: socket.socket) -> Header:
    """Return the next header. Raises ConnectionError if the peer hung up."""
    return Header(*HEADER.unpack(_exactly(link, HEADER.size)))


def receive_arrays(link: socket.socket, header: Header, arrays: Sequence[np.ndarray]) -> None:
    """Read the body into these arrays. Raises ProtocolError if its length differs from theirs."""
    expected = sum(array.nbytes for array in arrays)
    if header.bytes != expected:
        raise ProtocolError(f"message {header.kind!r} has {header.bytes} bytes instead of {expected}")
    for array in arrays:
        if array.nbytes:
            _fill(link, _bytes_of(array))


def receive_text(link: socket.socket, header: Header) -> Any:
    """Return a JSON body. Raises ProtocolError."""
    if header.bytes > LONGEST_TEXT_BYTES:
        raise ProtocolError(
            f"message {header.kind!r} has {header.bytes} bytes; the limit for text is {LONGEST_TEXT_BYTES}"
        )
    try:
        return json.loads(_exactly(link, header.bytes).decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"message {header.kind!r} is not JSON: {error}") from None


def prepare(link: socket.socket) -> None:
    """Send messages without delay, and detect a peer that disappeared silently (no power, no network)."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_SECONDS // 4)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_SECONDS // 4)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    # For sent data that is never acknowledged, which keep-alive does not cover.
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENCE_SECONDS)


def _bytes_of(array: np.ndarray) -> memoryview:
    assert array.dtype == FLOAT
    assert array.flags.c_contiguous
    return array.data.cast("B")


def _exactly(link: socket.socket, nbytes: int) -> bytes:
    buffer = bytearray(nbytes)
    _fill(link, memoryview(buffer))
    return bytes(buffer)


def _fill(link: socket.socket, view: memoryview) -> None:
    while view:
        n = link.recv_into(view)
        if not n:
            raise ConnectionError("the peer hung up")
        view = view[n:]
