"""Parameter servers as processes, with workers in threads or processes over real sockets; no framework."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from project import PROJECT
from strangers import SAID, idle, saying

from harness.core.strategies import ASYNCHRONOUS, BOUNDED, SYNCHRONOUS
from harness.core.system import door
from harness.worker.servers import protocol
from harness.worker.servers.client import Address, Client, ServerFailed, divide
from harness.worker.servers.colocated import ColocatedServer
from harness.worker.servers.parameters import Parameters, Settings, counters_length
from harness.worker.servers.shared_counters import SharedCounters, make_file

SHARES = (5, 3)
SIZE = sum(SHARES)
WAIT_SECONDS = 20.0


class Running:
    """Real servers and their clients."""

    def __init__(self, stack: ExitStack, settings: Settings, returns: bool = False) -> None:
        """returns: restart servers, with each worker's weights in `held`."""
        self.settings, self.returns = settings, returns
        self.held = [row(0) for _ in range(settings.workers)]
        self.servers = [ColocatedServer(settings, "127.0.0.1") for _ in SHARES]
        for server in self.servers:
            server.closing = not returns  # or this process would end with it, as a rank does
            stack.callback(_end, server)
        self.clients = [self.client(worker) for worker in range(settings.workers)]

    def client(self, worker: int) -> Client:
        addresses = [server.address for server in self.servers]
        return Client(addresses, worker, SHARES, WAIT_SECONDS, self.held[worker].copy if self.returns else None)

    def all(self, act: Callable[[int, Client], Any]) -> list[Any]:
        """Run `act` for all workers concurrently and return the results."""
        with ThreadPoolExecutor(len(self.clients)) as threads:
            return list(threads.map(act, range(len(self.clients)), self.clients))


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Running]]:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    with ExitStack() as stack:

        def run(mode: str, workers: int, returns: bool = False, **changes: Any) -> Running:
            values = {"staleness": 0, "momentum": 0.9, "weight_decay": 0.01, "nesterov": False, **changes}
            return Running(stack, Settings(mode=mode, workers=workers, **values), returns)

        yield run


def _end(server: ColocatedServer) -> None:
    server.closing = True
    server.process.kill()
    server.process.wait()


