"""A worker's side of its parameter servers."""

from __future__ import annotations

import socket
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from harness.worker.servers import protocol
from harness.worker.servers.protocol import FLOAT


class ServerFailed(RuntimeError):
    """A server is gone, or says why it cannot go on."""


class Address(NamedTuple):
    """token: what a worker of this run says, so that none of another one is taken for it."""

    host: str
    port: int
    token: str


class Update(NamedTuple):
    """Of the servers together. updates: applied by each server. staleness_*: of all updates of all servers. samples:
    that the updates were made of; of the server that has the fewest, since others reached only a part of the model.
    lead: the most steps that a worker was ahead of the slowest when it was given weights for its next step."""

    updates: int
    staleness_mean: float
    staleness_max: int
    samples: int
    lead: int


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
    """

    def __init__(self, servers: Sequence[Address], worker: int, shares: Sequence[int], timeout_seconds: float) -> None:
        self.servers, self.shares = servers, list(shares)
        self.links: List[socket.socket] = []
        # Not all workers begin with the same server.
        self.order = [(worker + k) % len(servers) for k in range(len(servers))]
        for k, server in enumerate(servers):
            try:
                link = socket.create_connection((server.host, server.port), timeout_seconds)
                self.links.append(link)
                protocol.prepare(link)
                protocol.send_text(link, protocol.HELLO, {"worker": worker, "token": server.token})
                self._done(k)
            except OSError as error:
                raise self._failed(k, error) from error

    def push(self, gradient: np.ndarray, samples: int, rate: float, weights: np.ndarray) -> None:
        """The servers apply the gradient, the mean over so many samples, with this learning rate; `weights` has then
        what to go on with."""
        for k in self.order:
            self._send(k, protocol.PUSH, [self._part(gradient, k)], samples, rate)
        for k in self.order:
            self._done(k, self._part(weights, k))

    def pull(self, weights: np.ndarray) -> None:
        """The servers' weights of this moment."""
        self._ask(protocol.PULL, weights)

    def mean(self, gradient: np.ndarray) -> None:
        """The mean that the last synchronous update was made with."""
        self._ask(protocol.MEAN, gradient)

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
            self._send(k, protocol.LOAD)
            self._done(k, self._part(weights, k), self._part(velocity, k))
        return weights, velocity

    def counters(self) -> List[Dict[str, Any]]:
        """Of each server, as `recall` takes them."""
        found = []
        for k in range(len(self.links)):
            self._send(k, protocol.COUNT)
            found.append(self._text(k, self._receive(k)))
        return found

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
        )

    def close(self) -> None:
        for k, link in enumerate(self.links):
            self._send(k, protocol.BYE)
            self._done(k)
            link.close()

    def _part(self, numbers: np.ndarray, k: int) -> np.ndarray:
        start = sum(self.shares[:k])
        return numbers[start : start + self.shares[k]]

    def _ask(self, kind: bytes, out: np.ndarray) -> None:
        for k in self.order:
            self._send(k, kind)
        for k in self.order:
            self._done(k, self._part(out, k))

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

    def _failed(self, k: int, error: OSError) -> ServerFailed:
        return ServerFailed(f"{self._name(k)} is gone: {error}")

    def _name(self, k: int) -> str:
        return f"parameter server {k} of {len(self.servers)} at {self.servers[k].host}:{self.servers[k].port}"
