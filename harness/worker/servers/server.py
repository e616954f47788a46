"""The communication of a parameter server: one thread per worker."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import traceback
from typing import Callable, Dict, Iterator, Optional, Set, Tuple

import numpy as np

from harness.core.system.door import Door
from harness.worker.servers import protocol
from harness.worker.servers.parameters import Parameters, Settings, WorkerGone
from harness.worker.servers.protocol import FLOAT, Header, ProtocolError
from harness.worker.servers.shared_counters import SharedCounters

# Time for a worker to say which one it is.
HELLO_SECONDS = 10.0


class Server:
    """Serves until every worker has signed off or is gone."""

    def __init__(
        self, listener: socket.socket, settings: Settings, token: str, shared: Optional[SharedCounters] = None
    ) -> None:
        self.door, self.settings = Door(listener, token), settings
        self.parameters = Parameters(settings, shared)
        self.came: Set[int] = set()
        self.left = 0
        self.ended = threading.Event()
        self.lock = threading.Lock()

    def serve(self) -> bool:
        """Serve; return True if every worker has signed off."""
        threading.Thread(target=self._accept, name="accept", daemon=True).start()
        self.ended.wait()
        self.door.report()
        return self.parameters.gone is None

    def _accept(self) -> None:
        with self._guarded():
            while True:
                link = self.door.accept()
                threading.Thread(target=self._talk, args=(link,), daemon=True).start()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # A bug in the server: end it, so that no worker waits for a dead thread.
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _talk(self, link: socket.socket) -> None:
        with self._guarded(), link:
            self._serve(link)

    def _serve(self, link: socket.socket) -> None:
        try:
            worker, pushes = self._greet(link)
        except (OSError, KeyError, TypeError, ValueError, OverflowError):
            return  # e.g. a worker that died
        why = None
        try:
            _Connection(self.parameters, link, worker, pushes).serve()
        except (WorkerGone, ValueError) as error:
            why = str(error)
            with contextlib.suppress(OSError):  # else the worker notices the closed connection
                protocol.send_text(link, protocol.FAILED, why)
        except OSError as error:
            why = str(error)
        if why is not None:
            self.parameters.lose(worker, why)
        with self.lock:
            self.left += 1
            if self.left == self.settings.workers:
                self.ended.set()

    def _greet(self, link: socket.socket) -> Tuple[int, int]:
        """Return (worker, number of its pushes acknowledged before)."""
        protocol.prepare(link)
        link.settimeout(HELLO_SECONDS)
        header = protocol.receive(link)
        if header.kind != protocol.HELLO:
            raise ProtocolError(f"{header.kind!r} is not a greeting")
        said = protocol.receive_text(link, header)
        worker = int(said["worker"])
        with self.lock:
            if worker in self.came or not 0 <= worker < self.settings.workers:
                raise ProtocolError(f"worker {worker} is not one of {self.settings.workers}, or is connected already")
            self.came.add(worker)
        link.settimeout(None)
        protocol.send(link, protocol.DONE)
        return worker, int(said["pushes"])


class _Connection:
    """The connection to one worker, which sends one request at a time."""

    def __init__(self, parameters: Parameters, link: socket.socket, worker: int, pushes: int) -> None:
        self.parameters, self.link, self.worker, self.pushes = parameters, link, worker, pushes
        self.gradient = self.weights = np.empty(0, FLOAT)

    def serve(self) -> None:
        """Answer requests until BYE. Raises OSError if the worker is gone, and the errors of `Parameters`."""
        answers: Dict[bytes, Callable[[Header], None]] = {
            protocol.PUSH: self._push,
            protocol.PULL: self._pull,
            protocol.MEAN: self._mean,
            protocol.SUM: self._sum,
            protocol.STORE: self._store,
            protocol.LOAD: self._load,
            protocol.RECALL: self._recall,
            protocol.COUNT: self._count,
            protocol.BACK: self._back,
        }
        while True:
            header = protocol.receive(self.link)
            if header.kind == protocol.BYE:
                return self._done()
            if header.kind not in answers:
                raise ProtocolError(f"{header.kind!r} is not a request")
            answers[header.kind](header)

    def _done(self, *arrays: np.ndarray) -> None:
        protocol.send(self.link, protocol.DONE, arrays)

    def _push(self, header: Header) -> None:
        size = self.parameters.weights.size
        if self.gradient.size != size:
            self.gradient, self.weights = np.empty(size, FLOAT), np.empty(size, FLOAT)
        protocol.receive_arrays(self.link, header, [self.gradient])
        self.parameters.push(self.worker, self.gradient, header.samples, header.rate, self.weights)
        self._done(self.weights)

    def _pull(self, header: Header) -> None:
        weights = np.empty_like(self.parameters.weights)
        self.parameters.pull(weights)
        self._done(weights)

    def _mean(self, header: Header) -> None:
        # Not modified until this worker pushes again.
        self._done(self.parameters.mean)

    def _sum(self, header: Header) -> None:
        numbers = np.empty(header.bytes // FLOAT.itemsize, FLOAT)
        protocol.receive_arrays(self.link, header, [numbers])
        self._done(self.parameters.add(self.worker, numbers))

    def _store(self, header: Header) -> None:
        both = np.empty(header.bytes // FLOAT.itemsize, FLOAT)
        protocol.receive_arrays(self.link, header, [both])
        if both.size % 2:
            raise ProtocolError(f"{both.size} numbers are not equally many weights and momenta")
        self.parameters.store(*np.split(both, 2))
        self._done()

    def _load(self, header: Header) -> None:
        self._done(self.parameters.weights, self.parameters.velocity)

    def _recall(self, header: Header) -> None:
        self.parameters.recall(protocol.receive_text(self.link, header))
        self._done()

    def _count(self, header: Header) -> None:
        protocol.send_text(self.link, protocol.DONE, self.parameters.counters())

    def _back(self, header: Header) -> None:
        copy = np.empty(header.bytes // FLOAT.itemsize, FLOAT)
        protocol.receive_arrays(self.link, header, [copy])
        weights = np.empty_like(copy)
        said = self.parameters.revive(self.worker, self.pushes, copy, weights)
        protocol.send_text(self.link, protocol.DONE, said)
        if said["applied"]:
            self._done(weights)
