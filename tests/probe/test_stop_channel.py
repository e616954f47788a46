"""Ranks stop at the step that the stop channel tells them, at the same step, whatever their script does about it."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from pathlib import Path

import pytest
from ranks import run

from harness.core.system.door import Door

pytestmark = pytest.mark.torch


class Server(socketserver.ThreadingTCPServer):
    """Tells each rank to stop at step STOP once it has reported its first measured block."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[dict[str, object]] = []
        self.door = Door(self.socket, "secret")

    def fileno(self) -> int:
        return self.door.fileno()

    def get_request(self) -> tuple[socket.socket, object]:
        accepted = self.door.accept(0.0)
        if accepted is None:
            raise BlockingIOError  # a peer has not proven itself yet
        return accepted, accepted.getpeername()


STOP = 60  # a second after step 10, since a busy machine may be late with the answer


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Server)
        for line in self.rfile:
            message = json.loads(line)
            self.server.received.append(message)
            if message.get("phase") == "measure" and message["step"] == 10:
                answer = {"stop": STOP, "protocol": {"relative_half_width": 0.01, "precision": 0.02}}
                self.wfile.write(json.dumps(answer).encode() + b"\n")


def test_ranks_stop_where_they_are_told(torch_python: Path, tmp_path: Path) -> None:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = {"stop_channel": server.server_address, "token": "secret"}
        steps = {"warmup": 5, "block": 5, "last": None}
        # The script catches everything and goes on.
        ranks = run(
            tmp_path, torch_python, "--ddp", "--catch", "--samples", "4000", world_size=2, steps=steps, **settings
        )
        server.shutdown()
    for number, rank in enumerate(ranks):
        assert rank.one("end")["steps"] == STOP
        protocol = rank.one("protocol")
        assert (protocol["stopped"], protocol["relative_half_width"]) == ("precision", 0.01)
        told = [message for message in server.received if message["rank"] == number]
        assert told[0] == {"rank": number}
        blocks = [("first", 1, 1), ("warmup", 5, 4), *(("measure", step, 5) for step in range(10, STOP + 1, 5))]
        # The last one may be on its way when the process ends.
        assert [(m["phase"], m["step"], m["n"]) for m in told[1:]] in (blocks, blocks[:-1])
