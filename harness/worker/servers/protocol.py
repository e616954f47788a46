"""What workers and parameter servers send each other: messages of float32 numbers, or of JSON, over TCP.

A message is a header of 24 bytes, little-endian: its kind (4 letters), samples (unsigned, 32 bits), learning rate
(double), bytes that follow (unsigned, 64 bits). What follows is float32, little-endian, without gaps, or JSON in UTF-8.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, NamedTuple, Sequence

import numpy as np

HEADER = struct.Struct("<4sIdQ")
FLOAT = np.dtype("<f4")
# A text is a greeting, or a few counters per worker.
LONGEST_TEXT_BYTES = 2**24

# Of a worker. HELLO: {"token", "worker"}. PUSH: a gradient; the answer are weights. PULL: weights as they are now.
# MEAN: the gradient of the last update. SUM: numbers to be added up over the workers; the answer is their sum. STORE,
# LOAD: weights, then momenta. RECALL, COUNT: the counters. BYE: the last message. BACK: a worker's copy of the weights,
# for a server that was started again, after a HELLO with "pushes"; the answer is a text, and then, where it says that
# the last push was "applied", the weights.
HELLO, PUSH, PULL, MEAN, SUM = b"HELO", b"PUSH", b"PULL", b"MEAN", b"SUMM"
STORE, LOAD, RECALL, COUNT, BYE = b"STOR", b"LOAD", b"RECA", b"COUN", b"BYE."
BACK = b"BACK"
# Of a server. FAILED: a sentence.
DONE, FAILED = b"DONE", b"FAIL"

# A host that is gone without a word is noticed after so many seconds.
SILENCE_SECONDS = 20


class ProtocolError(ConnectionError):
    """The other side sends what is no message of ours, or not the one that is expected."""


class Header(NamedTuple):
    """samples, rate: of a PUSH: how many samples the gradient is the mean of, and the learning rate to apply it with.
    bytes: that follow."""

    kind: bytes
    samples: int
    rate: float
    bytes: int


def send(
    link: socket.socket, kind: bytes, arrays: Sequence[np.ndarray] = (), samples: int = 0, rate: float = 0.0
) -> None:
    """The arrays are one-dimensional, of FLOAT, and without gaps. Raises OSError where the other side is gone."""
    link.sendall(HEADER.pack(kind, samples, rate, sum(array.nbytes for array in arrays)))
    for array in arrays:
        if array.nbytes:
            link.sendall(_bytes_of(array))


def send_text(link: socket.socket, kind: bytes, value: Any) -> None:
    """What JSON can hold."""
    text = json.dumps(value).encode()
    link.sendall(HEADER.pack(kind, 0, 0.0, len(text)) + text)


def receive(link: socket.socket) -> Header:
    """The next header. Raises ConnectionError where the other side hung up."""
    return Header(*HEADER.unpack(_exactly(link, HEADER.size)))


def receive_arrays(link: socket.socket, header: Header, arrays: Sequence[np.ndarray]) -> None:
    """What follows the header, into these arrays. Raises ProtocolError where it is not just as long as they are."""
    expected = sum(array.nbytes for array in arrays)
    if header.bytes != expected:
        raise ProtocolError(f"message {header.kind!r} has {header.bytes} bytes, expected are {expected}")
    for array in arrays:
        if array.nbytes:
            _fill(link, _bytes_of(array))


def receive_text(link: socket.socket, header: Header) -> Any:
    """What follows the header, of JSON. Raises ProtocolError."""
    if header.bytes > LONGEST_TEXT_BYTES:
        raise ProtocolError(
            f"message {header.kind!r} has {header.bytes} bytes, a text has {LONGEST_TEXT_BYTES} at most"
        )
    try:
        return json.loads(_exactly(link, header.bytes).decode())
    except ValueError as error:
        raise ProtocolError(f"message {header.kind!r} is not JSON: {error}") from None


def prepare(link: socket.socket) -> None:
    """Messages go out at once, and a host that is gone without a word (no power, no network) is noticed."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_SECONDS // 4)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_SECONDS // 4)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    # Of what was sent and not acknowledged, where keep-alive says nothing.
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
            raise ConnectionError("the other side hung up")
        view = view[n:]
