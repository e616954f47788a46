"""A worker's connection to its parameter servers."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

import numpy as np

from harness.core.system.door import StrangerError, prove
from harness.worker.servers import protocol
from harness.worker.servers.protocol import FLOAT

# Time for a server to restart: Python and NumPy take many seconds to load from a slow shared file system.
BACK_SECONDS = 30.0
RETRY_SECONDS = 0.1
Given = TypeVar("Given")


class ServerFailed(RuntimeError):
    """A server is gone or reported why it cannot continue."""


class ServerGone(ServerFailed):
    """A server does not answer; it may come back."""


class Address(NamedTuple):
    """token: known to the workers of this run only."""

    host: str
    port: int
    token: str


class Update(NamedTuple):
    """Statistics over all servers.

    updates: number applied by each server. staleness_*: over all updates of all servers. samples: number that the
    updates are based on, of the server with the fewest, as others updated only part of the model. lead: largest number
    of steps by which a worker was ahead of the slowest when it received weights for its next step. returns: number of
    server restarts. lost_*: updates and samples lost with a server; of the one that lost most.
    """

    updates: int
    staleness_mean: float
    staleness_max: int
    samples: int
    lead: int
    returns: int
    lost_updates: int
    lost_samples: int


class Return(NamedTuple):
    """A server that came back and continued with this worker's copy of its weights.

    seconds: time this worker waited. lost_updates: updates that the server had applied after those in this copy.
    lost_samples: samples they were based on.
    """

    server: int
    seconds: float
    lost_updates: int
    lost_samples: int


def divide(sizes: Sequence[int], servers: int) -> List[List[int]]:
    """Return each server's tensors by number: the largest first, each to the server with the smallest share so far."""
    shares: List[List[int]] = [[] for _ in range(servers)]
    held = [0] * servers
    for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        least = held.index(min(held))
        shares[least].append(number)
        held[least] += sizes[number]
    return shares


