"""The side channel on which the ranks report their blocks and learn at which step to stop."""

from __future__ import annotations

import hmac
import json
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

CONNECT_SECONDS = 60.0
RETRY_SECONDS = 0.5
NONCE_BYTES, PROOF_BYTES = 16, 32


class StopChannel:
    """A client in threads of its own, so that training never waits for it.

    Proves that it knows the token, sends {"rank"} and then what `report` is given. On {"stop": step}, calls `on_stop`
    in its thread with the step and what the server adds about the measurement, {"protocol": {…}}.
    """

    def __init__(
        self, address: tuple[str, int], token: str, rank: int, on_stop: Callable[[int, dict[str, Any]], None]
    ) -> None:
        self._address, self._token, self._on_stop = address, token, on_stop
        self._hello = {"rank": rank}
        self._reports: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._send, name="scaling-probe-send", daemon=True).start()

    def report(self, **block: Any) -> None:
        self._reports.put({"rank": self._hello["rank"], **block})

    def _send(self) -> None:
        try:
            connection = self._connect()
            threading.Thread(target=self._receive, args=(connection,), name="scaling-probe", daemon=True).start()
            message: dict[str, Any] = self._hello
            while True:
                connection.sendall(json.dumps(message).encode() + b"\n")
                message = self._reports.get()
        except OSError as error:
            host, port = self._address
            print(
                f"warning: the stop channel {host}:{port} is lost ({error}); the training runs to its end",
                file=sys.stderr,
            )

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                connection = socket.create_connection(self._address, timeout=CONNECT_SECONDS)
                prove(connection, self._token)
                connection.settimeout(None)
                return connection
            except OSError:  # also of a server that has no room for now
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)

    def _receive(self, connection: socket.socket) -> None:
        try:
            with connection.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    message = json.loads(line)
                    if "stop" in message:
                        self._on_stop(message["stop"], message.get("protocol") or {})
        except (OSError, ValueError):
            pass  # the sender says it


def prove(link: socket.socket, token: str) -> None:
    """Prove to the server that this process knows the token, once the server has (as harness/core/system/door.py).

    Raises OSError.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    link.sendall(nonce)
    answer = link.recv(NONCE_BYTES + PROOF_BYTES, socket.MSG_WAITALL)
    nonces = nonce + answer[:NONCE_BYTES]
    proofs = [hmac.new(token.encode(), of + nonces, "sha256").digest() for of in (b"server", b"client")]
    if not hmac.compare_digest(answer[NONCE_BYTES:], proofs[0]):
        link.close()
        raise ConnectionError("the server does not belong to this run")
    link.sendall(proofs[1])
