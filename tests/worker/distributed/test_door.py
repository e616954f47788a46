"""Strangers on the network: what they send, or do not send, while real ranks and parameter servers find each other."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strangers import IDLE, SAID, SECONDS, connected, idle, saying

from harness.core.rendezvous import Rendezvous, make_token, with_token
from harness.core.system import door
from harness.core.system.door import Door, StrangerError, prove
from harness.worker.distributed.exchange import gather, own_port

TOKEN = "of this run"


def ranks(n: int, token: str = TOKEN) -> list[Rendezvous]:
    port = own_port()
    return [Rendezvous(rank, n, rank, n, "127.0.0.1", port, token) for rank in range(n)]


@contextlib.contextmanager
def a_door() -> Iterator[tuple[Door, int]]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield Door(listener, TOKEN), listener.getsockname()[1]


@given(said=SAID, closes=st.booleans())
@settings(max_examples=15, deadline=None)
def test_ranks_find_each_other_whatever_strangers_send(said: list[bytes], closes: bool) -> None:
    first, *others = ranks(3)
    with ThreadPoolExecutor(3) as pool:
        served = pool.submit(gather, first, {"rank": 0}, SECONDS)
        with saying(first.master_port, said, closes):
            found = [pool.submit(gather, rendezvous, {"rank": rendezvous.rank}, SECONDS) for rendezvous in others]
            assert [each.result() for each in (served, *found)] == [[{"rank": n} for n in range(3)]] * 3


def test_a_thousand_idle_connections_do_not_keep_the_ranks_from_each_other(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = ranks(2)
    with ThreadPoolExecutor(2) as pool:
        served = pool.submit(gather, first, 0, SECONDS)
        with idle(first.master_port):
            assert pool.submit(gather, second, 1, SECONDS).result() == served.result() == [0, 1]
    assert f"{IDLE} connections that are not of this run were dropped" in capfd.readouterr().err


def test_a_rank_of_another_run_learns_nothing_and_is_not_counted() -> None:
    first, _ = ranks(2)
    other = Rendezvous(1, 2, 1, 2, "127.0.0.1", first.master_port, "of another run")
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(gather, rendezvous, "a secret", 2.0) for rendezvous in (first, other)]
        for each in found:
            with pytest.raises(TimeoutError):
                each.result()


def test_what_a_rank_has_sent_is_of_no_use_to_who_has_recorded_it() -> None:
    with a_door() as (entrance, port), socket.create_server(("127.0.0.1", 0)) as tap:
        recorded: list[bytes] = []

        def forward() -> None:
            inner, _ = tap.accept()
            with inner, connected(port) as outer:
                for receiver, sender, size in ((outer, inner, 16), (inner, outer, 48), (outer, inner, 32)):
                    text = sender.recv(size, socket.MSG_WAITALL)
                    receiver.sendall(text)
                    recorded.extend([text] if sender is inner else [])

        thread = threading.Thread(target=forward)
        thread.start()
        with socket.create_connection(tap.getsockname(), SECONDS) as rank:
            thread_of_rank = threading.Thread(target=prove, args=(rank, TOKEN))
            thread_of_rank.start()
            entered = entrance.accept(SECONDS)
            assert entered is not None
            entered.close()
            thread_of_rank.join()
        thread.join()
        with connected(port) as again:
            again.sendall(b"".join(recorded))
            assert entrance.accept(1.0) is None
        # Nor does a server that answers with what another has sent get anything.
        client, server = socket.socketpair()
        with client, server:
            server.sendall(b"".join(recorded))
            with pytest.raises(StrangerError):
                prove(client, TOKEN)


def test_a_connection_that_drips_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PROOF_SECONDS", 0.5)
    with a_door() as (entrance, port), connected(port) as slow:
        ended = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not ended.wait(0.1):
                    slow.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        assert entrance.accept(2.0) is None
        assert entrance.dropped == 1
        ended.set()
        thread.join()


def test_the_token_is_one_for_all_ranks_and_for_this_user_only(tmp_path: Any) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make_token, [tmp_path] * 4))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    tokens = {with_token(Rendezvous(n, 2, n, 2, "n1", 1), tmp_path).token for n in range(2)}
    assert [len(token) for token in tokens] == [32]
    assert file.read_text().strip() not in repr(with_token(Rendezvous(0, 1, 0, 1, "n1", 1), tmp_path))