def row(*seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


def by_hand(weights: np.ndarray, gradients: list[np.ndarray], rate: float, nesterov: bool) -> np.ndarray:
    """SGD in PyTorch's form (Adapter.train), in double precision."""
    weights, velocity = weights.astype(np.float64), np.zeros(SIZE)
    for gradient in gradients:
        decayed = gradient + 0.01 * weights
        velocity = 0.9 * velocity + decayed
        weights = weights - rate * (decayed + 0.9 * velocity if nesterov else velocity)
    return weights


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_synchronous_update_is_one_step_of_sgd_with_the_mean(start: Callable[..., Running], nesterov: bool) -> None:
    running = start(SYNCHRONOUS, 3, nesterov=nesterov)
    running.clients[0].store(row(0), np.zeros(SIZE, np.float32))

    def work(worker: int, client: Client) -> np.ndarray:
        weights = np.empty(SIZE, np.float32)
        for step in range(4):
            client.push(row(step, worker), 2, 0.1, weights)
        return weights

    found = running.all(work)
    means = [np.mean([row(step, worker) for worker in range(3)], axis=0) for step in range(4)]
    np.testing.assert_allclose(found[0], by_hand(row(0), means, 0.1, nesterov), rtol=1e-5, atol=1e-6)
    assert all(np.array_equal(found[0], other) for other in found)
    updates = running.clients[0].updates()
    assert (updates.updates, updates.staleness_mean, updates.staleness_max, updates.samples) == (4, 0, 0, 24)
    mean = np.empty(SIZE, np.float32)
    running.clients[2].mean(mean)
    np.testing.assert_allclose(mean, means[-1], rtol=1e-6, atol=1e-7)


def test_an_asynchronous_update_counts_what_came_between_pull_and_push(start: Callable[..., Running]) -> None:
    running = start(ASYNCHRONOUS, 2)
    first, second = running.clients
    first.store(row(0), np.zeros(SIZE, np.float32))
    weights = np.empty(SIZE, np.float32)
    gradients = [row(1, n) for n in range(4)]
    for gradient in gradients[:3]:  # nobody comes between: staleness 0
        first.push(gradient, 2, 0.1, weights)
    second.push(gradients[3], 2, 0.1, weights)  # three came since it began: staleness 3
    np.testing.assert_allclose(weights, by_hand(row(0), gradients, 0.1, False), rtol=1e-5, atol=1e-6)
    updates = second.updates()
    assert (updates.updates, updates.staleness_max, updates.samples) == (4, 3, 8)
    assert updates.staleness_mean == 3 / 4
    now = np.empty(SIZE, np.float32)
    first.pull(now)  # only looks: its own weights are still of the third update
    assert np.array_equal(now, weights)
    first.push(gradients[0], 2, 0.1, weights)
    assert second.updates().staleness_mean == (3 + 1) / 5


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_worker_begins_a_step_further_ahead_than_the_bound(start: Callable[..., Running], staleness: int) -> None:
    running, steps = start(BOUNDED, 3, staleness=staleness), 12
    running.clients[0].store(row(0), np.zeros(SIZE, np.float32))
    begun: list[tuple[float, int, int]] = []  # when, who, which step
    pushed: list[list[float]] = [[] for _ in running.clients]

    def work(worker: int, client: Client) -> None:
        weights = np.empty(SIZE, np.float32)
        for step in range(steps):
            begun.append((time.monotonic(), worker, step))
            time.sleep(0.3 if worker == 2 else 0)  # the slow one
            pushed[worker].append(time.monotonic())
            client.push(row(step, worker), 1, 0.01, weights)

    running.all(work)
    # As seen by the workers: at most what the others had sent when a step began.
    leads = [step - min(sum(sent < when for sent in of_one) for of_one in pushed) for when, _, step in begun]
    assert max(leads) <= staleness
    updates = running.clients[1].updates()
    assert updates.lead == staleness  # the bound is reached, with so slow a worker
    assert updates.updates == 3 * steps
    # Two other workers, each between `staleness` behind and `staleness` + 1 ahead.
    assert updates.staleness_max <= 2 * (2 * staleness + 1)


def test_sums_of_any_length_are_made_through_all_servers(start: Callable[..., Running]) -> None:
    running = start(ASYNCHRONOUS, 3)

    def work(worker: int, client: Client) -> list[np.ndarray]:
        rows = [np.full(n, worker + 1, np.float32) for n in (1, 2, 1000)]
        for numbers in rows:
            client.sum(numbers)
        return rows

    for rows in running.all(work):
        assert [numbers.tolist() for numbers in rows] == [[6.0] * n for n in (1, 2, 1000)]


def test_what_was_stored_goes_on_where_it_was(start: Callable[..., Running]) -> None:
    before, weights = start(ASYNCHRONOUS, 2), np.empty(SIZE, np.float32)
    before.clients[0].store(row(0), np.zeros(SIZE, np.float32))
    for worker in (0, 0, 1):
        before.clients[worker].push(row(1, worker), 2, 0.1, weights)
    after = start(ASYNCHRONOUS, 2)
    after.clients[0].store(*before.clients[0].load())
    after.clients[0].recall(before.clients[0].counters())
    ends = []
    for running in (before, after):
        running.clients[0].push(row(2), 2, 0.1, weights)
        ends.append((weights.copy(), *running.clients[1].load(), running.clients[1].counters()))
    assert all(np.array_equal(one, other) for one, other in zip(ends[0][:3], ends[1][:3], strict=True))
    assert ends[0][3] == ends[1][3]


@pytest.mark.parametrize("mode", [SYNCHRONOUS, BOUNDED])
def test_a_worker_that_is_lost_ends_the_waiting_of_the_others(start: Callable[..., Running], mode: str) -> None:
    running, weights = start(mode, 2), np.empty(SIZE, np.float32)
    running.clients[0].store(row(0), np.zeros(SIZE, np.float32))
    threading.Timer(0.3, lambda: [link.close() for link in running.clients[1].links]).start()
    begin = time.monotonic()
    with pytest.raises(
        ServerFailed, match=r"parameter server . of 2 at 127.0.0.1:\d+ cannot continue: worker 1 is gone"
    ):
        running.clients[0].push(row(1), 1, 0.1, weights)
    assert time.monotonic() - begin < 5


def test_an_asynchronous_server_goes_on_without_a_worker(start: Callable[..., Running]) -> None:
    running, weights = start(ASYNCHRONOUS, 2), np.empty(SIZE, np.float32)
    running.clients[0].store(row(0), np.zeros(SIZE, np.float32))
    for link in running.clients[1].links:
        link.close()
    time.sleep(0.2)
    running.clients[0].push(row(1), 1, 0.1, weights)
    assert running.clients[0].updates().updates == 1


def test_a_server_that_is_gone_is_an_error_that_names_it(start: Callable[..., Running]) -> None:
    running, weights = start(SYNCHRONOUS, 2), np.empty(SIZE, np.float32)
    running.clients[0].store(row(0), np.zeros(SIZE, np.float32))
    threading.Timer(0.3, running.servers[1].process.kill).start()
    begin = time.monotonic()
    with pytest.raises(ServerFailed, match=r"parameter server 1 of 2 at 127.0.0.1:\d+ is gone"):
        running.clients[1].push(row(1), 1, 0.1, weights)  # waits for worker 0, at both servers
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("mode", [ASYNCHRONOUS, BOUNDED])
def test_a_server_that_was_killed_comes_back_with_a_workers_weights(start: Callable[..., Running], mode: str) -> None:
    """A restarted server keeps its counters: losses are reported, and each push is applied once."""
    running = start(mode, 2, staleness=2, returns=True)
    first, second = running.clients
    first.store(row(0), np.zeros(SIZE, np.float32))
    held = running.held
    for worker in (0, 1, 0, 1):
        running.clients[worker].push(row(1, worker), 2, 0.1, held[worker])
    lost, kept = held[1][: SHARES[0]].copy(), held[0].copy()
    running.servers[0].process.kill()
    first.push(row(2), 2, 0.1, held[0])  # notices, and pushes again
    assert [back[:1] + back[2:] for back in first.returns] == [(0, 1, 2)]  # worker 1's last one came after its weights
    share = by_hand(kept, [row(2)], 0.1, False)[: SHARES[0]]  # momenta start at 0
    np.testing.assert_allclose(held[0][: SHARES[0]], share, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(held[0][: SHARES[0]], lost)
    second.push(row(3), 2, 0.1, held[1])
    assert second.returns == []
    updates = second.updates()
    # Of six updates per server, with staleness 0, 1, 1, 1, 1, 1, as if nothing had happened.
    assert (updates.updates, updates.samples, updates.staleness_mean, updates.staleness_max) == (6, 12, 5 / 6, 1)
    assert (updates.returns, updates.lost_updates, updates.lost_samples) == (1, 1, 2)
    assert [counters["clocks"] for counters in second.counters()] == [[3, 3], [3, 3]]

    running.servers[1].process.kill()
    now = np.empty(SIZE, np.float32)
    second.pull(now)  # a mere read waits for it too
    assert np.array_equal(now[SHARES[0] :], held[1][SHARES[0] :])
    assert [back.server for back in second.returns] == [1]
    assert second.updates().returns == 2


def test_a_push_that_was_applied_before_its_server_died_is_not_applied_again() -> None:
    settings = Settings(ASYNCHRONOUS, 2, 0, 0.9, 0.0, False)
    shared = SharedCounters(make_file(), counters_length(settings))
    before, out = Parameters(settings, shared), np.empty(SIZE, np.float32)
    before.store(row(0), np.zeros(SIZE, np.float32))
    before.push(0, row(1), 2, 0.1, out)
    before.push(1, row(2), 2, 0.1, out)
    # Killed here: worker 1 never got the answer, and still has the first weights.
    after = Parameters(settings, shared)
    said = after.revive(1, 0, row(0), out)
    assert said == {"applied": True, "taken": True, "lost_updates": 2}
    assert np.array_equal(out, row(0))
    assert after.revive(0, 1, row(9), out) == {"applied": False, "taken": False, "lost_updates": 0}
    after.push(0, row(3), 2, 0.1, out)
    counters = after.counters()
    assert (counters["updates"], counters["lost_updates"]) == (3, 2)
    # A third server, from weights with only the update after the restart: the same two are lost, no more.
    assert Parameters(settings, shared).revive(0, 2, out, out)["lost_updates"] == 0


def test_servers_end_when_all_have_said_goodbye_and_not_by_the_ranks_signals(start: Callable[..., Running]) -> None:
    running = start(ASYNCHRONOUS, 2)
    for server in running.servers:
        for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            os.kill(server.process.pid, number)
    running.clients[0].close()
    time.sleep(0.3)
    assert [server.process.poll() for server in running.servers] == [None, None]
    running.clients[1].close()
    for server in running.servers:
        server.close()
    assert [server.process.returncode for server in running.servers] == [0, 0]


def test_strangers_are_not_listened_to(start: Callable[..., Running]) -> None:
    running = start(ASYNCHRONOUS, 1)
    address = running.servers[0].address
    with socket.create_connection(address[:2], WAIT_SECONDS) as stranger:
        stranger.sendall(b"[" * 200_000)
        stranger.settimeout(WAIT_SECONDS)
        with suppress(ConnectionResetError):  # since the server has not read everything
            assert stranger.recv(100, socket.MSG_WAITALL)[door.NONCE_BYTES + door.PROOF_BYTES :] == b""
    # Nor does a worker that does not send what workers do end the server.
    for said in (b"[" * 200_000, b'{"worker": Infinity}', b"{}", b"\xff", b'{"worker": 99, "pushes": 0}'):
        with socket.create_connection(address[:2], WAIT_SECONDS) as worker:
            door.prove(worker, address.token)
            worker.sendall(protocol.HEADER.pack(protocol.HELLO, 0, 0.0, len(said)) + said)
            assert worker.recv(1) == b""
    with pytest.raises(ServerFailed, match="is gone"):
        Client([Address(*address[:2], "of another run")], 0, SHARES[:1], WAIT_SECONDS)
    running.clients[0].store(row(0), row(1))
    assert np.array_equal(running.clients[0].load()[0], row(0))


@given(said=SAID, closes=st.booleans())
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_workers_are_served_whatever_strangers_send(
    start: Callable[..., Running], said: list[bytes], closes: bool
) -> None:
    running = start(ASYNCHRONOUS, 1)
    with saying(running.servers[0].address[1], said, closes):
        running.clients[0].store(row(0), row(1))
        assert np.array_equal(running.clients[0].load()[0], row(0))


def test_a_thousand_idle_connections_do_not_keep_a_worker_away(start: Callable[..., Running]) -> None:
    running = start(ASYNCHRONOUS, 2)
    running.clients[0].store(row(0), row(1))
    with idle(running.servers[0].address[1]):
        running.clients[0].load()
        address = running.servers[0].address
        with socket.create_connection(address[:2], WAIT_SECONDS) as late:
            door.prove(late, address.token)
        assert np.array_equal(running.clients[1].load()[0], row(0))


def test_a_message_of_the_wrong_length_is_refused(start: Callable[..., Running]) -> None:
    running = start(ASYNCHRONOUS, 1)
    running.clients[0].store(row(0), row(1))
    link = running.clients[0].links[0]
    protocol.send(link, protocol.PUSH, [np.zeros(SHARES[0] + 1, np.float32)])
    with pytest.raises(ConnectionError):
        protocol.receive(link)


def test_tensors_are_divided_by_bytes_the_largest_first() -> None:
    assert divide([10, 70, 30, 40], 2) == [[1, 0], [3, 2]]
    assert divide([1], 3) == [[0], [], []]
    shares = divide(sizes := [3, 9, 27, 81, 243, 243], 3)
    assert sorted(number for share in shares for number in share) == list(range(6))
    assert [sum(sizes[number] for number in share) for share in shares] == [243, 243, 120]