class Client:
    """Arrays are one-dimensional, of FLOAT: the servers' shares in sequence.

    shares: elements per server. latest: returns a new array with this worker's weights; if given, the client waits for
    a server that ended during a push, pull, load or count, and restores its weights if it lost them (`returns`).

    All methods raise ServerFailed if a server is gone, or cannot continue because another worker is gone.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        worker: int,
        shares: Sequence[int],
        timeout_seconds: float,
        latest: Optional[Callable[[], np.ndarray]] = None,
    ) -> None:
        self.servers, self.shares, self.latest = servers, list(shares), latest
        self.worker, self.timeout_seconds = worker, timeout_seconds
        self.links: List[socket.socket] = []
        self.returns: List[Return] = []
        # Acknowledged pushes per server; samples per push.
        self.pushes, self.samples = [0] * len(servers), 0
        # Workers start with different servers.
        self.order = [(worker + k) % len(servers) for k in range(len(servers))]
        for k in range(len(servers)):
            try:
                self.links.append(self._connect(k, timeout_seconds))
            except OSError as error:
                raise self._failed(k, error) from error

    def push(self, gradient: np.ndarray, samples: int, rate: float, weights: np.ndarray) -> None:
        """Let the servers apply the gradient, the mean over `samples`, at learning rate `rate`; write the weights to
        continue with into `weights`."""
        self.samples = samples
        gone: Dict[int, ServerGone] = {}
        for k in self.order:
            with self._deferred(k, gone):
                self._send(k, protocol.PUSH, [self._part(gradient, k)], samples, rate)
        for k in self.order:
            if k not in gone:
                with self._deferred(k, gone):
                    self._done(k, self._part(weights, k))
        for k, error in gone.items():
            self._push_again(k, error, self._part(gradient, k), samples, rate, self._part(weights, k))
        for k in self.order:
            self.pushes[k] += 1

    def pull(self, weights: np.ndarray) -> None:
        """Read the servers' current weights."""
        for k in self.order:
            self._retry(k, self._ask, k, protocol.PULL, self._part(weights, k))

    def mean(self, gradient: np.ndarray) -> None:
        """Read the mean gradient of the last synchronous update."""
        for k in self.order:
            self._ask(k, protocol.MEAN, self._part(gradient, k))

    def sum(self, numbers: np.ndarray) -> None:
        """Sum an array of any length over all workers, in place; it is split in proportion to the shares."""
        whole = max(1, sum(self.shares))
        ends = [numbers.size * sum(self.shares[: k + 1]) // whole for k in range(len(self.shares))]
        ends[-1] = numbers.size
        parts = np.split(numbers, ends[:-1])
        for k in self.order:
            self._send(k, protocol.SUM, [parts[k]])
        for k in self.order:
            self._done(k, parts[k])

    def store(self, weights: np.ndarray, velocity: np.ndarray) -> None:
        for k in self.order:
            self._send(k, protocol.STORE, [self._part(weights, k), self._part(velocity, k)])
            self._done(k)

    def load(self) -> Tuple[np.ndarray, np.ndarray]:
        """Return (weights, momenta)."""
        weights, velocity = np.empty(sum(self.shares), FLOAT), np.empty(sum(self.shares), FLOAT)
        for k in self.order:
            self._retry(k, self._ask, k, protocol.LOAD, self._part(weights, k), self._part(velocity, k))
        return weights, velocity

    def counters(self) -> List[Dict[str, Any]]:
        """Return the counters of each server, for `recall`."""

        def ask(k: int) -> Dict[str, Any]:
            self._send(k, protocol.COUNT)
            return dict(self._text(k, self._receive(k)))

        return [self._retry(k, ask, k) for k in range(len(self.links))]

    def recall(self, counters: Sequence[Dict[str, Any]]) -> None:
        for k, server in enumerate(counters):
            try:
                protocol.send_text(self.links[k], protocol.RECALL, server)
            except OSError as error:
                raise self._failed(k, error) from error
            self._done(k)

    def updates(self) -> Update:
        counters = self.counters()
        updates = min(server["updates"] for server in counters)
        return Update(
            updates=updates,
            staleness_mean=sum(c["staleness_sum"] for c in counters) / max(1, sum(c["updates"] for c in counters)),
            staleness_max=max(server["staleness_max"] for server in counters),
            samples=min(server["samples"] for server in counters),
            lead=max(server["lead"] for server in counters),
            returns=sum(server["returns"] for server in counters),
            lost_updates=max(server["lost_updates"] for server in counters),
            # All updates are based on equally many samples.
            lost_samples=max(c["lost_updates"] * c["samples"] // max(1, c["updates"]) for c in counters),
        )

    def close(self) -> None:
        for k, link in enumerate(self.links):
            self._send(k, protocol.BYE)
            self._done(k)
            link.close()

    def _part(self, numbers: np.ndarray, k: int) -> np.ndarray:
        start = sum(self.shares[:k])
        return numbers[start : start + self.shares[k]]

    def _connect(self, k: int, timeout_seconds: float) -> socket.socket:
        """Return a link to a server that answered. Raises OSError."""
        server = self.servers[k]
        deadline = time.monotonic() + timeout_seconds
        while True:
            link = socket.create_connection((server.host, server.port), timeout_seconds)
            try:
                protocol.prepare(link)
                prove(link, server.token)
                break
            except OSError as error:
                link.close()
                # The server drops a connection that is slow to prove itself, or in the way of many others.
                if isinstance(error, StrangerError) or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)
        try:
            protocol.send_text(link, protocol.HELLO, {"worker": self.worker, "pushes": self.pushes[k]})
            protocol.receive_arrays(link, protocol.receive(link), [])
        except OSError:
            link.close()
            raise
        return link

    @contextlib.contextmanager
    def _deferred(self, k: int, gone: Dict[int, ServerGone]) -> Iterator[None]:
        """Defer a lost server until the others are done, unless it will not be waited for."""
        try:
            yield
        except ServerGone as error:
            if self.latest is None:
                raise
            gone[k] = error

    def _retry(self, k: int, act: Callable[..., Given], *arguments: Any) -> Given:
        while True:
            try:
                return act(*arguments)
            except ServerGone as error:
                self._await_return(k, error, self._part(np.empty(sum(self.shares), FLOAT), k))

    def _push_again(
        self, k: int, error: ServerGone, gradient: np.ndarray, samples: int, rate: float, weights: np.ndarray
    ) -> None:
        """Push until the update has been applied. `weights` may alias `gradient`, which is intact until then."""
        while not self._await_return(k, error, weights):
            try:
                self._send(k, protocol.PUSH, [gradient], samples, rate)
                self._done(k, weights)
                return
            except ServerGone as once_more:
                error = once_more

    def _await_return(self, k: int, error: ServerGone, weights: np.ndarray) -> bool:
        """Wait for the server to come back; return True if it had applied the last push, with the result in `weights`.

        Raises ServerFailed if it does not come back.
        """
        if self.latest is None:
            raise error
        begin = time.monotonic()
        copy = self._part(self.latest(), k)
        while True:
            self.links[k].close()
            left = begin + BACK_SECONDS - time.monotonic()
            try:
                self.links[k] = self._connect(k, max(left, RETRY_SECONDS))
                self.links[k].settimeout(self.timeout_seconds)
                self._send(k, protocol.BACK, [copy])
                said = self._text(k, self._receive(k))
                if said["applied"]:
                    self._done(k, weights)
                break
            except ConnectionRefusedError:
                raise ServerFailed(f"{error}; and the process that restarts it is gone too") from error
            except (OSError, ServerGone):
                if left <= 0:
                    raise ServerFailed(f"{error}; and it did not come back within {BACK_SECONDS:.0f} s") from error
                time.sleep(RETRY_SECONDS)
        if said["taken"]:
            lost = int(said["lost_updates"])
            self.returns.append(Return(k, time.monotonic() - begin, lost, lost * self.samples))
            print(
                f"{self._name(k)} is back with the weights of worker {self.worker}; lost are the "
                f"momenta and {lost} later update{'s' * (lost != 1)}",
                file=sys.stderr,
                flush=True,
            )
        return bool(said["applied"])

    def _ask(self, k: int, kind: bytes, *out: np.ndarray) -> None:
        self._send(k, kind)
        self._done(k, *out)

    def _send(
        self, k: int, kind: bytes, arrays: Sequence[np.ndarray] = (), samples: int = 0, rate: float = 0.0
    ) -> None:
        try:
            protocol.send(self.links[k], kind, arrays, samples, rate)
        except OSError as error:
            raise self._failed(k, error) from error

    def _receive(self, k: int) -> protocol.Header:
        """Return the answer's header. Raises ServerFailed if it is a refusal."""
        try:
            header = protocol.receive(self.links[k])
        except OSError as error:
            raise self._failed(k, error) from error
        if header.kind == protocol.FAILED:
            raise ServerFailed(f"{self._name(k)} cannot continue: {self._text(k, header)}")
        return header

    def _done(self, k: int, *arrays: np.ndarray) -> None:
        header = self._receive(k)
        try:
            protocol.receive_arrays(self.links[k], header, arrays)
        except OSError as error:
            raise self._failed(k, error) from error

    def _text(self, k: int, header: protocol.Header) -> Any:
        try:
            return protocol.receive_text(self.links[k], header)
        except OSError as error:
            raise self._failed(k, error) from error

    def _failed(self, k: int, error: OSError) -> ServerGone:
        return ServerGone(f"{self._name(k)} is gone: {error}")

    def _name(self, k: int) -> str:
        return f"parameter server {k} of {len(self.servers)} at {self.servers[k].host}:{self.servers[k].port}"
