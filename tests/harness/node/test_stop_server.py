"""The stop channel with real connections."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strangers import IDLE, SAID, idle, saying

from harness.core.measuring.precision import FEWEST_TO_STOP
from harness.core.spec import MeasureSpec
from harness.core.system.door import StrangerError, prove
from harness.node.stop_channel import Address, StopDecision, served, wait_for_address

MEASURE = MeasureSpec(warmup_steps=10, steps=200, block_steps=10, precision=0.02)
# The warm-up, and the fewest blocks with which a run may stop.
ENOUGH = range(10, 10 * (FEWEST_TO_STOP + 2), 10)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[Address]:
    with served(MEASURE, 2, "127.0.0.1", tmp_path) as address:
        assert wait_for_address(tmp_path) == address
        yield address


class Rank:
    def __init__(self, address: Address, rank: int, token: str | None = None) -> None:
        self.socket = socket.create_connection((address.host, address.port), timeout=10)
        self.rank = rank
        prove(self.socket, address.token if token is None else token)
        self.send({"rank": rank})

    def send(self, message: object) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def report(self, step: int, seconds: float = 1.0, n: int = 10) -> None:
        self.send({"rank": self.rank, "step": step, "n": n, "seconds": seconds, "phase": "measure"})

    def answer(self) -> object:
        line = self.socket.makefile().readline()
        return json.loads(line) if line else None


def test_all_ranks_are_told_the_same_step_once_the_slowest_was_measured_precisely(address: Address) -> None:
    ranks = [Rank(address, 0), Rank(address, 1)]
    for step in ENOUGH:
        for rank in ranks:
            rank.report(step)
    # Steps of 0.1 s: 170 done, a block ahead and 0.5 s, to the next end of a block.
    assert [rank.answer() for rank in ranks] == [{"stop": 190}] * 2


def test_a_rank_that_comes_late_is_told_at_once(address: Address) -> None:
    first, second = Rank(address, 0), Rank(address, 1)
    for step in ENOUGH:
        first.report(step)
        second.report(step)
    assert first.answer() == {"stop": 190}
    assert Rank(address, 1).answer() == {"stop": 190}


@given(said=SAID, closes=st.booleans())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranks_are_told_when_to_stop_whatever_strangers_send(tmp_path: Path, said: list[bytes], closes: bool) -> None:
    with served(MEASURE, 2, "127.0.0.1", tmp_path) as address, saying(address.port, said, closes):
        test_all_ranks_are_told_the_same_step_once_the_slowest_was_measured_precisely(address)


def test_a_thousand_idle_connections_make_room_for_ranks_and_are_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(MEASURE, 2, "127.0.0.1", tmp_path) as address, idle(address.port):
        test_all_ranks_are_told_the_same_step_once_the_slowest_was_measured_precisely(address)
    assert f"{IDLE} connections that are not of this run were dropped" in capfd.readouterr().err


def test_others_cannot_read_the_token(address: Address, tmp_path: Path) -> None:
    assert (tmp_path / "stop_channel.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("rank", [2, -1])
def test_a_number_that_is_not_of_a_rank_ends_the_connection(address: Address, rank: int) -> None:
    assert Rank(address, rank).answer() is None


@pytest.mark.parametrize("data", [b"[]\n", b"\x00\xff\n", b'{"rank": Infinity}\n', b"[" * 4000 + b"\n", b"x" * 9000])
def test_what_no_rank_says_ends_the_connection_even_of_who_knows_the_token(address: Address, data: bytes) -> None:
    with socket.create_connection((address.host, address.port), timeout=10) as link:
        prove(link, address.token)
        with contextlib.suppress(ConnectionError):
            link.sendall(data)
            assert link.recv(100) == b""
    test_all_ranks_are_told_the_same_step_once_the_slowest_was_measured_precisely(address)


def test_who_does_not_know_the_token_is_not_answered(address: Address) -> None:
    with pytest.raises(StrangerError):
        Rank(address, 0, "guessed")


def test_only_the_address_that_the_ranks_use_is_listened_on(address: Address) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", address.port), timeout=10)


@pytest.mark.parametrize("block", [{"step": 0}, {"n": -1}, {"seconds": float("nan")}, {"step": "10"}, {"n": 11}])
def test_a_block_that_cannot_be_ends_the_connection(address: Address, block: dict[str, object]) -> None:
    rank = Rank(address, 0)
    rank.send({"rank": 0, "step": 10, "n": 10, "seconds": 1.0, "phase": "measure", **block})
    assert rank.answer() is None


def test_a_rank_that_died_and_came_back_goes_on(address: Address) -> None:
    ranks = [Rank(address, 0), Rank(address, 1)]
    for step in ENOUGH:
        ranks[0].report(step)
    ranks[1].report(10)
    ranks[1].socket.close()
    back = Rank(address, 1)
    for step in ENOUGH:
        back.report(step)
    assert ranks[0].answer() == back.answer() == {"stop": 190}


def decided(steps: list[float], n: int = 10) -> list[int | None]:
    decision = StopDecision(MEASURE, 1)
    return [decision.add(0, 10 * (i + 1), n, n * seconds) for i, seconds in enumerate(steps)]


def test_short_steps_stop_further_ahead() -> None:
    # 170 steps done, one block, and 0.5 s are 500 steps of 1 ms.
    assert decided([0.001] * 17)[-1] == 680


def test_no_stop_while_the_interval_is_wide() -> None:
    assert decided([1.0, *[1.0, 2.0, 1.5, 1.2] * 4]) == [None] * 17


def test_the_slowest_rank_of_a_block_counts() -> None:
    decision = StopDecision(MEASURE, 2)
    for index, step in enumerate(ENOUGH):
        assert decision.add(0, step, 10, 1.0) is None
        # Its times vary by more than the precision.
        assert decision.add(1, step, 10, 2.0 + index % 3) is None


def test_waiting_for_a_rank_that_saves_does_not_count() -> None:
    decision = StopDecision(MEASURE, 2)
    for index, step in enumerate(ENOUGH):
        saving = float(index % 3)
        decision.add(0, step, 10, 1.0, left_out=saving)
        found = decision.add(1, step, 10, 1.0 + saving)
    assert found == 190


def test_a_block_that_was_left_out_is_no_time() -> None:
    decision = StopDecision(MEASURE, 1)
    found = [decision.add(0, step, 0 if step == 40 else 10, 0.0 if step == 40 else 1.0) for step in ENOUGH]
    assert found[-1] == 190
