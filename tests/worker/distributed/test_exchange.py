"""Ranks exchange one value each, over the sockets of real ranks, here in threads."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness.core.rendezvous import Rendezvous
from harness.core.system import ports
from harness.core.system.ports import FREE_PORTS, JOB_PORTS, held_port
from harness.worker.distributed.exchange import gather, own_address, own_port


def ranks(n: int, numbers: list[int] | None = None, port: int | None = None) -> list[Rendezvous]:
    port = port or own_port()
    return [Rendezvous(rank, n, rank, n, "127.0.0.1", port) for rank in numbers or range(n)]


def together(everyone: list[Rendezvous], seconds: float = 20.0) -> list[Any]:
    """Return what each rank receives or raises."""

    def one(rendezvous: Rendezvous) -> Any:
        try:
            return gather(rendezvous, {"is": rendezvous.rank}, seconds)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(everyone)) as pool:
        return list(pool.map(one, everyone))


@pytest.mark.parametrize("n", [1, 2, 12])
def test_every_rank_gets_every_value_in_order(n: int) -> None:
    assert together(ranks(n)) == [[{"is": rank} for rank in range(n)]] * n


def test_a_rank_that_comes_late_is_waited_for() -> None:
    first, second = ranks(2)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(gather(second, 2, 20)))
    timer = threading.Timer(0.7, thread.start)
    timer.start()
    assert gather(first, 1, 20) == [1, 2]
    timer.join()
    thread.join()
    assert found == [[1, 2]]


def test_the_port_is_free_again_at_once() -> None:
    with held_port() as port:
        pass
    together(ranks(4, port=port))
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


def test_two_processes_that_say_that_they_are_the_same_rank_are_an_error() -> None:
    # Four ranks started by an unsuitable launcher: several claim the same number.
    found = together(ranks(4, [0, 1, 1]), seconds=15.0)
    assert "two processes say that they are rank 1 of 4" in str(found[0])


def test_a_rank_that_does_not_come_is_named_by_those_that_did() -> None:
    found = together(ranks(3, [0, 2]), seconds=5.0)
    assert isinstance(found[0], TimeoutError)
    assert "only ranks [0, 2] arrived" in str(found[0])
    assert isinstance(found[1], TimeoutError)


def test_a_stranger_that_connects_is_passed_over() -> None:
    first, second = ranks(2)
    with ThreadPoolExecutor(2) as pool:
        served = pool.submit(gather, first, 1, 20)
        for said in (b"GET / HTTP/1.0\r\n\n", b"[]\n", b""):
            while True:
                try:
                    with socket.create_connection(("127.0.0.1", first.master_port)) as stranger:
                        stranger.sendall(said)
                        break
                except ConnectionRefusedError:
                    continue
        assert pool.submit(gather, second, 2, 20).result() == [1, 2]
        assert served.result() == [1, 2]


def test_a_port_that_somebody_has_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_port() as port:
        assert port in FREE_PORTS
        assert port not in JOB_PORTS
    monkeypatch.setattr(ports, "FREE_PORTS", range(port, port + 1))
    with socket.socket() as taken:
        taken.bind(("", port))
        with pytest.raises(OSError, match=f"no free port between {port} and {port} on this node"):
            own_port()
    with held_port() as held:
        assert held == port
        with pytest.raises(OSError, match="no free port"):
            own_port()
    with held_port() as again:
        assert again == port


def test_a_port_that_is_held_is_for_him_who_asks_for_it() -> None:
    """Many seconds pass between the choice of a port and the start of a framework on it."""
    with held_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        for _ in range(2):
            assert together(ranks(2, port=port)) == [[{"is": 0}, {"is": 1}]] * 2


def test_rank_0_waits_for_its_port_and_says_what_it_waited_for() -> None:
    first, second = ranks(2)
    with ThreadPoolExecutor(2) as pool:
        with socket.create_server(("", first.master_port)):
            late = pool.submit(gather, first, 1, 1.0)
            with pytest.raises(
                TimeoutError, match=f"another program on .* uses port {first.master_port}, the rendezvous of the 2 "
            ):
                late.result()
            served = pool.submit(gather, first, 1, 20.0)
            time.sleep(0.5)
            assert not served.done()
        assert pool.submit(gather, second, 2, 20.0).result() == served.result() == [1, 2]


def test_on_one_node_the_address_is_that_of_the_node_itself() -> None:
    assert own_address(Rendezvous(1, 2, 1, 2, "anything", 1)) == "127.0.0.1"


def test_on_several_nodes_rank_0_has_an_address_that_others_reach_though_its_name_leads_to_itself() -> None:
    try:
        address = own_address(Rendezvous(0, 2, 0, 1, "localhost", 1))
    except OSError:
        pytest.skip("this machine has no way to other hosts")
    assert not address.startswith("127.")
