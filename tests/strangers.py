"""What strangers on the network send, or do not send, to whatever listens."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator

from hypothesis import strategies as st
from processes import listening_ports

SECONDS = 60.0
BOMBS = [
    b'{"rank": 1, "value": "mine"}\n',
    b'{"rank": Infinity, "value": 0}\n',
    b'{"worker": Infinity}',
    b"[" * 200_000 + b"\n",
    struct.pack("<I", 2**32 - 1) + b"{",
    b"HELO" + bytes(12) + struct.pack("<Q", 200_000) + b"[" * 200_000,
    b"GET / HTTP/1.0\r\n\r\n",
    b"",
]
# Lists of what some connections send one after another.
SAID = st.lists(st.sampled_from(BOMBS) | st.binary(max_size=200), min_size=1, max_size=6)
IDLE = 1000


def connected(port: int) -> socket.socket:
    """Connect as soon as somebody listens."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), SECONDS)


@contextlib.contextmanager
def saying(port: int, said: Iterable[bytes], closes: bool) -> Iterator[None]:
    """Open a connection for each text and send it. closes: hang up at once, else at the end of the context."""
    with contextlib.ExitStack() as strangers:
        for text in said:
            stranger = connected(port)
            strangers.callback(stranger.close)
            with contextlib.suppress(OSError):  # dropped before it has sent everything
                stranger.sendall(text)
            if closes:
                stranger.close()
        yield


@contextlib.contextmanager
def idle(port: int) -> Iterator[None]:
    """Keep IDLE connections open, of which every other one has sent half of a greeting."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * IDLE), hard))
    with contextlib.ExitStack() as kept:
        kept.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for number in range(IDLE):
            stranger = connected(port)
            kept.callback(stranger.close)
            if number % 2:
                with contextlib.suppress(OSError):
                    stranger.sendall(b"half of a nonce"[:8])
        yield


@contextlib.contextmanager
def attacking(processes: Callable[[], Iterable[int]]) -> Iterator[None]:
    """Again and again, send bombs and noise to every port on which these processes listen, and keep the connections."""
    said = [*BOMBS, *map(os.urandom, (1, 16, 24, 48, 500))]
    ended = threading.Event()

    def attack(kept: contextlib.ExitStack) -> None:
        for number in itertools.count():
            if ended.wait(0.05):
                return
            for port in {port for pid in processes() for port in listening_ports(pid)}:
                with contextlib.suppress(OSError):
                    link = socket.create_connection(("127.0.0.1", port), 10)
                    kept.callback(link.close)
                    link.sendall(said[number % len(said)])

    with contextlib.ExitStack() as kept:
        thread = threading.Thread(target=attack, args=(kept,))
        thread.start()
        kept.callback(thread.join)
        kept.callback(ended.set)
        yield
