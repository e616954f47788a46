"""Tells the ranks of the user's own training at which step to stop, over a connection of the harness's own.

The supervisor of rank 0 listens. Each rank connects, proves that it belongs to the run (harness/core/system/door.py),
says which rank it is, and reports its blocks of steps, as lines of JSON; the answer is one line, {"stop": N}, as soon
as enough was measured.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.core import run_files
from harness.core.measuring.protocol import Protocol
from harness.core.measuring.slowest_rank import slowest_seconds
from harness.core.serialization import write_json
from harness.core.spec import MeasureSpec
from harness.core.system.door import Door
from harness.core.system.ports import held_port, listener

# The answer must reach every rank before it takes the step.
NOTICE_SECONDS = 0.5
POLL_SECONDS = 0.2
# Longest message; whoever sends more is not a rank.
LONGEST_LINE = 4096
# How long ranks on other nodes wait for rank 0's supervisor to listen.
WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class Address:
    """Contents of stop_channel.json. Only who knows the token is listened to."""

    host: str
    port: int
    token: str = field(repr=False)


class StopDecision:
    """Finds the step at which all ranks stop, from the blocks that they report."""

    def __init__(self, measure: MeasureSpec, world_size: int) -> None:
        self._measure, self._world_size = measure, world_size
        self._protocol = Protocol(measure, 0)
        # Of blocks that not all ranks have finished, by the step at their end: seconds per step by rank, and left out.
        self._blocks: dict[int, dict[int, tuple[float, float]]] = defaultdict(dict)
        self._latest = 0

    def add(self, rank: int, step: int, n: int, seconds: float, left_out: float = 0.0) -> int | None:
        """Add a block, after which a rank has done `step` steps. Returns the step to stop at, or None.

        Args:
            rank: who reports.
            step: optimiser steps done.
            n: timed steps of the block; 0 if all of it was left out, such as an evaluation.
            seconds: their duration.
            left_out: seconds left out of it.
        """
        protocol = self._protocol
        self._latest = max(self._latest, step)
        if step > protocol.step:
            self._blocks[step][rank] = (seconds / n, left_out / n) if n else (0.0, 0.0)
        while protocol.going:
            end = protocol.step + protocol.block.n
            if len(self._blocks.get(end, {})) < self._world_size:
                return None
            protocol.add(slowest_seconds(list(self._blocks[end].values())) or protocol.step_seconds or 0.0)
            self._blocks = defaultdict(dict, {step: block for step, block in self._blocks.items() if step > end})
        return self._stop() if protocol.outcome()["stopped"] == "precision" else None

    def _stop(self) -> int:
        """A block end that no rank reaches before it knows: a block and NOTICE_SECONDS from now."""
        measure, step_seconds = self._measure, self._protocol.step_seconds
        assert step_seconds is not None
        notice = math.ceil(NOTICE_SECONDS / step_seconds) if step_seconds > 0 else measure.steps
        earliest = self._latest + measure.block_steps + notice
        blocks = math.ceil((earliest - measure.warmup_steps) / measure.block_steps)
        return measure.warmup_steps + blocks * measure.block_steps


@contextlib.contextmanager
def served(measure: MeasureSpec, world_size: int, host: str, attempt_dir: Path) -> Iterator[Address]:
    """Serve the ranks in a thread until the context ends, and write the address to stop_channel.json.

    Args:
        measure: when enough was measured.
        world_size: number of ranks that report.
        host: this node's name or address for the ranks, on which alone is listened; a loopback address if all are on
            this node.
        attempt_dir: folder of the attempt.

    Raises:
        OSError: no free port, or the file cannot be written.
    """
    with held_port() as port:
        listening = listener(host, port, world_size)
    address = Address(host, port, secrets.token_hex(16))
    server = _Server(listening, address.token, StopDecision(measure, world_size), world_size)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    write_json(attempt_dir / run_files.STOP_CHANNEL, asdict(address), private=True)
    try:
        yield address
    finally:
        server.ending.set()
        thread.join()


def wait_for_address(attempt_dir: Path, given_up: Callable[[], bool] = lambda: False) -> Address:
    """Read stop_channel.json once it is there. Raises TimeoutError, or InterruptedError once `given_up` is true."""
    path = attempt_dir / run_files.STOP_CHANNEL
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            return Address(**json.loads(path.read_text(encoding="utf-8")))
        if given_up():
            raise InterruptedError
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"{path} did not appear within {WAIT_SECONDS:.0f} s: the supervisor of rank 0 has not started")


@dataclass
class _Connection:
    """A connection from a process of the run. rank: None until its first message."""

    socket: socket.socket
    rank: int | None = None
    pending: bytes = b""


class _Server:
    def __init__(self, listener: socket.socket, token: str, decision: StopDecision, world_size: int) -> None:
        self.ending = threading.Event()
        self._decision, self._world_size = decision, world_size
        self._stop: int | None = None
        self._listener, self._door = listener, Door(listener, token)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ)

    def run(self) -> None:
        while not self.ending.is_set():
            for key, _ in self._selector.select(POLL_SECONDS):
                if key.data is not None:
                    self._receive(key.data)
            self._accept()  # at every poll, since it also closes connections that have not proven anything in time
        for connection in self._connections():
            connection.socket.close()
        self._door.close()
        self._listener.close()
        self._selector.close()

    def _connections(self) -> list[_Connection]:
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def _accept(self) -> None:
        while (accepted := self._door.accept(0.0)) is not None:
            accepted.setblocking(False)
            self._selector.register(accepted, selectors.EVENT_READ, _Connection(accepted))

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(LONGEST_LINE)
            *lines, connection.pending = (connection.pending + data).split(b"\n")
            for line in lines:
                self._message(connection, json.loads(line))
            if not data or len(connection.pending) > LONGEST_LINE:
                raise ConnectionError
        except BlockingIOError:
            return
        # A rank that has ended, or something else of the run that is not a rank.
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            self._drop(connection)

    def _message(self, connection: _Connection, message: dict[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError on what a rank does not send."""
        if connection.rank is None:
            connection.rank = _natural(message["rank"], 0, self._world_size - 1)
            self._answer(connection)
            return
        step = _natural(message["step"], 1)
        seconds, left_out = float(message["seconds"]), float(message.get("left_out", 0.0))
        n = _natural(message["n"], 0, step)
        if not all(math.isfinite(value) and value >= 0 for value in (seconds, left_out)):
            raise ValueError(f"{seconds} seconds, {left_out} left out")
        if self._stop is None:
            self._stop = self._decision.add(connection.rank, step, n, seconds, left_out)
            for each in self._connections():
                self._answer(each)

    def _answer(self, connection: _Connection) -> None:
        if self._stop is None or connection.rank is None:
            return
        try:
            connection.socket.sendall(json.dumps({"stop": self._stop}).encode() + b"\n")
        except OSError:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.socket)
        connection.socket.close()


def _natural(value: object, least: int, most: float = math.inf) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{value!r} is not a number of a rank or of steps")
    return value
