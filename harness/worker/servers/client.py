"""A worker's side of its parameter servers."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

import numpy as np

from harness.worker.servers import protocol
from harness.worker.servers.protocol import FLOAT

# A server that comes back has so long to start: Python and NumPy, which on a slow shared file system take many seconds.
BACK_SECONDS = 30.0
RETRY_SECONDS = 0.1
Given = TypeVar("Given")


class ServerFailed(RuntimeError):
    """A server is gone, or says why it cannot go on."""


class ServerGone(ServerFailed):
    """It does not answer; it may come back."""


class Address(NamedTuple):
    """token: what a worker of this run says, so that none of another one is taken for it."""

    host: str
    port: int
    token: str


class Update(NamedTuple):
    """Of the servers together. updates: applied by each server. staleness_*: of all updates of all servers. samples:
    that the updates were made of; of the server that has the fewest, since others reached only a part of the model.
    lead: the most steps that a worker was ahead of the slowest when it was given weights for its next step. returns:
    how often servers came back. lost_*: of updates and samples, those that were lost with a server; of the one that
    lost most."""

    updates: int
    staleness_mean: float
    staleness_max: int
    samples: int
    lead: int
    returns: int
    lost_updates: int
    lost_samples: int


class Return(NamedTuple):
    """A server that came back, and went on with this worker's copy of its weights. seconds: that the worker waited.
    lost_updates: that the server had applied after those in this copy. lost_samples: that these were made of."""

    server: int
    seconds: float
    lost_updates: int
    lost_samples: int


def divide(sizes: Sequence[int], servers: int) -> List[List[int]]:
    """Which tensors each server has, by their numbers: the largest first, to the server that has the least by then."""
    shares: List[List[int]] = [[] for _ in range(servers)]
    held = [0] * servers
    for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        least = held.index(min(held))
        shares[least].append(number)
        held[least] += sizes[number]
    return shares


class Client:
    """All arrays are one-dimensional, of FLOAT: the servers' shares one after the other.

    shares: how many numbers each server has. Every method raises ServerFailed where a server is gone, or cannot go on
    because another worker is.

    latest: gives the weights that this worker has, in an array of their own. A server that ended during a push, pull,
    load or counting is then waited for, and where it lost its weights, it has these (`returns`).
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
        # To each server, that were answered; of how many samples each is.
        self.pushes, self.samples = [0] * len(servers), 0
        # Not all workers begin with the same server.
        self.order = [(worker + k) % len(servers) for k in range(len(servers))]
        for k in range(len(servers)):
            try:
                self.links.append(self._greeted(k, timeout_seconds))
            except OSError as error:
                raise self._failed(k, error) from error

    def push(self, gradient: np.ndarray, samples: int, rate: float, weights: np.ndarray) -> None:
        """The servers apply the gradient, the mean over so many samples, with this learning rate; `weights` has then
        what to go on with."""
        self.samples = samples
        gone: Dict[int, ServerGone] = {}
        for k in self.order:
            with self._noted(k, gone):
                self._send(k, protocol.PUSH, [self._part(gradient, k)], samples, rate)
        for k in self.order:
            if k not in gone:
                with self._noted(k, gone):
                    self._done(k, self._part(weights, k))
        for k, error in gone.items():
            self._push_again(k, error, self._part(gradient, k), samples, rate, self._part(weights, k))
        for k in self.order:
            self.pushes[k] += 1

    def pull(self, weights: np.ndarray) -> None:
        """The servers' weights of this moment."""
        for k in self.order:
            self._insist(k, self._ask, k, protocol.PULL, self._part(weights, k))

    def mean(self, gradient: np.ndarray) -> None:
        """The mean that the last synchronous update was made with."""
        for k in self.order:
            self._ask(k, protocol.MEAN, self._part(gradient, k))

    def sum(self, numbers: np.ndarray) -> None:
        """Over all workers, in place, of any length; cut in the proportion of the shares."""
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
        """Weights and momenta."""
        weights, velocity = np.empty(sum(self.shares), FLOAT), np.empty(sum(self.shares), FLOAT)
        for k in self.order:
            self._insist(k, self._ask, k, protocol.LOAD, self._part(weights, k), self._part(velocity, k))
        return weights, velocity

    def counters(self) -> List[Dict[str, Any]]:
        """Of each server, as `recall` takes them."""

        def ask(k: int) -> Dict[str, Any]:
            self._send(k, protocol.COUNT)
            return dict(self._text(k, self._receive(k)))

        return [self._insist(k, ask, k) for k in range(len(self.links))]

    def recall(self, counters: Sequence[Dict[str, Any]]) -> None:
        for k, of_one in enumerate(counters):
            try:
                protocol.send_text(self.links[k], protocol.RECALL, of_one)
            except OSError as error:
                raise self._failed(k, error) from error
            self._done(k)

    def updates(self) -> Update:
        counters = self.counters()
        updates = min(of_one["updates"] for of_one in counters)
        return Update(
            updates=updates,
            staleness_mean=sum(c["staleness_sum"] for c in counters) / max(1, sum(c["updates"] for c in counters)),
            staleness_max=max(of_one["staleness_max"] for of_one in counters),
            samples=min(of_one["samples"] for of_one in counters),
            lead=max(of_one["lead"] for of_one in counters),
            returns=sum(of_one["returns"] for of_one in counters),
            lost_updates=max(of_one["lost_updates"] for of_one in counters),
            # All updates are of as many samples.
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

    def _greeted(self, k: int, timeout_seconds: float) -> socket.socket:
        """A link to a server that has answered. Raises OSError."""
        server = self.servers[k]
        link = socket.create_connection((server.host, server.port), timeout_seconds)
        try:
            protocol.prepare(link)
            said = {"worker": self.worker, "token": server.token, "pushes": self.pushes[k]}
            protocol.send_text(link, protocol.HELLO, said)
            protocol.receive_arrays(link, protocol.receive(link), [])
        except OSError:
            link.close()
            raise
        return link

    @contextlib.contextmanager
    def _noted(self, k: int, gone: Dict[int, ServerGone]) -> Iterator[None]:
        """Others have their turn first, unless nobody will wait for this one."""
        try:
            yield
        except ServerGone as error:
            if self.latest is None:
                raise
            gone[k] = error

    def _insist(self, k: int, act: Callable[..., Given], *arguments: Any) -> Given:
        while True:
            try:
                return act(*arguments)
            except ServerGone as error:
                self._await_return(k, error, self._part(np.empty(sum(self.shares), FLOAT), k))

    def _push_again(
        self, k: int, error: ServerGone, gradient: np.ndarray, samples: int, rate: float, weights: np.ndarray
    ) -> None:
        """Where it was not applied; `weights` may be the same row as `gradient`, which is then still as it was."""
        while not self._await_return(k, error, weights):
            try:
                self._send(k, protocol.PUSH, [gradient], samples, rate)
                self._done(k, weights)
                return
            except ServerGone as once_more:
                error = once_more

    def _await_return(self, k: int, error: ServerGone, weights: np.ndarray) -> bool:
        """Waits for the server to come back. Whether it had applied what was pushed to it last: `weights` has then
        what to go on with. Raises ServerFailed where it does not come back."""
        if self.latest is None:
            raise error
        begin = time.monotonic()
        copy = self._part(self.latest(), k)
        while True:
            self.links[k].close()
            left = begin + BACK_SECONDS - time.monotonic()
            try:
                self.links[k] = self._greeted(k, max(left, RETRY_SECONDS))
                self.links[k].settimeout(self.timeout_seconds)
                self._send(k, protocol.BACK, [copy])
                said = self._text(k, self._receive(k))
                if said["applied"]:
                    self._done(k, weights)
                break
            except ConnectionRefusedError:
                raise ServerFailed(f"{error}; and what would start it again is gone too") from error
            except (OSError, ServerGone):
                if left <= 0:
                    raise ServerFailed(f"{error}; and it did not come back within {BACK_SECONDS:.0f} s") from error
                time.sleep(RETRY_SECONDS)
        if said["taken"]:
            lost = int(said["lost_updates"])
            self.returns.append(Return(k, time.monotonic() - begin, lost, lost * self.samples))
            print(
                f"{self._name(k)} is back: it goes on with the weights of worker {self.worker}, without "
                f"momenta and {lost} update{'s' * (lost != 1)} that came after them",
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
        """The header of an answer that is no refusal."""
        try:
            header = protocol.receive(self.links[k])
        except OSError as error:
            raise self._failed(k, error) from error
        if header.kind == protocol.FAILED:
            raise ServerFailed(f"{self._name(k)} cannot go on: {self._text(k, header)}")
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
